"""Runs in processes of their own, several at a time. A run knows of no other: what it computes is what one process would have."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from feduca.errors import RunError
from feduca.recipes.schema import Recipe

Job = tuple[Recipe, int]  # with its seed


def finish(batches: Sequence[Sequence[Job]], out: str | Path, jobs: int, lockstep: int, again: bool) -> Iterator[int]:
    """Run all batches below `out`, `jobs` processes at a time; yields the place of each as it is done."""
    from feduca.recipes import plugins

    spawn = multiprocessing.get_context("spawn")  # a copy of a process that computes in threads would hang
    pool = ProcessPoolExecutor(jobs, spawn, initializer=plugins.load, initargs=(plugins.loaded(),))
    try:
        todo = {pool.submit(_run, list(batch), str(out), lockstep, again): i for i, batch in enumerate(batches)}
        for done in as_completed(todo):
            done.result()
            yield todo[done]
    except BrokenProcessPool:
        raise RunError(
            "a process that computed runs was killed, perhaps for want of memory; repeat the command, which goes on where runs"
            f" ended, with fewer --jobs than {jobs}"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _run(batch: list[Job], out: str, lockstep: int, again: bool) -> None:
    from feduca import api

    api.run_many(batch, out=out, lockstep=lockstep, again=again)
