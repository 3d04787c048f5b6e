"""Every method by hand, and what must hold between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feduca
from feduca.client.behaviour import Behaviour
from feduca.client.offers import Global
from feduca.client.participation import AccuracyImproves, Always, Decision
from feduca.client.personal import Nothing
from feduca.core import rounds as loop
from feduca.core.memory import memories
from feduca.core.rng import stream
from feduca.core.rounds import Server
from feduca.core.utility import Quadratic
from feduca.errors import ConfigError, RunError
from feduca.federation import InProcess, Recording
from feduca.federation import replay as recordings
from feduca.federation.lockstep import together
from feduca.mechanisms import AFL, APFL, MIFA, TERM, AAggFF, Ditto, FedAvg, FedProx, FedVARP, IncFL, PropFair, QFedAvg
from feduca.mechanisms.afl import onto_simplex
from feduca.mechanisms.apfl import LEAST, STEP
from feduca.recipes import build as experiment
from feduca.types import Allocation, LocalSpec, Needs, Round
from numpy_task import Merged, NumpyTask

SPEC = LocalSpec(epochs=2, batch_size=8, lr=0.1)


def seen(**changes) -> Round:
    base = Round(
        round=1,
        joined=np.array([True, True, False]),
        active=np.ones(3, bool),
        gamma=np.full(3, np.nan),
        zeta=np.full((3, 3), np.nan),
        examples=np.array([10, 20, 30]),
        train_loss=np.array([1.0, 2.0, 0.5]),
        delta=np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]]),
        previous=Allocation(np.full(3, 1 / 3), "initial"),
    )
    return replace(base, **changes)


def weights(mechanism, round: Round | None = None):
    state, _ = mechanism.init(np.array([10, 20, 30]), 0)
    return mechanism.allocate(state, round or seen(), 0)


def play(mechanism, rounds=3, rule=None, memory="update", task=None, state=None, federation=None, **how):
    task = task or NumpyTask()
    server = Server(mechanism, memories[memory], Quadratic(), SPEC, rounds, seed=5)
    personal = getattr(mechanism, "personal", Nothing())
    behaviour = Behaviour(
        rule or AccuracyImproves(), Global(), Quadratic(), 5, needs=mechanism.needs, personal=personal, **how
    )
    federation = federation or Recording(InProcess(task, behaviour))
    items = list(loop.steps(server, task.init(5), task.examples, federation, evaluate=task.test, state=state))
    return items, federation, behaviour


class TakingTurns:
    """Even silos in even rounds, odd silos in odd rounds."""

    needs = Needs()

    def decide(self, situation):
        n = len(situation.gamma)
        return Decision(np.arange(n) % 2 == situation.round % 2, ["its turn"] * n)


# Weights -------------------------------------------------------------------------------------------------------------


def test_incfl_by_hand():
    # x = F - rho = (0, ln 3, -ln 3): sigma = 1/2, 3/4, 1/4, so q = 1/4, 3/16, 3/16 and sum q = 5/8.
    told = {"rho": np.array([1.0, 2.0 - np.log(3), 0.5 + np.log(3)])}
    _, allocation = weights(IncFL(eps=0.0), seen(told=told))
    assert allocation.alpha == pytest.approx([0.4, 0.3, 0.3])
    # eps enters the denominator, eta_g the numerator: the weights need not sum to one.
    _, damped = weights(IncFL(eps=0.375, eta_g=2.0), seen(told=told))
    assert damped.alpha == pytest.approx([0.5, 0.375, 0.375])
    # A temperature of 2 halves x: sigma(ln 3 / 2) = sqrt 3 / (1 + sqrt 3).
    _, warm = weights(IncFL(eps=0.0, temperature=2.0), seen(told=told))
    s = np.sqrt(3) / (1 + np.sqrt(3))
    assert warm.alpha[1] / warm.alpha[0] == pytest.approx(4 * s * (1 - s))


def test_incfl_survives_losses_that_would_overflow_a_sigmoid():
    _, allocation = weights(
        IncFL(), seen(train_loss=np.array([1e4, 1.0, 0.0]), told={"rho": np.array([0.0, 1.0, 1e4])})
    )
    assert allocation.alpha == pytest.approx([0, 1, 0], abs=1e-6)


def test_incfl_measures_its_solo_loss_once_before_the_first_round():
    task = NumpyTask()
    items, federation, _ = play(IncFL(warmup=3), rule=Always(), task=task)
    rho = [reports.measurements.told["rho"] for reports in federation.reports]
    alone = task.train(np.tile(task.init(5), (4, 1)), np.arange(4), replace(SPEC, epochs=3), 0, 5)
    assert rho[0] == pytest.approx(task.evaluate(alone, np.arange(4), "train").loss)
    assert all(np.array_equal(later, rho[0]) for later in rho[1:])
    # The first weights are those of the formula at the losses the silos measured before training.
    F = federation.reports[0].measurements.train_loss
    s = 1 / (1 + np.exp(-(F - rho[0])))
    assert items[0][2].formed.alpha == pytest.approx(s * (1 - s) / ((s * (1 - s)).sum() + 1e-8))


def test_incfl_can_take_rho_from_the_current_own_model():
    task = NumpyTask()
    _, federation, _ = play(IncFL(rho="own"), rule=Always(), task=task)
    first, second, _ = federation.reports
    assert np.array_equal(first.measurements.told["rho"], first.measurements.train_loss)
    assert second.measurements.told["rho"] == pytest.approx(task.evaluate(first.theta, np.arange(4), "train").loss)


def test_incfl_without_solo_losses_says_so():
    with pytest.raises(RunError, match="no silo reported its solo loss"):
        weights(IncFL())


def test_fedvarp_by_hand():
    _, allocation = weights(FedVARP())
    assert allocation.fresh == pytest.approx([1 / 2, 1 / 2, 0])
    assert allocation.stored == pytest.approx([1 / 3 - 1 / 2, 1 / 3 - 1 / 2, 1 / 3])
    delta, y = np.array([3.0, 1.0, 0.0]), np.array([1.0, 5.0, 6.0])
    step = allocation.fresh @ delta + allocation.stored @ y
    assert step == pytest.approx(y.mean() + ((3 - 1) + (1 - 5)) / 2)


def test_fedvarp_with_everybody_in_is_fedavg():
    a, b = (play(m, rule=Always())[0][-1][2].theta for m in (FedVARP(), FedAvg()))
    assert a == pytest.approx(b, abs=1e-12)


def test_mifa_is_fedavg_with_remembered_updates_and_nothing_else():
    for memory, same in (("update", True), ("none", False)):
        runs = [play(m, rounds=6, memory=memory, rule=TakingTurns())[0] for m in (MIFA(), FedAvg())]
        assert [record.joined for record, _, _ in runs[0]] == [4, 2, 2, 2, 2, 2]
        a, b = (items[-1][2].theta for items in runs)
        assert np.array_equal(a, b) is same


def test_q_fedavg_by_hand_and_remembers_the_length_of_absent_updates():
    # q = 1, L = 10: h = ||10 Delta||^2 + 10 F = 2500 + 10, 100 + 20, 0 + 5.
    length, allocation = weights(QFedAvg(q=1.0, eta_c=0.1))
    assert allocation.alpha == pytest.approx(10 * np.array([1.0, 2.0, 0.5]) / 2635)
    assert length == pytest.approx([5, 1, 0])
    later = seen(joined=np.array([False, True, True]), delta=np.array([[0.0, 0], [0, 1], [0, 2]]))
    length, _ = QFedAvg(q=1.0, eta_c=0.1).allocate(length, later, 0)
    assert length == pytest.approx([5, 1, 2])
    _, equal = weights(QFedAvg(q=0.0))
    assert equal.alpha == pytest.approx(np.full(3, 1 / 3))
    _, tuned = weights(QFedAvg(q=1.0, lipschitz=1.0))
    assert tuned.alpha == pytest.approx(np.array([1.0, 2.0, 0.5]) / (25 + 1 + 1 + 2 + 0.5))


def test_afl_ascends_after_it_aggregates():
    lam, allocation = weights(AFL(eta_lambda=0.1))
    assert allocation.alpha == pytest.approx(np.full(3, 1 / 3))
    # lambda + eta F = (1/3 + .1, 1/3 + .2, 1/3 + .05), 0.35 too much in all.
    assert lam == pytest.approx(1 / 3 + np.array([0.1, 0.2, 0.05]) - 0.35 / 3)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_projection_onto_the_simplex(values):
    x = np.array(values)
    p = onto_simplex(x)
    assert p.min() >= 0
    assert p.sum() == pytest.approx(1)
    shift = (x - p)[p > 0]  # the same for all that stay positive, and at least x for the others
    assert shift == pytest.approx(shift[0], abs=1e-9)
    assert (x[p == 0] <= shift[0] + 1e-9).all()


def test_term_by_hand():
    _, allocation = weights(TERM(t=np.log(4)))
    assert allocation.alpha == pytest.approx(np.array([4, 16, 2]) / 22)
    _, flat = weights(TERM(t=0.0, beta="examples"))
    assert flat.alpha == pytest.approx(np.array([10, 20, 30]) / 60)
    _, huge = weights(TERM(t=1e4))
    assert huge.alpha == pytest.approx([0, 1, 0])


def test_aaggff_starts_uniform_and_leans_to_large_losses():
    state, allocation = weights(AAggFF())
    assert state["p"] is allocation.alpha
    assert allocation.alpha.sum() == pytest.approx(1)
    assert np.argsort(allocation.alpha).tolist() == [2, 0, 1]
    _, equal = weights(AAggFF(), seen(train_loss=np.zeros(3)))
    assert equal.alpha == pytest.approx(np.full(3, 1 / 3), abs=1e-6)


def test_aaggff_code_variant_drops_the_cross_term_and_doubles_the_ridge():
    # One round, K = 3: p minimises <g, p> + a ||p||^2 + (b/2) <g, p>^2 (code) against the poster's form.
    g = -(lambda v: v / (1 + v.mean()))(-np.expm1(-3 * np.array([1, 2, 0.5]) / 3.5) / 3)
    state, code = weights(AAggFF(variant="code"))
    slope = g + 8 * code.alpha + 0.75 * g * (g @ code.alpha)
    assert slope == pytest.approx(slope.mean(), abs=1e-6)
    assert state["linear"] == pytest.approx(g)
    _, poster = weights(AAggFF())
    slope = g + 4 * poster.alpha + 0.75 * g * (g @ (poster.alpha - 1 / 3))
    assert slope == pytest.approx(slope.mean(), abs=1e-6)
    _, up = weights(AAggFF(cdf="normal"))
    _, down = weights(AAggFF(cdf="normal", variant="code"))
    assert np.argsort(up.alpha).tolist() == np.argsort(down.alpha)[::-1].tolist()


@pytest.mark.parametrize("mechanism", [AFL(), TERM(), QFedAvg(), AAggFF()])
def test_a_silo_that_was_not_heard_counts_with_the_mean_loss(mechanism):
    _, silent = weights(mechanism, seen(train_loss=np.array([1.0, np.nan, 3.0])))
    _, stated = weights(mechanism, seen(train_loss=np.array([1.0, 2.0, 3.0])))
    assert silent.alpha == pytest.approx(stated.alpha)
    with pytest.raises(RunError, match=r"no silo reported its training loss; .*needs"):
        weights(mechanism, seen(train_loss=np.full(3, np.nan)))


# Local terms ---------------------------------------------------------------------------------------------------------


def test_fedprox_without_its_term_is_fedavg_and_with_it_stays_closer():
    runs = {mu: play(FedProx(mu=mu), rule=Always())[0] for mu in (0.0, 2.0)}
    plain = play(FedAvg(), rule=Always())[0]
    assert np.array_equal(runs[0.0][-1][2].theta, plain[-1][2].theta)
    moved = {mu: np.nanmean(items[0][1].update_norm) for mu, items in runs.items()}
    assert moved[2.0] < 0.9 * moved[0.0]


def test_propfair_asks_for_its_objective():
    spec = PropFair(M=3.0).local(SPEC)
    assert (spec.objective, spec.bound) == ("propfair", 3.0)


# Personal models -----------------------------------------------------------------------------------------------------


def test_ditto_deploys_the_personal_model_it_judges():
    task = NumpyTask()
    items, federation, _ = play(Ditto(lam=0.5), rounds=6, task=task, untouched=True)
    snapshot = federation.snapshot()
    v, clients = task.init(5) * np.ones((4, 1)), np.arange(4)
    for t, (_, record, _) in enumerate(items, start=1):
        theta = task.init(5) if t == 1 else items[t - 2][2].theta
        v = task.train(v, clients, replace(SPEC, prox=0.5), t, 5, anchor=theta)
        assert record.offered_accuracy == pytest.approx(task.evaluate(v, clients, "validation").accuracy)
        joined = np.array(record.status) == "joined"
        personal = task.evaluate(v, clients, "test").accuracy
        assert record.test_deployed == pytest.approx(np.where(joined, personal, record.test_own))
        if t > 1:  # Eq. 1: the personal model against the own one
            assert joined.tolist() == (record.offered_accuracy > record.own_accuracy).tolist()
    assert snapshot["extra.personal"] == pytest.approx(v)


def test_ditto_leaves_the_shared_model_to_fedavg():
    a, b = (play(m, rule=Always())[0][-1][2].theta for m in (Ditto(), FedAvg()))
    assert np.array_equal(a, b)


def test_ditto_between_alone_and_shared():
    task = NumpyTask()
    clients, far = np.arange(4), {}
    for lam in (0.0, 1.0, 9.0):
        items, federation, _ = play(Ditto(lam=lam, epochs=4), rule=Always(), task=task, rounds=5)
        far[lam] = np.linalg.norm(federation.snapshot()["extra.personal"] - items[-2][2].theta, axis=1).mean()
        if lam == 0:
            v = np.tile(task.init(5), (4, 1))
            for t in range(1, 6):
                v = task.train(v, clients, replace(SPEC, epochs=4), t, 5)
            assert federation.snapshot()["extra.personal"] == pytest.approx(v)
    assert far[0.0] > far[1.0] > far[9.0]


def mixed_gradient_round(task, v, a, theta, t):
    """APFL's private update as its paper writes it, mini-batch by mini-batch: v <- v - eta a grad F(a v + (1 - a) theta)."""
    v = v.copy()
    for k in range(len(v)):
        x, y = task._data[k, "train"]
        rng = stream(5, "batches", t, k)
        for _ in range(SPEC.epochs):
            order = rng.permutation(len(y))
            for i in range(0, len(y), SPEC.batch_size):
                b = order[i : i + SPEC.batch_size]
                m = a[k] * v[k] + (1 - a[k]) * theta
                grad = x[b].T @ (1 / (1 + np.exp(-(x[b] @ m))) - y[b]) / len(b)
                v[k] -= SPEC.lr * a[k] * grad
    return v


def test_apfl_follows_the_mixed_gradient():
    task = NumpyTask()
    items, federation, _ = play(APFL(a=0.3, adaptive=False), rounds=3, task=task, rule=Always())
    v, a = np.tile(task.init(5), (4, 1)), np.full(4, 0.3)
    for t in (1, 2, 3):
        theta = task.init(5) if t == 1 else items[t - 2][2].theta
        v = mixed_gradient_round(task, v, a, theta, t)
        deployed = 0.3 * v + 0.7 * theta
        assert items[t - 1][1].offered_accuracy == pytest.approx(
            task.evaluate(deployed, np.arange(4), "validation").accuracy
        )
    assert federation.snapshot()["extra.private"] == pytest.approx(v, abs=1e-12)


def test_apfl_adapts_its_share_downhill():
    task = NumpyTask()
    _, two, _ = play(APFL(eta_a=0.5), rounds=2, task=task, rule=Always())
    items, three, _ = play(APFL(eta_a=0.5), rounds=3, task=task, rule=Always())
    v, a, theta = two.snapshot()["extra.private"], two.snapshot()["extra.share"], items[1][2].theta
    clients = np.arange(4)

    def loss(share):
        return task.evaluate(share[:, None] * v + (1 - share)[:, None] * theta, clients, "train").loss

    slope = (loss(a + STEP) - loss(a - STEP)) / (2 * STEP)
    assert three.snapshot()["extra.share"] == pytest.approx(np.clip(a - 0.5 * slope, LEAST, 1))
    assert len(np.unique(three.snapshot()["extra.share"])) == 4


@pytest.mark.parametrize(
    "mechanism", [IncFL(), AAggFF(), QFedAvg(), AFL(), Ditto(), APFL(), FedVARP()], ids=lambda m: type(m).__name__
)
def test_a_continued_run_equals_an_undisturbed_one(mechanism):
    whole, _, _ = play(mechanism, rounds=4)
    half, federation, behaviour = play(mechanism, rounds=2)
    again = InProcess(NumpyTask(), behaviour)
    again.restore(federation.snapshot())
    rest, _, _ = play(mechanism, rounds=4, state=half[-1][2], federation=again)
    assert np.array_equal(rest[-1][2].theta, whole[-1][2].theta)


def test_what_a_client_part_tells_survives_a_recording(tmp_path):
    _, federation, _ = play(IncFL())
    recordings.save(federation.reports[1], tmp_path / "round.safetensors")
    back = recordings.load(tmp_path / "round.safetensors")
    assert np.array_equal(back.measurements.told["rho"], federation.reports[1].measurements.told["rho"])


# Options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("fedprox", "mu", -1),
        ("incfl", "warmup", 0),
        ("incfl", "temperature", 0),
        ("incfl", "eps", -1),
        ("incfl", "rho", "none"),
        ("aaggff", "a", 0),
        ("aaggff", "b", -1),
        ("aaggff", "cdf", "cauchy"),
        ("qfedavg", "q", -0.1),
        ("qfedavg", "lipschitz", 0),
        ("afl", "eta_lambda", -1),
        ("term", "t", float("inf")),
        ("propfair", "M", 0),
        ("ditto", "lam", -1),
        ("ditto", "epochs", -1),
        ("apfl", "a", 0),
        ("apfl", "eta_a", -1),
    ],
)
def test_bad_options_are_named_with_their_value(name, option, value):
    with pytest.raises(ConfigError) as caught:
        feduca.recipe({}, {"mechanism.name": name, f"mechanism.{option}": value})
    message = str(caught.value)
    assert f"mechanism.{option}" in message
    assert str(value) in message
    assert "\n" not in message


def test_q_fedavg_takes_the_learning_rate_of_the_recipe():
    from feduca.recipes.build import make_mechanism

    assert make_mechanism(feduca.recipe({}, {"mechanism.name": "qfedavg", "local.lr": 0.25})).eta_c == 0.25


def test_client_parts_run_in_lockstep():
    names = ("ditto", "apfl", "incfl", "fedprox", "fedavg")
    solo, experiments = [], []
    for seed, name in enumerate(names):
        recipe = feduca.recipe({}, {"rounds": 3, "local.epochs": 1, "task.clients": 4, "mechanism.name": name})
        one, other = (experiment.build(recipe, seed, NumpyTask(4, seed)) for _ in range(2))
        solo.append((loop.play(loop.rounds(one.server, one.theta, one.task.examples), one.federation), one.federation))
        experiments.append(other)
    loops = [loop.rounds(e.server, e.theta, e.task.examples) for e in experiments]
    states = together(loops, [e.federation for e in experiments], Merged([e.task for e in experiments]))
    for (alone, federation), state, e in zip(solo, states, experiments):
        assert np.array_equal(alone.theta, state.theta)
        kept, same = federation.snapshot(), e.federation.snapshot()  # what clients keep to themselves, too
        assert kept.keys() == same.keys()
        assert all(np.array_equal(kept[name], same[name], equal_nan=True) for name in kept)
    assert "extra.private" in solo[1][1].snapshot()
