"""Readings of the paper that are options, each by a round computed by hand (the silos of pencil.py)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import feduca
from feduca.client.participation import AccuracyImproves, UtilityThreshold, WarmStart
from feduca.core import heard, roster
from feduca.core import rounds as loop
from feduca.core.roster import Census
from feduca.errors import ConfigError
from feduca.federation import InProcess
from feduca.mechanisms import FedAvg, FedUCA, IncFL
from feduca.recipes.build import behaviour_of, make_server
from feduca.recipes.schema import load
from feduca.types import Needs, Scores
from numpy_task import NumpyTask
from pencil import GOALS, Pencil, play

EXACT = FedUCA(n_s=1, start="uniform", selection="closest", schedule="lagged")  # weights of round 1 are one half each


class Tents(Pencil):
    """The score of a model x is 1 - |x - goal|, which no parabola fits."""

    def evaluate(self, theta, clients, split):
        score = 1 - abs(theta[:, 0] - GOALS[clients])
        return Scores(score, -score)

    def along(self, start, end, places, clients, split):
        score = 1 - abs((1 - places) * start + places * end - GOALS[clients][:, None])
        return Scores(score, -score)


# ---------------------------------------------------------------------------------------------------------------------
# What Eq. 2 judges, and against what


def test_the_realised_check_by_hand():
    """After round 1 theta = -1/2 and gamma = (3/4, 1) (test_rounds.py). It scores -5/4 and 3/4: neither threshold is met."""
    items, _ = play(EXACT, UtilityThreshold(realised=True), rounds=2, realised=True)
    clients = items[1][1]
    assert list(clients.status) == ["declined", "declined"]
    assert list(clients.eq2) == [0, 0]
    assert clients.reason[1] == "realised utility = 0.7500 is below gamma = 1.0000"
    # The fitted curve promises 3/4 and 1 at the same weights: both would stay.
    assert list(play(EXACT, UtilityThreshold(), rounds=2)[0][1][1].status) == ["joined", "joined"]


def test_own_accuracy_by_hand():
    """Own models after round 1 are 1 and -2, which score 1 and 0; curves promise 3/4 and 1 at one half."""
    items, federation = play(EXACT, UtilityThreshold(), rounds=2, threshold="own-accuracy")
    assert federation.reports[0].gamma == pytest.approx([1.0, 0.0])
    assert list(items[1][1].status) == ["declined", "joined"]
    realised, _ = play(EXACT, UtilityThreshold(realised=True), rounds=2, threshold="own-accuracy", realised=True)
    assert list(realised[1][1].status) == ["declined", "joined"]  # -5/4 against 1, and 3/4 against 0


def test_own_accuracy_is_measured_where_the_local_baseline_is_fitted():
    """Silo 1's path x = -2r scores 1 - |1 - 2r|: a tent whose parabola ends at .5 - .625 = -.125, where the model scores 0."""
    gammas = {
        kind: play(EXACT, UtilityThreshold(), task=Tents(), threshold=kind, nodes=64)[1].reports[0].gamma[1]
        for kind in ("own-accuracy", "local-baseline")
    }
    assert gammas == pytest.approx({"own-accuracy": 0.0, "local-baseline": -0.125}, abs=1e-3)


def test_thresholds_can_be_the_mean_of_the_last_ones():
    rule = WarmStart(9, UtilityThreshold())  # everybody stays, so that both runs see the same models
    raw = [r.gamma for r in play(FedAvg(), rule, rounds=4)[1].reports]
    means = [r.gamma for r in play(FedAvg(), rule, rounds=4, average=3)[1].reports]
    assert means[0] == pytest.approx(raw[0])
    assert means[1] == pytest.approx((raw[0] + raw[1]) / 2)
    assert means[3] == pytest.approx((raw[1] + raw[2] + raw[3]) / 3)


# ---------------------------------------------------------------------------------------------------------------------
# What silos are told


def announcements(mechanism, rounds):
    """What silos are told in each round, and the states after it."""
    task, told = Pencil(), []

    class Listening(InProcess):
        def exchange(self, asked):
            told.append(asked)
            return super().exchange(asked)

    recipe = load({"rounds": rounds}, {"task.clients": 2})
    server = replace(make_server(recipe, 3), mechanism=mechanism, rounds=rounds, plausibility=None)
    federation = Listening(task, replace(behaviour_of(recipe, 3, task), rule=WarmStart(9, UtilityThreshold())))
    return told, [state for _, _, state in loop.steps(server, task.init(0), task.examples, federation)]


def test_algorithm_2_sends_one_alpha():
    told, states = announcements(FedUCA(n_s=3, schedule="one-alpha"), 3)
    start = FedUCA(n_s=3).init(Pencil.examples, 3)[1].alpha
    # Round 1's update goes in with the initial weights; the next announcement has the weights solved in round 1, twice.
    assert states[0].formed.alpha == pytest.approx(start)
    assert told[1].alpha_formed == pytest.approx(states[0].pending.alpha)
    assert told[1].alpha_announced == pytest.approx(states[0].pending.alpha)
    assert states[0].pending.alpha != pytest.approx(start)
    two, _ = announcements(FedUCA(n_s=3, schedule="announce-next"), 3)
    assert two[1].alpha_formed == pytest.approx(start)  # with two, silos also learn what their model went in with
    assert two[1].alpha_announced == pytest.approx(told[1].alpha_announced)


def test_a_sampled_row_can_be_what_silos_judge():
    mechanism = FedUCA(n_s=3, aggregation="sampled-judged")
    told, states = announcements(mechanism, 2)
    for state in states:
        used = state.formed
        assert any(np.array_equal(used.alpha, row) for row in used.R)
        assert used.applied is None  # what is announced is what is used
        curve = np.array([-1, 1, 1]) * state.zeta  # -a r^2 + b r + c
        value = (curve * np.stack([used.alpha**2, used.alpha, [1, 1]], axis=1)).sum(1)
        assert used.satisfied.tolist() == (value >= state.gamma - 1e-6).tolist()
    assert told[1].alpha_announced == pytest.approx(states[0].formed.alpha)
    hidden, after = announcements(FedUCA(n_s=3, aggregation="sampled"), 2)
    assert hidden[1].alpha_announced == pytest.approx(after[0].formed.s @ after[0].formed.R)


# ---------------------------------------------------------------------------------------------------------------------
# Decliners


@dataclass(frozen=True)
class Listener(FedAvg):
    """Uniform weights, and a note of the losses that it was given."""

    notes: list = field(default_factory=list)
    needs = Needs(train_loss=True)

    def allocate(self, state, round, seed):
        self.notes.append(round.train_loss)
        return super().allocate(state, round, seed)


def test_losses_of_silent_decliners_are_the_last_ones_heard():
    """theta is 0 in round 1 (losses 0 and 0) and -1/2 in round 2 (5/4 and -3/4), when silo 0 declines."""
    wanted = {"all": [1.25, -0.75], "curve": [0, -0.75], "silent": [0, -0.75]}
    for told, losses in wanted.items():
        server = Listener()
        items, federation = play(server, AccuracyImproves(), rounds=2, told=told)
        assert list(items[1][1].status) == ["declined", "joined"]
        assert server.notes[1] == pytest.approx(losses)
        assert np.isnan(federation.reports[1].measurements.train_loss[0]) == (told != "all")


def test_a_silent_decliner_sends_its_status_alone():
    for told in ("all", "curve", "silent"):
        _, federation = play(EXACT, UtilityThreshold(), rounds=2, threshold="own-accuracy", told=told)
        report, said = federation.reports[1], federation.reports[1].measurements
        assert report.status == ["declined", "joined"]
        assert np.isfinite(report.gamma[0]) == np.isfinite(report.zeta[0]).all() == (told != "silent")
        assert np.isfinite(said.own.accuracy[0]) == np.isfinite(said.promised[0]) == (told == "all")
        assert (report.reason[0] == "") == (told != "all")
        assert np.isfinite(said.own.accuracy[1])
        assert np.isfinite(report.gamma[1])


def test_a_silent_decliners_curve_stays_what_it_last_sent():
    items, federation = play(EXACT, UtilityThreshold(), rounds=2, threshold="own-accuracy", told="silent")
    (_, _, first), (_, _, second) = items
    assert second.gamma[0] == first.gamma[0] == 1.0
    assert second.zeta[0] == pytest.approx(first.zeta[0])
    assert second.gamma[1] == federation.reports[1].gamma[1]


def test_incfl_weighs_a_silent_decliner_by_what_it_last_told():
    seen = []

    @dataclass(frozen=True)
    class Noted(IncFL):
        def allocate(self, state, round, seed):
            seen.append((round.train_loss, round.told.get("rho")))
            return super().allocate(state, round, seed)

    play(Noted(), AccuracyImproves(), rounds=2, told="silent", personal=Noted().personal)
    # rho is the loss of the solo models 1 and -2 (0 - 1 and 0), theta's own losses are 0 in round 1.
    assert seen[0][1] == pytest.approx([-1, 0])
    # Excess losses 1 and 0 weigh .1966 and .25, so theta = (.1966 - .5) / .4466 = -.6793, which silo 1 scores at 1 - .3207^2.
    assert seen[1][0] == pytest.approx([0, -0.8972], abs=1e-4)
    assert seen[1][1] == pytest.approx([-1, 0])


def test_who_was_never_heard_has_no_loss_and_who_comes_later_starts_without():
    _, federation = play(Listener(), AccuracyImproves(), rounds=2, told="silent")
    second = federation.reports[1]
    history, told = heard.of_round({}, second, 2, lasting=True)
    assert np.isnan(told["train_loss"][0])
    assert told["train_loss"][1] == pytest.approx(-0.75)
    grown = {
        name: np.append(column, 0.0) for name, column in history.items()
    }  # as the roster does for a silo that comes
    _, told = heard.of_round(grown, second, 3, lasting=True)
    assert np.isnan(told["train_loss"][[0, 2]]).all()
    state = loop.begin(make_server(load({}), 0), np.zeros(1), np.array([1, 2]))
    state = replace(state, history=history)
    after = roster.grow(state, Census(np.array([1, 2, 3]), np.zeros(3, bool)), FedAvg(), 0)
    assert after.history["ever_train_loss"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("told", ["curve", "silent"])
@pytest.mark.parametrize("mechanism", ["incfl", "aaggff", "qfedavg", "feduca"])
def test_silence_is_the_same_one_at_a_time_and_all_at_once(mechanism, told):
    """A decliner's message is the same whether silos are stepped together or, as on machines of their own, alone."""
    rule = "utility" if mechanism == "feduca" else "accuracy"
    recipe = load(
        {},
        {
            "mechanism.name": mechanism,
            "participation.rule": rule,
            "reporting.decliners": told,
            "rounds": 5,
            "task.clients": 4,
            "local.epochs": 1,
        },
    )
    found = []
    for one_at_a_time in (False, True):
        task = NumpyTask(4)
        federation = InProcess(task, behaviour_of(recipe, 0, task), one_at_a_time=one_at_a_time)
        items = list(loop.steps(make_server(recipe, 0, task), task.init(0), task.examples, federation))
        found.append(([list(clients.status) for _, clients, _ in items], items[-1][2].theta))
    assert any("declined" in statuses for statuses in found[0][0])
    assert found[0][0] == found[1][0]
    assert np.allclose(found[0][1], found[1][1], atol=1e-12)


def test_what_only_participants_tell_is_no_figure_of_all():
    """Of silent decliners nobody knows whether Eq. 1 would hold, or what they deploy; who is in is known all the same."""
    base = {"mechanism": {"name": "fedavg"}, "participation": {"rule": "accuracy"}, "rounds": 5, "local": {"epochs": 1}}
    told, silent = (
        feduca.run(base | {"task": {"clients": 4}, "reporting": {"decliners": how}}, task=NumpyTask(4)).summary
        for how in ("all", "silent")
    )
    assert told["participation"] == silent["participation"] < 1
    assert told["accuracy"] == silent["accuracy"]
    for key in ("eq1_share", "deployed", "worst_client"):
        assert told[key] is not None
        assert silent[key] is None


# ---------------------------------------------------------------------------------------------------------------------
# Recipes


def test_options_reach_the_server_and_the_silos_alike():
    settings = {
        "participation.check": "realised",
        "participation.threshold": "own-accuracy",
        "participation.average": 4,
        "reporting.decliners": "silent",
        "utility.metric": "loss",
    }
    recipe = load({}, settings)
    server, how = make_server(recipe, 0), behaviour_of(recipe, 0, NumpyTask())
    assert (server.decliners, server.gate.decliners, how.decliners) == ("silent",) * 3
    assert (how.rule.realised, how.rule.metric, how.realised) == (True, "loss", True)
    assert (how.threshold, how.average) == ("own-accuracy", 4)
    assert server.plausibility.threshold == "outside"  # no curve of a silo's knows what its own model measures


def test_defaults_leave_the_names_of_runs_as_they_were():
    plain = load("quickstart")
    for key, value in (
        ("participation.check", "fitted"),
        ("participation.average", 1),
        ("reporting.decliners", "all"),
    ):
        assert plain.with_settings({key: value}).hash() == plain.hash()
    assert plain.with_settings({"participation.check": "realised"}).hash() != plain.hash()
    assert plain.hash() == "ae6073f2f499"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"participation.check": "felt"}, "participation.check"),
        ({"participation.average": 0}, "participation.average"),
        ({"reporting.decliners": "some"}, "reporting.decliners"),
        ({"mechanism.schedule": "late"}, "mechanism.schedule"),
        ({"mechanism.fallback": "none"}, "mechanism.fallback"),
        (
            {"participation.against": "outside", "participation.average": 3},
            r"participation\.average is 3 with participation\.against 'outside'.*leave average out",
        ),
    ],
)
def test_impossible_values_get_one_line(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load({}, settings)
