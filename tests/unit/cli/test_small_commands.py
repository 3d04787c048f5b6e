"""`feduca solve` and `feduca partition`: small commands, real work."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from command_line import feduca
from feduca.cli.main import app

PROBLEM = {
    "zeta": [[1.0, 1.2, 0.2], [0.5, 0.6, 0.3], [2.0, 1.0, 0.4]],
    "gamma": [0.4, None, 0.45],
    "s": [0.7, 0.3],
    "eps": 0,
}


def write(tmp_path, problem) -> str:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem))
    return str(path)


def test_solve_prints_a_certified_answer(tmp_path):
    done = CliRunner().invoke(app, ["solve", write(tmp_path, PROBLEM), "--json"])
    assert done.exit_code == 0
    solved = json.loads(done.stdout)
    assert {"status", "R", "alpha", "slack", "gap", "satisfied"} <= set(solved)
    assert solved["status"] == "optimal"
    assert sum(solved["alpha"]) == pytest.approx(1)
    assert len(solved["R"]) == 2
    assert "client 2" in CliRunner().invoke(app, ["solve", write(tmp_path, PROBLEM)]).stdout


def test_solve_does_not_import_torch(tmp_path):
    script = "import sys; from feduca.cli.main import app; sys.argv = ['feduca', 'solve', sys.argv[1]]\n"
    script += "try:\n    app()\nexcept SystemExit:\n    pass\nsys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, write(tmp_path, PROBLEM)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"zeta": [[-1, 0, 0]] * 3}, "client 0"),
        ({"gamma": [0.1, "x", 0.2]}, "gamma"),
        ({"s": [0.7, 0.7]}, "s"),
        ({"gamma": [0.4]}, "gamma"),
        ({"zeta": []}, "zeta"),
    ],
)
def test_solve_refuses_what_is_no_problem(change, expected, tmp_path):
    file = write(tmp_path, {**PROBLEM, **change})
    done = subprocess.run([sys.executable, "-m", "feduca", "solve", file], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert expected in done.stderr
    assert done.stdout == ""


def test_solve_refuses_a_missing_file_and_broken_json(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    for name in ("broken.json", "nowhere.json"):
        done = subprocess.run(
            [sys.executable, "-m", "feduca", "solve", str(tmp_path / name)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert name in done.stderr


def test_partition_counts_add_up_and_pictures_are_drawn(tmp_path):
    done = CliRunner().invoke(app, ["partition", "quickstart", "--plot", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    sizes = {sum(row) for row in shown["train"]}
    assert len(sizes) == 1  # equal sizes
    assert all(sum(count > 0 for count in row) <= 5 for row in shown["train"])  # one group of five classes a silo
    assert all(len(own) == 5 for own in shown["holds"])
    for own, *parts in zip(shown["holds"], shown["train"], shown["validation"]):
        assert not any(count for row in parts for c, count in enumerate(row) if c not in own)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".png", ".svg"]
    (picture,) = (path.read_text() for path in tmp_path.glob("*.svg"))
    assert "0.5 for training, 1.0 for validation" in picture
    assert "grey: not a class of this silo" in picture
    assert picture.count(">share of the silo's examples<") == 1  # one scale for both maps
    zeros = sum(
        row[c] == 0 for part in ("train", "validation") for own, row in zip(shown["holds"], shown[part]) for c in own
    )
    ticks = picture.count(">0<") - zeros
    assert zeros > 10
    assert ticks == 4  # of two maps with two axes: a zero of one's own class is written, another's is not


def test_partition_says_what_its_table_shows():
    title, header, *rows, legend = CliRunner().invoke(app, ["partition"]).stdout.splitlines()
    assert title == "digits, seed 0: training/validation examples of each class"
    assert header.split() == ["class", *"0123456789"]
    assert legend == ".: not a class of this silo; 0: one of its classes of which it was dealt no example"
    shown = json.loads(CliRunner().invoke(app, ["partition", "--json"]).stdout)
    for name, own, train, validation, row in zip(*(shown[k] for k in ("silos", "holds", "train", "validation")), rows):
        cells = [f"{a}/{b}" if c in own else "." for c, (a, b) in enumerate(zip(train, validation))]
        assert row.split() == [name, *cells]
        column = header.index(f"{own[0]:>5} ")  # the number of a class stands above its training examples
        assert row[column : column + 5].strip() == str(train[own[0]])
    assert any("0/0" in row for row in rows)


def test_partition_counts_classes_where_there_are_many():
    from feduca.analysis import partition_report as splits

    shown = {"data": "many", "seed": 0, "silos": ["a", "b"], "holds": [range(20), range(20, 40)], "written": []}
    shown |= {
        "train": [[3] * 19 + [0] * 21, [0] * 20 + [2] * 20],
        "validation": [[1] * 19 + [0] * 21, [0] * 20 + [1] * 20],
    }
    assert splits.text(shown).splitlines()[1:] == [
        "a 57/19 examples of 19 of its 20 classes, of 40",
        "b 40/20 examples of 20 of its 20 classes, of 40",
    ]


def test_a_command_can_be_typed_as_it_is_printed(monkeypatch):
    from feduca.cli.options import command

    monkeypatch.setattr("sys.argv", [".venv/bin/feduca", "compare"])
    monkeypatch.setenv("PATH", "")
    assert command("report", "runs/my runs") == ".venv/bin/feduca report 'runs/my runs'"
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert command("report", "runs") == "feduca report runs"


def test_what_is_no_run_is_told_which_runs_there_are(tmp_path, monkeypatch):
    from feduca.cli.look import runs_in
    from feduca.errors import InputError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"there is no runs; give a run directory.*feduca run tailored"):
        runs_in(["runs"])
    for name in ("tailored", "clinics"):
        folder = tmp_path / "runs" / name / "abc-s0"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text("rounds = 1\n")
    for place in ("runs/quickstart/*", "quickstart"):
        with pytest.raises(InputError, match=r"there is no .*; there are runs in runs/clinics, runs/tailored$"):
            runs_in([place])
    (tmp_path / "runs" / "empty").mkdir()
    with pytest.raises(InputError, match="no run with a finished round; there are runs in runs/clinics, runs/tailored"):
        runs_in(["runs/empty"])


def test_lists_of_commands_show_whole_lines(capsys):
    for words in ([], ["deploy"], ["silo"]):
        _, out, _ = feduca(*words, "--help", capsys=capsys)
        assert "..." not in out.replace("models, ...", "").replace("[ARGS]...", "")
        assert max(map(len, out.splitlines())) <= 80
