"""A run directory, read with suspicion and incrementally.

The directory may still be growing, may be damaged, and may come from a stranger. So: nothing is trusted to have the right
type, every line and file has a size limit, a line that cannot be read is counted and left out, and what cannot be shown at all is
refused with one sentence. `RunReader.refresh` reads only what was appended since last time, so that a live page costs little.
"""

from __future__ import annotations

import os
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feduca.errors import InputError
from feduca.report.cleaning import MAX_ROUNDS, MAX_SILOS, Number, RoundLine, numbers, round_line, text
from feduca.report.liveness import silent
from feduca.report.silos import SiloRounds, item_of
from feduca.runs import files, lines, manifest


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
    clients: SiloRounds = field(default_factory=SiloRounds)
    unreadable: int = 0  # lines left out
    doubt: str = ""  # why its records are not to be believed
    unchecked: bool = False  # finished before runs kept checksums
    silent: float | None = (
        None  # seconds since anything was written, where it says it is running and nobody seems to run it
    )

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
    def data(self) -> str:
        """What it learns from: the name of its data; own data have a fingerprint."""
        own = text(self.config.get("own"))
        return f"own data {own[:6]}" if own else self.setting("task", "data")

    @property
    def chosen(self) -> bool:
        """Whether everybody trains along, and each silo then deploys its mixture only where its own data prefer it."""
        return self.setting("participation", "rule") == "always" and self.setting("offer", "kind") == "stack"

    @property
    def forced(self) -> bool:
        """Whether silos have to take what they are given."""
        return self.setting("participation", "rule") == "always" and not self.chosen

    @property
    def score(self) -> str:
        """What its figures called accuracy are: accuracy, or the metric of the task."""
        task = self.environment.get("task")
        return (text(task.get("metric"))[:40] if isinstance(task, Mapping) else "") or "accuracy"

    @property
    def test_examples(self) -> list[Number]:
        """How many examples each silo has that no decision sees, where the run says."""
        return self._examples("test")

    @property
    def validation_examples(self) -> list[Number]:
        """How many examples each silo decides by, where the run says."""
        return self._examples("validation")

    def _examples(self, split: str) -> list[Number]:
        task = self.environment.get("task")
        counts = task.get("examples") if isinstance(task, Mapping) else None
        return numbers(counts.get(split) if isinstance(counts, Mapping) else None, len(self.silos))

    @property
    def state_shown(self) -> str:
        """Its state, in one word."""
        return "damaged" if self.doubt else "silent" if self.silent is not None else self.state

    @property
    def planned(self) -> int | None:
        """Rounds the recipe asks for."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) and not isinstance(rounds, bool) else None


class RunReader:
    """Reads one run directory; `refresh` again and again while it grows."""

    def __init__(self, path: Path, records: Sequence[str] = ("rounds", "clients")) -> None:
        self.run = Run(Path(path), clients=SiloRounds(Path(path) / manifest.CLIENTS))
        self._offsets = dict.fromkeys(records, 0)
        self._last: dict[str, tuple[int, int]] = {}  # length and checksum of the last line read of each
        self._small: dict[str, tuple[int, int]] = {}
        try:
            files.opened(self.run.path / manifest.STATUS).close()
        except OSError:
            raise InputError(
                f"{path} is not a run directory (no status.json); give one that `feduca run` wrote"
            ) from None
        self._status: dict[str, Any] = {}
        self.refresh()
        if self.run.state == "running":  # later rounds come from the run itself
            self._doubt()

    def refresh(self) -> bool:
        """Read what is new; True when anything changed."""
        run, changed = self.run, False
        if self._new("config.toml"):
            run.config_text = files.read(run.path / manifest.CONFIG).decode("utf-8", "replace")
            run.config, changed = _toml(run.path, run.config_text), True
        if self._new("env.json"):
            run.environment, changed = _json_object(run.path / "env.json"), True
            names = run.environment.get("silos")
            if isinstance(names, list):
                run.silos = [text(name) for name in names[:MAX_SILOS]]
        if self._new("status.json"):
            status = self._status = manifest.readable(_json_object(run.path / manifest.STATUS), run.path)
            run.state, run.failure, changed = text(status.get("state")) or "unknown", text(status.get("reason")), True
        if self._new(manifest.SILOS) and (names := _members(run.path)) and list(run.silos) != names:
            run.silos, changed = names, True
            run.clients = SiloRounds(
                run.clients.path, grows=True
            )  # a deployment's: silos come later, and keep their places
            self._offsets = {name: 0 if name == "clients" else place for name, place in self._offsets.items()}
            self._last.pop("clients", None)
        if any(self._differs(name) for name in self._offsets):  # started again, or resumed from a checkpoint
            run.rounds.clear()
            run.clients = SiloRounds(run.clients.path, run.clients.grows)
            run.unreadable = 0
            self._offsets = dict.fromkeys(self._offsets, 0)
            self._last.clear()
            changed = True
        for line in self._lines("rounds"):
            changed = True
            self._keep(round_line(item_of(line)), run.rounds)
        for line in self._lines("clients"):
            changed = True
            item = run.clients.look(line)
            if not run.silos and item is not None and isinstance(item.get("status"), list):
                run.silos = [f"silo-{k}" for k in range(min(len(item["status"]), MAX_SILOS))]
            run.unreadable += not run.clients.add(item, len(run.silos))
        if changed and run.state != "running":
            self._doubt()
        return self.listen() or changed

    def listen(self) -> bool:
        """Is anybody still writing? True when that has changed."""
        run, before = self.run, self.run.silent
        seconds = run.rounds[-1].seconds if run.rounds else None
        run.silent = silent(run.path, seconds or 0.0) if run.state == "running" else None
        return (before is None) != (run.silent is None)

    def _doubt(self) -> None:
        """Are these the records that the run wrote? Its status, or else its last checkpoint, has their checksums."""
        self.run.doubt = manifest.complaint(self.run.path, self._status) or self._incomplete()
        self.run.unchecked = manifest.unchecked(self._status)

    def _incomplete(self) -> str:
        """Which rounds are missing, in a few words, where the run has ended; empty where none are, or nobody read them."""
        run, done = self.run, len(self.run.rounds)
        if run.state == "running" or len(self._offsets) < 2 or run.unreadable:
            return ""
        summary = self._status.get("summary")
        told = summary.get("rounds", done) if isinstance(summary, dict) else done
        if told != done:
            return f"{done} of {str(told)[:20]} rounds are there"
        if [line.round for line in run.rounds] != list(range(1, done + 1)):
            return "its lines are not those of rounds 1, 2, ..."
        rounds = [seen.round for seen in run.clients.glimpses]
        short = rounds[:done] if run.state == "finished" else [*rounds, done][:done]  # it may end between the two files
        return "" if short == list(range(1, done + 1)) else "its silos' lines are not those of its rounds"

    def _keep(self, line: RoundLine | None, kept: list[RoundLine]) -> None:
        """Lines that make no sense, or do not come after the last one, are counted and left out."""
        if line is None or (kept and line.round <= kept[-1].round) or len(kept) >= MAX_ROUNDS:
            self.run.unreadable += 1
        else:
            kept.append(line)

    def _new(self, name: str) -> bool:
        try:
            stat = (self.run.path / name).lstat()
        except OSError:
            return False
        seen = (stat.st_ctime_ns, stat.st_size)
        if self._small.get(name) == seen:
            return False
        self._small[name] = seen
        return True

    def _differs(self, name: str) -> bool:
        """Whether what was read is not what is there now: the file is shorter, or the last line read is another one."""
        length, known = self._last.get(name, (0, 0))
        if not length:
            return False
        try:
            with files.opened(self._path(name), files.LARGE) as file:
                file.seek(self._offsets[name] - length)
                return zlib.crc32(file.read(length)) != known
        except OSError:
            return False

    def _path(self, name: str) -> Path:
        return self.run.path / f"{name}.jsonl"

    def _lines(self, name: str) -> Iterator[bytes]:
        """New complete lines. A last line without its end is left for later."""
        if name not in self._offsets:
            return
        path = self._path(name)
        try:
            with files.opened(path, files.LARGE) as file:
                file.seek(self._offsets[name])
                for line in lines.each(file, path):
                    if not line.endswith(b"\n"):
                        break
                    self._offsets[name] += len(line)
                    self._last[name] = (len(line), zlib.crc32(line))
                    yield line
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
    """What `path.glob("*/")` gives without links, which lead elsewhere or round in circles; folders may vanish while we look."""
    try:
        with os.scandir(path) as entries:
            return sorted(path / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


DEEPEST = 20  # tables in tables of a configuration
TAIL = 256 * 1024  # bytes of a run's rounds that a list reads


def glance(path: Path) -> Run:
    """A run's configuration, state and last rounds, without reading the rest: enough for a list of many."""
    reader = RunReader(path, records=())
    run, rounds = reader.run, path / manifest.ROUNDS
    try:
        with files.opened(rounds, files.LARGE) as file:
            start = max(0, os.fstat(file.fileno()).st_size - TAIL)
            file.seek(start)
            tail = file.read(TAIL).splitlines(keepends=True)
    except OSError:
        return run
    complete = [round_line(item_of(line)) for line in tail[1 if start else 0 :] if line.endswith(b"\n")]
    run.rounds += [line for line in complete if line is not None]
    reader.listen()
    return run


def _toml(path: Path, source: str) -> dict[str, Any]:
    try:
        tree = tomllib.loads(source)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"{path}/config.toml is not TOML ({text(error)}); give a directory that `feduca run` wrote"
        ) from None
    level: list[Any] = [tree]
    for _ in range(DEEPEST):  # a key with dots nests without end, and whoever walks the tree would not come back
        level = [value for table in level if isinstance(table, dict) for value in table.values()]
    if any(isinstance(value, dict) for value in level):
        raise InputError(
            f"{path}/config.toml has tables more than {DEEPEST} deep; give a directory that `feduca run` wrote"
        )
    return tree


def _members(path: Path) -> list[str]:
    """The silos of a deployment, those that came later included; none where it is no deployment, or damaged."""
    try:
        return [text(one["name"]) for one in _json_object(path / manifest.SILOS)["silos"][:MAX_SILOS]]
    except (InputError, OSError, LookupError, TypeError):
        return []


def _json_object(path: Path) -> dict[str, Any]:
    item = item_of(files.read(path))
    if item is None:
        raise InputError(f"{path} is not a JSON object; give a directory that `feduca run` wrote")
    return item
