"""A run directory, read with suspicion and incrementally.

The directory may still be growing, may be damaged, and may come from a stranger. So: nothing is trusted to have the right
type, every line and file has a size limit, a line that cannot be read is counted and left out, and what cannot be shown at all is
refused with one sentence. `RunReader.refresh` reads only what was appended since last time, so that a live page costs little.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feduca.errors import InputError

MAX_LINE = 8 * 2**20  # bytes; 1000 silos with their measured points stay well below
MAX_FILE = 2**30
MAX_SMALL = 2 * 2**20  # config.toml, env.json, status.json
MAX_SILOS = 10_000
MAX_ROUNDS = 100_000
MAX_TEXT = 200  # characters of any name or reason that is shown

STATUSES = ("joined", "declined", "absent", "refused", "left")

ROUND_NUMBERS = (
    "accuracy", "loss", "participation", "joined", "satisfied", "slack", "gap", "jensen", "discrepancy", "discrepancy_bound",
    "discrepancy_bound_expected", "r2", "smallest_cohort", "largest_staleness", "concession", "promise_kept",
)  # fmt: skip
ROUND_WORDS = ("status", "reason", "fallback")
CLIENT_NUMBERS = (
    "alpha", "announced", "slack", "gamma", "global_accuracy", "own_accuracy", "offered_accuracy", "promised", "promise_kept",
    "r2", "concession", "test_deployed", "test_own", "test_global", "test_alone",
)  # fmt: skip

Number = float | None


@dataclass(frozen=True)
class ClientRound:
    """One line of clients.jsonl, cleaned: every column has one entry per silo."""

    round: int
    status: str  # one letter per silo: j, d, a, r, l
    reason: Sequence[str]
    numbers: Mapping[str, Sequence[Number]]
    zeta: Sequence[Sequence[float] | None]
    places: Sequence[float]
    points: Sequence[Sequence[Number] | None]  # measured utilities at `places`


@dataclass(frozen=True)
class RoundLine:
    """One line of rounds.jsonl, cleaned."""

    round: int
    numbers: Mapping[str, Number]
    words: Mapping[str, str | None]
    seconds: float | None


@dataclass
class Run:
    """Everything a page shows of one run directory."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    state: str = "running"
    failure: str = ""
    silos: Sequence[str] = ()
    rounds: list[RoundLine] = field(default_factory=list)
    clients: list[ClientRound] = field(default_factory=list)
    unreadable: int = 0  # lines left out

    @property
    def name(self) -> str:
        return text(self.config.get("name")) or self.path.parent.name

    @property
    def seed(self) -> int:
        seeds = self.config.get("seeds")
        first = seeds[0] if isinstance(seeds, list) and seeds else 0
        return first if isinstance(first, int) else 0

    def setting(self, table: str, key: str, default: str = "") -> str:
        """One entry of the configuration, as text."""
        entries = self.config.get(table)
        return text(entries.get(key, default)) if isinstance(entries, Mapping) else default

    @property
    def score(self) -> str:
        """What its figures called accuracy are: accuracy, or the metric of the task."""
        task = self.environment.get("task")
        return (text(task.get("metric"))[:40] if isinstance(task, Mapping) else "") or "accuracy"

    @property
    def test_examples(self) -> list[Number]:
        """How many examples each silo has that no decision sees, where the run says."""
        task = self.environment.get("task")
        counts = task.get("examples") if isinstance(task, Mapping) else None
        return _numbers(counts.get("test") if isinstance(counts, Mapping) else None, len(self.silos))

    @property
    def planned(self) -> int | None:
        """Rounds the recipe asks for."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) and not isinstance(rounds, bool) else None


class RunReader:
    """Reads one run directory; `refresh` again and again while it grows."""

    def __init__(self, path: Path, records: Sequence[str] = ("rounds", "clients")) -> None:
        self.run = Run(Path(path))
        self._offsets = dict.fromkeys(records, 0)
        self._small: dict[str, tuple[int, int]] = {}
        if not (self.run.path / "status.json").is_file():
            raise InputError(f"{path} is not a run directory (no status.json); give one that `feduca run` wrote")
        self.refresh()

    def refresh(self) -> bool:
        """Read what is new; True when anything changed."""
        run, changed = self.run, False
        if self._new("config.toml"):
            run.config_text = _bounded(run.path / "config.toml", MAX_SMALL).decode("utf-8", "replace")
            run.config, changed = _toml(run.path, run.config_text), True
        if self._new("env.json"):
            run.environment, changed = _json_object(run.path / "env.json"), True
            names = run.environment.get("silos")
            if isinstance(names, list):
                run.silos = [text(name) for name in names[:MAX_SILOS]]
        if self._new("status.json"):
            status = _json_object(run.path / "status.json")
            run.state, run.failure, changed = text(status.get("state")) or "unknown", text(status.get("reason")), True
        if any(self._shrank(name) for name in self._offsets):  # started again, or resumed from a checkpoint
            run.rounds.clear()
            run.clients.clear()
            run.unreadable = 0
            self._offsets = dict.fromkeys(self._offsets, 0)
            changed = True
        for item in self._lines("rounds"):
            changed = True
            self._keep(_round_line(item), run.rounds)
        for item in self._lines("clients"):
            changed = True
            if not run.silos and item is not None and isinstance(item.get("status"), list):
                run.silos = [f"silo-{k}" for k in range(min(len(item["status"]), MAX_SILOS))]
            self._keep(_client_round(item, len(run.silos)), run.clients)
        return changed

    def _keep(self, line: Any, lines: list[Any]) -> None:
        """Lines that make no sense, or do not come after the last one, are counted and left out."""
        if line is None or (lines and line.round <= lines[-1].round) or len(lines) >= MAX_ROUNDS:
            self.run.unreadable += 1
        else:
            lines.append(line)

    def _new(self, name: str) -> bool:
        try:
            stat = (self.run.path / name).stat()
        except OSError:
            return False
        seen = (stat.st_mtime_ns, stat.st_size)
        if self._small.get(name) == seen:
            return False
        self._small[name] = seen
        return True

    def _shrank(self, name: str) -> bool:
        try:
            return (self.run.path / f"{name}.jsonl").stat().st_size < self._offsets[name]
        except OSError:
            return False

    def _lines(self, name: str) -> Iterator[dict[str, Any] | None]:
        """New complete lines; None for one that is not a JSON object. A last line without its end is left for later."""
        if name not in self._offsets:
            return
        path = self.run.path / f"{name}.jsonl"
        try:
            size = path.stat().st_size
            if size > MAX_FILE:
                raise InputError(f"{path} is {size} bytes; files over {MAX_FILE} are not shown")
            with path.open("rb") as file:
                file.seek(self._offsets[name])
                while line := file.readline(MAX_LINE + 1):
                    if len(line) > MAX_LINE:
                        raise InputError(f"{path} has a line of more than {MAX_LINE} bytes; this is not a run's record")
                    if not line.endswith(b"\n"):
                        break
                    self._offsets[name] = file.tell()
                    yield _object(line)
        except OSError:
            return


def read(path: str | Path) -> Run:
    """All of a run directory."""
    run = RunReader(Path(path)).run
    if not run.rounds:
        raise InputError(f"{path} holds no finished round yet; wait for one, or watch it with `feduca watch {path}`")
    return run


def find_runs(root: Path, limit: int = 2000) -> list[Path]:
    """Run directories at `root` or up to three levels below it, in order of their names."""
    if _is_run(root):
        return [root]
    found, level = [], [root]
    for _ in range(3):
        level = [folder for path in level for folder in _folders(path)]
        found += [path for path in level if _is_run(path)]
    return found[:limit]


def _is_run(path: Path) -> bool:
    return os.path.isfile(path / "status.json")  # Path.is_file raises where one may not look


def _folders(path: Path) -> list[Path]:
    """What `path.glob("*/")` gives, except that a folder may vanish while we look (a run deleted or begun anew)."""
    try:
        with os.scandir(path) as entries:
            return sorted(path / entry.name for entry in entries if os.path.isdir(entry))
    except OSError:
        return []


def glance(path: Path) -> Run:
    """A run's configuration, state and last finished round, without reading the rest: enough for a list of many."""
    run = RunReader(path, records=()).run
    rounds = path / "rounds.jsonl"
    try:
        with rounds.open("rb") as file:
            file.seek(max(0, rounds.stat().st_size - 64 * 1024))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        lines = []
    complete = [_round_line(_object(line)) for line in lines[-2:] if line.endswith(b"\n")]
    run.rounds += [line for line in complete if line is not None][-1:]
    return run


# ---------------------------------------------------------------------------------------------------------------------
# Cleaning


def text(value: Any) -> str:
    """Something to show: a short string without control characters."""
    if value is None:
        return ""
    shown = str(value)[: MAX_TEXT + 1]
    shown = "".join(c if c.isprintable() else " " for c in shown)
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 1] + "…"


def number(value: Any) -> Number:
    """A finite number, or None."""
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def _numbers(values: Any, n: int) -> list[Number]:
    return [number(v) for v in values] if isinstance(values, list) and len(values) == n else [None] * n


def _vectors(values: Any, n: int, longest: int) -> list[list[Number] | None]:
    if not isinstance(values, list) or len(values) != n:
        return [None] * n
    return [[number(x) for x in v] if isinstance(v, list) and 0 < len(v) <= longest else None for v in values]


def _round_number(item: Mapping[str, Any]) -> int | None:
    value = item.get("round")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_ROUNDS else None


def _round_line(item: dict[str, Any] | None) -> RoundLine | None:
    if item is None or (round := _round_number(item)) is None:
        return None
    words = {name: None if item.get(name) is None else text(item[name]) for name in ROUND_WORDS}
    clocks = item.get("seconds")
    seconds = number(clocks.get("round")) if isinstance(clocks, dict) else None
    return RoundLine(round, {name: number(item.get(name)) for name in ROUND_NUMBERS}, words, seconds)


def _client_round(item: dict[str, Any] | None, n: int) -> ClientRound | None:
    if item is None or (round := _round_number(item)) is None:
        return None
    status = item.get("status")
    if not isinstance(status, list) or len(status) != n or n == 0:
        return None
    reasons = item.get("reason")
    kept = item.get("utility_points")
    kept = kept if isinstance(kept, dict) else {}
    places = _vectors([kept.get("places")], 1, 200)[0] or []
    full = [p for p in places if p is not None]
    points = _vectors(kept.get("values"), n, 200) if len(full) == len(places) > 0 else [None] * n
    zeta = [z if z is not None and all(x is not None for x in z) else None for z in _vectors(item.get("zeta"), n, 50)]
    return ClientRound(
        round=round,
        status="".join(word[0] if word in STATUSES else "a" for word in status),
        reason=[text(r) for r in reasons] if isinstance(reasons, list) and len(reasons) == n else [""] * n,
        numbers={name: _numbers(item.get(name), n) for name in CLIENT_NUMBERS},
        zeta=zeta,  # type: ignore[arg-type]
        places=full,
        points=[p if p is not None and len(p) == len(full) else None for p in points],
    )


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return item if isinstance(item, dict) else None


def _bounded(path: Path, limit: int) -> bytes:
    size = path.stat().st_size
    if size > limit:
        raise InputError(f"{path} is {size} bytes; more than {limit} is not a run's {path.name}")
    return path.read_bytes()


def _toml(path: Path, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(source)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"{path}/config.toml is not TOML ({text(error)}); give a directory that `feduca run` wrote"
        ) from None


def _json_object(path: Path) -> dict[str, Any]:
    item = _object(_bounded(path, MAX_SMALL))
    if item is None:
        raise InputError(f"{path} is not a JSON object; give a directory that `feduca run` wrote")
    return item
