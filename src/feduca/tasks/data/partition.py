"""Who holds what: the split of one data set over silos, as in the paper's experiments.

Classes are dealt into disjoint groups and silo k holds group k mod groups. Within its group a silo has one class prior
for training, Dir(train_concentration), and another for validation, Dir(validation_concentration). All silos hold
equally many examples, drawn without replacement; a class that runs out is redrawn from the prior, renormalised over
what is left. Silos draw one after the other: who draws late from a group that is used up takes what others left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feduca.core.rng import stream
from feduca.errors import ConfigError


@dataclass(frozen=True)
class Partition:
    """Index arrays into one pool of examples, one per silo: to learn from, to decide by, and to judge a claim by."""

    train: list[np.ndarray]
    validation: list[np.ndarray]
    test: list[np.ndarray]
    groups: list[np.ndarray]  # the classes of each group

    def of(self, split: str) -> list[np.ndarray]:
        """The index arrays of `split`: train, validation or test."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]

    @property
    def checksum(self) -> str:
        """Sixteen hexadecimal digits that change with any index of any silo."""
        digest = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            for rows in part:
                digest.update(len(rows).to_bytes(8, "little"))
                digest.update(np.ascontiguousarray(rows, dtype="<i8").tobytes())
        return digest.hexdigest()[:16]


def split(
    labels: np.ndarray,
    *,
    classes: int,
    clients: int,
    classes_per_client: int,
    train_concentration: float = 0.5,
    validation_concentration: float = 1.0,
    validation_share: float = 0.2,
    test_share: float = 0.0,
    seed: int = 0,
) -> Partition:
    """Deal the examples with these `labels` to `clients` silos; a function of the arguments alone."""
    labels = np.asarray(labels)
    _check(labels, classes, clients, classes_per_client, validation_share, test_share)
    for name, value in (
        ("train_concentration", train_concentration),
        ("validation_concentration", validation_concentration),
    ):
        if not (np.isfinite(value) and value > 0):
            raise ConfigError(f"task.{name} is {value}: a Dirichlet concentration is a number above 0, such as 0.5")

    rng = stream(seed, "partition")
    group_count = classes // classes_per_client
    groups = [np.sort(group) for group in rng.permutation(classes).reshape(group_count, classes_per_client)]
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    cut = [int(len(pool) * validation_share) for pool in pools]

    train_pools = [pool[n:] for pool, n in zip(pools, cut)]
    held_pools = [pool[:n] for pool, n in zip(pools, cut)]
    train_size, held_size = (_equal_size(p, groups, clients) for p in (train_pools, held_pools))
    aside = round(test_share * held_size)
    if not train_size:
        raise ConfigError(
            f"{clients} silos get no training data from {len(labels)} examples: raise task.max_examples if it is set, "
            f"lower task.clients, or task.validation_share ({validation_share})"
        )
    if held_size <= aside:
        raise ConfigError(
            f"every silo is left without validation data ({held_size} held out, test_share {test_share}): raise "
            "task.validation_share (and task.max_examples if it is set), lower task.test_share, or use fewer clients"
        )

    def deal(pools: list[np.ndarray], size: int, concentration: float) -> list[np.ndarray]:
        used = np.zeros(classes, dtype=np.int64)
        return [_draw(pools, used, groups[k % group_count], size, concentration, rng) for k in range(clients)]

    train = deal(train_pools, train_size, train_concentration)
    held_out = deal(held_pools, held_size, validation_concentration)
    return Partition(
        train=train,
        validation=[np.sort(rows[aside:]) for rows in held_out],
        test=[np.sort(rows[:aside]) for rows in held_out],
        groups=groups,
    )


def _check(
    labels: np.ndarray, classes: int, clients: int, classes_per_client: int, validation_share: float, test_share: float
) -> None:
    if clients < 1:
        raise ConfigError(f"task.clients is {clients}: a federation needs at least 1 silo")
    if not 1 <= classes_per_client <= classes:
        raise ConfigError(f"task.classes_per_client is {classes_per_client}: choose 1 to {classes}, the data's classes")
    if classes % classes_per_client:
        fits = ", ".join(str(n) for n in range(1, classes + 1) if classes % n == 0)
        raise ConfigError(
            f"task.classes_per_client is {classes_per_client}, which does not divide {classes} classes into disjoint "
            f"groups: choose one of {fits}"
        )
    if not 0 < validation_share < 1:
        raise ConfigError(f"task.validation_share is {validation_share}: choose a share between 0 and 1, such as 0.2")
    if not 0 <= test_share < 1:
        raise ConfigError(f"task.test_share is {test_share}: choose a share of the validation data from 0 to below 1")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ConfigError(f"labels run from {labels.min()} to {labels.max()}: they must lie in 0 to {classes - 1}")


def _equal_size(pools: list[np.ndarray], groups: list[np.ndarray], clients: int) -> int:
    """The largest size that every silo can have: no more than its share of all, nor of what its own group holds."""
    size = sum(len(pool) for pool in pools) // clients
    for g, group in enumerate(groups):
        holders = len(range(g, clients, len(groups)))
        if holders:
            size = min(size, sum(len(pools[c]) for c in group) // holders)
    return size


def _draw(
    pools: list[np.ndarray],
    used: np.ndarray,
    group: np.ndarray,
    size: int,
    concentration: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """`size` examples of the classes in `group` for one silo, in random order; advances `used`.

    Drawing a whole multinomial, cutting it at what is left and redrawing the excess has the same law as drawing one by
    one: whatever comes after a class ran out is redrawn either way.
    """
    left = np.array([len(pools[c]) for c in group]) - used[group]
    prior = rng.dirichlet(np.full(len(group), concentration))
    counts = np.zeros(len(group), dtype=np.int64)
    while (missing := size - counts.sum()) > 0:
        weight = np.where(counts < left, prior, 0.0)
        if weight.sum() <= 0:  # the prior lives on used-up classes only: whatever is left, evenly
            weight = (counts < left).astype(float)
        counts = np.minimum(counts + rng.multinomial(missing, weight / weight.sum()), left)
    rows = np.concatenate([pools[c][used[c] : used[c] + n] for c, n in zip(group, counts)])
    used[group] += counts
    return rng.permutation(rows)


def table(rows: Sequence[np.ndarray], labels: np.ndarray, classes: int) -> np.ndarray:
    """Examples of each class in each silo, `[silos, classes]`."""
    labels = np.asarray(labels)
    return np.array([np.bincount(labels[r], minlength=classes) for r in rows])


@dataclass(frozen=True)
class Wishes:
    """The paper's four wishes for a split, as measured."""

    solo: float  # mean accuracy of models that silos train alone, on their own validation data
    chance: float  # what guessing the commonest class of each silo's validation data would get
    gain: float  # mean accuracy of the model of everybody on silos' validation data, minus `solo`
    union_gain: float  # the same on the global test set
    shift: float  # mean total variation distance between a silo's training and validation class shares
    leaving: float  # share of silos for which the common model does not beat their own (strictly)

    @property
    def met(self) -> dict[str, bool]:
        """Each wish with whether this split meets it."""
        return {
            "solo models are reasonable": self.solo > self.chance,
            "there is something to gain": self.union_gain > 0,
            "training and validation differ": self.shift > 0,
            "participation is not automatic": self.leaving > 0,
        }


def wishes(
    train_table: np.ndarray,
    validation_table: np.ndarray,
    solo: np.ndarray,
    common: np.ndarray,
    solo_test: np.ndarray,
    common_test: float,
) -> Wishes:
    """Measure the four wishes.

    `solo[N]` and `common[N]` are accuracies on silos' validation data of the silo's own model and of the model trained
    by everybody; `solo_test[N]` and `common_test` those on the global test set.
    """
    p = train_table / train_table.sum(1, keepdims=True)
    q = validation_table / validation_table.sum(1, keepdims=True)
    return Wishes(
        solo=float(np.mean(solo)),
        chance=float(np.mean(q.max(1))),
        gain=float(np.mean(common) - np.mean(solo)),
        union_gain=float(common_test - np.mean(solo_test)),
        shift=float(np.mean(np.abs(p - q).sum(1) / 2)),
        leaving=float(np.mean(np.asarray(common) <= np.asarray(solo))),
    )
