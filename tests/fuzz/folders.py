"""Damaged run folders: whatever reads one refuses it in a line, says what is wrong, or gives what the run really was.

`examine(seed)` damages a copy of a finished or an interrupted run and lets readers look at it, each at a fresh copy. Answers are
counted as `clear` (an error of ours in one line, or a visible note), `right` (the truth), `wrong` (something else, and no word),
`traceback` and `hang`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import feduca
from feduca.core.records import plain
from feduca.errors import FeducaError
from feduca.report.payload import payload
from feduca.report.reading import RunReader, read
from feduca.runs import manifest

SETTINGS = {"local.epochs": 1, "task.max_examples": 300, "task.clients": 4, "utility.check_every": 0}
PATIENCE = 30.0  # seconds after which something hangs

Answer = dict[str, Any]


@dataclass(frozen=True)
class Victim:
    """A run directory and what every reader says of it undamaged."""

    path: Path
    recipe: Any
    truth: dict[str, Answer]


class Heard(logging.Handler):
    """Every warning is a visible word."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def figures(result: Any) -> Answer:
    """A run without its clocks and its place."""
    rounds = [{k: v for k, v in record.items() if k != "seconds"} for record in plain(list(result.rounds))]
    summary = {k: v for k, v in result.summary.items() if k not in ("seconds", "peak_mb")}
    theta = None if result.theta is None else np.asarray(result.theta).tobytes()
    return {
        "rounds": rounds,
        "clients": plain(list(result.clients)),
        "summary": summary,
        "silos": list(result.silos),
    } | ({} if theta is None else {"theta": theta})


def _page(run: Any) -> Answer:
    said = payload([run])
    return {**said, "note": run.doubt or (manifest.UNCHECKED if run.unchecked else "") or bool(run.unreadable)}


def _exported(path: Path) -> Answer:
    found = feduca.export_models(path, path.parents[2] / "models")
    card = {key: value for key, value in found.card.items() if key not in ("files", "note")}
    models = {f"{m}.{k}": v.tobytes() for m, arrays in found.models.items() for k, v in arrays.items()}
    return {"card": card, "models": models}


READERS: dict[str, Callable[[Victim, Path], Answer]] = {
    "load": lambda victim, path: figures(feduca.load(path)),
    "watch": lambda victim, path: _page(RunReader(path).run),
    "report": lambda victim, path: _page(read(path)),
    "resume": lambda victim, path: figures(feduca.resume(path)),
    "run": lambda victim, path: figures(feduca.run(victim.recipe, out=path.parents[1])),
    "compare": lambda victim, path: figures(feduca.api.run_many([(victim.recipe, 0)], out=path.parents[1])[0]),
    "export": lambda victim, path: _exported(path),
}
GOES_ON = ("resume", "run", "compare")  # of an interrupted run: to its end


def victims(root: Path) -> tuple[list[Victim], Path]:
    """A finished run, one that was interrupted after round 2 of 3, and another run's directory."""

    def stop(record: Any, clients: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    recipe = feduca.recipe("quickstart", {**SETTINGS, "rounds": 3, "seeds": [0]})
    whole = feduca.run(recipe, out=root / "whole").run_dir
    other = feduca.run("quickstart", SETTINGS, rounds=3, seed=1, out=root / "other").run_dir
    try:
        feduca.run(recipe, out=root / "torn", watch=stop)
    except KeyboardInterrupt:
        (torn,) = (root / "torn").glob("*/*")
    assert whole is not None
    assert other is not None
    found = []
    for path in (whole, torn):
        truth = {}
        for name, reader in READERS.items():
            copy = _copied(path, root / "truth")
            truth[name] = reader(Victim(path, recipe, {}), copy)
        found.append(Victim(path, recipe, truth))
    for name in GOES_ON:  # the interrupted run comes to the same end
        for key in ("rounds", "clients", "summary", "silos"):
            assert found[1].truth[name][key] == found[0].truth["load"][key], (name, key)
    return found, other


def _copied(path: Path, root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    return Path(shutil.copytree(path, root / "runs" / path.parent.name / path.name))


# ---------------------------------------------------------------------------------------------------------------------
# Damage


def _edited(rng: np.random.Generator, content: bytes) -> bytes:
    """Another digit in one of the numbers."""
    places = [match.start() for match in re.finditer(rb"\d", content)]
    if not places:
        return content
    at = places[int(rng.integers(len(places)))]
    return content[:at] + (b"%d" % ((content[at] - 48 + 1 + int(rng.integers(9))) % 10)) + content[at + 1 :]


def _lines(rng: np.random.Generator, content: bytes) -> bytes:
    """Lines swapped, doubled, or the last one missing."""
    lines = content.splitlines(keepends=True)
    i, j = (int(rng.integers(max(1, len(lines)))) for _ in range(2))
    how = int(rng.integers(3))
    if not lines or how == 0:
        return b"".join(lines[:-1])
    if how == 1:
        lines[i], lines[j] = lines[j], lines[i]
        return b"".join(lines)
    return b"".join([*lines[:i], lines[j], *lines[i:]])


def _flipped(rng: np.random.Generator, content: bytes) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _replaced(rng: np.random.Generator, content: bytes) -> bytes:
    new = (b"", b"{}", b"[]", b"null", b"\x80\x04K\x01.", b"[" * 3000, b'{"state": "finished"}', b"\xff" * 10)
    return new[int(rng.integers(len(new)))]


CONTENT = {
    "cut off": lambda rng, content: content[: int(rng.integers(len(content) + 1))],
    "a bit flipped": _flipped,
    "a figure edited": _edited,
    "lines moved": _lines,
    "replaced": _replaced,
    "another schema": lambda rng, content: re.sub(rb'"schema": \d+', b'"schema": 99', content),
}
ELSEWHERE = ("gone", "swapped", "foreign", "foreign checkpoint", "link", "zero", "pipe", "folder", "giant")


def damage(rng: np.random.Generator, path: Path, other: Path) -> str:
    """Do one thing to a folder; returns what."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != ".lock")
    target = files[int(rng.integers(len(files)))]
    kinds = (*CONTENT, "a figure edited", "lines moved", *ELSEWHERE)
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind in CONTENT:
        target.write_bytes(CONTENT[kind](rng, target.read_bytes()))
    elif kind == "swapped":
        second = files[int(rng.integers(len(files)))]
        one, two = target.read_bytes(), second.read_bytes()
        target.write_bytes(two)
        second.write_bytes(one)
    elif kind == "foreign":
        same = other / target.relative_to(path)
        shutil.copy(same if same.exists() else other / "rounds.jsonl", target)
    elif kind == "foreign checkpoint":
        shutil.rmtree(path / "checkpoint")
        shutil.copytree(other / "checkpoint", path / "checkpoint")
    else:
        content = target.read_bytes()
        target.unlink()
        if kind == "link":
            (path.parent / "elsewhere").write_bytes(content)
            target.symlink_to(path.parent / "elsewhere")
        elif kind == "zero":
            target.symlink_to("/dev/zero")
        elif kind == "pipe":
            os.mkfifo(target)
        elif kind == "folder":
            target.mkdir()
        elif kind == "giant":
            with target.open("wb") as file:
                file.write(content)
                file.truncate(1 << 38)
    return f"{kind} ({target.relative_to(path)})"


# ---------------------------------------------------------------------------------------------------------------------
# The question


def answered(victim: Victim, path: Path, name: str) -> tuple[str, str]:
    """How one reader answers, and what it said where that is not right."""
    heard, log = Heard(), logging.getLogger("feduca")
    propagate, log.propagate = log.propagate, False
    log.addHandler(heard)

    def hangs(*_: Any) -> None:
        raise TimeoutError(f"more than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        answer = READERS[name](victim, path)
    except FeducaError as error:
        return ("clear", str(error)) if "\n" not in str(error) else ("traceback", "more than one line")
    except TimeoutError as error:
        return "hang", str(error)
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        log.removeHandler(heard)
        log.propagate = propagate
    truth = victim.truth[name]
    if name in GOES_ON and ("theta" in answer) != (
        "theta" in truth
    ):  # one is read back, the other was trained to its end
        answer, truth = ({k: v for k, v in one.items() if k != "theta"} for one in (answer, truth))
    if answer == truth:
        return "right", ""
    if name not in GOES_ON and (heard.lines or answer.get("note")):
        return "clear", "; ".join(heard.lines) or str(answer.get("note"))
    differ = [key for key in truth if answer.get(key) != truth[key]]
    return "wrong", f"{', '.join(differ)} differ"


def examine(seed: int, found: list[Victim], other: Path, root: Path) -> tuple[Counter, list[str]]:
    """Damage one folder and ask, one of the slow readers at a time: how often which reader answered how, and what was wrong."""
    victim = found[seed % 2]
    slow = ("resume", "run", "compare", "export")[seed // 2 % 4]
    seen, complaints = Counter(), []
    for name in ("load", "watch", "report", slow):
        path = _copied(victim.path, root)
        what = damage(np.random.default_rng(seed), path, other)
        how, said = answered(victim, path, name)
        seen[name, how] += 1
        if how not in ("clear", "right"):
            complaints.append(f"{how}: {name} of the {('finished', 'interrupted')[seed % 2]} run, {what}: {said}")
    return seen, complaints
