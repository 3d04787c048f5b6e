"""The command line as a stranger meets it: what it prints, what it refuses, what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from command_line import feduca
from feduca import api
from feduca.analysis.judging import figures, overlap
from feduca.cli import progress as display
from feduca.cli.main import GROUPS, app
from feduca.recipes.schema import load, parse_setting
from feduca.studies.cells import relabelled

FAST = ["--rounds", "2", "--set", "local.epochs=1", "--set", "utility.check_every=0"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def test_help_and_version_import_nothing_heavy():
    script = (
        "import sys; sys.argv = ['feduca', sys.argv[1]]\n"
        "from feduca.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'scipy', 'numba', 'flwr'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    for flag, expected in (("--help", "compare"), ("--version", "feduca ")):
        done = subprocess.run([sys.executable, "-c", script, flag], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def test_run_writes_a_run_directory_and_one_json_line(capsys):
    code, out, err = feduca("run", *FAST, "--json", capsys=capsys)
    assert code == 0
    row = json.loads(out.splitlines()[-1])
    assert row["rounds"] == 2
    assert 0 < row["accuracy"] < 1
    assert 0 < row["participation"] <= 1
    folder = Path(row["run_dir"])
    assert folder.parent == Path("runs/quickstart")
    assert {p.name for p in folder.iterdir()} >= {
        "config.toml",
        "env.json",
        "rounds.jsonl",
        "clients.jsonl",
        "status.json",
    }
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 2
    told = [line for line in err.splitlines() if ": round " in line]  # no terminal: plain lines on stderr
    assert told[-1].startswith("quickstart: round 2/2  accuracy ")
    assert max(map(len, told)) <= 80


def test_many_silos_fit_a_line_of_progress(capsys):
    _, _, err = feduca("run", "--rounds", "1", "--set", "task.clients=30", "--set", "local.epochs=1", capsys=capsys)
    assert "  in 30/30  Eq. 2 30/30  " in err


def test_a_finished_run_is_printed_not_repeated(capsys):
    first = json.loads(feduca("run", *FAST, "--json", capsys=capsys)[1])
    code, out, err = feduca("run", *FAST, "--json", capsys=capsys)
    assert code == 0
    assert json.loads(out) == first
    assert "round" not in err
    again = json.loads(feduca("run", *FAST, "--json", "--again", capsys=capsys)[1])
    assert {**again, "seconds": 0} == {**first, "seconds": 0}


def test_the_resolved_config_runs_again_to_the_same_result(capsys):
    first = json.loads(feduca("run", *FAST, "--seed", "4", "--json", capsys=capsys)[1])
    config = str(Path(first["run_dir"]) / "config.toml")
    second = json.loads(feduca("run", config, "--json", "--out", "elsewhere", capsys=capsys)[1])
    assert second["accuracy"] == first["accuracy"]
    assert Path(second["run_dir"]).name == Path(first["run_dir"]).name


def test_compare_prints_every_row(capsys):
    code, out, _ = feduca("compare", "quickstart", *FAST, capsys=capsys)
    assert code == 0
    for label in (
        "FedAvg, Eq. 1",
        "FedAvg-WS",
        "FedUCA fresh, Eq. 2",
        "FedUCA lagged",
        "uniform",
        "random",
        "least concession",
    ):
        assert label in out
    assert "everybody forced in" in out
    assert len(out.splitlines()) == 15  # two lines of headings
    rows = json.loads(feduca("compare", "quickstart", *FAST, "--json", capsys=capsys)[1])
    assert {"method", "mechanism", "rule", "offer", "accuracy", "participation", "seconds"} <= set(rows[0])


def test_compare_over_seeds_gives_mean_and_spread(capsys):
    code, out, _ = feduca("compare", "quickstart", *FAST, "--set", "seeds=[0, 1]", "--json", capsys=capsys)
    assert code == 0
    row = json.loads(out)[0]
    assert row["seeds"] == [0, 1]
    singles = [json.loads(Path(d, "status.json").read_text())["summary"]["accuracy"] for d in row["run_dirs"]]
    assert row["accuracy"] == pytest.approx(sum(singles) / 2)
    assert row["accuracy_std"] == pytest.approx(abs(singles[0] - singles[1]) / 2**0.5)


def test_compare_over_seeds_pools_who_is_better_off(capsys):
    """As `reproduce` does: answers of all seeds are judged together, shares are not averaged."""
    settings = ["seeds=[0, 1]", "alone=true", "task.test_share=0.5", "compare=[]"]
    args = [*FAST, *(part for text in settings for part in ("--set", text))]
    (row,) = json.loads(feduca("compare", "quickstart", *args, "--json", capsys=capsys)[1])
    ends = [json.loads(Path(d, "clients.jsonl").read_text().splitlines()[-1])["paired"] for d in row["run_dirs"]]
    task = load("quickstart", {"task.test_share": 0.5}).plain()["task"]
    expected = figures(ends, overlap(2, task["validation_share"] * 0.5))
    assert {key: row[key] for key in expected} == expected
    assert "surely" in feduca("compare", "quickstart", *args, capsys=capsys)[1]


def test_compare_in_lockstep_prints_the_same_rows(capsys):
    args = ["compare", "quickstart", *FAST, "--set", "seeds=[0, 1]", "--json"]
    plain = json.loads(feduca(*args, "--out", "plain", capsys=capsys)[1])
    _, out, err = feduca(*args, "--out", "together", "--lockstep", "4", capsys=capsys)
    how = {"seconds", "run_dir", "run_dirs", "peak_mb"}
    assert [{k: v for k, v in row.items() if k not in how} for row in json.loads(out)] == [
        {k: v for k, v in row.items() if k not in how} for row in plain
    ]
    assert "seed 0 and 3 more: round " in err


def test_list_names_everything(capsys):
    code, out, _ = feduca("list", "--json", capsys=capsys)
    assert code == 0
    entries = json.loads(out)
    assert "quickstart" in entries["recipes"]
    assert {"feduca", "fedavg", "uniform", "random"} <= set(entries["mechanisms"])
    assert all(what for names in entries.values() for what in names.values())
    assert {"digits", "cifar10"} <= set(entries["data sets"])
    assert "https://" in entries["data sets"]["fmnist"]
    assert {"cnn", "bilstm"} <= set(entries["models"])
    shown = feduca("list", "--all", capsys=capsys)[1]
    assert shown.splitlines()[1].startswith("  tailored ")  # what we recommend comes first
    assert "least-concession" in shown
    assert "data sets (DIR is task.data_dir, else" in shown


def test_list_begins_with_five(capsys):
    lines = feduca("list", capsys=capsys)[1].splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["tailored", "clinics", "quickstart", "real", "table1"]
    assert "feduca run tailored" in lines[-1]
    assert "feduca list --all" in lines[-1]


def test_help_says_what_is_for_what(capsys):
    said = feduca("--help", capsys=capsys)[1]
    for group, example in GROUPS.items():
        assert f"{group}, e.g. `{example[1]}`:" in said
    named = [name for names, _ in GROUPS.values() for name in names]
    commands = typer.main.get_command(app).commands
    assert sorted(named) == sorted(commands)
    for _, example in GROUPS.values():
        assert example.split()[1] in commands


def test_report_takes_a_folder_of_runs(tmp_path, capsys):
    from feduca.cli.look import runs_in

    assert feduca("report", "runs", capsys=capsys)[0] == 2
    feduca("compare", "clinics", *FAST, capsys=capsys)
    (tmp_path / "runs/clinics/empty").mkdir()
    inside = runs_in(["runs"])
    assert inside == runs_in(["runs/clinics"]) == runs_in([*map(str, inside), "runs/clinics"])
    assert len(inside) == 7
    code, out, _ = feduca("report", "runs/clinics", capsys=capsys)
    assert code == 0
    assert out == "written to report.html\n"
    (tmp_path / "nothing").mkdir()
    assert "holds no run with a finished round" in feduca("report", "nothing", capsys=capsys)[2]


def test_doctor_is_content_here(capsys):
    code, out, _ = feduca("doctor", capsys=capsys)
    assert code == 0, out
    assert out.splitlines()[-1].startswith("Ready")
    assert "solver: optimal" in out
    assert "FAIL" not in out


BAD = {
    "unknown recipe": (["run", "quickstrat"], r"quickstrat.*did you mean 'quickstart'"),
    "unknown key": (["run", "--set", "mechanism.delat=1"], r"unknown key 'mechanism.delat'; did you mean 'delta'"),
    "unknown table": (["run", "--set", "mecanism.delta=1"], r"unknown key 'mecanism'; did you mean 'mechanism'"),
    "unknown task key": (["run", "--set", "task.client=3"], r"unknown key 'task.client'; did you mean 'clients'"),
    "wrong type": (["run", "--set", "mechanism.delta=lots"], r"mechanism.delta is 'lots'"),
    "wrong choice": (["run", "--set", "participation.rule=maybe"], r"participation.rule is 'maybe'"),
    "unknown mechanism": (["run", "--set", "mechanism.name=fedavvg"], r"'fedavvg'; did you mean 'fedavg'"),
    "delta zero": (["run", "--set", "mechanism.delta=0"], r"mechanism.delta must be a number above 0, got 0"),
    "no strategies": (["run", "--set", "mechanism.n_s=0"], r"mechanism.n_s must be at least 1, got 0"),
    "zero clients": (["run", "--set", "task.clients=0"], r"task.clients is 0"),
    "zero rounds": (["run", "--rounds", "0"], r"rounds is 0"),
    "too many classes": (["run", "--set", "task.classes_per_client=11"], r"11"),
    "not key=value": (["run", "--set", "delta"], r"--set needs key=value, got 'delta'"),
    "a value where a table was": (["run", "--set", "rounds.x=1"], r"rounds"),
    "no such silo": (["run", "--set", "reporting.clients=[12]"], r"silo 12; this federation has silos 0 to 9"),
    "toml syntax": (["run", "broken.toml"], r"broken.toml is not TOML"),
    "a folder": (["run", "."], r"there is no recipe or TOML file"),
    "bad row": (["compare", "bad-row.toml"], r"delat"),
    "unwritable": (["run", "--out", "file/below"], r"cannot write results to file/below"),
    "negative seed": (["run", "--seed", "-1"], r"seeds"),
    "a seed twice": (
        ["compare", "quickstart", "--set", "seeds=[0,1,0]"],
        r"seeds is \[0, 1, 0\]: a seed is listed twice; list each once",
    ),
    "unknown device": (["run", "--device", "tpu"], r"engine.device is 'tpu'"),
    "unknown family": (["run", "--set", "utility.family=cubic"], r"cubic"),
    "unknown data": (["run", "--set", "task.data=mnits"], r"mnits"),
    "unknown model": (["run", "--set", "task.model=transformer"], r"transformer"),
    "unlike any recipe": (["run", "nosuch"], r"no recipe or TOML file 'nosuch'; `feduca list` names the recipes$"),
    "neither true nor false": (
        ["run", "--set", "diagnostics=maybe"],
        r"diagnostics is 'maybe': it should be true or f",
    ),
    "not boolean": (["run", "--set", "local.augment=2"], r"local.augment is 2: it should be true or false$"),
    "a search of nothing": (["run", "--set", "offer.points=6"], r"offer.points is 6 with offer.kind 'global', which"),
    "train from": (["run", "--set", "offer.train_from=consensus"], r"offer.train_from is 'consensus' with offer.kind"),
    "all rows global": (["compare", "sampled", "--set", "offer.budget=3"], r"offer.budget is 3 with offer.kind 'glob"),
    "no such run": (["export", "nope", "-o", "x"], r"feduca: nope is not a run directory \(no status.json\); give one"),
    "too many deviators": (["audit", "--deviators", "11"], r"--deviators is 11; choose 1 to 10, the silos of this rec"),
    "fixed layers": (
        ["compare", "quickstart", "--set", "task.model=logistic", "--set", "task.hidden=[8]"],
        r"task.hidden is \[8\] with task.model 'logistic', whose layers are fixed; leave",
    ),
    "no such data directory": (
        ["run", "--set", "task.data=fmnist", "--set", "task.data_dir=nowhere"],
        r"no Fashion-MNIST in task.data_dir nowhere, which is no folder: put the four idx files .* leave data_dir unset",
    ),
    "too few examples": (
        ["run", "--set", "task.max_examples=5"],
        r"from 5 examples: raise task.max_examples if it is s",
    ),
    "unknown option": (["run", "--nope"], r"no such option '--nope'; `feduca run --help` has the options"),
    "unknown command": (["rn"], r"no such command 'rn'. Did you mean 'run'\?; `feduca --help`"),
    "no lockstep": (
        ["reproduce", "table1", "--lockstep", "0"],
        r"'--lockstep': 0 is not in the range x>=1; `feduca rep",
    ),
    "nothing to reproduce": (["reproduce"], r"missing argument 'NAME'; `feduca reproduce --help`"),
    "not a number": (["run", "--rounds", "many"], r"'--rounds': 'many' is not a valid integer"),
    "no deviators": (["audit", "--deviators", "0"], r"--deviators is 0; choose 1 to 10"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing_behind(case, capsys):
    args, expected = BAD[case]
    Path("broken.toml").write_text("rounds = = 3")
    Path("bad-row.toml").write_text('rounds = 2\n[[compare]]\nlabel = "x"\nset = { "mechanism.delat" = 1 }\n')
    Path("file").write_text("")
    before = set(Path().rglob("*"))
    code, out, err = feduca(*args, capsys=capsys)
    lines = [line for line in err.splitlines() if line.strip()]
    assert code == 2, err
    assert out == ""
    assert len(lines) == 1, err
    assert lines[0].startswith("feduca: ")
    assert re.search(expected, lines[0]), lines[0]
    assert set(Path().rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere, so there is no unwritable folder to try")
def test_a_folder_without_write_permission(capsys, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    code, _, err = feduca("run", "--out", str(locked / "runs"), capsys=capsys)
    assert code == 2
    assert "is not writable" in err


def test_debug_shows_the_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "feduca", "--debug", "run", "nowhere"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_help_has_no_stray_backslash(capsys):
    code, out, _ = feduca("run", "--help", capsys=capsys)
    assert code == 0
    assert "[default: runs]" in out
    assert "\\" not in out
    assert '{"zeta": [[a, b, c], ...], "gamma"' in feduca("solve", "--help", capsys=capsys)[1]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run", "A built-in recipe (`feduca list`) or a TOML file."),
        ("resume", "A run directory."),
        ("deploy check", "A whole deployment, a server's folder, or a silo's."),
    ],
)
def test_help_says_what_a_positional_argument_is(command, says, capsys):
    assert says in feduca(*command.split(), "--help", capsys=capsys)[1]


def test_without_a_command_there_is_help(capsys):
    code, out, err = feduca(capsys=capsys)
    assert code in (0, 2)  # click's choice
    assert "Start, e.g. `feduca run tailored`" in out + err
    assert "has the options" not in err


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_long_first_round_is_announced(command, capsys, monkeypatch):
    assert "example-steps" not in feduca(command, "quickstart", *FAST, capsys=capsys)[2]
    monkeypatch.setattr("feduca.recipes.cost_hint.PERCEPTRONS", 1007)
    err = feduca(command, "quickstart", *FAST, "--again", capsys=capsys)[2].splitlines()
    lines = [line for line in err if "example-steps" in line]
    assert lines == [err[0]]
    many = "13 runs to do, 26 rounds and 2.6e+04 example-steps in all; of one, " if command == "compare" else ""
    assert lines[0].startswith(
        f"{many}a round is 1007 example-steps (1007 examples x 1 epochs) of mlp, a lot for a CPU"
    )
    assert "--device cuda" in lines[0]
    assert "task.max_examples" in lines[0]
    assert "example-steps" not in feduca(command, *FAST, "--again", "--json", capsys=capsys)[2]
    assert "example-steps" not in feduca(command, *FAST, capsys=capsys)[2]  # finished: nothing to wait for


def test_what_is_much_depends_on_the_model_and_the_device(monkeypatch):
    from types import SimpleNamespace

    from feduca.recipes import cost_hint
    from feduca.recipes import schema as config

    monkeypatch.setattr("feduca.tasks.data.load", lambda name, data_dir: SimpleNamespace(y_train=range(60_000)))
    paper = config.load("paper", {"task.data": "fmnist"})
    assert "a round is 240000 example-steps (48000 examples x 5 epochs) of cnn" in (cost_hint.warning(paper) or "")
    for few in ({"engine.device": "cuda"}, {"task.model": "mlp"}, {"task.max_examples": 1000}, {"task.data": "mine"}):
        assert cost_hint.warning(paper.with_settings(few)) is None


def test_a_terminal_shows_that_the_first_round_is_on_its_way(monkeypatch):
    import io

    from rich.console import Console

    screen = io.StringIO()
    monkeypatch.setattr(display, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=80))
    progress = display.Progress(7)
    progress.start(0, 1, "feduca")
    progress._live.refresh()  # type: ignore[union-attr]
    progress.close()
    assert "feduca: round 1 of 7 ..." in screen.getvalue()


def test_show_prints_every_entry_and_can_be_run(capsys):
    from feduca.recipes.schema import load

    for settings in ([], ["--set", "mechanism.name=aaggff"]):
        code, out, _ = feduca("show", *settings, capsys=capsys)
        assert code == 0
        shown, part = {}, ""
        for line in out.splitlines():
            part = line.strip("[]") if line.startswith("[") else part
            if found := re.match(r"(?:# (\w+) is unset: \S|(\w+) = )", line):
                shown.setdefault(part, set()).add(found[1] or found[2])
        for name, entries in load("quickstart").model_dump().items():
            if name not in ("mechanism", "smoke") and isinstance(entries, dict):
                assert set(entries) <= shown[name]
        Path("mine.toml").write_text(out)
        assert load("mine.toml").hash() == load("quickstart", {"mechanism.name": "aaggff"} if settings else {}).hash()
    assert {"name", "b"} <= shown["mechanism"]


def test_another_mechanism_or_model_starts_from_its_own_defaults():
    from feduca.recipes.schema import load

    assert load("paper", {"mechanism.name": "fedavg"}).mechanism == load({"mechanism": {"name": "fedavg"}}).mechanism
    assert load("paper", {"mechanism.n_s": 3}).mechanism["schedule"] == "lagged"  # the same one: as the recipe has it
    assert load("quickstart", {"task.model": "logistic"}).task.hidden is None
    assert load("quickstart", {"task.model": "cnn", "task.hidden": [9]}).task.hidden == [9]
    assert load("quickstart", {"task.model": "mlp"}).task.hidden == [32]
    assert load("quickstart").with_settings({"task.model": "cnn"}).task.hidden is None
    Path("mine.toml").write_text('extends = "quickstart"\n[task]\nmodel = "logistic"\n')
    assert load("mine.toml").task.hidden is None
    Path("mine.toml").write_text('extends = "quickstart"\n[task]\nclients = 4\n')
    assert load("mine.toml").task.hidden == [32]


def test_a_finished_run_says_so(capsys):
    assert "already finished" not in feduca("run", *FAST, capsys=capsys)[2]
    code, out, err = feduca("run", *FAST, capsys=capsys)
    assert code == 0
    assert err.count("already finished; --again repeats it") == 1
    folder = out.split("written to ")[1].strip()
    err = feduca("resume", folder, capsys=capsys)[2]
    assert f"`feduca run {folder}/config.toml --again` repeats it" in err
    code, out, err = feduca("run", f"{folder}/config.toml", "--again", capsys=capsys)
    assert f"written to {folder}" in out
    assert err.startswith("quickstart: round 1/2")
    assert "already finished" not in feduca("run", *FAST, "--again", capsys=capsys)[2]


def test_several_seeds_are_for_compare(capsys):
    _, _, err = feduca("run", *FAST, "--set", "seeds=[3, 4]", capsys=capsys)
    assert "the recipe has seeds 3, 4: `run` takes the first, `compare` runs them all" in err


def interrupted(*args: str, number: int = signal.SIGINT) -> str:
    """What a long command says on stderr when a signal ends it after a few rounds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "feduca", *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # a test run in the background ignores some
    )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and not any(
            f.read_text().count("\n") > 1
            for f in Path("runs").rglob("rounds.jsonl")  # so the first one is safe
        ):
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_says_how_to_go_on(number):
    err = interrupted("run", "--rounds", "1000", "--set", "checkpoint.every_s=0", number=number)
    found = re.search(r"interrupted; go on with `feduca resume (\S+)`", err)
    assert found, err
    assert json.loads((Path(found[1]) / "status.json").read_text())["state"] == "interrupted"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run --rounds 1000", "no checkpoint was kept (checkpoint.keep = false): `feduca resume runs/quickstart/"),
        ("reproduce delta --smoke --set rounds=1000", "the same command skips finished runs; others start anew"),
    ],
)
def test_without_checkpoints_an_interruption_says_that_nothing_was_kept(command, says):
    err = interrupted(*command.split(), "--set", "checkpoint.keep=false")
    assert f"interrupted; {says}" in err


def test_doctor_really_tries_to_write(capsys):
    code, out, _ = feduca("doctor", "--out", "/proc/x", capsys=capsys)
    assert code == 1
    assert "cannot write results to /proc/x" in out


def test_a_small_version_refuses_in_one_line_too(capsys):
    code, _, err = feduca("reproduce", "cost", "--smoke", "--only", "method=fedvg", capsys=capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("feduca: --only method=fedvg: the axis has fedavg | ")


def test_the_splits_study_draws_and_does_not_train(capsys):
    code, out, err = feduca("reproduce", "splits", "--smoke", "--only", "data=fmnist", capsys=capsys)
    assert code == 0
    assert "smoke: small stand-in data (digits), figures are not comparable with the paper's" in err
    assert not list(Path("runs").rglob("rounds.jsonl"))
    summary = json.loads(Path("runs/smoke/results/splits.json").read_text())
    assert [cell["labels"]["split"] for cell in summary] == ["0.5,1.0", "1.0,1.0"]
    for cell in summary:
        assert len(cell["train"]) == len(cell["silos"]) == 10
        for name in cell["files"]:
            assert (Path("runs/smoke/results") / name).stat().st_size > 0
            assert name in out


def test_a_smoke_table_has_no_paper_columns(capsys):
    code, out, _ = feduca("reproduce", "concavity", "--smoke", "--only", "data=cifar10", capsys=capsys)
    assert code == 0
    assert "accuracy %" in out
    assert "paper" not in out


def test_a_smoke_summary_goes_where_it_is_told(capsys):
    there = ("--smoke", "--only", "data=cifar10", "--results", "elsewhere")
    assert feduca("reproduce", "concavity", *there, capsys=capsys)[0] == 0
    assert Path("elsewhere/concavity.json").is_file()
    assert not Path("runs/smoke/results").exists()


def test_a_misspelt_study_gets_a_suggestion(capsys):
    code, _, err = feduca("reproduce", "dleta", capsys=capsys)
    assert code == 2
    assert err.strip() == "feduca: there is no study 'dleta'; did you mean 'delta'?"


def test_compare_says_which_rows_a_setting_does_not_reach(capsys):
    err = feduca("compare", "quickstart", *FAST, "--set", "participation.ties=loss", capsys=capsys)[2]
    assert (
        "--set participation.ties=loss does not reach the row 'least concession, Eq. 1, ties by loss', the row 'the"
        in err
    )
    assert "does not reach" not in feduca("compare", "quickstart", *FAST, capsys=capsys)[2]


def test_compare_says_which_rows_have_another_mechanism(capsys):
    told = feduca("compare", "quickstart", *FAST, "--json", "--set", "mechanism.beta=examples", capsys=capsys)
    rows = [row["method"] for row in json.loads(told[1])]
    changed = [label for label in rows if label.endswith(", mechanism.beta=examples")]
    assert len(changed) == 3
    assert all(label.startswith("FedUCA") for label in changed)
    assert "--set mechanism.beta=examples reaches 3 of 13 rows; those with another mechanism start from" in told[2]
    assert "own defaults: FedAvg, Eq. 1, FedAvg-WS, Eq. 1, uniform, Eq. 2" in told[2]


def test_an_option_of_another_mechanism_says_whose_it_is(capsys):
    code, _, err = feduca(
        "run", "quickstart", "--set", "mechanism.name=fedavg", "--set", "mechanism.delta=1", capsys=capsys
    )
    assert code == 2
    assert "mechanism.delta is an option of feduca, not of fedavg, which has beta" in err


def test_compare_says_how_many_are_still_in(capsys):
    out = feduca("compare", "quickstart", *FAST, "--set", "participation.quits=1", capsys=capsys)[1]
    assert out.splitlines()[1].split()[-4:] == ["%", "in", "%", "seconds"]
    assert "Eq. 1  still" in out.splitlines()[0]
    assert "still in" not in feduca("compare", "quickstart", *FAST, capsys=capsys)[1]


def test_reproduce_names_the_rows_without_which_nobody_is_better_off(capsys):
    only = ["--only", "study=main", "--only", "data=fmnist", "--only", "split=1.0,1.0"]
    mine = "method=best-mixture, from consensus"
    _, out, err = feduca("reproduce", "offers", "--smoke", *only, "--only", mine, capsys=capsys)
    assert "mean concession  deployed %" in out.splitlines()[0]
    assert "better off" not in out
    assert "come from other rows; add them to --only method=...: forced | local" in err
    _, out, err = feduca("reproduce", "offers", "--smoke", *only, "--only", f"{mine}|forced|local", capsys=capsys)
    assert "alone %  better off %  worst gain" in out.splitlines()[0]
    assert "other rows" not in err
    elsewhere = ["--only", "study=ablation", "--only", "method=strict"]  # whose rows of this kind are in another part
    assert "other rows" not in feduca("reproduce", "offers", "--smoke", *elsewhere, capsys=capsys)[2]


def test_a_row_that_a_setting_makes_another_says_so_in_its_label(capsys):
    rows = json.loads(
        feduca("compare", "quickstart", *FAST, "--json", "--set", "offer.kind=best-mixture", capsys=capsys)[1]
    )
    changed = {row["method"]: row["offer"] for row in rows if row["method"].endswith(", offer.kind=best-mixture")}
    assert "FedAvg, Eq. 1, offer.kind=best-mixture" in changed
    assert set(changed.values()) == {"best-mixture"}
    offers = {row["method"]: row["offer"] for row in rows if row["method"] not in changed}
    assert offers["least concession, Eq. 1"] == "least-concession"
    assert {label for label, kind in offers.items() if kind == "best-mixture"} == {"best mixture, Eq. 1"}
    plain = json.loads(
        feduca("compare", "quickstart", *FAST, "--json", "--set", "task.test_share=0.5", capsys=capsys)[1]
    )
    assert not [row for row in plain if "test_share" in row["method"]]  # no row is about it


def labels(*settings: str) -> list[str]:
    """Of the quickstart's rows, those that a change is written into."""
    before = api.recipe("quickstart")
    after = api.recipe("quickstart", dict(map(parse_setting, settings)))
    rows = relabelled(before, after, {parse_setting(text)[0]: text for text in settings})
    assert len(rows) == len(before.compare)
    return [row.label for row, old in zip(rows, before.compare) if row.label != old.label]


def test_only_what_a_setting_changes_has_it_in_its_label():
    consensus = "offer.train_from=consensus"  # means nothing to rows that offer the shared model
    assert labels(consensus) == [
        f"{row}, {consensus}"
        for row in ("least concession, Eq. 1", "least concession, Eq. 1, ties by loss", "best mixture, Eq. 1")
    ]
    assert labels("mechanism.name=feduca") == []  # the recipe's own
    assert labels("participation.ties=loss", "participation.ties=strict") == []
    lagged = labels("mechanism.schedule=lagged")  # one row sets it, others have no schedule
    assert lagged == [f"FedUCA fresh, Eq. {k}, mechanism.schedule=lagged" for k in (2, 1)]


def test_a_table_with_axes_refuses_what_its_labels_are_about(capsys, tmp_path):
    axis = '[[axes]]\nname = "method"\nvalues = [{ label = "avg", set = { "mechanism.name" = "fedavg" } }, { label = "uca" }]\n'
    (tmp_path / "own.toml").write_text(f'extends = "quickstart"\ncompare = []\n{axis}')
    code, _, err = feduca("compare", "own.toml", *FAST, "--set", "mechanism.name=fedprox", capsys=capsys)
    assert code == 2
    assert "--set mechanism.name=fedprox: a table's axis is about it, and 'uca' would not be what it says" in err


def test_a_setting_for_some_rows_leaves_the_others_alone(capsys):
    code, out, err = feduca("compare", "quickstart", *FAST, "--set", "offer.margin=0.01", capsys=capsys)
    assert code == 0, err  # the best mixture has no use for it, the least concession has
    assert "best mixture" in out


def test_who_is_better_off_than_alone_is_printed(capsys):
    judged = [*FAST, "--set", "alone=true", "--set", "task.test_share=0.5"]
    code, out, err = feduca("run", *judged, "--json", capsys=capsys)
    row = json.loads(out)
    code, out, err = feduca("run", *judged, capsys=capsys)  # read back
    assert code == 0, err
    line = next(line for line in out.splitlines() if line.startswith("deployed "))
    assert (
        f"against {100 * row['alone']:.1f} % alone on untouched data: {10 * row['better_off']:.0f} of 10 silos" in line
    )
    assert line.endswith(f"worst {row['gain_worst_silo']} {100 * row['gain_worst']:+.1f}")
    code, out, err = feduca("compare", *judged, capsys=capsys)
    assert code == 0, err
    assert "deployed  alone  better" in out.splitlines()[0]
    assert [line.split("  ")[0] for line in out.splitlines()[2:]] == [
        "alone", "free to leave", "forced in", "FedUCA", "tailored"
    ]  # fmt: skip
    assert max(map(len, out.splitlines())) <= 80
    assert "See it: feduca report runs/tailored" in err
    code, out, err = feduca("compare", "quickstart", *FAST, capsys=capsys)
    assert "better off" not in out


def test_who_quit_is_printed(capsys):
    few = ["--set", "participation.quits=1", "--set", "mechanism.name=fedavg", "--set", "participation.rule=accuracy"]
    code, out, err = feduca("run", *FAST, *few, capsys=capsys)
    assert code == 0, err
    assert re.search(r"^\d+ of 10 silos quit for good: silo-\d \(round 2\)", out, re.M)
    assert "/" in next(line for line in err.splitlines() if "round 2/2" in line).split(" in ")[1]
    assert "deployed" not in out  # nothing untouched to compare on


def test_options_that_a_best_mixture_has_no_use_for(capsys):
    told = ["run", *FAST, "--set", "offer.kind=best-mixture", "--set", "offer.margin=0.1"]
    code, _, err = feduca(*told, capsys=capsys)
    assert code == 2
    assert "offer.margin is 0.1 with offer.kind 'best-mixture', which takes the best of its points" in err


def test_bench_gpu_needs_one(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = feduca("bench", "gpu", capsys=capsys)
    assert code == 2
    assert err.strip() == "feduca: bench gpu needs a CUDA device; try `feduca bench cpu`"
