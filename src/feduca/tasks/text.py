"""A bidirectional LSTM whose cell runs K models, both directions and all sequences at once.

PyTorch's own LSTM cannot be batched over models, so the cell is written out: the inputs' part of all gates is one
product for the whole text, and one product per word remains. Padding (word 0) leaves the state as it is. A text is
represented by the largest value of each state over its words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from feduca.tasks.networks import Dense, Params, StackedModel, dense


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
        params = {name: value.unsqueeze(0) for name, value in self.named_parameters()}
        return self.stacked(params, x.unsqueeze(0)).squeeze(0)

    def after_stem(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not name.startswith("embedding.")]

    def stem(self, params: Params, x: Tensor) -> Tensor:
        """Word vectors `[K, B, T, embedding + 1]`; the last entry is 0 where there is no word, else 1."""
        table = params["embedding.weight"]
        K, count = table.shape[:2]
        rows = x + count * torch.arange(K, device=x.device)[:, None, None]
        vectors = table.reshape(K * count, -1)[rows]
        return torch.cat([vectors, (x > 0).to(vectors.dtype).unsqueeze(-1)], -1)

    def rest(self, params: Params, h: Tensor) -> Tensor:
        K, B, T = h.shape[:3]
        vectors, real = h[..., :-1], h[..., -1:]
        both = torch.stack([vectors, vectors.flip(2)], 1).flatten(0, 1)  # [2K, B, T, embedding]
        mask = torch.stack([real, real.flip(2)], 1).flatten(0, 1)  # [2K, B, T, 1]
        inner, recurrent, bias = (params[name].flatten(0, 1) for name in ("inner", "recurrent", "bias"))
        gates = torch.baddbmm(bias.unsqueeze(1), both.flatten(1, 2), inner).unflatten(1, (B, T))
        state = gates.new_zeros(2 * K, B, self.hidden)
        cell, best = state, gates.new_full(state.shape, -1.0)
        for step, seen in zip(gates.unbind(2), mask.to(gates.dtype).unbind(2)):
            i, f, g, o = (step + torch.bmm(state, recurrent)).chunk(4, -1)
            new_cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            new_state = torch.sigmoid(o) * torch.tanh(new_cell)
            cell = torch.lerp(cell, new_cell, seen)
            state = torch.lerp(state, new_state, seen)
            best = torch.where(seen > 0, torch.maximum(best, new_state), best)
        return dense(params, "out", best.unflatten(0, (K, 2)).transpose(1, 2).flatten(2))
