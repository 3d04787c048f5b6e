"""Run folders that somebody edited with care, or that share what is theirs: nothing wrong is said without a word."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import feduca
from feduca.errors import InputError
from feduca.report.payload import payload
from feduca.report.reading import find_runs, read
from feduca.runs import manifest
from feduca.runs.rollback import roll_back

SMALL = {"rounds": 3, "local.epochs": 1, "task.max_examples": 300, "task.clients": 4, "utility.check_every": 0}
RECORDS = ("rounds.jsonl", "clients.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = feduca.run("quickstart", SMALL, out=tmp_path_factory.mktemp("run")).run_dir
    assert path is not None
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "quickstart" / finished.name))


def resealed(path: Path, **changes: Any) -> None:
    """Other figures in the summary, under a seal that fits."""
    status = json.loads((path / "status.json").read_text())
    del status["seal"]
    status["summary"] |= changes
    (path / "status.json").write_text(json.dumps({**status, "seal": manifest._seal(status)}))


def old(path: Path, state: str = "finished", **changes: Any) -> None:
    """A run of before there were seals, of which no checkpoint is left."""
    shutil.rmtree(path / "checkpoint")
    summary = json.loads((path / "status.json").read_text())["summary"] | changes
    said = {"schema": 1, "state": state} | ({"summary": summary} if state == "finished" else {})
    (path / "status.json").write_text(json.dumps(said))


def lines(path: Path, name: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
    (path / name).write_bytes(b"".join(change((path / name).read_bytes().splitlines(keepends=True))))


@pytest.mark.parametrize("figures", [
    {"accuracy": 0.99}, {"participation": 0.1}, {"participation": "much"}, {"accuracy": [1]}, {"seconds": None},
    {"metric": [1]}, {"left": ["silo-1"]}, {"deployed": "x"}, {"rounds": 10**400},
])  # fmt: skip
@pytest.mark.parametrize("change", [resealed, old])
def test_a_summary_that_cannot_be_that_of_its_rounds_is_refused(
    run: Path, change: Callable[..., None], figures: dict[str, Any]
) -> None:
    change(run, **figures)
    with pytest.raises(InputError, match=r"records are damaged \(.{1,150}\); repeat the run with --again"):
        feduca.load(run)


def test_a_number_that_no_computer_holds_is_damage(run: Path) -> None:
    old(run, "interrupted")
    lines(
        run,
        "rounds.jsonl",
        lambda found: [found[0].replace(b'"participation":', b'"participation":1' + b"0" * 400 + b',"x":'), *found[1:]],
    )
    with pytest.raises(InputError, match="too large"):
        feduca.load(run)


@pytest.mark.parametrize("state", ["finished", "interrupted"])
@pytest.mark.parametrize(("names", "kept", "why"), [
    (RECORDS, slice(0, 3, 2), "rounds"), (RECORDS, slice(1, 3), "rounds"), (RECORDS[1:], slice(0, 3, 2), "lines are not those"),
])  # fmt: skip
def test_a_page_says_that_rounds_are_missing(
    run: Path, state: str, names: tuple[str, ...], kept: slice, why: str
) -> None:
    old(run, state)
    assert not read(run).doubt
    for name in names:
        lines(run, name, lambda found: found[kept])
    assert why in read(run).doubt
    assert "Do not believe these figures" in payload([read(run)])["verdict"][0]


def test_an_interrupted_run_may_lack_its_last_line_of_silos(run: Path) -> None:
    old(run, "interrupted")
    lines(run, "clients.jsonl", lambda found: found[:-1])
    assert not read(run).doubt
    lines(run, "clients.jsonl", lambda found: found[:-1])
    assert read(run).doubt


def test_a_backup_by_hard_links_stays_as_it_is(run: Path, tmp_path: Path) -> None:
    backup = Path(shutil.copytree(run, tmp_path / "backup" / run.name, copy_function=os.link))
    before = {name: (backup / name).read_bytes() for name in RECORDS}
    roll_back(run, run.name, 2)
    assert {name: (backup / name).read_bytes() for name in RECORDS} == before
    halfway = Path(shutil.copytree(run, tmp_path / "halfway" / run.name, copy_function=os.link))
    before = {name: (halfway / name).read_bytes() for name in RECORDS}
    assert len(feduca.resume(run).rounds) == 3
    assert {name: (halfway / name).read_bytes() for name in RECORDS} == before
    assert not list(run.glob(".*.part"))


@pytest.mark.parametrize("said", ["[1]", "{}", '{"run": 5}', "{"])
def test_a_deployment_without_its_name_is_not_rolled_back_halfway(run: Path, said: str) -> None:
    (run / "deployment.json").write_text(said)
    before = {name: (run / name).read_bytes() for name in (*RECORDS, "status.json")}
    with pytest.raises(InputError, match="does not name a run among its silos"):
        roll_back(run, run.name, 2)
    assert {name: (run / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("said", ["[1]", "{}", "{"])
def test_a_deployment_without_its_server_is_not_resumed(run: Path, said: str) -> None:
    from feduca.flower import deploy

    (run / "deployment.json").write_text(said)
    (run / "status.json").write_text('{"schema": 2, "state": "interrupted"}')
    with pytest.raises(InputError, match="does not name the server's folder"):
        deploy.resume(run)


def test_a_folder_of_runs_does_not_show_one_twice_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "quickstart" / "link").symlink_to(run, target_is_directory=True)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert find_runs(tmp_path) == [run]
    assert find_runs(tmp_path / "quickstart" / "link") == [tmp_path / "quickstart" / "link"]


def test_a_copy_of_a_run_is_no_second_seed(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    assert not payload([read(run)])["notes"]
    assert any("shown 2 times" in note for note in payload([read(run), read(copy)])["notes"])
