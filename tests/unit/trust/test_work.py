"""Work is told from what is none: both rates, what silos without standing are sent, how they come back, all of it to the bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import feduca
from feduca.core import rounds as loop
from feduca.core.messages import alone, each_its_own, models, silent
from feduca.core.rng import stream
from feduca.errors import ConfigError
from feduca.federation import InProcess
from feduca.federation.replay import Recording
from feduca.flower import FedUCAStrategy, client_app
from feduca.flower.server import Settings, serve
from feduca.recipes.build import behaviour_of, build
from feduca.recipes.schema import load
from feduca.runs import checkpoint
from feduca.trust.work import LENGTH, Work, kept, limited, sent_instead, sketch
from feduca.types import DECLINED, JOINED, REFUSED, Announcements, LocalSpec
from local_grid import LocalGrid, Node
from numpy_task import NumpyApp, NumpyTask
from same_run import without_clocks

SIZE, SILOS = 300, 6
BASE = {"name": "t", "rounds": 8, "local": {"epochs": 2, "batch_size": 5}, "task": {"clients": 4}}
ON = {"standing.kind": "work", "standing.patience": 2, "mechanism.name": "fedavg", "participation.rule": "always"}
SHIRK = {"conduct.kind": "withhold", "conduct.clients": [1]}


class Bowls:
    """Silos whose losses are quadratic, each with curvatures and an optimum of its own; training is gradient steps with noise."""

    def __init__(self, seed=0, far=1.0, noise=0.05):
        rng = stream(seed, "bowls")
        self.curvature = rng.uniform(0.1, 0.9, (SILOS, SIZE))
        self.optimum = rng.normal(size=(SILOS, SIZE))
        self.optimum[0] *= far  # the one whose patients are like nobody else's
        self.noise, self.rng = noise, rng

    def update(self, x, exact=False):
        d = -self.curvature * (x - self.optimum)
        return d if exact else d + self.noise * self.rng.normal(size=x.shape)


def asked(x, round, older=None):
    one = np.full(SILOS, 1 / SILOS)
    return Announcements("r", round, np.arange(SILOS), x, one, one, np.ones(1), LocalSpec(), older=older or {})


def play(work, bowls, fake=None, rounds=30):
    """Who was without standing, round by round, and the last state; `fake(t, x, d, seen)` is the update of the last silo."""
    x, history, past, without, seen = np.zeros(SIZE), {}, {}, [], []
    for t in range(1, rounds + 1):
        told = asked(x, t, sent_instead(history, past, t))
        sent = models(told, told.clients)
        d = bowls.update(sent)
        if fake is not None:
            d[-1] = fake(t, sent[-1], d[-1], seen)
        seen.append((sent[-1], d[-1]))
        reports = replace(silent(told, JOINED, "", 3), theta=sent + d)
        before = limited(history, SILOS) > 0
        history = work.judge(history, told, reports, reports.joined, 0)
        past = kept(history, past, t, x)
        without.append(limited(history, SILOS) > 0)
        counted = ~before
        x = x + d[counted].mean(0)
    return np.array(without), history, past


RNG = np.random.default_rng(1)
FAKES = {
    "nothing": lambda t, x, d, seen: 0 * d,
    "its last update": lambda t, x, d, seen: seen[-1][1] if seen else d,
    "the model's last step": lambda t, x, d, seen: x - seen[-1][0] if seen else d,
    "noise": lambda t, x, d, seen: RNG.normal(size=SIZE),
    "one direction": lambda t, x, d, seen: np.ones(SIZE),
    "a model it had": lambda t, x, d, seen: 0.7 * (seen[-1][0] + seen[-1][1] - x) if seen else d,
    "work for ten rounds, then nothing": lambda t, x, d, seen: d if t <= 10 else 0 * d,
}


@pytest.mark.parametrize("kind", FAKES)
def test_what_is_no_work_costs_the_standing_and_honest_silos_keep_theirs(kind):
    without, _, _ = play(Work(), Bowls(), FAKES[kind])
    assert without[20:, -1].mean() >= 0.7  # chance may answer for noise now and then
    assert not without[:, :-1].any()


@pytest.mark.parametrize("far", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_silo_unlike_all_others_keeps_its_standing(far, seed):
    assert not play(Work(), Bowls(seed, far))[0].any()


def test_work_answers_as_the_theory_says():
    """<d(x) - d(y), x - y> <= -(1 - q) |x - y|^2, wherever optima lie; and the bound is met along the flattest curvature."""
    bowls, rng = Bowls(far=50.0), stream(0, "points")
    q = 1 - bowls.curvature.min(1)  # the factor by which a step shrinks distances at least
    for _ in range(50):
        x, y = rng.normal(size=(2, SILOS, SIZE)) * 3
        change = bowls.update(x, exact=True) - bowls.update(y, exact=True)
        assert ((change * (x - y)).sum(1) <= -(1 - q) * ((x - y) ** 2).sum(1) + 1e-9).all()
    flat = np.zeros((SILOS, SIZE))
    flat[np.arange(SILOS), bowls.curvature.argmin(1)] = 1.0
    change = bowls.update(flat, exact=True) - bowls.update(0 * flat, exact=True)
    assert (change * flat).sum(1) == pytest.approx(-(1 - q))


@pytest.mark.parametrize(("way", "noise"), [(0.3, 0.05), (0.0, 0.02)])
def test_a_forger_who_knows_the_test_passes_it(way, noise):
    """What the docs say must fail: old work less a part of the way gone is not told from work; nor is old work under
    noise once the model stands still, for then the others pull back what it sends.
    """

    def forge(t, x, d, seen):
        return d if not seen else seen[0][1] - way * (x - seen[0][0]) + noise * RNG.normal(size=SIZE)

    assert not play(Work(), Bowls(), forge)[0].any()


def test_who_works_again_comes_back():
    without, history, _ = play(Work(), Bowls(), lambda t, x, d, seen: 0 * d if t <= 6 else d, rounds=30)
    assert without[5, -1]
    assert not without[14:, -1].any()
    assert Work().standing(history)[-1] == 1


def test_answers_by_hand():
    """Chance is as loud as 1 / sqrt(numbers): with 2500 of them 0.02, times LOUD 0.036."""
    mute = Work()._mute
    assert mute(np.array([0.02, -0.01, 0.03, -0.03, 0.0]), 2500)  # chance: noise
    assert mute(np.array([0.9, 0.8, 0.7, 0.9, 0.6]), 2500)  # goes where the model went: a replay
    assert not mute(np.array([-0.05, -0.02, 0.0, -0.03, -0.04]), 2500)  # answers
    assert not mute(np.array([0.2, -0.1, 0.15, -0.2, 0.05]), 2500)  # short training: loud, and either way
    assert mute(np.array([0.2, -0.1, 0.15, -0.2, 0.05]), 100)  # among a hundred numbers that is chance


@pytest.mark.parametrize("epochs", [1, 2])
def test_short_training_costs_no_honest_silo_its_standing_and_noise_does(epochs):
    settings = {
        "standing.kind": "work",
        "mechanism.name": "fedavg",
        "participation.rule": "always",
        "task.hidden": [32],
    }
    short = {
        "rounds": 15,
        "local.epochs": epochs,
        "local.batch_size": 10,
        "local.lr": 0.1,
        "task.validation_share": 0.5,
    }
    noisy = {"conduct.kind": "noise", "conduct.clients": [0]}
    for conduct, lost in (({}, set()), (noisy, {0})):
        found = feduca.run("quickstart", {**settings, **short, **conduct})
        standing = np.array([record["standing"] for record in found.clients])
        assert set(np.flatnonzero((standing <= 0.5).any(0))) == lost


def test_who_has_standing_works_off_its_lapses_and_who_has_none_declines_them_off():
    work, x = Work(patience=2), np.arange(1.0, SIZE + 1)
    a = asked(x, 1)
    still, declined = replace(silent(a, JOINED, "", 3), theta=np.tile(x, (SILOS, 1))), silent(a, DECLINED, "", 3)
    one = work.judge({}, a, still, still.joined, 0)
    two = work.judge(one, asked(x, 2), declined, declined.joined, 0)
    assert two["work_lapses"].tolist() == [1] * SILOS  # idling now and then, and declining between, is found
    lost = work.judge(two, asked(x, 3), still, still.joined, 0)
    assert limited(lost, SILOS).tolist() == [3] * SILOS
    assert work.judge(lost, asked(x, 4), declined, declined.joined, 0)["work_lapses"].tolist() == [1.75] * SILOS


def test_answers_under_a_number_of_nobodys_or_of_anothers_excuse_nobody_else():
    experiment = build(load(BASE, ON), 0, NumpyTask(4))
    state = loop.begin(experiment.server, experiment.theta, np.full(4, 10))
    told = loop.announce(experiment.server, state)
    more = replace(told, clients=np.array([0, 99, 1, 2, 3, 3]))
    reports = silent(more, JOINED, "", experiment.server.family.size)
    reports = replace(reports, theta=np.full((6, len(experiment.theta)), np.nan))  # refused, all of them
    after, admitted = loop.admit(experiment.server, state, told, reports)
    assert admitted.reports.status == [REFUSED] * 3
    assert after.history["work_lapses"].tolist() == [1, 1, 1, 0]  # under which name silo 3 spoke is not known


def test_lapses_by_hand():
    work, x = Work(patience=2), np.arange(1.0, SIZE + 1)
    a = asked(x, 1)
    still = replace(silent(a, JOINED, "", 3), theta=np.tile(x, (SILOS, 1)))
    one = work.judge({}, a, still, still.joined, 0)
    assert one["work_lapses"].tolist() == [1] * SILOS
    assert work.standing(one).tolist() == [0.75] * SILOS
    assert work.reasons(one) == [""] * SILOS
    two = work.judge(one, asked(x, 2), still, still.joined, 0)
    assert limited(two, SILOS).tolist() == [2] * SILOS
    assert set(work.reasons(two)) == {"sent nothing new for 2 rounds"}
    declined = replace(silent(a, DECLINED, "", 3))
    three = work.judge(two, asked(x, 3), declined, declined.joined, 0)
    assert work.standing(three).tolist() == [1 - 1.75 / 4] * SILOS
    refused = silent(a, REFUSED, "too long", 3)
    four = work.judge(three, asked(x, 4), refused, np.ones(SILOS, bool), 0)  # said it sent one: as good as nothing
    assert four["work_lapses"].tolist() == [2.75] * SILOS
    away = work.judge(four, asked(x, 5), silent(a, "absent", "", 3), np.zeros(SILOS, bool), 0)
    assert away["work_lapses"].tolist() == [2.75] * SILOS


def test_who_has_no_standing_is_sent_the_last_two_models_it_had_by_turns():
    x = {t: np.full(SIZE, float(t)) for t in range(1, 9)}
    history, past = {"work_since": np.array([0.0, 3.0])}, {}
    for t in range(1, 4):
        past = kept(history if t == 3 else {}, past, t, x[t])
    assert sorted(past) == ["2", "3"]
    assert [sent_instead(history, past, t)[1][0] for t in (4, 5, 6)] == [2.0, 3.0, 2.0]
    assert 0 not in sent_instead(history, past, 4)
    assert sorted(kept(history, past, 4, x[4])) == ["2", "3", "4"]
    assert sorted(kept(history, kept(history, past, 4, x[4]), 5, x[5])) == ["2", "3", "5"]
    told = asked(x[5], 5, {1: x[2]})
    assert models(told, np.array([0, 1]))[:, 0].tolist() == [5.0, 2.0]
    assert alone(told, 1).theta[0] == 2.0
    assert not alone(told, 1).older
    assert each_its_own(told).theta.shape == (SILOS, SIZE)


def test_sketches_keep_angles_and_linear_dependence():
    rng = stream(0, "rows")
    rows = rng.normal(size=(3, 3 * LENGTH + 7))
    rows[2] = 2 * rows[0] - rows[1]
    signs = np.where(rng.random(rows.shape[1]) < 0.5, -1.0, 1.0)
    short = sketch(rows, signs)
    assert short.shape == (3, (3 * LENGTH + 7 + 3) // 4)
    assert short[2] == pytest.approx(2 * short[0] - short[1])
    assert np.linalg.norm(short[0]) == pytest.approx(np.linalg.norm(rows[0]), rel=0.1)
    assert abs(short[0] @ short[1]) / np.linalg.norm(short[0]) / np.linalg.norm(short[1]) < 0.1


def test_chance_is_as_loud_in_all_parts_of_a_model():
    """Of a model a little longer than a sketch, too: whatever part of it has moved, noise answers as chance does."""
    rng, size = stream(0, "rows"), LENGTH + 300
    rows = rng.normal(size=(500, size))
    part = np.zeros((1, size))
    part[0, -200:] = 1.0
    signs = np.where(rng.random(size) < 0.5, -1.0, 1.0)
    short, moved = sketch(rows, signs), sketch(part, signs)[0]
    cosines = short @ moved / np.linalg.norm(short, axis=1) / np.linalg.norm(moved)
    assert np.sqrt((cosines**2).mean() * short.shape[1]) == pytest.approx(1, rel=0.1)


def test_sketches_are_long_enough_for_the_small_answers_of_long_models(monkeypatch):
    """Late in training honest cosines are about -0.03, as on Fashion-MNIST: a tenth of that must not be what a sketch adds."""
    size, silos = 150_000, 6

    def lost():
        work, rng, found, history = Work(), stream(0, "late"), 0, {}
        x = rng.normal(size=size)
        for t in range(1, 31):
            step = rng.normal(size=size)
            noise = rng.normal(size=(silos, size))
            d = noise if t == 1 else noise - 0.022 * step  # a cosine of -0.022
            one = np.full(silos, 1 / silos)
            told = Announcements("r", t, np.arange(silos), x + step, one, one, np.ones(1), LocalSpec())
            reports = replace(silent(told, JOINED, "", 3), theta=models(told, told.clients) + d)
            history = work.judge(history, told, reports, reports.joined, 0)
            found += (limited(history, silos) > 0).sum()
            x = x + step
        return found

    assert lost() == 0
    monkeypatch.setattr("feduca.trust.work.LENGTH", 2048)
    assert lost() > 0


def test_a_run_whose_sketches_had_another_length_goes_on(monkeypatch):
    monkeypatch.setattr("feduca.trust.work.LENGTH", 128)
    _, history, past = play(Work(), Bowls(), FAKES["nothing"], rounds=5)
    assert history["work_told"].shape == (SILOS, 100)  # three entries to a sum
    monkeypatch.undo()
    x, work = np.ones(SIZE), Work()
    for t in (6, 7):
        told = asked(x, t, sent_instead(history, past, t))
        reports = replace(silent(told, JOINED, "", 3), theta=models(told, told.clients) + Bowls().update(x))
        history = work.judge(history, told, reports, reports.joined, 0)
        past, x = kept(history, past, t, x), x + 0.1
    assert history["work_told"].shape == (SILOS, SIZE)
    assert limited(history, SILOS)[-1]  # what it has lost stays lost
    assert (history["work_lapses"][:-1] == 0).all()


# ---------------------------------------------------------------------------------------------------------------------
# In a run


def run(settings, task=None, **more):
    return feduca.run(BASE, {**ON, **settings}, task=task or NumpyTask(), **more)


def same(one, other):
    """All but the clocks and the standing itself."""
    for a, b in zip(one.rounds, other.rounds):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}
    for a, b in zip(one.clients, other.clients):
        assert {**a, "standing": 0} == {**b, "standing": 0}
    assert np.array_equal(one.theta, other.theta)


OTHERS = [
    {},
    {"mechanism.name": "feduca", "participation.rule": "utility"},
    {"offer.kind": "best-mixture", "offer.train_from": "consensus"},
    {"offer.kind": "stack", "participation.against": "outside"},
    {"share": ["body.*"], "memory.kind": "model"},
    {"mechanism.name": "feddyn"},
    {"mechanism.name": "ditto", "memory.kind": "none"},
]


@pytest.mark.parametrize("settings", OTHERS)
def test_at_full_standing_everything_is_as_without_it(settings):
    same(run({**settings, "standing.kind": "off", "standing.patience": 3}), run(settings))


@pytest.mark.parametrize("settings", OTHERS)
def test_who_withholds_is_limited_and_said_to_be_whatever_stands_beside(settings):
    record = run({**settings, **SHIRK}).clients[-1]
    assert record["standing"][1] <= 0.5
    assert all(value > 0.5 for k, value in enumerate(record["standing"]) if k != 1)
    assert "without standing: sent nothing new for" in record["advice"][1]
    if record["status"][1] == "refused":
        assert record["reason"][1].startswith("refused: without standing: sent nothing new")


def test_its_update_does_not_count_and_its_own_figures_are_kept():
    result = run(SHIRK)
    last = result.clients[-1]
    assert last["status"] == ["joined", "refused", "joined", "joined"]
    assert last["test_deployed"][1] is not None
    assert last["test_global"][1] != result.clients[-2]["test_global"][1] or last["test_own"][1] is not None
    assert run({**SHIRK, "standing.kind": "off", "standing.patience": 3}).clients[-1]["status"][1] == "joined"


def test_only_who_has_no_standing_is_sent_older_models():
    task = NumpyTask()
    one = build(load(BASE, {**ON, **SHIRK}), 0, task)
    told = []

    class Seen(Recording):
        def exchange(self, announcements):
            told.append(announcements)
            return super().exchange(announcements)

    loop.play(loop.rounds(one.server, one.theta, task.examples), Seen(one.federation))
    assert [sorted(each.older) for each in told] == [[], [], *[[1]] * 6]
    assert [each.older[1].tolist() for each in told[2:4]] == [told[0].theta.tolist(), told[1].theta.tolist()]


def test_a_run_resumed_is_the_same_to_the_bit(tmp_path):
    settings = {**ON, **SHIRK, "checkpoint.every_s": 0, "task.data": "digits", "task.max_examples": 300}
    whole = feduca.run(BASE, settings, out=tmp_path / "whole")
    seen = []

    def stop(record, per_client):
        seen.append(record.round)
        if record.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduca.run(BASE, settings, out=tmp_path / "torn", watch=stop)
    torn = feduca.run(BASE, settings, out=tmp_path / "torn")
    assert without_clocks(torn.run_dir) == without_clocks(whole.run_dir)
    assert whole.clients[-1]["standing"][1] == 0


def test_one_at_a_time_it_is_the_same():
    task = NumpyTask()
    recipe = load(BASE, {**ON, **SHIRK})
    finals = []
    for one_at_a_time in (False, True):
        one = build(recipe, 0, task)
        federation = InProcess(task, behaviour_of(recipe, 0, task), one_at_a_time=one_at_a_time)
        finals.append(loop.play(loop.rounds(one.server, one.theta, task.examples), federation))
    assert np.array_equal(finals[0].theta, finals[1].theta)
    assert np.array_equal(finals[0].history["work_lapses"], finals[1].history["work_lapses"])


def test_side_by_side_it_is_the_same(tmp_path):
    settings = {**ON, **SHIRK, "task.data": "digits", "task.max_examples": 300}
    jobs = [(load(BASE, settings), 0), (load(BASE, {**settings, "conduct.clients": [2]}), 0)]
    together = feduca.api.run_many(jobs, out=tmp_path, lockstep=2)
    for (recipe, seed), found in zip(jobs, together):
        same(feduca.run(recipe, seed=seed), found)
        assert [k for k, value in enumerate(found.clients[-1]["standing"]) if value <= 0.5] == [
            recipe.conduct.clients[0]
        ]


def app_of(**settings):
    return NumpyApp(load(BASE, {**ON, **settings}), 4)


def test_a_deployment_keeps_standing_as_the_simulation_does(tmp_path):
    app, nodes = app_of(**SHIRK), {}
    flower = client_app(app)
    for k in range(4):
        nodes[10 + k] = Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}, name=f"silo-{k}")
    path = serve(app, LocalGrid(nodes), Settings(silos=4, out=str(tmp_path / "runs")))
    clients = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    task = NumpyTask(4)
    one = build(app.recipe, 0, task)
    federation = InProcess(task, behaviour_of(app.recipe, 0, task), one_at_a_time=True)
    rows = []
    loops = loop.rounds(one.server, one.theta, task.examples, on_round=lambda r, each, _: rows.append(each))
    final = loop.play(loops, federation)
    assert [line["standing"] for line in clients] == [list(each.standing) for each in rows]
    assert clients[-1]["standing"][1] == 0
    assert clients[-1]["reason"][1].startswith("refused: without standing: sent nothing new for")
    newest = checkpoint.existing(path / "checkpoint")[0]
    assert np.array_equal(checkpoint.read(newest).state.theta, final.theta)
    assert sorted(checkpoint.read(newest).state.past) == sorted(final.past)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"standing.patience": 5}, r"standing\.patience is 5 with standing\.kind 'off'"),
        ({"standing.kind": "works"}, r"standing\.kind"),
        ({"standing.kind": "work", "standing.window": 1}, r"standing\.window"),
        ({"conduct.after": 3}, r"conduct\.after is 3 with conduct\.kind 'honest'"),
        ({"conduct.kind": "copy", "conduct.clients": [1]}, "name two silos or more"),
        (
            ON | {"mechanism.name": "scaffold", "memory.kind": "none"},
            "with mechanism.name 'scaffold', whose control variates",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        load(BASE, settings)


def test_the_strategy_beside_an_app_of_ones_own_refuses_it():
    with pytest.raises(ConfigError, match=r"standing\.kind is 'work', and an app's own wrappers"):
        FedUCAStrategy({"standing": {"kind": "work"}})


def test_runs_without_it_keep_their_names():
    assert load(BASE).hash() == load(BASE, {"standing.kind": "off", "conduct.after": 10}).hash()
    assert load(BASE, {"standing.kind": "work"}).hash() != load(BASE).hash()
