"""Training a perceptron on the CPU in compiled code: one client after another on each core, without a step of Python between.

Why: an example of a small model takes microseconds, an operation of PyTorch about as long to dispatch. And a client's weights
stay in its core's own cache from step to step; a batched product over all clients fetches them from the shared one every time.
A client's result depends neither on the others nor on the number of threads, to the last bit.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from feduca.tasks.data.batches import Plan
from feduca.tasks.data.pool import Pool
from feduca.tasks.engines.optimisers import CLIP_EPSILON
from feduca.tasks.metrics import Criterion, is_plain
from feduca.tasks.models.layout import Layout
from feduca.tasks.models.networks import MLP
from feduca.types import LocalSpec


def fits(module: MLP, layout: Layout, pool: Pool, criterion: Criterion, plan: Plan, spec: LocalSpec) -> bool:
    """Whether this training of a perceptron can be done here."""
    names = [f"layers.{i}.{part}" for i in range(len(module.sizes)) for part in ("weight", "bias")]
    return (
        not torch.is_autocast_enabled("cpu")
        and module.runs_as(MLP)
        and layout.only(names)
        and is_plain(criterion, spec)
        and plan.augment is None
        and plan.is_plain
        and (x := pool.ready()) is not None
        and x.dtype == torch.float32
        and pool.y.dtype == torch.int64
    )


def train(module: MLP, pool: Pool, theta: Tensor, plan: Plan, spec: LocalSpec, anchor: Tensor | None) -> Tensor:
    """`theta[K, size]` after local training; `anchor[K, size]` is what the proximal term pulls to."""
    x, y = pool.ready(), pool.y.numpy()
    assert x is not None
    widths = np.array([module.sizes[0][0], *(outputs for _, outputs in module.sizes)])
    out = theta.detach().float().contiguous().clone().numpy()
    pull = np.broadcast_to(np.float32(0), out.shape) if anchor is None else anchor.detach().float().contiguous().numpy()
    options = [
        np.float32(value)
        for value in (spec.weight_decay, spec.clip, CLIP_EPSILON, spec.prox if anchor is not None else 0)
    ]

    rates = np.full(len(out), spec.lr) if plan.rates is None else plan.rates
    steps = plan.own_steps

    def one(k: int) -> None:
        index, sizes = (np.ascontiguousarray(x[: steps[k], k]) for x in (plan.index, plan.sizes))
        _train(
            out[k], widths, x.numpy(), y, index, sizes, np.ascontiguousarray(pull[k]), np.float32(rates[k]), *options
        )

    with _turn, _one_thread_each().limit(limits=1, user_api="blas"):
        everybody = np.argsort(
            -steps, kind="stable"
        )  # the longest first: the last to end should not be the last to begin
        if min(torch.get_num_threads(), len(out)) == 1:
            for k in everybody:
                one(k)
        else:
            with ThreadPoolExecutor(torch.get_num_threads()) as threads:
                list(threads.map(one, everybody))
    return torch.from_numpy(out)


_turn = Lock()  # the limit is the process's: who comes second must not take one thread for the normal state


@cache
def _one_thread_each() -> Any:
    """BLAS must not start threads of its own inside ours. It must be loaded before it can be told so."""
    import scipy.linalg.cython_blas  # noqa: F401  (whose products numba calls)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _train(theta, widths, x, y, index, sizes, anchor, lr, decay, clip, epsilon, prox):  # pragma: no cover (compiled)
    """All steps of one client, in place. A layer maps one width to the next; theta holds its weights [in, out], then biases."""
    layers, batch = len(widths) - 1, index.shape[1]
    acts = np.empty(batch * widths.sum(), np.float32)
    back = np.empty((2, batch * widths.max()), np.float32)
    grad = np.empty_like(theta)
    for s in range(len(index)):
        n = sizes[s]
        for i in range(n):
            acts[i * widths[0] : (i + 1) * widths[0]] = x[index[s, i]]
        here, place = 0, 0
        for layer in range(layers):  # forward
            a, b = widths[layer], widths[layer + 1]
            there = here + batch * a
            h = acts[here : here + n * a].reshape(n, a)
            z = acts[there : there + n * b].reshape(n, b)
            np.dot(h, theta[place : place + a * b].reshape(a, b), z)
            bias = theta[place + a * b : place + a * b + b]
            for i in range(n):
                for j in range(b):
                    value = z[i, j] + bias[j]
                    z[i, j] = np.float32(0) if value <= 0 and layer < layers - 1 else value  # NaN stays NaN
            here, place = there, place + a * b + b
        classes = widths[layers]
        d = back[0, : n * classes].reshape(n, classes)
        z = acts[here : here + n * classes].reshape(n, classes)
        for i in range(n):  # the gradient of the mean cross-entropy at the outputs
            top = z[i].max()
            total = np.float32(0)
            for j in range(classes):
                d[i, j] = np.exp(z[i, j] - top)
                total += d[i, j]
            for j in range(classes):
                d[i, j] = (d[i, j] / total - (j == y[index[s, i]])) / n
        square = np.float32(0)
        side = 0
        for layer in range(layers - 1, -1, -1):  # backward
            a, b = widths[layer], widths[layer + 1]
            here -= batch * a
            place -= a * b + b
            h = acts[here : here + n * a].reshape(n, a)
            d = back[side, : n * b].reshape(n, b)
            g = grad[place : place + a * b].reshape(a, b)
            np.dot(h.T, d, g)
            gb = grad[place + a * b : place + a * b + b]
            gb[:] = 0
            for i in range(n):
                for j in range(b):
                    gb[j] += d[i, j]
            if layer:
                side = 1 - side
                below = back[side, : n * a].reshape(n, a)
                np.dot(d, theta[place : place + a * b].reshape(a, b).T, below)
                for i in range(n):
                    for j in range(a):
                        if h[i, j] <= 0:
                            below[i, j] = 0
        if decay or prox:
            for p in range(len(theta)):
                grad[p] += decay * theta[p] + prox * (theta[p] - anchor[p])
        step = lr
        if clip:
            for p in range(len(grad)):
                square += grad[p] * grad[p]
            step *= min(np.float32(1), clip / (np.sqrt(square) + epsilon))
        for p in range(len(theta)):
            theta[p] -= step * grad[p]
