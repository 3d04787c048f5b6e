"""The model that a silo would have alone, and who is better off than with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import feduca
from feduca import api
from feduca.client.memory import blank
from feduca.client.outside import current, plain
from feduca.core.utility import Quadratic
from feduca.errors import ConfigError
from feduca.recipes import build as experiment
from feduca.runs import standing
from feduca.runs.directory import over_seeds
from feduca.studies.cells import Cell
from feduca.studies.summarise import beside, summarise
from feduca.types import Announcements, LocalSpec
from numpy_task import NumpyTask
from offered import LEAST, SMALL
from other_ways import check_other_ways


def test_the_model_alone_equals_the_row_in_which_nobody_joins():
    task = NumpyTask()
    beside_ = feduca.run({}, {**SMALL, **LEAST, "alone": True}, task=task)
    alone = feduca.run({}, {**SMALL, "mechanism.name": "fedavg", "participation.rule": "never"}, task=task)
    for a, b in zip(beside_.clients, alone.clients):
        assert a["test_alone"] == b["test_deployed"]
    assert alone.participation == pytest.approx(1 / 5)  # everybody joins in round 1
    assert beside_.clients[-1]["test_alone"] != beside_.clients[-1]["test_deployed"]
    without = feduca.run({}, {**SMALL, **LEAST}, task=task)
    assert without.clients[-1]["test_alone"] is None
    assert np.array_equal(without.theta, beside_.theta)  # looking does not change anything


def test_alone_has_no_term_of_the_method():
    spec = LocalSpec(prox=0.3, objective="propfair", bound=5.0, lr=0.2)
    assert plain(spec) == LocalSpec(lr=0.2)
    own = {name: {**SMALL, "mechanism.name": name, "alone": True} for name in ("fedavg", "fedprox", "propfair")}
    own["fedprox"]["mechanism.mu"] = 5.0
    runs = {name: feduca.run({}, {**settings}, task=NumpyTask()) for name, settings in own.items()}
    alone = [[record["test_alone"] for record in run.clients] for run in runs.values()]
    assert alone[0] == alone[1] == alone[2]
    assert not np.array_equal(runs["fedavg"].theta, runs["fedprox"].theta)


def test_a_newcomers_model_alone_starts_where_the_run_did():
    task = NumpyTask()
    first, theta = task.init(7), np.full(4, 3.0)  # long since federated
    memory = blank(theta, 2, Quadratic())
    asked = Announcements("run", 5, np.arange(2), theta, *(np.full(2, 0.5),) * 2, np.ones(1), LocalSpec())
    assert np.array_equal(current(memory, asked, lambda: first), [first, first])
    assert np.array_equal(current(memory, replace(asked, round=1)), [theta, theta])  # it is sent the first
    assert current(memory, asked) is None
    assert current(memory, asked, lambda: np.full(4, np.nan)) is None  # nobody knows
    mixed = replace(memory, trained=np.array([True, False]), extra={"alone": np.full((2, 4), 9.0)})
    assert np.array_equal(current(mixed, asked, lambda: first), [np.full(4, 9.0), first])
    assert current(replace(memory, trained=np.array([True, False])), asked, lambda: first) is None


def test_the_model_alone_survives_snapshot_and_lockstep():
    snapshot = check_other_ways(api.recipe({}, {**SMALL, **LEAST, "participation.quits": 2}))
    assert set(snapshot) >= {"extra.alone", "extra.behind"}


def test_the_summary_says_who_is_better_off_as_a_study_does():
    results = [
        feduca.run({}, {**SMALL, **LEAST, "alone": True}, task=NumpyTask(seed=seed), seed=seed) for seed in (0, 1)
    ]
    recipe = api.recipe({}, {**SMALL, **LEAST, "alone": True, "task.test_share": 0.5})
    cell = beside([summarise(Cell({"method": "x"}, recipe), [with_task(result) for result in results])])[0]
    said = [result.summary for result in results]
    assert cell["gain_worst"] == min(s["gain_worst"] for s in said)
    for mine, theirs in {
        "alone": "alone_test_mean",
        "better_off": "better_off_share",
        "gain_mean": "gain_mean",
    }.items():
        assert np.mean([s[mine] for s in said]) == pytest.approx(cell[theirs])
    deployed, alone = (np.mean([r[f"test_{what}"] for r in results[0].clients], 0) for what in ("deployed", "alone"))
    gains = np.round(deployed, 5) - np.round(alone, 5)
    assert said[0]["better_off"] == (gains > 0).mean()
    assert said[0]["gain_worst_silo"] == f"silo-{gains.argmin()}"
    assert said[0]["gain_worst"] == pytest.approx(gains.min(), abs=2e-5)
    ends = [result.clients[-1].get("paired") for result in results]
    row = over_seeds([result.row() for result in results], ends, recipe.plain()["task"])
    assert row["gain_worst"] == cell["gain_worst"]
    assert row["gain_worst_silo"] == min(said, key=lambda s: s["gain_worst"])["gain_worst_silo"]
    without = feduca.run({}, {**SMALL, **LEAST}, task=NumpyTask()).summary
    assert not {"alone", "better_off", "gain_mean", "gain_worst", "gain_worst_silo"} & without.keys()


def with_task(result):
    """A study's results come from recipes; this one's task is its own."""
    return replace(result, config={**result.config, "engine": {"device": "cpu", "precision": "fp32"}})


def test_who_is_better_off_by_hand():
    records = [
        {"test_deployed": [0.9, 0.5, None, 0.7], "test_alone": [0.6, 0.6, None, 0.7]},
        {"test_deployed": None, "test_alone": None},  # a round in which nobody answered
        {"test_deployed": [0.7, 0.5, None, 0.7, 0.5], "test_alone": [0.6, 0.6, None, 0.7, 0.3]},  # one came later
    ]
    names = ["a", "b", "c", "d", "e"]
    said = standing.summary(records, names)
    assert said == pytest.approx(
        {"alone": 0.55, "better_off": 0.5, "gain_mean": 0.075, "gain_worst": -0.1, "gain_worst_silo": "b"}
    )
    assert standing.better_off(records, names) == (
        "deployed 62.5 % against 55.0 % alone on untouched data: 2 of 4 silos with such data (of 5) better off,"
        " mean +7.5 points, worst b -10.0"
    )
    assert "mean +0.075, worst b -0.100" in standing.better_off(records, names, "r2")
    assert standing.better_off([{"test_deployed": [0.5], "test_alone": None}], ["a"]) == ""


def test_who_quit_is_said_so_that_nobody_reads_it_the_other_way_round():
    gone = standing.left([(1, ["joined", "joined"]), (2, ["left", "declined"]), (3, ["left", "left"])])
    assert gone == {0: 2, 1: 3}
    records = [{"round": r, "status": words} for r, words in ((1, ["joined", "joined"]), (2, ["declined", "left"]))]
    assert standing.membership([{}, {}], records, ["a", "b"]) == {"still_in": 0.5, "left": {"b": 2}}
    assert standing.membership([{"members": 2}], records[:1], ["a", "b"]) == {"still_in": 1.0, "left": {}}
    by_operator = standing.membership([{"members": 1}], records[:1], ["a", "b"])
    assert by_operator == {"still_in": 0.5, "left": {}}
    assert standing.departed({}, ["a", "b"]) == ""
    assert standing.departed({1: 3}, ["a", "b"]) == "1 of 2 silos quit for good: b (round 3)"
    assert standing.departed(gone, ["a", "b"]) == (
        "2 of 2 silos quit for good: a (round 2), b (round 3); the federation is empty since round 3, and its shared model"
        " stands still"
    )


def test_models_alone_need_somebody_to_be_judged(caplog):
    task = NumpyTask()
    task.test_examples = np.zeros(4, int)
    result = feduca.run({}, {**SMALL, "alone": True}, task=task)
    assert "no silo has test data: who is better off than alone is not judged; give silos test rows" in caplog.text
    assert "better_off" not in result.summary
    feduca.run({}, {**SMALL, "rounds": 1, "participation.quits": 2}, task=task)
    for share, said in (
        (0.0, r"set task\.test_share, such as 0\.5"),
        (0.01, r"raise task\.test_share, which is 0\.01"),
    ):
        with pytest.raises(ConfigError, match=f"no silo has test data.*: {said}, or leave alone out"):
            feduca.run({}, {"alone": True, "task.test_share": share})
    whole = experiment.make_task(api.recipe({}, {"task.test_share": 0.5}), 0)
    rows = {part: kept[:0] if part == "test" else kept for part, kept in whole.members[2].rows.items()}
    lacking = replace(whole, members=(*whole.members[:2], replace(whole.members[2], rows=rows), *whole.members[3:]))
    chosen = api.recipe({}, {"alone": True, "task.test_share": 0.5})
    with pytest.raises(ConfigError, match=r"task\.test_share 0\.5 leaves silo-2 no test data; raise task\.test_share"):
        experiment.build(chosen, 0, lacking)
