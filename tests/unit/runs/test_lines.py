"""Records look like a list and do not stay in memory."""

from __future__ import annotations

import base64
import json
import shutil
import tracemalloc
import zlib
from pathlib import Path

import pytest

import feduca
from feduca.core.records import plain
from feduca.errors import InputError
from feduca.runs.lines import MOST, PACKED, Lines, Packed, Records, columns, decoded, encoded
from numpy_task import NumpyTask

ITEMS = [{"round": t, "status": ["joined"] * 3, "gamma": [0.1, None, 1 / 3]} for t in range(1, 8)]


def on_disk(path: Path) -> Lines:
    path.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    return Lines.of(path)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_they_look_like_a_list(tmp_path: Path, kind: str) -> None:
    records: Records = on_disk(tmp_path / "clients.jsonl") if kind == "disk" else Packed(ITEMS)
    assert len(records) == 7
    assert list(records) == ITEMS
    assert records == ITEMS
    assert records != ITEMS[1:]
    assert (records[0], records[-1]) == (ITEMS[0], ITEMS[-1])
    assert records[2:5] == ITEMS[2:5]
    assert records[-3:][::-1] == ITEMS[-3:][::-1]
    assert list(records[1:][:-1]) == ITEMS[1:-1]
    assert records.index(ITEMS[3]) == 3
    with pytest.raises(IndexError):
        records[7]


def test_a_line_that_changed_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "clients.jsonl"
    records = on_disk(path)
    with path.open("a") as file:
        file.write("more\n")
    assert records == ITEMS
    path.write_text(path.read_text().replace('"round": 2', '"round": 9'))
    assert records[0] == ITEMS[0]
    with pytest.raises(InputError, match="has changed since it was read"):
        records[1]
    shutil.copy("/dev/null", path)
    with pytest.raises(InputError, match="has changed since it was read"):
        records[0]


def test_a_run_gives_the_same_records_with_and_without_a_folder(tmp_path: Path) -> None:
    settings = {"rounds": 3, "task.clients": 4, "local.epochs": 1, "utility.check": 4}
    with_folder = feduca.run({}, settings, out=tmp_path, task=NumpyTask())
    without = feduca.run({}, settings, task=NumpyTask())
    assert with_folder.run_dir
    assert plain(list(with_folder.clients)) == plain(list(without.clients))
    assert feduca.load(with_folder.run_dir).clients == without.clients  # type: ignore[union-attr]


def test_rounds_of_many_silos_take_little_memory(tmp_path: Path) -> None:
    item = {"round": 1} | {f"column{c}": [0.123456789 + k for k in range(200)] for c in range(10)}
    path, lines = tmp_path / "clients.jsonl", 300
    with path.open("w") as file:
        for _ in range(lines):
            file.write(json.dumps(item) + "\n")
    tracemalloc.start()
    records = Lines.of(path)
    assert sum(record["round"] for record in records) == lines
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 10


def many(silos: int = 3000) -> dict:
    """A round whose line is packed; every second number is undefined."""
    numbers = [None if k % 2 else 1 / (3 + k) for k in range(silos)]
    return {
        "round": 4,
        "status": ["joined"] * silos,
        "reason": [f"silo {k} likes it" for k in range(silos)],
        "gamma": numbers,
        "zeta": [[value, value] for value in numbers],
        "paired": {"won": numbers},
        "advice": None,
    }


def test_a_long_line_is_packed_column_by_column_and_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    item, few = many(), many(20)
    line = encoded(item)
    assert len(line) < len(json.dumps(item)) / 2
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert decoded(line) == item
    assert list(decoded(line)) == list(item)
    assert json.loads(encoded(few)) == few  # a short one is plain JSON
    told = json.loads(line)
    assert told["round"] == 4
    assert set(told["gamma"]) == {PACKED}
    assert decoded(line, ("round", "status")) == {"round": 4, "status": item["status"]}
    path = tmp_path / "clients.jsonl"
    path.write_bytes(encoded(few) + line)
    assert Lines.of(path) == [few, item]
    assert list(columns(Lines.of(path)[1:], "gamma")) == [{"gamma": item["gamma"]}]


@pytest.mark.parametrize("what", ["cut off", "no base64", "more behind it", "a number", "a bomb"])
def test_a_packed_column_that_is_none_is_an_error_of_the_line(what: str) -> None:
    good = zlib.compress(b"[1]")
    text = {
        "cut off": base64.b64encode(good[:-3]).decode(),
        "no base64": "???",
        "more behind it": base64.b64encode(good + b"x").decode(),
        "a number": 7,
        "a bomb": base64.b64encode(zlib.compress(b"[" + b" " * MOST + b"]")).decode(),
    }[what]
    line = json.dumps({"round": 1, "gamma": {PACKED: text}}).encode()
    with pytest.raises(ValueError, match="column"):
        decoded(line)
    assert decoded(line, ["round"]) == {"round": 1}


def test_a_file_without_ends_of_lines_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "clients.jsonl"
    with path.open("wb") as file:
        file.truncate(4 << 30)
    with pytest.raises(InputError, match="has a line of more than"):
        Lines.of(path)
