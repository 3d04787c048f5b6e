"""One local training step of K silos, ours and as libraries do it, side by side on one GPU.

    python benchmarks/kernels.py [--out FILE] [--only cnn mlp resnet18 bilstm] [--steps N] [--repeat N]
    python benchmarks/kernels.py --table      # only writes docs/speed.md's table from the summary

Every way trains the same K models on the same batches of random examples of the paper's sizes: bf16 products under autocast,
fp32 parameters, the recipes' decay, clip and augmentation, and all of it inside a CUDA graph, so that the host counts nowhere.

    ours            what a run uses
    without X       the same with one family of our kernels replaced by PyTorch's operations
    vmap            vmap(grad(...)) over the plain module: convolutions become grouped ones
    compiled vmap   the same, and the optimiser's step, through torch.compile
    compiled        our passes over K models in plain PyTorch, forwards and back, through torch.compile
    cuDNN           one torch.nn.LSTM a silo

`gain` of a family is the fastest way that does without it over ours: below 1.3 it is not worth its lines.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

sys.path.insert(0, str(Path(__file__).resolve().parent))

from feduca.tasks import engines
from feduca.tasks.data.batches import AUGMENTATIONS, Plan
from feduca.tasks.data.pool import Pool
from feduca.tasks.engines import Keys, Stacked, optimisers
from feduca.tasks.engines.gpu.capture import captured
from feduca.tasks.metrics import criterion
from feduca.tasks.models import CNN, MLP, BiLSTM, ResNet18, networks
from feduca.tasks.models.layout import Layout
from feduca.types import LocalSpec
from tables import markdown, replace_tables  # beside this file

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # a CPU only tries that it runs: nothing is recorded there
BATCH, WORDS, VOCABULARY = (50, 200, 20_002) if DEVICE == "cuda" else (4, 6, 50)
HERE = Path(__file__).parent
SUMMARY, DOCUMENT = HERE / "results" / "kernels.json", HERE.parent / "docs" / "speed.md"
NAMES = {
    "cnn": "CNN, CIFAR-10",
    "mlp": "MLP, Fashion-MNIST",
    "resnet18": "ResNet-18, CIFAR-100",
    "bilstm": "LSTM, 20 Newsgroups",
}
LIBRARIES = ("vmap", "compiled vmap", "compiled", "cuDNN")
FAMILIES = {  # the kernels that take part in each model's training
    "cnn": ("convolution_kernels", "step_kernels"),
    "mlp": ("step_kernels",),
    "resnet18": ("window_kernels", "norm_kernels", "step_kernels"),
    "bilstm": ("recurrent_kernels", "step_kernels"),
}


@dataclass(frozen=True)
class Work:
    """What every way has to do: K models, examples, a plan and the local training of the recipe."""

    make: Callable[[], nn.Module]
    clients: int
    pool: Pool
    plan: Plan
    spec: LocalSpec

    @property
    def layout(self) -> Layout:
        return Layout.of(self.make())

    def start(self) -> Tensor:
        """K different models, `[K, size]`."""
        torch.manual_seed(0)
        rows = [self.layout.pack(dict(self.make().state_dict())) for _ in range(self.clients)]
        return torch.stack(rows).to(DEVICE)


def work(model: str, steps: int) -> Work:
    rng = np.random.default_rng(0)
    clients, classes, augment = (20, 100, True) if model == "resnet18" else (10, 10, model == "cnn")
    classes = 20 if model == "bilstm" else classes
    n = 5_000
    if model == "mlp":
        x: np.ndarray = rng.normal(size=(n, 784)).astype(np.float32)
    elif model == "bilstm":
        x = rng.integers(1, VOCABULARY, (n, WORDS))
        x[np.arange(WORDS)[None] >= rng.integers(WORDS // 5, WORDS + 1, n)[:, None]] = 0  # texts end earlier or later
    else:
        x = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    pool = Pool.of(x, rng.integers(0, classes, n), device=DEVICE)
    makes: dict[str, Callable[[], nn.Module]] = {
        "cnn": lambda: CNN((3, 32, 32), (394, 192), classes),
        "mlp": lambda: MLP(784, (200, 100), classes),
        "resnet18": lambda: ResNet18(classes),
        "bilstm": lambda: BiLSTM(VOCABULARY, classes),
    }
    spec = LocalSpec(
        epochs=1, batch_size=BATCH, lr=0.01, clip=10.0, augment=augment,
        weight_decay=1e-3 if model in ("cnn", "resnet18") else 0.0,
    )  # fmt: skip
    codes = rng.integers(0, AUGMENTATIONS, (steps, clients, BATCH)) if augment else None
    plan = Plan(rng.integers(0, n, (steps, clients, BATCH)), np.full((steps, clients), BATCH), codes)
    return Work(makes[model], clients, pool, plan, spec)


# ---------------------------------------------------------------------------------------------------------------------
# The ways


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Our engine as if these modules of kernels were not there."""
    known = networks.kernels_module

    def module(name: str = "convolution_kernels") -> ModuleType | None:
        return None if name in names else known(name)

    fused = {"convolution_kernels", "step_kernels"}.isdisjoint(names)  # training without autograd needs both
    networks.kernels_module = module  # type: ignore[assignment]
    engines.kernels_module = known if fused else lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        networks.kernels_module = engines.kernels_module = known  # type: ignore[assignment]


def ours(job: Work) -> Callable[[Tensor], Tensor]:
    engine = Stacked(job.make().to(DEVICE), job.layout, job.pool, criterion())
    keys = Keys(np.zeros(job.clients, int), 1, np.arange(job.clients))

    def train(theta: Tensor) -> Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
            return engine.train(theta, job.plan, job.spec, None, keys)

    return train


@dataclass(frozen=True)
class Played:
    """What stands in for a graph on a CPU."""

    replay: Callable[[], None]


def recorded(step: Callable[[], None], number: Tensor) -> torch.cuda.CUDAGraph | Played:
    return captured(step, number) if DEVICE == "cuda" else Played(step)


def library(job: Work, forward: Callable[..., Tensor], compiled: bool) -> Callable[[Tensor], Tensor]:
    """`forward(params, x)`: outputs of K models. Gradients, decay, clip and step follow, in a graph."""
    layout, spec = job.layout, job.spec
    params = {name: value.clone() for name, value in layout.unpack(job.start()).items()}
    index = torch.from_numpy(job.plan.index).to(DEVICE)
    codes = None if job.plan.augment is None else torch.from_numpy(job.plan.augment).to(DEVICE)
    number = torch.zeros(1, dtype=torch.int64, device=DEVICE)

    def update(params: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
            grads = forward(params, x, y)
        grads = {name: g.float() + spec.weight_decay * params[name] for name, g in grads.items()}
        scale = (spec.clip / (optimisers.norms(list(grads.values())) + optimisers.CLIP_EPSILON)).clamp(max=1.0)
        return {name: p - spec.lr * optimisers.per_client(scale, p) * grads[name] for name, p in params.items()}

    run = torch.compile(update, dynamic=False) if compiled else update

    def step() -> None:
        rows = index.index_select(0, number).squeeze(0)
        code = None if codes is None else codes.index_select(0, number).squeeze(0)
        new = run(params, job.pool.examples(rows, code), job.pool.targets(rows))
        for name, value in new.items():
            params[name].copy_(value.detach())
        number.add_(1)

    graph = recorded(step, number)

    def train(theta: Tensor, _kept: object = step) -> Tensor:  # the graph reads what `step` refers to
        for name, value in layout.unpack(theta).items():
            params[name].copy_(value)
        number.zero_()
        for _ in range(job.plan.steps):
            graph.replay()
        return layout.pack(params)

    return train


def by_vmap(job: Work) -> Callable[..., dict[str, Tensor]]:
    module = job.make().to(DEVICE).train()

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, params, (x,)).float(), y)

    return lambda params, x, y: vmap(grad(loss))(params, x, y)


def by_autograd(stacked: Callable[[dict[str, Tensor], Tensor], Tensor]) -> Callable[..., dict[str, Tensor]]:
    def gradients(params: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        out = stacked(leaves, x)
        loss = F.cross_entropy(out.flatten(0, 1).float(), y.flatten(), reduction="none").view(y.shape).mean(1).sum()
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))

    return gradients


class Recurrent(nn.Module):
    """The paper's text model on torch.nn.LSTM (padding is read as a word: cuDNN has no masks)."""

    def __init__(self, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 100)
        self.lstm = nn.LSTM(100, 128, batch_first=True, bidirectional=True)
        self.out = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(x))[0].max(1).values)


def cudnn(job: Work) -> Callable[[Tensor], Tensor]:
    """K modules, one after the other, in one graph."""
    modules = [Recurrent(20).to(DEVICE) for _ in range(job.clients)]
    index, number = torch.from_numpy(job.plan.index).to(DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)

    def step() -> None:
        rows = index.index_select(0, number).squeeze(0)
        x, y = job.pool.examples(rows), job.pool.targets(rows)
        for k, module in enumerate(modules):
            params = list(module.parameters())
            with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
                loss = F.cross_entropy(module(x[k]).float(), y[k])
            grads = torch.autograd.grad(loss, params)
            with torch.no_grad():
                norm = torch.stack(torch._foreach_norm(grads)).norm()
                scale = (job.spec.clip / (norm + optimisers.CLIP_EPSILON)).clamp(max=1.0) * -job.spec.lr
                for p, g in zip(params, grads):
                    p.add_(g * scale)
        number.add_(1)

    graph = recorded(step, number)

    def train(theta: Tensor, _kept: object = step) -> Tensor:  # the graph reads what `step` refers to
        number.zero_()
        for _ in range(job.plan.steps):
            graph.replay()
        return theta

    return train


def ways(model: str, job: Work) -> Iterator[tuple[str, tuple[str, ...], Callable[[], Callable[[Tensor], Tensor]]]]:
    """Name, the families of kernels it uses, and how to make it."""
    families = FAMILIES[model]
    yield "ours", families, lambda: ours(job)
    for out in families:
        yield f"without {out}", tuple(f for f in families if f != out), lambda: ours(job)
    if len(families) > 1:
        yield "without any", (), lambda: ours(job)
    yield "vmap", (), lambda: library(job, by_vmap(job), False)
    if model != "bilstm":  # it would unroll 200 words
        yield "compiled vmap", (), lambda: library(job, by_vmap(job), True)
        yield "compiled", (), lambda: library(job, by_autograd(job.make().to(DEVICE).stacked), True)  # type: ignore[union-attr]
    else:
        yield "cuDNN", (), lambda: cudnn(job)


# ---------------------------------------------------------------------------------------------------------------------


def finished() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measured(model: str, steps: int, repeat: int) -> dict[str, Any]:
    job = work(model, steps)
    theta = job.start()
    made: dict[str, tuple[tuple[str, ...], Callable[[Tensor], Tensor]]] = {}
    failed: dict[str, str] = {}
    reference = None
    for name, uses, make in ways(model, job):
        began = time.perf_counter()
        try:
            with without(*(f for f in FAMILIES[model] if f not in uses)):
                train = make()
                out = train(theta.clone())
        except Exception as error:  # a library that cannot is a result, too
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            print(f"{model}, {name}: failed, {failed[name]}", flush=True)
            continue
        made[name] = (uses, train)
        reference = out if reference is None else reference
        moved = (reference - theta).norm()
        apart = float((out - reference).norm() / moved) if name != "cuDNN" else float("nan")
        ready = time.perf_counter() - began
        print(f"{model}, {name}: ready in {ready:.0f} s, apart {apart:.3f} of what was moved", flush=True)
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(repeat):  # one after the other and again: what disturbs one round disturbs all
        for name, (uses, train) in made.items():
            with without(*(f for f in FAMILIES[model] if f not in uses)):
                finished()
                began = time.perf_counter()
                train(theta)
                finished()
            times[name].append(1000 * (time.perf_counter() - began) / steps)
    step_ms = {name: statistics.median(values) for name, values in times.items()}
    gains = {}
    for family in FAMILIES[model]:
        others = {name: step_ms[name] for name, (uses, _) in made.items() if family not in uses}
        best = min(others, key=others.__getitem__)
        gains[family] = {"gain": round(others[best] / step_ms["ours"], 2), "best_without": best}
    return {
        "silos": job.clients,
        "steps": steps,
        "repeat": repeat,
        "step_ms": {name: round(ms, 4) for name, ms in step_ms.items()},
        "gain": gains,
        "failed": failed,
    }


def table(found: dict[str, Any]) -> str:
    """Milliseconds of a step, and what each family of kernels gains over the fastest way without it."""
    rows = []
    for model, seen in found["models"].items():
        ms = seen["step_ms"]
        library = {name: ms[name] for name in ms if name in LIBRARIES}
        best = min(library, key=library.__getitem__)
        gains = "; ".join(
            f"{family.removesuffix('_kernels')} {told['gain']:.2f} ({told['best_without']})"
            for family, told in seen["gain"].items()
        )
        rows.append([NAMES[model], seen["silos"], f"{ms['ours']:.2f}", f"{library[best]:.2f} ({best})", gains])
    header = ["model", "silos", "ours, ms", "best library way, ms", "gain of each family of kernels (over)"]
    return markdown(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=SUMMARY)
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        replace_tables(DOCUMENT, {"kernels": table(json.loads(SUMMARY.read_text(encoding="utf-8")))})
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "batch": BATCH,
        "precision": "bf16",
        "models": {},
    }
    for model in given.only:
        found["models"][model] = measured(model, given.steps, given.repeat)
        print(model, json.dumps(found["models"][model], indent=1), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")  # what is done is kept


if __name__ == "__main__":
    main()
