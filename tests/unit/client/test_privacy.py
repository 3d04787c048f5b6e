"""Budgets: what silos spend, when they stop, what leaves them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import feduca
from feduca.client import accounting, privacy
from feduca.client.participation import AccuracyImproves, Situation
from feduca.client.privacy import KEY, SPENT, Privacy
from feduca.core.utility import families
from feduca.errors import ConfigError, InputError, RunError
from feduca.flower.app import OneSilo
from feduca.flower.silo import respond
from feduca.flower.store import SiloStore
from feduca.recipes.build import behaviour_of, build
from feduca.recipes.schema import load
from feduca.types import JOINED, Announcements, LocalSpec, Scores
from numpy_task import NumpyTask
from same_run import without_clocks

SMALL = {
    "task.clients": 3,
    "task.hidden": [8],
    "local.epochs": 1,
    "mechanism.name": "fedavg",
    "participation.rule": "always",
}
DP = {**SMALL, "privacy.dp": "records", "privacy.epsilon": 3.0}
EQ1 = {**DP, "participation.rule": "accuracy"}
TAILORED = {**DP, "participation.against": "outside", "offer.kind": "stack"}


def epsilons(result):
    return np.array([record["noted"]["epsilon"] for record in result.clients], float)


@pytest.mark.parametrize("settings", [DP, EQ1, TAILORED])
def test_the_planned_rounds_just_fit_the_budget(settings):
    result = feduca.run("quickstart", settings, rounds=4)
    spent = epsilons(result)
    assert (np.diff(spent, axis=0) > 0).all()
    assert (spent[-1] <= 3.0).all()
    if settings is not TAILORED or all("joined" in r["status"] for r in result.clients):
        assert (spent[-1] > 2.9).all()
    assert SPENT not in [why for record in result.clients for why in record["reason"]]


def test_who_has_spent_its_budget_trains_no_more_and_keeps_its_model():
    settings = {**DP, "privacy.noise": 0.9, "local.batch_size": 10}
    result = feduca.run("quickstart", settings, rounds=8)
    spent = epsilons(result)
    assert (spent <= 3.0).all()
    done = np.array([[why == SPENT for why in record["reason"]] for record in result.clients])
    assert done.any(), "nobody ran out: the test looks at nothing"
    status = np.array([record["status"] for record in result.clients])
    assert (status[done] == "declined").all()
    assert (np.diff(spent, axis=0)[done[1:]] == 0).all()
    own = np.array([record["own_accuracy"] for record in result.clients], float)
    for k in np.flatnonzero(done[:-1].any(0)):
        first = int(done[:, k].argmax())
        assert (own[first:, k] == own[first, k]).all()  # the model it has stays as it is


def test_a_tailored_offer_spends_nothing_on_what_stays_at_home():
    """The outside option is trained as without privacy, to the bit; the model that is sent is another."""
    private, plain = (
        feduca.run("quickstart", {**s, "alone": True, "task.test_share": 0.5}, rounds=3)
        for s in (TAILORED, {k: v for k, v in TAILORED.items() if not k.startswith("privacy")})
    )
    alone = [[record["test_alone"] for record in result.clients] for result in (private, plain)]
    assert alone[0] == alone[1]
    assert not np.array_equal(private.theta, plain.theta)


def test_an_interrupted_run_goes_on_to_the_bit_and_forgets_nothing(tmp_path):
    settings = {**EQ1, "privacy.noise": 2.5}
    whole = feduca.run("quickstart", settings, rounds=5, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(record, clients):
        if record.round == 3:
            raise Stop

    with pytest.raises(Stop):
        feduca.run("quickstart", settings, rounds=5, out=tmp_path / "part", watch=stop)
    again = feduca.run("quickstart", settings, rounds=5, out=tmp_path / "part")
    assert without_clocks(again.run_dir) == without_clocks(whole.run_dir)
    np.testing.assert_array_equal(again.theta, whole.theta)
    np.testing.assert_array_equal(epsilons(again), epsilons(whole))


def test_one_by_one_and_side_by_side_are_alike():
    from feduca.core import rounds as loop
    from feduca.federation.in_process import InProcess
    from feduca.federation.lockstep import together
    from feduca.tasks import merge

    recipe = feduca.recipe("quickstart", {**EQ1, "rounds": 3})
    runs = [build(recipe, seed) for seed in (0, 1)]
    alone = [feduca.run(recipe, seed=seed).theta for seed in (0, 1)]
    loops = [loop.rounds(e.server, e.theta, e.task.examples) for e in runs]
    states = together(loops, [e.federation for e in runs], merge([e.task for e in runs]))
    for theta, state in zip(alone, states):
        np.testing.assert_allclose(state.theta, theta, atol=1e-5)
    one = build(recipe, 0)
    apart = InProcess(one.task, behaviour_of(recipe, 0, one.task), one_at_a_time=True)
    state = loop.play(loop.rounds(one.server, one.theta, one.task.examples), apart)
    np.testing.assert_allclose(state.theta, alone[0], atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Decisions


def situation(right, of, n):
    nothing = np.full(len(right), np.nan)
    zeta = np.zeros((len(right), 3))
    return Situation(
        2, Scores(np.asarray(of) / n, nothing), Scores(np.asarray(right) / n, nothing), nothing, zeta, nothing,
        families["quadratic"], np.full(len(right), n),
    )  # fmt: skip


def test_a_noisy_decision_sees_the_difference_of_counts_and_nothing_else():
    how = Privacy(3.0, 30, 1.0)
    k, n = 4000, 50
    clients = np.arange(k)
    allowed = how.allow({}, LocalSpec(1, 100), np.array([100]), np.array([n]), np.ones(1, bool))
    one, allowed = allowed, replace(allowed, answer_noise=np.repeat(allowed.answer_noise, k))
    for difference in (0, 6):
        blurred = how.blurred(situation([20 + difference] * k, [20] * k, n), clients, 0, allowed)
        counts = blurred.offered.accuracy * n
        assert abs(counts.mean() - difference) < 0.5
        assert counts.std() == pytest.approx(float(allowed.answer_noise[0]), rel=0.05)
        assert np.isnan(blurred.offered.loss).all()
        share = AccuracyImproves().decide(blurred).join.mean()
        assert share == pytest.approx((counts > 0).mean())
    again = [how.blurred(situation([1], [0], n), clients[7:8], 0, one).offered.accuracy[0] for _ in range(2)]
    assert again[0] == again[1]


def test_thirty_noisy_answers_cost_what_the_budget_says():
    how = Privacy(3.0, 30, 1.0, share=0.5)
    allowed = how.allow({}, LocalSpec(1, 10), np.array([100]), np.array([40]), np.ones(1, bool))
    paid = 30 * allowed.answer[0]
    assert 1.45 < accounting.epsilon(paid, float(allowed.deltas[0])) <= 1.5
    assert accounting.curve(1.0, float(allowed.answer_noise[0])) == pytest.approx(allowed.answer[0])
    spent = np.stack([0 * paid, paid])[None]
    later = how.allow({KEY: spent}, LocalSpec(1, 10), np.array([100]), np.array([40]), np.ones(1, bool))
    assert later.trains.all()
    assert not later.decides.any()  # it may train still, but no more decide


def test_exact_decisions_are_those_of_the_rule():
    how = Privacy(3.0, 30, 1.0, noisy=False)
    seen = situation([5], [4], 10)
    allowed = how.allow({}, LocalSpec(1, 10), np.array([100]), np.array([10]), np.ones(1, bool))
    assert how.blurred(seen, np.array([0]), 0, allowed) is seen
    assert not allowed.answer.any()


# ---------------------------------------------------------------------------------------------------------------------
# A deployed silo

BASE = {"name": "t", "rounds": 4, "local": {"epochs": 1, "batch_size": 5}, "task": {"clients": 3}}


class Hiding(NumpyTask):
    """The same logistic regression with clipped and noisy gradients, in full batches by lot."""

    def train_private(self, theta, clients, spec, round, seed, private, anchor=None):
        from feduca.core.secret import normal, uniform

        assert private.secret
        out = np.array(theta, float)
        for row, k in enumerate(clients):
            x, y = self._data[int(k), "train"]
            q = float(spec.rates(len(y)))
            for _ in range(int(spec.steps(len(y)))):
                drawn = uniform(len(y)) < q
                single = x * (1 / (1 + np.exp(-(x @ out[row]))) - y)[:, None]
                lengths = np.linalg.norm(single, axis=1, keepdims=True)
                single *= np.minimum(1, private.clip / np.maximum(lengths, 1e-12))
                noise = private.clip * private.noise[row] * normal(out.shape[1])
                out[row] -= spec.lr * ((single * drawn[:, None]).sum(0) + noise) / (q * len(y))
        return out


def asked(round, theta, run="run-1"):
    one = np.array([0.3])
    return Announcements(run, round, np.array([1]), theta, one, one, np.ones(1), LocalSpec(1, 5))


@pytest.fixture
def silo(tmp_path):
    task = OneSilo(Hiding(3), "silo-1")
    how = behaviour_of(
        load(BASE, {"mechanism.name": "fedavg", "participation.rule": "accuracy", "privacy.dp": "records"}), 0, task
    )
    store = SiloStore(tmp_path / "silo")
    return store, lambda message: respond("silo-1", store, task, how, message).report


def test_a_deployed_silo_sends_its_update_its_decision_and_its_epsilon(silo):
    store, ask = silo
    first = ask(asked(1, np.zeros(4)))
    assert first.status[0] == JOINED
    second = ask(asked(2, np.zeros(4)))
    m = second.measurements
    assert second.reason == [""]
    assert 0 < m.noted["epsilon"][0] <= 8
    for scores in (m.global_, m.own, m.offered):
        assert np.isnan([scores.accuracy[0], scores.loss[0]]).all()
    assert not m.test
    assert np.isnan(m.train_loss[0])
    told = json.loads((store.folder / "log.jsonl").read_text().splitlines()[-1])
    assert told["epsilon"] > 0  # its operator sees all of it
    assert told["accuracy"]["own"] > 0
    assert ask(asked(2, np.zeros(4))).theta.tolist() == second.theta.tolist()  # asked again it draws no other noise


def test_what_is_spent_is_never_taken_back(silo):
    """Another question in the same round, another run, a memory that is lost: the ledger knows of all."""
    store, ask = silo
    ask(asked(1, np.zeros(4)))
    one = store.spent()
    ask(asked(1, np.zeros(4) + 0.1))  # the server went back
    assert store.spent()[0] == pytest.approx(2 * one[0])
    ask(asked(1, np.zeros(4), run="run-2"))
    assert store.spent()[0] == pytest.approx(3 * one[0])
    for path in (store.folder / "runs").rglob("*.safetensors"):
        path.unlink()
    for t in range(1, 30):
        last = ask(asked(t, np.zeros(4), run="run-3"))
    assert (last.status[0], last.reason[0]) == ("declined", SPENT)
    assert last.measurements.noted["epsilon"][0] <= 8
    (store.folder / "privacy.json").write_text("{}")
    with pytest.raises(InputError, match="nobody knows what is left"):
        ask(asked(30, np.zeros(4), run="run-3"))


def test_a_task_that_cannot_hide_examples_says_so():
    recipe = load(BASE, {"mechanism.name": "fedavg", "participation.rule": "always", "privacy.dp": "records"})
    with pytest.raises(RunError, match="has no method `train_private`"):
        feduca.run(recipe, task=NumpyTask(3))


# ---------------------------------------------------------------------------------------------------------------------
# What is refused


ON = {"privacy.dp": "records", "privacy.epsilon": 3.0}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"privacy.dp": "off"}, "privacy.epsilon is 3.0 with privacy.dp 'off'"),
        ({"mechanism.name": "scaffold"}, "control variates"),
        ({"mechanism.name": "afl"}, "losses on training examples"),
        ({"mechanism.name": "ditto"}, "works inside the silo without noise"),
        ({"mechanism.name": "propfair"}, "no sum over examples"),
        ({"engine.precision": "bf16"}, "whose clipping is exact"),
        ({"mechanism.name": "feduca"}, "worth little with the noise"),
        ({"participation.rule": "utility"}, "worth little with the noise"),
        ({"diagnostics": True}, "with diagnostics, whose curves"),
        ({"participation.rule": "loss"}, "participation.rule 'loss'"),
        ({"participation.rule": "accuracy", "participation.ties": "loss"}, "participation.ties 'loss'"),
        ({"participation.rule": "accuracy", "participation.confidence": 0.9}, "participation.confidence 0.9"),
        ({"participation.rule": "accuracy", "participation.against": "outside"}, "participation.against 'outside'"),
        ({"participation.rule": "accuracy", "offer.kind": "best-mixture"}, "offer.kind 'best-mixture'"),
        ({"offer.kind": "best-mixture"}, "offer.train_from 'offer'"),
        ({"participation.quits": 3}, "participation.quits 3"),
        (
            {"privacy.decisions": "exact", "participation.against": "outside", "offer.kind": "best-mixture"},
            "a model trained without noise",
        ),
        ({"participation.against": "outside", "share": "but-bias"}, "use share = 'all'"),
    ],
)
def test_what_would_send_more_than_is_paid_for_is_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint.replace("(", r"\(")) as refused:
        load(BASE, {"mechanism.name": "fedavg", "participation.rule": "always", **ON, **settings})
    assert "\n" not in str(refused.value)


def test_noise_that_one_round_cannot_pay_for_is_refused():
    with pytest.raises(
        ConfigError, match=r"one round costs silo .* more than its budget of 0.5; leave privacy.noise out"
    ):
        feduca.run("quickstart", {**DP, "privacy.epsilon": 0.5, "privacy.noise": 0.5}, rounds=2)


def test_off_changes_no_name_and_no_number():
    plain = feduca.recipe("quickstart", SMALL)
    assert plain.hash() == feduca.recipe("quickstart", {**SMALL, "privacy.dp": "off"}).hash()
    assert "privacy" not in str(build(plain, 0).federation._how.privacy)
    assert privacy.never_less({"a": 1}, None) == {"a": 1}


class App:
    recipe = load(BASE, {"mechanism.name": "fedavg", "participation.rule": "always", "privacy.dp": "records"})

    def server(self, config):
        return NumpyTask(3)

    def silo(self, name, index, config):
        return Hiding(3)


def test_a_deployed_run_records_every_silos_epsilon_and_nothing_of_its_scores(tmp_path):
    from feduca.flower import client_app
    from feduca.flower.server import Settings, serve
    from local_grid import LocalGrid, Node

    flower = client_app(App())
    nodes = {k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}) for k in range(3)}
    where = serve(App(), LocalGrid(nodes), Settings(silos=3, out=str(tmp_path / "runs")))
    last = feduca.load(where).clients[-1]
    assert last["status"] == ["joined"] * 3
    assert all(0 < spent <= 8 for spent in last["noted"]["epsilon"])
    assert last["global_accuracy"] == last["own_accuracy"] == [None] * 3
    assert last["test_deployed"] is None or last["test_deployed"] == [None] * 3


def test_a_server_that_asks_for_less_than_nothing_gets_no_budget_back(silo):
    store, ask = silo
    ask(asked(1, np.zeros(4)))
    paid = store.spent()
    with pytest.raises(ConfigError, match="would give privacy back"):  # past the codec, which refuses it before
        ask(replace(asked(2, np.zeros(4)), local=LocalSpec(-1, 5)))
    np.testing.assert_array_equal(store.spent(), paid)
    store.spend(paid * [[0.5], [0.5]])
    np.testing.assert_array_equal(store.spent(), paid)
    less = paid.copy()
    less[0, 3], less[1, 4] = 0, paid[1, 4] + 1
    store.spend(less)  # entry by entry
    assert (store.spent() >= paid).all()
    assert store.spent()[1, 4] == paid[1, 4] + 1
    with pytest.raises(RunError, match="no numbers from 0 on"):
        store.spend(paid * np.nan)
    assert (store.spent() >= paid).all()
