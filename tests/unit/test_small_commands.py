"""`feduca solve` and `feduca partition`: small commands, real work."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from feduca.cli import app

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
    script = "import sys; from feduca.cli import app; sys.argv = ['feduca', 'solve', sys.argv[1]]\n"
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
    assert all(sum(count > 0 for count in row) <= 5 for row in shown["train"])  # five classes a silo
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".png", ".svg"]
    assert "silo" in CliRunner().invoke(app, ["partition"]).stdout
