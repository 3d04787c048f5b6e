"""A user's own files and studies: `--import FILE.py` before recipes are read, `reproduce FILE.toml`, `show`."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from command_line import feduca
from feduca import api
from feduca.cli import options
from feduca.errors import ConfigError, InputError
from feduca.mechanisms import registry
from feduca.recipes import plugins as own
from feduca.recipes import schema as config
from feduca.studies.execute import plan, reproduce, summary_name

METHOD = """
from __future__ import annotations

from dataclasses import dataclass

from feduca.mechanisms import register
from feduca.mechanisms.fedavg import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    \"\"\"Weights of my own.\"\"\"

    factor: float = 0.5


register("mine", Mine)
"""
STUDY = """
extends = "quickstart"
rounds = 2
seeds = [0, 1]
compare = []

[local]
epochs = 1

[[axes]]
name = "method"
values = [
    { label = "fedavg", set = { "mechanism.name" = "fedavg" } },
    { label = "mine", set = { "mechanism.name" = "mine" } },
]

[[axes]]
name = "rule"
values = [
    { label = "Eq. 1", set = { "participation.rule" = "accuracy" } },
    { label = "all", set = { "participation.rule" = "always" } },
]
"""
SMALL = "[smoke]\nrounds = 1\nseeds = [0]\n"


@pytest.fixture(autouse=True)
def _a_fresh_process(tmp_path, monkeypatch):
    """An empty folder, and nothing that stays registered or importable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("imported_", "beside_")):
            del sys.modules[name]


def written(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def test_a_file_registers_its_mechanisms_once():
    file = written("method.py", METHOD)
    own.load([file, f"./{file}"])
    own.load([file])
    assert api.recipe({}, {"mechanism.name": "mine", "mechanism.factor": 0.25}).mechanism["factor"] == 0.25
    with pytest.raises(ConfigError, match=r"mechanism.factor is 'much'"):
        api.recipe({}, {"mechanism.name": "mine", "mechanism.factor": "much"})


def test_files_of_one_name_do_not_get_in_each_others_way():
    for folder in ("a", "b"):
        Path(folder).mkdir()
        written(f"{folder}/json.py", METHOD.replace('"mine"', f'"mine-{folder}"'))  # nor in the standard library's
    own.load(["a/json.py", "b/json.py"])
    assert {"mine-a", "mine-b"} <= set(registry)
    assert api.recipe({}, {"mechanism.name": "mine-a"}).mechanism["factor"] == 0.5
    assert sys.modules["json"] is json


def test_a_file_imports_what_lies_beside_it():
    Path("elsewhere").mkdir()
    written("elsewhere/beside_it.py", 'NAME = "neighbour"')
    text = METHOD.replace('register("mine"', "from beside_it import NAME\nregister(NAME")
    own.load([written("elsewhere/method.py", text)])
    assert "neighbour" in registry


BAD = {
    "missing": ("nowhere.py", None, "--import nowhere.py: the file does not exist; give the path of a .py file"),
    "a recipe": ("mine.toml", "rounds = 3", "--import mine.toml: the file is not a Python file"),
    "syntax": ("bad.py", "a = 1\nb = (", "--import bad.py: SyntaxError in line 2: '(' was never closed; repair"),
    "not text": ("bad.py", "a = '\0'", "--import bad.py: SyntaxError"),
    "raises": (
        "bad.py",
        "def f():\n    return 1 / 0\n\nf()",
        "--import bad.py: ZeroDivisionError in line 2: division by",
    ),
    "two lines": ("bad.py", "raise ValueError('one\\ntwo')", "--import bad.py: ValueError in line 1: one two; repair"),
    "exits": ("bad.py", "import sys\nsys.exit('done')", "--import bad.py: SystemExit in line 2: done; repair"),
    "no module": ("bad.py", "import no_such_thing", "ModuleNotFoundError in line 1: No module named 'no_such_thing'"),
    "taken": ("bad.py", METHOD.replace('"mine"', '"fedavg"'), "--import bad.py: there is a mechanism 'fedavg' already"),
    "no mechanism": ("bad.py", 'from feduca.mechanisms import register\nregister("x", int)', "not a dataclass"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_gets_one_line_and_leaves_nothing_behind(case, capsys):
    name, text, expected = BAD[case]
    if text is not None:
        written(name, text)
    before, modules = set(Path().rglob("*")), {m for m in sys.modules if m.startswith("imported_")}
    code, out, err = feduca("run", "--import", name, capsys=capsys)
    assert (code, out) == (2, "")
    assert err.startswith("feduca: ")
    assert len(err.splitlines()) == 1
    assert expected in err
    assert set(Path().rglob("*")) == before
    assert {m for m in sys.modules if m.startswith("imported_")} == modules


def test_a_file_that_registers_nothing_says_so(capsys):
    file = written("idle.py", f'if __name__ == "__main__":\n    {METHOD.strip().splitlines()[-1]}')
    code, _, err = feduca("run", "--import", file, "--set", "mechanism.name=mine", capsys=capsys)
    note, error = err.splitlines()
    assert code == 2
    assert note.startswith(
        "--import idle.py: it registers no mechanism, rule or offer; call feduca.mechanisms.register("
    )
    assert "mechanism.name is 'mine'; known: feduca, fedavg" in error
    assert error.endswith(
        "(one of your own: --import FILE.py on the command line, feduca.mechanisms.register in Python)"
    )


@pytest.mark.parametrize(
    "command", ["run", "compare", "reproduce", "resume", "list", "show", "audit", "export", "partition"]
)
def test_commands_that_read_recipes_take_it(command, capsys):
    file = written("bad.py", "raise RuntimeError('so it was run')")
    more = {"reproduce": ["delta"], "resume": ["runs"], "export": ["runs", "-o", "there"]}.get(command, [])
    code, _, err = feduca(command, *more, "--import", file, capsys=capsys)
    assert code == 2
    assert "so it was run" in err


def test_an_interrupted_run_is_resumed_with_the_same_files(capsys):
    method = written("my method.py", METHOD)
    mine = ["--import", method, "--set", "mechanism.name=mine", "--set", "local.epochs=1", "--rounds", "2", "--json"]
    _, out, _ = feduca("run", *mine, capsys=capsys)
    folder = json.loads(out)["run_dir"]
    (Path(folder) / "status.json").write_text('{"schema": 1, "state": "interrupted"}')
    with pytest.raises(typer.Exit), options.resumable(Path(folder), [method]):
        raise KeyboardInterrupt
    assert f"go on with `feduca resume {folder} --import 'my method.py'`" in capsys.readouterr().err
    registry._registered.clear()
    sys.modules.pop(own._module_name(Path(method)))  # as in another process
    code, _, err = feduca("resume", folder, capsys=capsys)
    assert (code, "mechanism.name is 'mine'" in err) == (2, True)
    assert feduca("resume", folder, "--import", method, capsys=capsys)[0] == 0


def test_list_and_show_know_what_was_imported(capsys):
    file = written("method.py", METHOD)
    assert "Weights of my own." in feduca("list", "--import", file, capsys=capsys)[1]
    _, out, _ = feduca("show", "--import", file, "--set", "mechanism.name=mine", capsys=capsys)
    assert tomllib.loads(out)["mechanism"] == {"name": "mine", "beta": "uniform", "factor": 0.5}


@pytest.mark.parametrize("name", ["quickstart", "paper", "cross"])
def test_what_show_prints_is_the_recipe(name, capsys):
    code, out, _ = feduca("show", name, capsys=capsys)
    assert code == 0
    assert config.load(tomllib.loads(out)) == config.load(name)
    _, as_json, _ = feduca("show", name, "--json", capsys=capsys)
    assert json.loads(as_json)["rounds"] == config.load(name).rounds


def test_a_study_of_ones_own_with_a_method_of_ones_own(capsys):
    study, method = written("mine.toml", STUDY), written("method.py", METHOD)
    code, out, err = feduca("reproduce", study, "--import", method, capsys=capsys)
    assert code == 0, err
    assert "paper" not in out
    assert err.splitlines()[-1] == "summary in results/mine.json"
    summary = json.loads(Path("results/mine.json").read_text())
    labels = [tuple(cell["labels"].values()) for cell in summary]
    assert labels == [("fedavg", "Eq. 1"), ("fedavg", "all"), ("mine", "Eq. 1"), ("mine", "all")]
    assert {cell["mechanism"] for cell in summary} == {"fedavg", "mine"}
    assert all(cell["seeds"] == [0, 1] and cell["ceiling_accuracy_mean"] is not None for cell in summary)
    runs = {path: path.stat().st_mtime_ns for path in Path("runs/mine").rglob("rounds.jsonl")}
    assert len(runs) == 8
    code, out, _ = feduca("reproduce", study, "--import", method, "--only", "method=mine", "--json", capsys=capsys)
    assert json.loads(out) == summary[2:]  # read back, not repeated
    assert {path: path.stat().st_mtime_ns for path in Path("runs/mine").rglob("rounds.jsonl")} == runs
    code, _, err = feduca("compare", study, "--import", method, capsys=capsys)
    assert "8 of 8 runs already finished" in err


def test_the_small_version_of_a_study_of_ones_own(capsys):
    own.load([written("method.py", METHOD)])
    without = written("without.toml", STUDY)
    code, _, err = feduca("reproduce", without, "--smoke", capsys=capsys)
    assert code == 2
    assert "without.toml has no small version; add a table [smoke]" in err
    study = written("mine.toml", STUDY + SMALL)
    code, _, err = feduca("reproduce", study, "--smoke", "--only", "method=mine", capsys=capsys)
    assert code == 0
    assert "smoke: with the settings of [smoke] in mine.toml" in err
    cells = json.loads(Path("runs/smoke/results/mine.json").read_text())
    assert [(cell["rounds"], cell["seeds"]) for cell in cells] == [(1, [0]), (1, [0])]
    assert not Path("results").exists()


def test_a_study_that_changes_while_it_runs_is_still_summarised(tmp_path):
    own.load([written("method.py", METHOD)])
    study = written("mine.toml", STUDY)

    def watch(done: int, total: int, label: str) -> None:
        Path(study).unlink(missing_ok=True)

    found = reproduce(study, keep={"rule": ["all"]}, settings={"rounds": 1, "seeds": [0]}, watch=watch)
    assert json.loads(Path("runs/changed/results/mine.json").read_text()) == found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[compare]]\nlabel = "x"\n[[compare]]\nlabel = "x"', r"mine.toml has two cells 'x'; give every value"),
        ('extends = "nobody"', r"mine.toml extends 'nobody', which is no built-in recipe"),
        ("rounds = 0", r"rounds is 0"),
    ],
)
def test_a_bad_study_is_refused_before_anything_runs(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        reproduce(written("mine.toml", text))
    assert not Path("results").exists()
    assert not Path("runs").exists()


def test_a_study_of_the_users_never_takes_the_summary_of_one_of_feducas():
    with pytest.raises(
        ConfigError, match=r"delta.toml would be summarised in delta.json, as a study of feduca's is; call"
    ):
        reproduce(written("delta.toml", "rounds = 1"))
    assert not Path("results").exists()
    assert summary_name(written("copy.toml", 'name = "delta"')) == "copy"  # as `feduca show delta` prints it
    assert summary_name(written("copy.toml", 'name = "other"')) == "other"


def test_a_study_that_is_not_there(capsys):
    code, _, err = feduca("reproduce", "nowhere.toml", capsys=capsys)
    assert code == 2
    assert "there is no recipe or TOML file 'nowhere.toml'" in err


def test_what_is_no_summary_is_not_overwritten():
    Path("results").mkdir()
    written("results/mine.json", '{"labels": 3}')
    with pytest.raises(InputError, match=r"results/mine.json is not the summary of a study; move it away"):
        reproduce(written("mine.toml", "rounds = 1"))


def test_a_file_is_called_after_itself_unless_it_says_otherwise():
    assert config.load(written("one.toml", 'extends = "quickstart"')).name == "one"
    assert config.load(written("two.toml", 'extends = "quickstart"\nname = "three"')).name == "three"
    assert summary_name("two.toml") == "three"
    assert config.load("delta").name == "paper"  # embedded recipes share their parents' runs
    assert [cell.recipe.name for cell in plan(written("four.toml", 'extends = "delta"'), keep={"delta": ["1"]})] == [
        "four"
    ]
