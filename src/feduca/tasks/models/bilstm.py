"""A bidirectional LSTM whose cell runs K models, both directions and all sequences at once.

PyTorch's own LSTM cannot be batched over models, so the cell is written out: in plain PyTorch for one model, and for K in
recurrence.py. Padding (word 0) leaves the state as it is. A text is represented by the largest value of each state over
its words.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feduca.tasks.models.networks import Dense, Params, StackedModel, dense
from feduca.tasks.models.recurrence import recur

ALIGN = 8  # a word's row has a multiple of this many numbers, as fast products want


class BiLSTM(StackedModel):
    """Embedding, bidirectional LSTM, the maximum over words, one dense layer."""

    first = "embedding"

    def __init__(self, vocabulary: int, outputs: int, embedding: int = 100, hidden: int = 128):
        super().__init__()
        self.hidden = hidden
        bound = 1 / math.sqrt(hidden)
        self.embedding = nn.Embedding(vocabulary, embedding)
        # Axis 0: forwards, backwards. Gates in the order input, forget, cell, output.
        self.inner = nn.Parameter(torch.empty(2, embedding, 4 * hidden).uniform_(-bound, bound))
        self.recurrent = nn.Parameter(torch.empty(2, hidden, 4 * hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(2, 4 * hidden).uniform_(-bound, bound))
        self.out = Dense(2 * hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        vectors, real = self.embedding(x), (x > 0).unsqueeze(-1)
        both, seen = (torch.stack([t, t.flip(1)]) for t in (vectors, real))  # [2, B, T, ...]
        gates = torch.einsum("dbte,deg->dtbg", both, self.inner) + self.bias[:, None, None]
        state = gates.new_zeros(2, len(x), self.hidden)
        cell, best = state, gates.new_full(state.shape, -1.0)
        for step, now in zip(gates.unbind(1), seen.unbind(2)):
            i, f, g, o = (step + torch.bmm(state, self.recurrent)).chunk(4, -1)
            new_cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            new_state = torch.sigmoid(o) * torch.tanh(new_cell)
            cell = torch.where(now, new_cell, cell)
            state = torch.where(now, new_state, state)
            best = torch.where(now, torch.maximum(best, new_state), best)
        return self.out(best.transpose(0, 1).flatten(1))

    def stem(self, params: Params, x: Tensor) -> Tensor:
        """The words' rows `[K, T, B, embedding + 1 + zeros]`: the vector, and 1 where there is a word, else 0."""
        table = params["embedding.weight"]
        (K, count), words = table.shape[:2], x.transpose(1, 2)
        rows = words + count * torch.arange(K, device=x.device)[:, None, None]
        # Going back, this is index_add_: on a GPU one kernel with atomic additions, whose order, and with it the last bits,
        # may differ from run to run. Indexing with brackets would sort all words first.
        vectors = table.flatten(0, 1).index_select(0, rows.flatten()).view(*words.shape, -1)
        extra = vectors.new_zeros(*words.shape, self._row - vectors.shape[-1])
        extra[..., 0] = words > 0
        return torch.cat([vectors, extra], -1)

    def rest(self, params: Params, h: Tensor) -> Tensor:
        half = torch.is_autocast_enabled(h.device.type)
        dtype = torch.bfloat16 if half else h.dtype
        h = h.to(dtype)
        both = torch.stack([h, h.flip(1)], 1).flatten(0, 1)  # [2K, T, B, row]
        seen = both[..., self.embedding.embedding_dim] > 0.5
        # A word's 1 is multiplied with the bias, the zeros after it with zeros.
        weight = torch.cat([params["inner"], params["bias"].unsqueeze(2)], 2)
        weight = F.pad(weight, (0, 0, 0, self._row - weight.shape[2]))
        inner, recurrent = (w.flatten(0, 1).to(dtype) for w in (weight, params["recurrent"]))
        best = recur(both, seen, inner, recurrent)
        return dense(params, "out", best.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2))

    @property
    def _row(self) -> int:
        return (self.embedding.embedding_dim // ALIGN + 1) * ALIGN
