"""The command line as a stranger meets it: help, lists, what a run prints and leaves behind, and how it is interrupted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from command_line import FAST, feduca
from feduca.cli import progress as display
from feduca.cli.main import GROUPS, app
from feduca.recipes.schema import load

pytestmark = pytest.mark.usefixtures("own_folder")


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


def test_who_quit_is_printed(capsys):
    few = ["--set", "participation.quits=1", "--set", "mechanism.name=fedavg", "--set", "participation.rule=accuracy"]
    code, out, err = feduca("run", *FAST, *few, capsys=capsys)
    assert code == 0, err
    assert re.search(r"^\d+ of 10 silos quit for good: silo-\d \(round 2\)", out, re.M)
    assert "/" in next(line for line in err.splitlines() if "round 2/2" in line).split(" in ")[1]
    assert "deployed" not in out  # nothing untouched to compare on
