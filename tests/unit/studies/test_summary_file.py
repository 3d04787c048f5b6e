"""RESULTS/NAME.json: nothing there is replaced unsaid, several processes can fill one, and it says what was run."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from command_line import feduca
from feduca.cli import progress as display
from feduca.errors import InputError
from feduca.studies import execute as study
from feduca.studies import summary_file as summaries
from feduca.studies.cell_summary import CellSummary
from feduca.studies.cells import Cell
from feduca.studies.execute import reproduce
from paper import commands, page
from run_directories import before_seals

STUDY = """
rounds = 2
seeds = [0, 1]
[task]
clients = 4
classes_per_client = 5
max_examples = 200
[local]
epochs = 1
[[axes]]
name = "method"
values = [
    { label = "fedavg", set = { "mechanism.name" = "fedavg" } },
    { label = "uniform", set = { "mechanism.name" = "uniform" } },
]
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(STUDY)
    return "mine.toml"


def written(folder="results"):
    return {cell["labels"]["method"]: cell for cell in json.loads(Path(folder, "mine.json").read_text())}


def test_another_experiment_is_recorded_and_kept_apart(mine):
    one = {"keep": {"method": ["fedavg"]}}
    reproduce(mine, **one)
    before = Path("results/mine.json").read_bytes()
    (changed,) = reproduce(mine, settings={"rounds": 1, "seeds": [0], "engine.threads": 1}, **one)
    assert changed["set"] == {"rounds": 1}
    assert Path("results/mine.json").read_bytes() == before
    assert written("runs/changed/results")["fedavg"] == changed
    assert written()["fedavg"]["set"] == {}
    (same,) = reproduce(mine, settings={"engine.threads": 1, "checkpoint.keep": False}, **one)  # the same experiment
    assert written()["fedavg"] == same


def test_where_summaries_go_unless_one_says_so():
    assert study.results_folder("o", False, {"seeds": [1], "engine.device": "cuda"}) == Path("results")
    assert study.results_folder("o", False, {"task.data_dir": "here"}) == Path("results")
    assert study.results_folder("o", False, {"local.lr": 1}) == Path("o/changed/results")
    assert study.results_folder("o/smoke", True, {"local.lr": 1}) == Path("o/smoke/results")


def test_what_is_replaced_is_said(mine):
    told: list[str] = []
    here = {"keep": {"method": ["fedavg"]}, "results": "results", "tell": told.append}
    reproduce(mine, **here)
    reproduce(mine, **here)
    assert told == []
    reproduce(mine, settings={"rounds": 1}, **here)
    assert told == [
        "results/mine.json: fedavg is replaced: it was rounds=2, cpu in fp32, seeds 0, 1,"
        " it is rounds=1, cpu in fp32, seeds 0, 1"
    ]
    assert written()["fedavg"]["rounds"] == 1


def test_fewer_seeds_of_the_same_experiment_replace_nothing(mine):
    told: list[str] = []
    here = {"keep": {"method": ["fedavg"]}, "tell": told.append}
    (whole,) = reproduce(mine, **here)
    (kept,) = reproduce(mine, settings={"seeds": [1], "engine.threads": 1}, **here)
    assert kept == whole == written()["fedavg"]
    assert told == ["results/mine.json: fedavg keeps seeds 0, 1; this one has only seed 1"]
    (other,) = reproduce(mine, settings={"seeds": [2]}, **here)  # no subset: it counts, and what goes is said
    assert other["seeds"] == [2] == written()["fedavg"]["seeds"]
    assert len(told) == 2
    (more,) = reproduce(mine, settings={"seeds": [1, 2]}, **here)
    assert (more["seeds"], len(told)) == ([1, 2], 2)  # nothing is lost, nothing to say


def test_committed_cells_are_recognised_on_another_device():
    """Older ones do not say `experiment`: what they computed is found from their hash, as of any that did not."""
    folder = Path(__file__).parents[3] / "results"
    planned = {summaries.place(cell.labels): cell for cell in study.plan("table1")}
    for where, cell in summaries.read(folder / "table1.json").items():
        silent = {key: value for key, value in cell.items() if key != "experiment"}
        shorter = Cell(planned[where].labels, planned[where].recipe.with_settings({"rounds": 1}))
        for told in (cell, silent):
            assert summaries.same_experiment(CellSummary.of(told), planned[where])
            assert not summaries.same_experiment(CellSummary.of(told), shorter)


def test_the_page_says_what_was_changed(tmp_path):
    keep = {"delta": ["1"]}
    settings = {"rounds": 1, "local.lr": 0.05, "utility.metric": "loss", "reporting.clients": [0, 1]}
    cells = reproduce("delta", smoke=True, settings=settings, keep=keep, out=tmp_path)
    assert commands.commands("delta", cells) == [
        "feduca reproduce delta --only delta=1 --set rounds=1 --set local.lr=0.05 --set utility.metric=loss"
        " --set 'reporting.clients=[0,1]' --set seeds=[0]"
    ]
    text = page.pages({"delta": cells})["paper/delta.md"]
    assert ", 1 rounds, 1 seed, with rounds=1 local.lr=0.05 utility.metric=loss reporting.clients=[0,1]." in text


VALUES = ["word", "true", "1.0", "-inf", "two words", "a=b", 1e-7, True, [1, "x"], {"a": [1, {"b": "c"}]}]


@pytest.mark.parametrize("value", VALUES)
def test_settings_are_read_back_as_they_were(value):
    from feduca.recipes.schema import parse_setting

    (text,) = summaries.settings_text({"some.key": value})
    assert parse_setting(text) == ("some.key", value)


def test_the_commit_is_the_one_that_ran(mine, monkeypatch):
    one = {"keep": {"method": ["fedavg"]}}
    monkeypatch.setenv("FEDUCA_COMMIT", "first")
    reproduce(mine, settings={"seeds": [0]}, **one)
    monkeypatch.setenv("FEDUCA_COMMIT", "second")
    assert reproduce(mine, settings={"seeds": [0]}, **one)[0]["commit"] == "first"
    assert reproduce(mine, **one)[0]["commit"] == "first, second"
    for file in Path("runs/mine").glob("*-s0/env.json"):  # a run of before there was such an entry
        env = json.loads(file.read_text())
        assert env.pop("commit") == "first"
        file.write_text(json.dumps(env))
        before_seals(file.parent)
    monkeypatch.setenv("FEDUCA_COMMIT", "third")
    assert reproduce(mine, **one)[0]["commit"] == "second, third"


def _put(path: str, who: str, start) -> None:
    """Many cells, one at a time, as a process of its own."""
    file = summaries.SummaryFile(Path(path), {})
    start.wait()
    for i in range(25):
        labels = {"cell": f"{who}{i}"}
        file.put([(Cell(labels, None), {"labels": labels})], compared=False)  # type: ignore[arg-type]


def test_two_processes_fill_one_summary(tmp_path):
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    workers = [context.Process(target=_put, args=(str(tmp_path / "x.json"), who, start)) for who in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    names = {cell["labels"]["cell"] for cell in json.loads((tmp_path / "x.json").read_text())}
    assert names == {f"{who}{i}" for who in "ab" for i in range(25)}


def test_what_another_call_has_written_meanwhile_stays(mine):
    def meanwhile(done: int, total: int, label: str) -> None:
        if done == 0:
            reproduce(mine, keep={"method": ["uniform"]})

    (cell,) = reproduce(mine, keep={"method": ["fedavg"]}, watch=meanwhile)
    assert set(written()) == {"fedavg", "uniform"}
    assert written()["fedavg"] == cell


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that even root cannot write to")
def test_a_folder_that_cannot_be_written_is_found_before_anything_runs(mine):
    with pytest.raises(
        InputError, match=r"cannot write results to /proc/here: .* choose another folder with --results"
    ):
        reproduce(mine, results="/proc/here")
    assert not Path("runs").exists()


def test_results_that_cannot_be_written_are_found_before_anything_runs(mine, capsys):
    Path("taken").touch()
    code, _, err = feduca("reproduce", mine, "--results", "taken/results", capsys=capsys)
    assert code == 2
    assert err == (
        "feduca: cannot write results to taken/results: taken is not a folder; choose another folder with --results\n"
    )
    assert not Path("runs").exists()


def test_the_command_says_where_the_summary_is(mine, capsys):
    args = ("reproduce", "delta", "--smoke", "--only", "delta=1", "--json")
    code, out, err = feduca(*args, capsys=capsys)
    assert (code, json.loads(out)[0]["labels"]) == (0, {"delta": "1"})
    assert err.splitlines()[-1] == "summary in runs/smoke/results/delta.json"
    code, _, err = feduca("reproduce", mine, "--only", "method=fedavg", "--set", "rounds=1", capsys=capsys)
    assert (code, err.splitlines()[-1]) == (0, "summary in runs/changed/results/mine.json")


@pytest.mark.parametrize(
    ("name", "known", "titles", "figures"),
    [
        ("jensen", {"jensen": {"mean": 0.0123, "top50": 0.02, "top25": 0.03}}, "gap %  top 50  top 25", "1.23 2.00 3.00"),
        ("concavity", {"fits": {"median": 0.734}}, "median R^2", "0.73"),
        ("discrepancy", {"discrepancy": [0.1, None, 0.3]}, "mean discrepancy  largest", "0.2000 0.3000"),
        ("cost", {"seconds_allocate": 1.234, "peak_mb": 812.4}, "allocating, s  peak MB", "1.23 812"),
        ("cost", {"seconds_allocate": 1.234, "peak_mb": None}, "allocating, s", "1.23"),
    ],
)  # fmt: skip
def test_the_table_shows_what_the_study_is_named_for(name, known, titles, figures):
    cell = {
        "labels": {"x": "y"}, "accuracy_mean": 0.5, "accuracy_std": None, "participation_mean": 0.4, "seeds": [0],
        "seconds": 9.0, **known,
    }  # fmt: skip
    head, row = display.cells([cell], paper=False, study=name).splitlines()
    assert head == f"x  accuracy %  participation %  {titles}  seeds  seconds"
    assert row.split()[3:-2] == figures.split()
    plain = display.cells([cell], paper=False, study="table1").splitlines()[0]
    assert plain == "x  accuracy %  participation %  seeds  seconds"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"task.data": "nowhere"}, "task.data is 'nowhere': choose one of digits"),
        ({"task.data": "cifar10", "task.data_dir": "none"}, "cifar-10"),
        ({"engine.precision": "tf32"}, "engine.precision is tf32 on cpu"),
    ],
)
def test_what_is_not_here_is_found_before_the_first_run(mine, settings, says):
    def never(done: int, total: int, label: str) -> None:
        raise AssertionError("nothing should have been begun")

    with pytest.raises(InputError, match=says):
        reproduce(mine, settings=settings, watch=never)


def test_a_long_study_is_announced_once(mine, monkeypatch):
    told: list[str] = []
    one = {"keep": {"method": ["fedavg"]}, "results": "results", "tell": told.append}
    reproduce(mine, settings={"seeds": [0]}, **one)
    assert told == []
    monkeypatch.setattr("feduca.recipes.cost_hint.PERCEPTRONS", 100)
    reproduce(mine, settings={"seeds": [0, 1, 2]}, **one)
    assert told == [
        "2 runs to do, 4 rounds and 6.4e+02 example-steps in all; of one, a round is 160 example-steps (160 examples x 1"
        " epochs) of mlp, a lot for a CPU: the first may take minutes; a GPU (--device cuda) or a smaller task.max_examples helps"
    ]
    reproduce(mine, settings={"seeds": [0, 1, 2]}, **one)  # nothing left to wait for
    assert len(told) == 1


@pytest.mark.parametrize("how", ["half a line", "a line less", "nothing left"])
def test_a_finished_run_without_its_records_is_told_to_be_repeated(mine, how):
    one = {"keep": {"method": ["fedavg"]}, "settings": {"seeds": [0]}}
    (before,) = reproduce(mine, **one)
    (records,) = Path("runs/mine").glob("*/rounds.jsonl")
    text = records.read_text()
    left = {"half a line": text[:-40], "a line less": text.splitlines(keepends=True)[0], "nothing left": ""}
    records.write_text(left[how])
    with pytest.raises(
        InputError, match=r"is finished, but its records are damaged \(.*\); repeat the run with --again$"
    ):
        reproduce(mine, **one)
    (after,) = reproduce(mine, again=True, **one)
    assert after["accuracies"] == before["accuracies"]
