"""Scores in the making: which examples of which clients are computed together, and what they add up to.

Losses are added slice by slice of so many examples of every client, padded with zeros: that fixes the order of the sums. What is
computed in one call is another matter: clients with about as many examples left, so that hardly any padding is, and where few
clients have any left, several slices at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feduca.tasks.data.pool import Pool
from feduca.tasks.metrics import Criterion, score
from feduca.types import Ints, Scores

PADDING = 1 / 8  # of the examples of a call that may be padding ...
SPARE = 32  # ... and how many may be in any case: a call costs as much
SPARE_GPU = 2000  # the same on a GPU, whose calls are dear beside their examples: 15 of them took 7 times as long as one over all


@dataclass(frozen=True)
class Block:
    """What is computed in one call: examples from `begin` on of the clients in `who`, longest first."""

    who: slice
    begin: int
    index: Tensor  # [k, b] rows of the pool; padding repeats one of the client's own
    real: Tensor | None  # [k, b]; None: all


class Tally:
    """Correct answers and losses `[K, points]` of clients whose examples are `rows[K]`.

    Inside, clients stand in the order of how many examples they have: `laid` puts models there, `shape` puts scores back.
    """

    def __init__(self, pool: Pool, criterion: Criterion, rows: Sequence[np.ndarray], points: int, chunk: int):
        counts = np.array([len(own) for own in rows], dtype=np.int64)
        order = np.argsort(-counts, kind="stable")
        self.pool, self.criterion, self.chunk, self.points = pool, criterion, chunk, points
        self.order = None if (order == np.arange(len(order))).all() else order
        self.rows = [rows[k] for k in order]
        self.counts = counts[order]
        self.width = max(1, chunk // max(1, len(rows)))  # of a slice
        self.spare = SPARE_GPU // points if pool.x.is_cuda else SPARE
        self.loss = torch.zeros(len(rows), points, dtype=torch.float64, device=pool.x.device)
        self.right = torch.zeros_like(self.loss)
        self.kept: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in rows]

    def laid(self, x: Tensor) -> Tensor:
        """`x[K, ...]` in the order of the tally."""
        return x if self.order is None else x[self.order]

    def back(self, x: np.ndarray) -> np.ndarray:
        """`x[K, ...]` in the order it was asked in."""
        return x if self.order is None else x[np.argsort(self.order)]

    def blocks(self) -> Iterator[Block]:
        """All examples, at most `chunk` at a time, but one of every client in any case."""
        begin, most = 0, self.counts.max(initial=0)
        while begin < most:
            active = int((self.counts > begin).sum())
            span = self.width * max(1, self.chunk // (active * self.width))
            left = np.minimum(self.counts[:active] - begin, span)
            for first, last in _groups(left, self.spare):
                yield self._block(first, last, begin, left[first:last])
            begin += span

    def _block(self, first: int, last: int, begin: int, left: Ints) -> Block:
        index = np.empty((last - first, left[0]), dtype=np.int64)
        for place, n in enumerate(left):
            own = self.rows[first + place]
            index[place, :n], index[place, n:] = own[begin : begin + n], own[0]
        real = None if left[-1] == left[0] else torch.from_numpy(np.arange(left[0]) < left[:, None])
        device = self.pool.x.device
        real = None if real is None else real.to(device)
        return Block(slice(first, last), begin, torch.from_numpy(index).to(device), real)

    def add(self, outputs: Tensor, block: Block) -> None:
        """Count `outputs[k, M, b, C]` for the examples of a block."""
        targets = self.pool.targets(block.index).unsqueeze(1).expand(outputs.shape[:3])
        losses = self.criterion.loss(outputs.flatten(0, 2), targets.flatten()).view(targets.shape).double()
        hit, mask = self.hits(outputs, targets), None if block.real is None else block.real.unsqueeze(1)
        losses = losses if mask is None else torch.where(mask, losses, 0.0)
        for a in range(0, losses.shape[2], self.width):
            part = losses[:, :, a : a + self.width]
            wide = min(self.width, int(self.counts[0]) - block.begin - a)  # of this slice, for everybody
            self.loss[block.who] += torch.nn.functional.pad(part, (0, wide - part.shape[2])).sum(2)
        if hit is not None:
            self.right[block.who] += (hit if mask is None else hit & mask).sum(2)
        else:
            said, wanted = outputs.float().cpu().numpy(), self.pool.targets(block.index).cpu().numpy()
            for place, k in enumerate(range(block.who.start, block.who.stop)):
                self.kept[k].append((said[place], wanted[place]))

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Whether each answer is right; None where a score is not about that."""
        return None if self.criterion.score is not None else outputs.argmax(-1) == targets

    def scores(self, shape: Callable[[np.ndarray], np.ndarray]) -> Scores:
        """The finished scores, `[K, M]` passed through `shape`."""
        counts = torch.from_numpy(self.counts).to(self.loss.device).double().unsqueeze(1)
        both = torch.stack([self.right / counts, self.loss / counts]).cpu().numpy()  # 0/0 is NaN: no data
        if self.criterion.score is not None:
            both[0] = self._scored()
        return Scores(accuracy=shape(self.back(both[0])), loss=shape(self.back(both[1])))

    def _scored(self) -> np.ndarray:
        values = np.full((len(self.rows), self.points), np.nan)
        for k, n in enumerate(self.counts.tolist()):
            if not n:
                continue
            outputs = np.concatenate([said for said, _ in self.kept[k]], 1).astype(np.float64)
            targets = np.concatenate([wanted for _, wanted in self.kept[k]])
            for m in range(self.points):
                values[k, m] = score(self.criterion, outputs[m, :n], targets[:n])
        return values


def _groups(left: Ints, spare: int) -> Iterator[tuple[int, int]]:
    """Neighbours `first` to before `last` that are computed together; `left[K]`, what each has, does not grow."""
    first, padding, total = 0, 0, 0
    for k, n in enumerate(left.tolist()):
        padding += int(left[first]) - n
        if padding > max(spare, PADDING * (total + padding + n)):
            yield first, k
            first, padding, total = k, 0, 0
        total += n
    yield first, len(left)
