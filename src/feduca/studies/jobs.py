"""Jobs: groups of runs that something else than this process computes, each killable and begun again where its runs ended.

A job knows of no other: what it computes is what one process would have. It leaves its runs in their folders and gives back what
went wrong, if anything did. Where jobs go is a pool's to say (`studies/pools.py`); this is the one loop over them.
"""

from __future__ import annotations

import math
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from feduca import api
from feduca.errors import Busy, FeducaError, RunError, printable
from feduca.recipes import plugins
from feduca.recipes.schema import Recipe
from feduca.runs import manifest
from feduca.runs.directory import RunDirectory, RunResult
from feduca.runs.session import Watcher

Run = tuple[Recipe, int]  # with its seed
Group = list[int]  # places of cells that are one job

TRIES = 3  # how often a job that is killed is begun in all
PAUSE_S = 2.0  # between two looks at a run that another process is writing, and between two tellings of how far all are
SETTLE_S = 60.0  # how long what another machine wrote may take to be seen here


class Unfinished(RunError):
    """Some cells of a table failed; the others are done."""


@dataclass(frozen=True)
class Failure:
    """Why a job gave nothing, and the file that says more."""

    said: str
    log: Path


@dataclass(frozen=True)
class Work:
    """What one job does: runs of one shape, side by side."""

    runs: tuple[Run, ...]
    out: str
    lockstep: int
    files: tuple[str, ...]  # a user's own (`--import`)

    @property
    def name(self) -> str:
        recipe, seed = self.runs[0]
        return f"{recipe.name}-{recipe.hash()}-s{seed}"

    def __call__(self) -> str:
        """Nothing, or what went wrong in a line; the traceback goes to the log."""
        try:
            plugins.load(self.files)
            patiently(self.runs, self.out, self.lockstep)
        except Exception as error:
            traceback.print_exc()
            return str(error) if isinstance(error, FeducaError) else printable(f"{type(error).__name__}: {error}", 300)
        return ""

    def checkpoint(self) -> Any:
        """What submitit asks for when a job's time is up: the same once more, which goes on where its runs are."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Pool(Protocol):
    """Somewhere to compute: `room` jobs at a time; `word` says what they do meanwhile."""

    room: int
    word: str

    def start(self, works: Sequence[Work]) -> list[Any]:
        """A handle for each, by which `ended` tells them apart."""
        ...

    def ended(self, jobs: Sequence[Any]) -> list[tuple[Any, str | None, Path]]:
        """Those that ended, after a while: what went wrong (nothing: all is well; None: it was killed), and the log."""
        ...

    def close(self) -> None:
        """End what is still going on."""
        ...


def patiently(
    runs: Sequence[Run],
    out: str | Path,
    lockstep: int,
    again: bool = False,
    watch: Watcher | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[RunResult]:
    """`api.run_many`, where another sweep may be at one of these runs: what that computes is waited for, and then read."""
    told = ""
    while True:
        try:
            return api.run_many(runs, out=out, lockstep=lockstep, again=again, watch=watch)
        except Busy as busy:
            if told != str(busy):
                tell(f"waiting: {busy}")
                told = str(busy)
            time.sleep(PAUSE_S)


def finish(
    groups: Sequence[Group], work: Callable[[Group], Work], pool: Pool, beat: Callable[[list[Group]], None]
) -> Iterator[tuple[Group, Failure | None]]:
    """Every group as it ends, with what went wrong; `beat` hears of those that are going on, every now and then.

    A job that is killed is begun again, at most `TRIES` times in all. One of several cells that fails is begun again cell by
    cell: a failure is one cell's alone.
    """
    todo = deque((group, 1) for group in groups)
    going: dict[Any, tuple[Group, int, Work]] = {}
    heard = -math.inf
    with closing(pool):
        while todo or going:
            if now := [todo.popleft() for _ in range(min(len(todo), pool.room - len(going)))]:
                works = [work(group) for group, _ in now]
                going |= {job: (*one, mine) for job, one, mine in zip(pool.start(works), now, works)}
            if time.monotonic() - heard >= PAUSE_S:
                heard = time.monotonic()
                beat([group for group, _, _ in going.values()])
            for job, said, log in pool.ended(list(going)):
                group, tried, mine = going.pop(job)
                heard = -math.inf
                if said == "" and not _seen(mine):
                    said = f"its runs are not below {mine.out}: choose an --out that all machines share"
                if said == "":
                    yield group, None
                elif said is None and tried < TRIES:
                    todo.appendleft((group, tried + 1))
                elif len(group) > 1:
                    todo.extendleft(([i], 1) for i in reversed(group))
                else:
                    killed = f"was killed {TRIES} times, perhaps for want of memory or time"
                    yield group, Failure(said or killed, log)


def _seen(work: Work) -> bool:
    """Whether all runs are finished as seen from here: a file system that machines share may lag behind."""
    until = time.monotonic() + SETTLE_S
    while not all(api.is_finished(recipe, seed, work.out) for recipe, seed in work.runs):
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


def part(recipe: Recipe, seed: int, out: str | Path) -> float:
    """The share of a run's rounds that are done."""
    try:
        with (RunDirectory(Path(out), recipe.name, recipe.hash(), seed).path / manifest.ROUNDS).open("rb") as file:
            return min(1.0, sum(1 for _ in file) / recipe.rounds)
    except OSError:
        return 0.0
