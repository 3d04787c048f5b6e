"""Which examples a client sees in which step: a function of (seed, round, client) and nothing else.

Every engine follows the same plan, so engines can be compared step by step, and a client's batches do not depend on who
else is in the call. Silos of unequal size have unequal numbers of steps: the plan is padded, `sizes` says what is real.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from feduca.core.rng import stream
from feduca.errors import ConfigError
from feduca.types import Ints, LocalSpec

# An augmentation is one number: flip (2) x crop at all (2) x row offset (9) x column offset (9), pad-4 crops.
AUGMENTATIONS = 2 * 2 * 9 * 9
MANY = 500_000  # draws from which on the clients' batches are drawn in threads: the generators leave Python's lock


@dataclass(frozen=True)
class Plan:
    """Local training of K clients, step by step."""

    index: np.ndarray  # [S, K, B] rows of the pool; padding repeats one of the client's own rows
    sizes: np.ndarray  # [S, K] real examples in the batch; 0 once a client is done
    augment: np.ndarray | None  # [S, K, B] of numbers below AUGMENTATIONS
    rates: np.ndarray | None = None  # [K] learning rates, where clients have their own
    drift: Any = None  # [K, size], added to every gradient
    free: Any = None  # [K, size], what every gradient is multiplied by: 1, or 0 where nothing moves

    @property
    def is_plain(self) -> bool:
        """Whether gradients are what the loss gives: what the fast engines know."""
        return self.drift is None and self.free is None

    @property
    def steps(self) -> int:
        return len(self.index)

    @property
    def own_steps(self) -> Ints:
        """How many steps each client has, `[K]`."""
        return (self.sizes > 0).sum(0)

    def longest_first(self) -> np.ndarray | None:
        """The clients in the order in which a stack of them can shrink; None where they already stand so."""
        own = self.own_steps
        return None if (own[1:] <= own[:-1]).all() else np.argsort(-own, kind="stable")

    def ordered(self, order: np.ndarray) -> Plan:
        """The same plan with its clients in another order."""
        augment = None if self.augment is None else self.augment[:, order]
        rates, drift, free = (None if x is None else x[order] for x in (self.rates, self.drift, self.free))
        return Plan(self.index[:, order], self.sizes[:, order], augment, rates, drift, free)

    def stretches(self) -> list[tuple[int, int, int]]:
        """Steps `first` to before `last` of which only the first so many clients have any: `(first, last, clients)`."""
        places = np.arange(1, self.sizes.shape[1] + 1)
        reach = np.where(self.sizes > 0, places, 0).max(1, initial=0)
        cuts = [0, *(np.flatnonzero(np.diff(reach)) + 1).tolist(), self.steps]
        return [(a, b, int(reach[a])) for a, b in itertools.pairwise(cuts) if a < b]


def plan(rows: Sequence[np.ndarray], clients: Ints, spec: LocalSpec, round: int, seeds: Ints, least: int = 1) -> Plan:
    """The batches of one round: `rows[K]` are the clients' training rows, `clients[K]` and `seeds[K]` name streams.

    Each epoch is a fresh permutation; the last batch of an epoch may be smaller and is a mini-batch like any other, but
    where a model needs at least 2 examples in a batch (`least`; batch norm), a last batch of one is left out of the epoch.
    """
    if spec.epochs < 0 or spec.batch_size < 1:
        raise ConfigError(
            f"local.epochs is {spec.epochs} and local.batch_size {spec.batch_size}: choose epochs of at least 0 and "
            "batches of at least 1"
        )
    if spec.batch_size < least:
        raise ConfigError(
            f"local.batch_size is {spec.batch_size}: the model's batch norm needs at least {least} examples in a batch"
        )
    batch = min(spec.batch_size, max(len(r) for r in rows))
    used = [len(r) - len(r) % batch if len(r) % batch < least else len(r) for r in rows]  # examples of an epoch
    per_epoch = [-(-n // batch) for n in used]
    steps = spec.epochs * max(per_epoch)
    index = np.empty((steps, len(rows), batch), dtype=np.int64)
    sizes = np.zeros((steps, len(rows)), dtype=np.int64)
    augment = np.zeros((steps, len(rows), batch), dtype=np.int64) if spec.augment else None

    def draw(k: int) -> None:
        own = rows[k]
        n, own_steps = used[k], per_epoch[k] * spec.epochs
        rng = stream(int(seeds[k]), "batches", round, int(clients[k]))
        padded = np.zeros((spec.epochs, per_epoch[k] * batch), dtype=np.int64)  # positions in `own`
        for epoch in range(spec.epochs):
            padded[epoch, :n] = rng.permutation(len(own))[:n]
        index[:own_steps, k] = own[padded].reshape(own_steps, batch)
        index[own_steps:, k] = own[0]
        full = np.full(per_epoch[k], batch)
        full[-1] = n - batch * (per_epoch[k] - 1)
        sizes[:own_steps, k] = np.tile(full, spec.epochs)
        if augment is not None:
            codes = stream(int(seeds[k]), "augment", round, int(clients[k]))
            wide = min(spec.batch_size, n)  # the batches it would have alone
            augment[:own_steps, k, :wide] = codes.integers(AUGMENTATIONS, size=(own_steps, wide))

    if index.size < MANY:
        for k in range(len(rows)):
            draw(k)
    else:
        with ThreadPoolExecutor(min(len(rows), os.cpu_count() or 1)) as threads:
            list(threads.map(draw, range(len(rows))))
    return Plan(index, sizes, augment)


class Ahead:
    """Plans drawn a round early, while a GPU trains: nothing that a round decides changes the next one's batches.

    A round may ask for the same plan twice (a silo's model, and the one it would have had alone): it is drawn once. A copy
    starts empty, and the thread with it: tasks can be sent to other processes.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._drawn: dict[tuple, Future[Plan]] = {}  # by round and what was asked for

    def __reduce__(self) -> tuple:
        return Ahead, ()

    def plan(
        self,
        silos: Ints,
        rows: Sequence[np.ndarray],
        clients: Ints,
        spec: LocalSpec,
        round: int,
        seeds: Ints,
        least: int = 1,
    ) -> Plan:
        """The same as `plan`; `silos[K]` says whose `rows` these are."""
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="batches")
        asked = (silos.tobytes(), seeds.tobytes(), spec.epochs, spec.batch_size, spec.augment)
        kept = {key: future for key, future in list(self._drawn.items()) if round <= key[0] <= round + 1}
        for when in (round, round + 1):
            if (when, asked) not in kept:
                kept[when, asked] = self._thread.submit(plan, rows, clients, spec, when, seeds, least)
        self._drawn = kept
        return kept[round, asked].result()
