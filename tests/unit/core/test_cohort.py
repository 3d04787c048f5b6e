"""Of many silos so many are asked a round: who they are, what that leaves of the others, and what the records say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import feduca
from feduca import api
from feduca.core import roster
from feduca.core.cohort import Cohort
from feduca.core.rounds import advance, announce, begin
from feduca.errors import ConfigError
from feduca.recipes.build import build
from feduca.recipes.schema import load
from feduca.report.page import page_data
from feduca.report.reading import read

SMALL = {"local.epochs": 1, "utility.check_every": 0, "checkpoint.every_s": 0}
ASKED = {**SMALL, "cohort.size": 3}
EVERYBODY = np.ones(10, bool)


def test_a_uniform_cohort_is_a_function_of_seed_and_round_and_fair():
    cohort = Cohort(3)
    drawn = [cohort.asked(round, EVERYBODY, 0) for round in range(1, 401)]
    assert all(len(set(one)) == 3 and list(one) == sorted(one) for one in drawn)
    assert [list(cohort.asked(round, EVERYBODY, 0)) for round in (7, 3)] == [list(drawn[6]), list(drawn[2])]
    assert any(list(one) != list(cohort.asked(1, EVERYBODY, 1)) for one in drawn[:1])
    often = np.bincount(np.concatenate(drawn), minlength=10) / 400
    assert abs(often - 0.3).max() < 0.08  # three and a half standard deviations


def test_round_robin_asks_everybody_equally_often_in_turn():
    cohort = Cohort(4, "round-robin")
    drawn = [list(cohort.asked(round, EVERYBODY, 0)) for round in range(1, 6)]
    assert drawn == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 8, 9], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_silos_are_asked_as_they_are_there():
    rare, common = [0.1] * 5, [0.9] * 5
    drawn = [Cohort(10, "availability", [*rare, *common]).asked(round, EVERYBODY, 0) for round in range(1, 401)]
    often = np.bincount(np.concatenate(drawn), minlength=10) / 400
    assert abs(often - [*rare, *common]).max() < 0.07
    assert all(len(Cohort(2, "availability", 0.5).asked(round, EVERYBODY, 0)) <= 2 for round in range(50))
    assert min(len(Cohort(10, "availability", 0.01).asked(round, EVERYBODY, 0)) for round in range(50)) == 1


def test_who_has_left_is_not_asked_unless_nobody_is_left():
    stay = np.arange(10) > 6
    for draw in ("uniform", "availability", "round-robin"):
        for round in range(1, 20):
            assert set(Cohort(5, draw).asked(round, stay, 0)) == {7, 8, 9}
        assert len(Cohort(5, draw).asked(1, ~EVERYBODY, 0)) == 5


def test_a_cohort_of_all_silos_is_no_cohort():
    plain = api.run("quickstart", SMALL, rounds=3)
    whole = api.run("quickstart", {**SMALL, "cohort.size": 10}, rounds=3)
    assert np.array_equal(np.asarray(plain.theta), np.asarray(whole.theta))
    assert plain.clients[-1]["alpha"] == whole.clients[-1]["alpha"]
    assert "asked" not in plain.rounds[0]
    assert whole.rounds[0]["asked"] == 10


METHODS = {
    "feduca": {"participation.rule": "utility"},
    "fedavg": {"mechanism.name": "fedavg", "memory.kind": "none"},
    "offers": {"mechanism.name": "fedavg", "participation.rule": "accuracy", "offer.kind": "least-concession"},
    "scaffold": {"mechanism.name": "scaffold", "memory.kind": "none"},
    "quits": {"participation.rule": "accuracy", "participation.against": "outside", "participation.quits": 1},
}


@pytest.mark.parametrize("name", METHODS)
def test_records_keep_those_who_were_not_asked_apart(name):
    result = api.run("quickstart", {**ASKED, **METHODS[name]}, rounds=5)
    gone: set[int] = set()
    for line, silos in zip(result.rounds, result.clients):
        chosen = Cohort(3).asked(line["round"], np.isin(np.arange(10), list(gone), invert=True), 0)
        asked = {k for k, word in enumerate(silos["status"]) if word != "not asked"}
        assert asked == set(chosen)
        assert line["asked"] == len(asked)
        assert line["joined"] == silos["status"].count("joined")
        assert line["participation"] == line["joined"] / line["asked"]
        gone |= {k for k, word in enumerate(silos["status"]) if word == "left"}
        for k in set(range(10)) - asked:
            assert silos["own_accuracy"][k] is None
            assert silos["reason"][k] == ""
    assert np.isfinite(np.asarray(result.theta)).all()
    assert result.participation == np.mean([line["participation"] for line in result.rounds])


def test_everybody_who_is_asked_joins_and_all_of_that_is_participation():
    result = api.run("quickstart", {**ASKED, "participation.rule": "always"}, rounds=3)
    assert [line["participation"] for line in result.rounds] == [1.0] * 3
    assert "of 3" in result._repr_html_() or "1 of 1" in result._repr_html_()


def test_what_is_not_asked_stays_as_it_was():
    experiment = build(load("quickstart", ASKED), 0)
    server, federation = experiment.server, experiment.federation
    state = begin(server, experiment.theta, experiment.task.examples)
    seen: set[int] = set()
    for _ in range(3):
        asked = announce(server, state)
        seen |= set(asked.clients.tolist())
        reports = federation.exchange(asked)
        assert list(reports.clients) == list(asked.clients)
        state, _ = advance(server, state, reports, None, asked.clients)
    never = sorted(set(range(10)) - seen)
    assert never  # of ten silos three rounds of three leave one out
    kept = federation.snapshot()
    assert not np.asarray(kept["trained"])[never].any()
    assert not np.asarray(kept["own"])[never].any()
    assert (state.absences == 0).all()  # nobody was silent
    assert (state.last_joined[never] == 0).all()


def test_a_run_that_is_resumed_asks_the_same_silos(tmp_path):
    whole = api.run("quickstart", ASKED, rounds=6, out=tmp_path / "whole")

    def stop(record, clients):
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.run("quickstart", ASKED, rounds=6, out=tmp_path / "cut", watch=stop)
    cut = api.run("quickstart", ASKED, rounds=6, out=tmp_path / "cut")
    assert np.array_equal(np.asarray(whole.theta), np.asarray(cut.theta))
    assert list(whole.clients) == list(cut.clients)


def test_a_report_shows_them_apart(tmp_path):
    result = api.run("quickstart", ASKED, rounds=4, out=tmp_path)
    assert result.run_dir is not None
    (shown,) = page_data([read(result.run_dir)])["runs"]
    assert [sum(row[t] != "n" for row in shown["strip"]) for t in range(4)] == [3] * 4
    assert "of 3 asked" in str(shown["answer"])
    cards = {card["state"]: card for card in shown["answer"]["cards"]}
    assert cards["n"]["title"].endswith("was not asked")
    assert cards["n"]["words"] == "It was not asked in this round."


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cohort.size": 11}, "cohort.size is 11, and there are 10 silos"),
        ({"cohort.size": 0}, "cohort.size"),
        ({"cohort.draw": "round-robin"}, "give cohort.size, too"),
        ({"cohort.size": 3, "cohort.availability": 0.5}, "availability needs draw = 'availability'"),
        ({"cohort.size": 3, "cohort.draw": "luck"}, "cohort.draw"),
        (
            {"cohort.size": 3, "cohort.draw": "availability", "cohort.availability": [0.5, 0.5]},
            "2 entries for 10 silos",
        ),
        ({"cohort.size": 3, "cohort.draw": "availability", "cohort.availability": [0.5, 1.5]}, "cohort.availability"),
        ({"cohort.size": 3, "standing.kind": "work"}, "standing.kind is 'work' with cohort.size 3"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(settings, said):
    with pytest.raises(ConfigError) as refused:
        feduca.run("quickstart", settings, rounds=1)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_silos_come_and_are_forgotten_while_few_are_asked():
    """What is remembered of them lies in a store; its running sum is made anew."""
    settings = {**ASKED, "mechanism.name": "fedavg", "memory.kind": "update", "participation.rule": "always"}
    experiment = build(load("quickstart", settings), 0)
    server, federation, task = experiment.server, experiment.federation, experiment.task
    state = begin(server, experiment.theta, task.examples)

    def play(state):
        asked = announce(server, state)
        return advance(server, state, federation.exchange(asked), None, asked.clients)[0]

    for _ in range(4):
        state = play(state)
    assert state.recalled
    known = np.flatnonzero(state.last_joined)
    more = np.concatenate([task.examples, [50, 60]])
    grown = roster.grow(state, roster.Census(more, np.zeros(12, bool)), server.mechanism, 0)
    assert np.array_equal(np.asarray(grown.remembered)[:10], np.asarray(state.remembered))
    assert not np.asarray(grown.remembered)[10:].any()
    assert not grown.recalled
    gone = np.isin(np.arange(10), known[:2])
    left = roster.erase(replace(state, left=gone), gone)
    assert not np.asarray(left.remembered)[gone].any()
    assert np.asarray(left.remembered)[known[2:]].any(1).all()
    assert np.asarray(state.remembered)[known].any(1).all()  # an earlier state stays what it was
    after, wanted = play(left), play(replace(left, recalled={}))
    assert np.array_equal(np.asarray(after.theta), np.asarray(wanted.theta))
