"""Every study of the paper runs in its small version, is summarised, and is not repeated when asked again."""

from __future__ import annotations

import json

import pytest

from feduca import api
from feduca.errors import ConfigError
from feduca.studies.execute import STUDIES, ordered, reproduce
from paper.claims import CLAIMS
from paper.page import pages, read

TRAINED = [name for name in STUDIES if name != "splits"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_smoke(name, tmp_path):
    told = []
    cells = reproduce(
        name, smoke=True, out=tmp_path, results=tmp_path / "results", watch=lambda done, total, label: told.append(done)
    )
    assert cells
    assert told[0] == 0
    for cell in cells:
        assert {"data", "split", "method", "schedule", "rule", "offer", "memory", "seeds", "config_hash"} <= set(cell)
        assert 0 <= cell["participation_mean"] <= 1
    assert json.loads((tmp_path / "results" / f"{name}.json").read_text())
    seconds = [cell["seconds"] for cell in cells]
    again = reproduce(name, smoke=True, out=tmp_path, results=tmp_path / "results")
    assert [cell["seconds"] for cell in again] == seconds  # read back, not repeated


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["fmnist", "mixtures", "baselines", "controls", "cifar10", "cifar10-mixtures", "screening"]
)
def test_every_part_of_the_search_for_the_papers_reading_runs(part, tmp_path):
    """Its default cells, or all where cells have no names: each reading computes something of its own."""
    keep = {"study": [part]} | ({} if part in ("baselines", "controls") else {"cell": ["default"]})
    keep |= {"split": ["0.5,1.0"]} if "cifar10" in part else {}
    cells = reproduce("readings", smoke=True, keep=keep, out=tmp_path, results=tmp_path / "results")
    assert len({cell["config_hash"] for cell in cells}) == len(cells) > 10
    assert all(0 < cell["participation_mean"] <= 1 and cell["split_seed"] == 0 for cell in cells)


def test_the_page_speaks_of_every_claim(tmp_path):
    reproduce("delta", smoke=True, out=tmp_path, results=tmp_path / "results")
    found = pages(read(tmp_path / "results"))
    assert "paper/delta.md" in found
    text = "\n".join(found.values())
    for claim in CLAIMS:
        assert claim.text in text
    assert "not testable here" in text


def test_the_summary_is_in_the_order_of_the_recipe(tmp_path):
    for delta in ("10", "1", "0.5"):
        reproduce("delta", smoke=True, keep={"delta": [delta]}, out=tmp_path, results=tmp_path)
    stranger = {"labels": {"delta": "7"}}
    written = json.loads((tmp_path / "delta.json").read_text())
    assert [cell["labels"]["delta"] for cell in written] == ["0.5", "1", "10"]
    assert ordered("delta", [stranger, *reversed(written)]) == [*written, stranger]


def test_progress_counts_what_is_there(tmp_path):
    told: list[tuple[int, int]] = []
    here = {"smoke": True, "out": tmp_path / "runs", "results": tmp_path}
    reproduce("delta", keep={"delta": ["10", "1"]}, **here)
    found = reproduce("delta", watch=lambda done, total, label: told.append((done, total)), **here)
    assert told == [(2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]
    assert len(found) == len(json.loads((tmp_path / "delta.json").read_text())) == 6


def test_fill_takes_over_the_same_run_of_another_study(tmp_path):
    results = tmp_path / "results"
    one = reproduce("table1", smoke=True, keep={"data": ["cifar10"], "split": ["0.5,1.0"], "method": ["feduca"]},
                    out=tmp_path / "gone", results=results)[0]  # fmt: skip
    told: list[int] = []
    here = {"smoke": True, "out": tmp_path / "here", "results": results, "fill": True}
    (taken,) = reproduce(
        "misreporting", keep={"inflation": ["0"]}, watch=lambda done, total, label: told.append(total), **here
    )
    assert told == [0]
    assert not (tmp_path / "here").exists()
    labels = {"data": "cifar10", "split": "0.5,1.0", "method": "feduca"}
    assert (one["labels"], taken["labels"]) == (labels, {"inflation": "0"})
    assert {k: v for k, v in taken.items() if k != "labels"} == {k: v for k, v in one.items() if k != "labels"}
    assert json.loads((results / "misreporting.json").read_text()) == [taken]
    other = reproduce("misreporting", keep={"inflation": ["0"]}, settings={"rounds": 2}, **here)[0]
    assert other["rounds"] == 2  # another configuration is another run
    cost = reproduce("cost", keep={"method": ["feduca"]}, **here)[0]
    assert cost["seconds"] != one["seconds"]  # a clock of its own


def test_fill_takes_nothing_over_that_has_other_seeds(tmp_path):
    here = {"smoke": True, "out": tmp_path / "runs", "results": tmp_path}
    chosen = {"data": ["cifar10"], "split": ["0.5,1.0"], "method": ["feduca"]}
    reproduce("table1", keep=chosen, settings={"seeds": [0, 1]}, **here)
    (cell,) = reproduce("misreporting", keep={"inflation": ["0"]}, fill=True, **here)
    assert cell["seeds"] == [0]


def test_a_small_version_does_not_replace_the_real_one(tmp_path):
    (tmp_path / "delta.json").write_text(json.dumps([{"labels": {"delta": "1"}, "data": "cifar10", "seeds": [0]}]))
    with pytest.raises(ConfigError, match="holds runs on cifar10, which --smoke would replace"):
        reproduce("delta", smoke=True, out=tmp_path, results=tmp_path)


def test_a_study_of_time_warms_up_and_lets_no_run_go_beside_another(tmp_path, monkeypatch):
    seen: list[tuple[str, int, bool]] = []
    tasks: list[object] = []
    run, run_many = api.run, api.run_many

    def one(recipe, settings=None, **options):
        if (task := options.get("task")) is not None:
            seen.append((recipe.mechanism["name"], (settings or {}).get("rounds", recipe.rounds), task in tasks))
            tasks.append(task)
        return run(recipe, settings, **options)

    def many(jobs, **options):
        assert all(api.is_finished(*job, options["out"]) for job in jobs)  # it reads them back
        return run_many(jobs, **options)

    monkeypatch.setattr(api, "run", one)
    monkeypatch.setattr(api, "run_many", many)
    where = {"smoke": True, "keep": {"method": ["fedavg", "feduca"]}, "out": tmp_path, "results": tmp_path}
    told: list[str] = []
    first = reproduce("cost", lockstep=9, tell=told.append, **where)
    assert "cost runs one at a time, since its clock counts: --lockstep 9 is left aside" in told
    rounds = first[0]["rounds"]
    wanted = [(method, *how) for method in ("fedavg", "feduca") for how in ((2, False), (rounds, True))]
    assert seen == wanted  # each on a task of its own, which the rounds that do not count have warmed
    assert [cell["seconds"] for cell in reproduce("cost", **where)] == [cell["seconds"] for cell in first]
    assert seen == wanted
    assert reproduce("cost", again=True, **where)[0]["seconds"] != first[0]["seconds"]
    assert len(seen) == 2 * len(wanted)


def test_only_restricts_an_axis_and_says_what_there_is(tmp_path):
    cells = reproduce("delta", smoke=True, keep={"delta": ["1"]}, out=tmp_path, results=tmp_path / "results")
    assert [cell["labels"]["delta"] for cell in cells] == ["1"]
    with pytest.raises(ConfigError, match=r"--only delta=7: the axis has 0\.01 \| 0\.5"):
        reproduce("delta", smoke=True, keep={"delta": ["7"]}, out=tmp_path, results=tmp_path / "results")


def test_fill_runs_only_what_the_summary_lacks(tmp_path):
    results = tmp_path / "results"
    one = reproduce("delta", smoke=True, keep={"delta": ["1"]}, out=tmp_path / "gone", results=results)
    told: list[int] = []
    both = reproduce(
        "delta", smoke=True, keep={"delta": ["1", "10"]}, out=tmp_path / "here", results=results, fill=True,
        watch=lambda done, total, label: told.append(total),
    )  # fmt: skip
    assert told[-1] == 1
    assert [cell["labels"]["delta"] for cell in both] == ["1", "10"]
    assert both[0] == one[0]
    changed = {"delta": ["1"]}
    reproduce(
        "delta", smoke=True, settings={"rounds": 2}, keep=changed, out=tmp_path / "here", results=results, fill=True
    )
    assert (
        json.loads((results / "delta.json").read_text())[0]["rounds"] == 2
    )  # another configuration is not the same cell
    with pytest.raises(ConfigError, match="--again and --fill contradict each other"):
        reproduce("delta", smoke=True, out=tmp_path, results=results, fill=True, again=True)
