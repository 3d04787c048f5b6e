"""Files of a run directory are plain and bounded, or refused in one line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import feduca
from feduca.errors import InputError
from feduca.report.payload import payload
from feduca.report.reading import RunReader, glance, read
from feduca.runs import files
from numpy_task import NumpyTask
from run_directories import written

SMALL = {"rounds": 3, "task.clients": 4, "local.epochs": 1, "utility.check": 4}


def test_links_pipes_devices_and_giants_are_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to(plain)
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert files.read(plain) == b"x" * 100
    for name, why in {"link": "is a link", "device": "is a link", "pipe": "plain file", "folder": "plain file"}.items():
        with pytest.raises(InputError, match=why):
            files.read(tmp_path / name)
    with pytest.raises(InputError, match="plain file"):
        files.read(Path("/dev/zero"))
    with pytest.raises(InputError, match="100 bytes; more than 99"):
        files.read(plain, 99)
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "nothing")


def test_a_digest_is_of_what_is_there_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    seen = set()
    for text in ("a", "b", "c"):  # faster than the clocks of most file systems
        path.write_text(text)
        seen.add(files.digest(path))
    assert len(seen) == 3
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10)
    old = files.digest(path)
    assert files.digest(path) == old
    assert files.digest(path, 1) == old
    assert files.digest(path, 2) is None
    path.write_text("longer")
    assert files.digest(path) != old
    assert files.digest(tmp_path / "nothing") is None


def test_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, secret = tmp_path / "target", tmp_path / "secret"
    secret.write_text("untouched")
    target.write_text("before")
    (tmp_path / ".target.part").symlink_to(secret)
    files.write_whole(target, "after")
    assert (target.read_text(), secret.read_text()) == ("after", "untouched")
    monkeypatch.setattr(os, "fsync", lambda handle: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(target, "never")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "target"]
    assert target.read_text() == "after"


def test_output_goes_through_links_and_into_devices(tmp_path: Path) -> None:
    real = tmp_path / "real.html"
    (tmp_path / "link.html").symlink_to(real)
    files.write_output(tmp_path / "link.html", "page")
    assert real.read_text() == "page"
    files.write_output(Path("/dev/null"), "page")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("name", ["env.json", "config.toml", "status.json", "rounds.jsonl", "clients.jsonl"])
@pytest.mark.parametrize("how", ["link", "pipe", "zero"])
def test_strangers_folders_show_nothing_and_hang_nobody(tmp_path: Path, name: str, how: str) -> None:
    """A token in a file that env.json links to was in the page; /dev/zero filled the memory; a pipe hung watch and resume."""
    path = written(tmp_path / "runs", 3, 2).path
    (path / name).rename(tmp_path / "elsewhere")
    if how == "pipe":
        os.mkfifo(path / name)
    else:
        (path / name).symlink_to("/dev/zero" if how == "zero" else tmp_path / "elsewhere")
    for ask in (feduca.load, read, glance, feduca.resume, feduca.api.recorded, lambda p: payload([RunReader(p).run])):
        if (ask, name) in ((glance, "clients.jsonl"), (feduca.api.recorded, "env.json")) or (
            ask is feduca.api.recorded and name.endswith("jsonl")
        ):
            continue  # does not look there
        with pytest.raises(InputError, match=r"is a link; links in a run directory|is not a plain file") as refused:
            ask(path)
        assert "\n" not in str(refused.value)


def test_a_linked_checkpoint_is_not_read(tmp_path: Path) -> None:
    one = feduca.run({}, SMALL, out=tmp_path, task=NumpyTask())
    assert one.run_dir
    folder = one.run_dir / "checkpoint"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert feduca.load(one.run_dir).theta is None  # type: ignore[union-attr]
    with pytest.raises(InputError, match="is a link; links in a run directory are not followed"):
        feduca.export_models(one.run_dir, tmp_path / "models", task=NumpyTask())


def test_starting_a_run_erases_only_what_runs_write(tmp_path: Path) -> None:
    first = feduca.run({}, SMALL, out=tmp_path, task=NumpyTask())
    path = first.run_dir
    assert path
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "thesis.txt").write_text("years")
    (path / "notes.md").write_text("mine")
    (path / "checkpoint" / "why.txt").write_text("mine")
    (path / "models").mkdir()
    (path / "models" / "card.json").write_text("{}")
    (path / "link").symlink_to(elsewhere)
    (path / "events.jsonl").symlink_to(elsewhere / "thesis.txt")  # named like one of ours
    again = feduca.run({}, SMALL, out=tmp_path, task=NumpyTask(), again=True)
    assert [r["accuracy"] for r in again.rounds] == [r["accuracy"] for r in first.rounds]
    assert (path / "notes.md").read_text() == (path / "checkpoint" / "why.txt").read_text() == "mine"
    assert (path / "models" / "card.json").exists()
    assert (path / "link" / "thesis.txt").read_text() == "years"
    assert not (path / "events.jsonl").exists()

    folder = path.rename(elsewhere / "run")
    path.symlink_to(folder)
    before = json.loads((folder / "status.json").read_text())
    with pytest.raises(InputError, match="is a link, and a run would write to its target"):
        feduca.run({}, SMALL, out=tmp_path, task=NumpyTask(), again=True)
    assert json.loads((folder / "status.json").read_text()) == before
