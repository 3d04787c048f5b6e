"""Several federations side by side, their work merged into few large calls: how one GPU is filled.

Each run keeps its own loop (`rounds.py`) and its own clients (`InProcess`); only the requests of the client steps (`work.py`) are
put together. Requests of one kind that wait at the same time become one call over all their clients; training waits until every
run that still has something to evaluate has done so, because that is the call worth merging. The time of what they do together is
shared equally among them: a run's clocks say what it cost, and those of all runs add up to the time of the group.

Where a task's silos must not train beside those of other federations (`trains_together` is False: dropout), each federation's
training is a call of its own.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feduca.client.requests import Along, Answers, Evaluate, Predict, Train, Work
from feduca.core.arrays import concatenate, repeat
from feduca.core.rounds import Rounds, Shared
from feduca.federation.in_process import InProcess
from feduca.types import Announcements, Answered, Floats, Ints, Predictions, Reports, Scores, ServerState, Task

if TYPE_CHECKING:
    from feduca.federation.masked import MaskedSilos


def together(loops: Sequence[Rounds], federations: Sequence[InProcess | MaskedSilos], task: Task) -> list[ServerState]:
    """Drive every loop to its end. `task` holds the silos of all federations, one after another in their order."""
    offsets = np.cumsum([0, *(len(f.silos) for f in federations)])[:-1]
    finished: dict[int, ServerState] = {}
    asked: dict[int, Announcements] = {}

    def ask(i: int, reports: Shared | None) -> None:
        try:
            asked[i] = next(loops[i]) if reports is None else loops[i].send(reports)
        except StopIteration as stop:
            finished[i] = stop.value
            asked.pop(i, None)

    for i in range(len(loops)):
        ask(i, None)
    while asked:
        started = time.perf_counter()
        answers = _exchange(asked, federations, task, offsets)
        share = (time.perf_counter() - started) / len(answers)
        for i, reports in answers.items():
            ask(i, Shared(reports, share))
    return [finished[i] for i in range(len(loops))]


def _exchange(
    asked: dict[int, Announcements], federations: Sequence[InProcess | MaskedSilos], task: Task, offsets: np.ndarray
) -> dict[int, Reports]:
    """One round of every run that is still going."""
    apart = not getattr(task, "trains_together", True)
    steps = {i: federations[i].steps(announcements) for i, announcements in asked.items()}
    waiting: dict[int, Work] = {}
    done: dict[int, Reports] = {}

    def resume(i: int, answer: Any) -> None:
        try:
            waiting[i] = steps[i].send(answer)
        except StopIteration as stop:
            done[i] = stop.value

    for i in steps:
        resume(i, None)
    while waiting:
        quick = {i: request for i, request in waiting.items() if not isinstance(request, Train)}
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for i, request in (quick or waiting).items():
            groups[i if apart and isinstance(request, Train) else _kind(request)].append(i)
        for members in groups.values():
            requests = [waiting.pop(i) for i in members]
            for i, answer in zip(members, _answers(requests, [int(offsets[i]) for i in members], task)):
                resume(i, answer)
    return done


def _kind(request: Work) -> Hashable:
    """Requests of the same kind can be one call."""
    if isinstance(request, Train):
        hidden = request.private and (request.private.clip, request.private.secret)
        return ("train", request.spec, request.round, request.drift is None, request.free is None, hidden)
    if isinstance(request, Evaluate):
        return ("evaluate", request.split)
    if isinstance(request, Answers):
        return ("answers", request.split)
    if isinstance(request, Predict):
        return ("predict", request.split)
    return ("along", request.split, request.places.shape[1])


def _answers(requests: Sequence[Any], offsets: Sequence[int], task: Task) -> list[Any]:
    """One call for all; then each its own rows."""
    clients = np.concatenate([request.clients + offset for request, offset in zip(requests, offsets)])
    cuts = np.cumsum([len(request.clients) for request in requests])[:-1]
    first = requests[0]
    if isinstance(first, Train):
        seeds = np.concatenate([np.full(len(r.clients), r.seed) for r in requests])
        anchor = None
        if first.spec.prox > 0:
            anchor = concatenate([repeat(r.anchor, len(r.clients)) for r in requests])
        theta = concatenate([r.theta for r in requests])
        rates = None
        if any(r.rates is not None for r in requests):
            rates = np.concatenate(
                [np.full(len(r.clients), r.spec.lr) if r.rates is None else r.rates for r in requests]
            )
        drift = None if first.drift is None else concatenate([r.drift for r in requests])
        free = None if first.free is None else concatenate([r.free for r in requests])
        private = first.private
        if private is not None:
            private = replace(private, noise=np.concatenate([r.private.noise for r in requests]))
        whole = Train(theta, clients, first.spec, first.round, seeds, anchor, rates, drift, free, private).on(task)
        return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(clients)])]
    if isinstance(first, Answers):
        found = Answers(concatenate([r.theta for r in requests]), clients, first.split).on(task)
        if found is None:
            return [None] * len(requests)
        parts = (np.split(column, cuts) for column in (found.right, found.loss, found.counts))
        return [Answered(*part) for part in zip(*parts)]
    if isinstance(first, Predict):
        said = Predict(concatenate([r.theta for r in requests]), clients, first.split).on(task)
        return [_trimmed(p, y) for p, y in zip(np.split(said.probabilities, cuts), np.split(said.targets, cuts))]
    if isinstance(first, Evaluate):
        scores = Evaluate(concatenate([r.theta for r in requests]), clients, first.split).on(task)
    else:
        start, end = concatenate([r.start for r in requests]), concatenate([r.end for r in requests])
        scores = Along(start, end, np.concatenate([r.places for r in requests]), clients, first.split).on(task)
    return [Scores(a, b) for a, b in zip(np.split(scores.accuracy, cuts), np.split(scores.loss, cuts))]


def _trimmed(probabilities: Floats, targets: Ints) -> Predictions:
    """One run's rows, without the padding that only the others' need."""
    width = int((targets >= 0).sum(1).max(initial=0))
    return Predictions(probabilities[:, :width], targets[:, :width])
