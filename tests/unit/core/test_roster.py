"""Who belongs: absent, left out, back again, new, gone; with real mechanisms and no transport."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from feduca.core import roster
from feduca.core import rounds as loop
from feduca.core.roster import Census
from feduca.errors import ConfigError, RunError
from feduca.federation import InProcess
from feduca.mechanisms import registry
from feduca.recipes.build import behaviour_of, make_behaviour, make_server
from feduca.recipes.schema import load
from feduca.types import Allocation, Needs, Round
from needed import needed
from numpy_task import NumpyTask

LOCAL = {"local": {"epochs": 1, "batch_size": 10}}


class Flaky:
    """An in-process federation some of whose silos do not answer in some rounds."""

    def __init__(self, task, recipe, missing):
        self._inner = InProcess(task, behaviour_of(recipe, 0, task))
        self._missing = missing  # round -> clients

    def exchange(self, asked):
        there = np.array([k not in self._missing.get(asked.round, ()) for k in asked.clients])
        few = replace(
            asked,
            clients=asked.clients[there],
            alpha_formed=asked.alpha_formed[there],
            alpha_announced=asked.alpha_announced[there],
        )
        return self._inner.exchange(few)


def play(settings, missing, *, rounds=6, patience=0, census=None, clients=4):
    task, recipe = NumpyTask(clients), load({**LOCAL, "rounds": rounds}, settings)
    seen = []
    examples = task.examples if census is None else census(1).examples
    now = iter(range(1, rounds + 1))
    loop.play(
        loop.rounds(
            replace(make_server(recipe, 0, task), patience=patience),
            task.init(0),
            examples,
            on_round=lambda record, each, state: seen.append((record, each, state)),
            census=None if census is None else lambda: census(next(now)),
        ),
        Flaky(task, recipe, missing),
    )
    return seen


@pytest.mark.parametrize("name", sorted(registry))
def test_a_silent_silo_is_left_out_and_comes_back(name):
    seen = play({**needed(name), "mechanism.name": name}, {3: [1], 4: [1]}, patience=2)
    assert [each.status[1] for _, each, _ in seen][2:5] == ["absent", "absent", seen[4][1].status[1]]
    assert seen[4][1].status[1] != "absent"
    weights = np.array([state.pending.alpha for _, _, state in seen])
    if name in ("feduca", "fedavg", "uniform", "random"):
        assert weights[2][1] > 0  # one silent round: still in
    assert weights[3][1] == 0  # two: left out ...
    assert (weights[3][[0, 2, 3]] > 0).any()
    if name != "qfedavg":  # whose weights are step sizes
        assert np.isclose(weights[3].sum(), 1)
    assert seen[4][2].absences.tolist() == [0, 0, 0, 0]  # ... and back
    assert np.array_equal(seen[3][2].zeta[1], seen[1][2].zeta[1], equal_nan=True)  # its last curve stands


def test_patience_zero_never_leaves_anybody_out():
    seen = play({"mechanism.name": "fedavg"}, {t: [0] for t in range(2, 7)})
    assert all(np.allclose(state.pending.alpha, 0.25) for _, _, state in seen)
    assert seen[-1][2].absences.tolist() == [5, 0, 0, 0]


def test_nobody_answers_and_the_run_goes_on():
    seen = play({"mechanism.name": "feduca"}, {3: [0, 1, 2, 3], 4: [0, 1, 2, 3]}, patience=1)
    assert [record.joined for record, _, _ in seen][2:4] == [0, 0]
    assert np.isclose(seen[3][2].pending.alpha.sum(), 1)  # with nobody left, nobody is left out
    assert len(seen) == 6


@pytest.mark.parametrize(("name", "schedule"), [*((name, "fresh") for name in sorted(registry)), ("feduca", "lagged")])
def test_a_silo_joins_and_another_leaves(name, schedule):
    task = NumpyTask(4)
    settings = {**needed(name), "mechanism.name": name} | (
        {"mechanism.schedule": "lagged"} if schedule == "lagged" else {}
    )

    def census(round):
        n = 3 if round < 3 else 4
        return Census(task.examples[:n], np.arange(n) == (0 if round >= 5 else -1))

    missing = {5: [0], 6: [0]}
    seen = play(settings, missing, census=census)
    assert [len(each.status) for _, each, _ in seen] == [3, 3, 4, 4, 4, 4]
    assert seen[2][1].status[3] == "joined"  # its first round
    assert seen[2][1].reason[3] == "no model of its own yet"
    assert seen[-1][2].pending.alpha[0] == 0
    if name != "qfedavg":  # whose weights are step sizes
        assert all(np.isclose(state.pending.alpha.sum(), 1) for _, _, state in seen)


def test_the_others_are_as_if_it_had_never_been():
    """Left out, FedUCA solves exactly the program of those that remain."""
    seen = play({"mechanism.name": "feduca"}, {3: [1]}, patience=1)
    state = seen[2][2]
    inside = np.array([0, 2, 3])
    from feduca import program

    alone = program.allocate(state.zeta[inside], state.gamma[inside], state.pending.s)
    assert np.allclose(state.pending.alpha[inside], alone.alpha, atol=1e-6)
    assert state.pending.R.shape == (5, 4)


INSIDE = np.array([0, 2, 3])


def test_per_silo_state_of_a_mechanism_follows_the_silos():
    state = {
        "lengths": np.arange(4.0),
        "round": 7,
        "history": [np.zeros((4, 2))],
        "p": np.full(4, 0.25),
        "H": np.eye(4),
    }
    declared = {"lengths": "rows", "history": "rows", "p": "weights", "H": "square"}
    part = roster._narrowed(state, declared, INSIDE, 4, "m")
    assert part["lengths"].tolist() == [0, 2, 3]
    assert np.allclose(part["p"], 1 / 3)
    assert part["H"].shape == (3, 3)
    assert part["history"][0].shape == (3, 2)
    changed = {**part, "lengths": part["lengths"] + 10, "round": 8}
    back = roster._widened(state, changed, declared, INSIDE, 4, "m")
    assert back["lengths"].tolist() == [10, 1, 12, 13]
    assert back["round"] == 8
    assert np.allclose(back["p"], 0.25)
    assert np.array_equal(back["H"], np.eye(4))
    assert back["history"][0].shape == (4, 2)


@dataclass(frozen=True)
class Stateful:
    """Even weights, and a state of the test's choosing that counts rounds in its first entry."""

    state: Any
    per_silo: Any = None
    weights: Any = None  # of the state; None: even ones, however many silos there are

    needs = Needs()
    schedule = "fresh"

    def local(self, spec):
        return spec

    def init(self, examples, seed):
        return self.state, Allocation(np.full(len(examples), 1 / len(examples)), "even")

    def allocate(self, state, round, seed):
        n = len(round.examples)
        return state + 1, Allocation(np.full(n, 1 / n) if self.weights is None else self.weights(state, round), "even")


def played(mechanism, clients, missing):
    task, recipe = NumpyTask(clients), load({**LOCAL, "rounds": 3})
    states = []
    server = replace(make_server(recipe, 0, task), mechanism=mechanism, patience=1)
    loop.play(
        loop.rounds(server, task.init(0), task.examples, on_round=lambda _, __, state: states.append(state.mechanism)),
        Flaky(task, recipe, missing),
    )
    return states


def test_a_state_over_strategies_stays_whole_whatever_the_number_of_silos():
    """Five strategies and five silos: a shape says nothing about whose row is whose."""
    start = np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    states = played(Stateful(start), 5, {2: [1]})
    assert [state.tolist() for state in states] == [(start + t).tolist() for t in (1, 2, 3)]
    rows = played(Stateful(start, "rows"), 5, {2: [1]})
    assert rows[1].tolist() == pytest.approx([2.1, 1.2, 2.3, 2.2, 2.2])  # the silent silo's row waits


def test_an_undeclared_state_that_has_rows_ends_in_one_line():
    with pytest.raises(RunError, match=r"'?Stateful'? in round 2 cannot do without 1 of 4 silos .*per_silo"):
        played(Stateful(np.zeros(4), weights=lambda state, round: (state + round.examples) * 0 + 1 / 4), 4, {2: [1]})
    with pytest.raises(RunError, match=r"in round 2 gave weights of shape \(4,\).*3 silos .*per_silo"):
        played(Stateful(np.zeros(4), weights=lambda state, round: state * 0 + 1 / 4), 4, {2: [1]})


@pytest.mark.parametrize(
    ("state", "declared", "says"),
    [
        (np.zeros(5), "rows", "has shape (5,) for 4 silos"),
        (np.zeros((4, 5)), "square", "has shape (4, 5) for 4 silos"),
        (np.zeros(4), {"p": "rows"}, "per_silo as a mapping"),
    ],
)
def test_a_wrong_declaration_ends_in_one_line(state, declared, says):
    with pytest.raises(RunError) as seen:
        played(Stateful(state, declared), 4, {2: [1]})
    assert says in str(seen.value)
    assert "\n" not in str(seen.value)


def test_a_declaration_names_what_is_there():
    with pytest.raises(RunError, match=r"declares per_silo\['q'\], and its state holds p"):
        roster._narrowed({"p": np.zeros(4)}, {"q": "rows"}, INSIDE, 4, "m")
    with pytest.raises(ConfigError, match="says per_silo = 'row'; choose 'rows'"):
        roster.check_declaration({"p": "row"}, "the mechanism 'm'")


@pytest.mark.parametrize("name", sorted(registry))
def test_every_mechanism_declares_the_rows_of_its_state(name):
    """Silos and everything else counted apart: 7 silos, of whom 5 are in, and the state comes back whole."""
    from feduca.recipes.build import make_mechanism

    mechanism, n, inside = (
        make_mechanism(load({}, {**needed(name), "mechanism.name": name})),
        7,
        np.array([0, 1, 3, 4, 6]),
    )
    state, first = mechanism.init(np.arange(1, n + 1), 0)
    if state is None:
        assert getattr(mechanism, "per_silo", None) is None
        return
    active = np.isin(np.arange(n), inside)
    seen = Round(
        1, active, active, np.zeros(n), np.zeros((n, 3)), np.arange(1, n + 1), np.ones(n), np.ones((n, 2)), first
    )
    after, allocation = roster.allocate(mechanism, state, seen, 0)
    assert (allocation.alpha[~active] == 0).all()
    shapes = [[x.shape for x in (tree.values() if isinstance(tree, dict) else [tree])] for tree in (state, after)]
    assert shapes[0] == shapes[1]
    smaller, _ = mechanism.init(np.arange(1, 6), 0)
    part = roster._narrowed(after, mechanism.per_silo, inside, n, name)
    trees = [list(tree.values()) if isinstance(tree, dict) else [tree] for tree in (smaller, part)]
    assert [x.shape for x in trees[0]] == [x.shape for x in trees[1]]


def test_spread_and_cut_undo_each_other():
    inside = np.array([1, 2])
    small = Allocation(np.array([0.25, 0.75]), "optimal", R=np.array([[0.5, 0.5], [0, 1.0]]), s=np.array([0.5, 0.5]))
    wide = roster.spread(small, inside, 4)
    assert wide.alpha.tolist() == [0, 0.25, 0.75, 0]
    again = roster._cut(wide, inside)
    assert np.array_equal(again.alpha, small.alpha)
    assert np.array_equal(again.R, small.R)
    uniform = roster._cut(wide, np.array([0, 3]))  # nothing of the old weights belongs to these
    assert uniform.alpha.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("mechanism", ["fedavg", "feduca", "mifa"])
def test_whoever_has_left_stays_away_answering_or_not(mechanism):
    """Silo 1 quits. Whether it then goes on saying so, falls silent or is refused, its last update never counts again."""
    quits = {"mechanism.name": mechanism, "participation.rule": "accuracy", "participation.quits": 2}
    speaks = play(quits, {}, rounds=9)
    left = [[t for t, (_, each, _) in enumerate(speaks, 1) if each.status[k] == "left"] for k in range(4)]
    gone = next(k for k, rounds in enumerate(left) if rounds and rounds[0] <= 6)
    silent = play(quits, {t: [gone] for t in range(left[gone][0] + 1, 10)}, rounds=9)
    assert silent[-1][1].status[gone] == "absent"
    for (one, _, a), (other, _, b) in zip(speaks, silent):
        assert np.array_equal(a.theta, b.theta)
        assert np.array_equal(a.pending.alpha, b.pending.alpha)
        assert one.members == other.members
        assert (a.left is None) == (b.left is None)
        assert a.left is None or a.left.tolist() == b.left.tolist()
    assert silent[-1][2].left[gone]


def test_whoever_has_left_cannot_join_again():
    task, always = NumpyTask(), {"mechanism.name": "fedavg", "participation.rule": "always"}
    recipe = load({**LOCAL, "rounds": 3}, always)
    server = make_server(recipe, 0, task)
    state = replace(loop.begin(server, task.init(0), task.examples), left=np.array([False, True, False, False]))
    asked = loop.announce(server, state)
    reports = InProcess(task, make_behaviour(recipe, 0)).exchange(asked)
    assert reports.joined.all()
    state, admitted = loop.admit(server, state, asked, reports)
    assert list(admitted.reports.status) == ["joined", "refused", "joined", "joined"]
    assert admitted.reports.reason[1] == "refused: has left for good"
    after, solved = loop.advance(server, state, admitted.reports)
    assert solved.alpha == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    assert after.theta == pytest.approx(reports.theta[[0, 2, 3]].mean(0))
    grown = roster.grow(after, Census(np.append(task.examples, 9), np.zeros(5, bool)), server.mechanism, 0)
    assert grown.left.tolist() == [False, True, False, False, False]


def test_an_operators_word_is_kept_like_a_silos_own():
    census = [Census(NumpyTask().examples, np.array([t >= 4, False, False, False])) for t in range(1, 7)]
    seen = play({"mechanism.name": "fedavg"}, {t: [0] for t in range(4, 7)}, census=lambda t: census[t - 1])
    assert [state.left is not None for _, _, state in seen] == [False] * 3 + [True] * 3
    assert [record.members for record, _, _ in seen] == [4, 4, 4, 3, 3, 3]


def test_a_silo_that_comes_later_knows_where_the_run_began():
    """Its model alone starts from the run's first model, not from the federated one it is sent."""
    settings = {"mechanism.name": "fedavg", "alone": True, "task.test_share": 0.5}
    seen = play(settings, {1: [3], 2: [3]})
    task = NumpyTask()
    first = task.evaluate(task.init(0)[None], np.array([3]), "test").accuracy[0]
    assert np.isnan(seen[1][1].test_alone[3])
    assert seen[2][1].test_alone[3] == first
    assert seen[2][1].test_global[3] != first
    alone = play({**settings, "participation.rule": "never"}, {})  # those who were there go on as they would have alone
    assert seen[2][1].test_alone[:3] == pytest.approx(alone[2][1].test_deployed[:3])
