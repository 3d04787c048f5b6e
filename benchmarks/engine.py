"""The GPU engine in its parts, side by side in one run (`feduca bench` times whole federations, on GPU and CPU).

    python benchmarks/engine.py [--data DIR] [--out FILE] [--part kernels round lockstep real]

Checks our convolution against plain PyTorch, times it beside others, and times whole rounds at the paper's sizes
on synthetic images (benchmarks/sweep.py: our kernels one by one, and their tiles). `--data DIR` (a folder with
cifar-10-batches-bin) adds a short federation on the real CIFAR-10.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from feduca.tasks import Dataset, build_task
from feduca.tasks.engines import Stacked
from feduca.types import LocalSpec

RESULTS: dict = {}


def say(*words: object) -> None:
    print(*words, flush=True)


def pictures(side: int, channels: int, train: int = 50_000, test: int = 10_000, seed: int = 0) -> Dataset:
    """Random images in which a class is a faint pattern: learnable, and of the real sets' sizes."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 60, (10, side, side, channels))

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, 10, n)
        noise = rng.integers(0, 196, (n, side, side, channels), dtype=np.uint8)
        return noise + patterns[y].astype(np.uint8), y

    (x, y), (u, v) = draw(train), draw(test)
    c = np.full(channels, 0.5)
    return Dataset(f"synthetic-{side}", x, y, u, v, 10, tuple("0123456789"), c, c / 2)


def timed(work: Callable[[], object], repeat: int = 20) -> float:
    """Milliseconds per call, by CUDA events over a captured graph (so that the host's overhead does not count)."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeat):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeat


def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """`[K, B, C, H, W]` through one convolution, ReLU and pooling per client, in plain PyTorch."""
    return torch.stack([F.max_pool2d(F.relu(F.conv2d(x[k], w[k], b[k])), 2) for k in range(len(x))])


def grouped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The same as one grouped convolution: what vmap makes of it."""
    K = len(x)
    wide = x.transpose(0, 1).flatten(1, 2)
    out = F.conv2d(wide, w.flatten(0, 1), b.flatten(), groups=K)
    return F.max_pool2d(F.relu(out), 2).unflatten(1, (K, -1)).transpose(0, 1)


def im2col(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The same as batched products of unfolded images."""
    from feduca.tasks.models.convolution import convolve

    out = convolve(x.movedim(2, 4), w).add(b[:, None, None, None, :]).movedim(4, 2)
    return F.max_pool2d(F.relu(out).flatten(0, 1), 2).unflatten(0, x.shape[:2])


def fused(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The same in our kernels."""
    from feduca.tasks.engines.gpu import convolution_kernels as kernels

    return kernels.layer(w, b, x.movedim(2, 4)).movedim(4, 2)


SHAPES = {"conv1": (3, 32), "conv2": (64, 14)}


def conv_case(name: str, K: int = 10, B: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    channels, side = SHAPES[name]
    g = torch.Generator(device="cuda").manual_seed(0)
    pad = 4 if channels == 3 else channels
    x = torch.zeros(K, B, pad, side, side, device="cuda")
    x[:, :, :channels] = torch.randn(K, B, channels, side, side, generator=g, device="cuda")
    w = torch.zeros(K, 64, pad, 5, 5, device="cuda")
    w[:, :, :channels] = torch.randn(K, 64, channels, 5, 5, generator=g, device="cuda") / (25 * channels) ** 0.5
    b = 0.1 * torch.randn(K, 64, generator=g, device="cuda")
    return x, w, b


def kernels_part() -> None:
    """Candidates against the reference: largest error relative to the largest value, and milliseconds."""
    say("\n== one convolution + ReLU + pool, 10 clients x 50 images: errors (relative to the largest value) and ms")
    say(f"{'layer':6} {'how':8} {'prec':5} {'out':>8} {'dx':>8} {'dw':>8} {'db':>8} {'fwd ms':>8} {'fwd+bwd':>8}")
    table = []
    for name in SHAPES:
        x, w, b = conv_case(name)
        leaves = [x.double().requires_grad_(), w.double().requires_grad_(), b.double().requires_grad_()]
        out = reference(*leaves)
        torch.manual_seed(1)
        d = torch.randn(out.shape, device="cuda")
        want = [out.detach(), *torch.autograd.grad(out, leaves, d.double())]
        for (how, apply), precision in itertools.product(
            {"grouped": grouped, "im2col": im2col, "fused": fused}.items(), ("fp32", "tf32", "bf16")
        ):
            tf32, half = precision != "fp32", precision == "bf16"
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
            xs, ws, bs = (
                x.clone().requires_grad_(name == "conv2"),
                w.clone().requires_grad_(),
                b.clone().requires_grad_(),
            )
            leaves = [t for t in (xs, ws, bs) if t.requires_grad]
            try:
                with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):

                    def forward(apply: Callable = apply, args: tuple = (xs, ws, bs)) -> Tensor:
                        return apply(*args)

                    def both(forward: Callable = forward, leaves: list = leaves, d: Tensor = d) -> tuple:
                        y = forward()
                        return torch.autograd.grad(y, leaves, d.to(y.dtype))

                    got = [forward().detach(), *both()]
                    with torch.no_grad():
                        ms_forward = timed(forward)
                    ms_both = timed(both)
            except Exception as error:
                say(f"{name:6} {how:8} {precision:5} failed: {type(error).__name__}: {str(error).splitlines()[0][:90]}")
                table.append({"layer": name, "how": how, "precision": precision, "failed": str(error)[:200]})
                torch.cuda.synchronize()
                continue
            names = ["out", "dx", "dw", "db"] if name == "conv2" else ["out", "dw", "db"]
            wanted = want if name == "conv2" else [want[0], want[2], want[3]]
            error = {n: float((g.double() - t).abs().max() / t.abs().max()) for n, g, t in zip(names, got, wanted)}
            cells = " ".join(f"{error[n]:8.1e}" if n in error else f"{'-':>8}" for n in ("out", "dx", "dw", "db"))
            say(f"{name:6} {how:8} {precision:5} {cells} {ms_forward:8.4f} {ms_both:8.4f}")
            table.append(
                {"layer": name, "how": how, "precision": precision, "error": error, "fwd": ms_forward, "both": ms_both}
            )
    RESULTS["convolutions"] = table


def rounds_part(data: Dataset, small: Dataset) -> None:
    """Whole rounds at the paper's sizes: training, utility curve, evaluation, test."""
    say("\n== rounds: 10 clients, 5 epochs, batch 50 (ms per step; evaluation of 10 x 1000 examples)")
    table = {}
    for what, source, model, augment in (("cifar10 cnn", data, "cnn", True), ("fmnist mlp", small, "mlp", False)):
        for precision in ("fp32", "tf32", "bf16"):
            torch.cuda.reset_peak_memory_stats()
            task = build_task(
                data=source, model=model, device="cuda", precision=precision, validation_concentration=1.0
            )
            spec = LocalSpec(epochs=5, batch_size=50, lr=0.1, weight_decay=1e-3, clip=10.0, augment=augment)
            clients = np.arange(10)
            theta = task.init(0)
            models = theta.expand(10, -1)
            began = time.perf_counter()
            out = task.train(models, clients, spec, 0, 0)
            torch.cuda.synchronize()
            first = time.perf_counter() - began
            steps = 5 * -(-int(task.examples.max()) // 50)

            def clock(work: Callable[[], object], repeat: int) -> float:
                work()
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(repeat):
                    work()
                torch.cuda.synchronize()
                return 1e3 * (time.perf_counter() - began) / repeat

            places = np.broadcast_to(np.linspace(0, 1, 5), (10, 5))
            row = {
                "first_s": first,
                "round_ms": clock(lambda: task.train(models, clients, spec, 1, 0), 3),  # noqa: B023
                "plan_ms": clock(lambda: _plan(task, spec), 3),  # noqa: B023
                "evaluate_ms": clock(lambda: task.evaluate(out, clients, "validation"), 3),  # noqa: B023
                "along5_ms": clock(lambda: task.along(models, out, places, clients, "validation"), 3),  # noqa: B023
                "test_ms": clock(lambda: task.test(theta), 3),  # noqa: B023
                "loss": float(task.evaluate(out, clients, "train").loss.mean()),
                "peak_mb": torch.cuda.max_memory_allocated() / 2**20,
            }
            row["step_ms"] = row["round_ms"] / steps
            table[f"{what} {precision}"] = row
            say(f"{what:12} {precision}", " ".join(f"{key} {value:.4g}" for key, value in row.items()))
    RESULTS["rounds"] = table
    profile(data)


def _plan(task, spec: LocalSpec) -> None:
    from feduca.tasks.data.batches import plan

    plan([silo.rows["train"] for silo in task.members], np.arange(len(task.members)), spec, 1, np.zeros(99, int))


def profile(data: Dataset) -> None:
    """Where one step of the CNN goes, kernel by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    task = build_task(data=data, model="cnn", device="cuda", precision="bf16")
    spec = LocalSpec(epochs=1, batch_size=50, lr=0.1, weight_decay=1e-3, clip=10.0, augment=True)
    task.train(task.init(0).expand(10, -1), np.arange(10), spec, 0, 0)
    assert isinstance(task.engine, Stacked)
    trainer = next(iter(task.engine.kept["fused"].made.values()))
    with torch.no_grad(), profiler(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(10):
            trainer.step_number.zero_()
            trainer.step()
        torch.cuda.synchronize()
    say("\n== one step of the CNN (bf16), microseconds by kernel")
    rows = sorted(seen.key_averages(), key=lambda e: -e.device_time_total)
    total = sum(e.device_time_total for e in rows) / 10
    for e in rows[:22]:
        say(f"{e.device_time_total / 10:8.1f} us  x{e.count / 10:4.1f}  {e.key[:90]}")
    say(f"{total:8.1f} us in all, {sum(e.count for e in rows) / 10:.0f} kernels")
    RESULTS["step_us"] = {e.key[:90]: e.device_time_total / 10 for e in rows[:22]}


def lockstep_part(data: Dataset) -> None:
    """Several federations at once: time per federation and round."""
    from feduca.tasks import merge

    say("\n== lockstep (bf16 CNN, one epoch): federations, ms per round, ms per federation")
    table = []
    for count in (1, 3, 7, 21):
        task = merge(
            [build_task(data=data, model="cnn", device="cuda", precision="bf16", seed=s) for s in range(count)]
        )
        spec = LocalSpec(epochs=1, batch_size=50, lr=0.1, weight_decay=1e-3, clip=10.0, augment=True)
        K = 10 * count
        models = task.init(0).expand(K, -1)
        seeds = np.repeat(np.arange(count), 10)
        task.train(models, np.arange(K), spec, 0, seeds)
        torch.cuda.synchronize()
        began = time.perf_counter()
        task.train(models, np.arange(K), spec, 1, seeds)
        torch.cuda.synchronize()
        ms = 1e3 * (time.perf_counter() - began)
        say(f"{count:3} {ms:8.1f} {ms / count:8.1f}")
        table.append({"federations": count, "ms": ms})
    RESULTS["lockstep"] = table


def real_part(folder: str, rounds: int = 10) -> None:
    """Everybody forced in, uniform weights, on the real CIFAR-10: accuracy after a few rounds, per precision."""
    say("\n== the real CIFAR-10: FedAvg, all ten clients, accuracy by round")
    table = {}
    for precision in ("tf32", "bf16"):
        task = build_task(data="cifar10", data_dir=folder, model="cnn", device="cuda", precision=precision)
        spec = LocalSpec(epochs=5, batch_size=50, lr=0.1, weight_decay=1e-3, clip=10.0, augment=True)
        theta = task.init(0)
        clients = np.arange(10)
        task.train(theta.expand(10, -1), clients, spec, 0, 0)
        torch.cuda.synchronize()
        began = time.perf_counter()
        accuracy = []
        for r in range(rounds):
            theta = task.train(theta.expand(10, -1), clients, spec, r, 0).mean(0)
            scores = task.test(theta)
            assert scores is not None
            accuracy.append(round(float(scores.accuracy[0]), 4))
        seconds = time.perf_counter() - began
        say(f"{precision}: {seconds / rounds:.3f} s a round, accuracy {accuracy}")
        table[precision] = {"seconds_per_round": seconds / rounds, "accuracy": accuracy}
    RESULTS["cifar10"] = table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder that holds cifar-10-batches-bin (gpu: adds the real data)")
    parser.add_argument("--part", nargs="*", choices=["kernels", "round", "lockstep", "real"])
    parser.add_argument("--out", help="write the figures here, as JSON")
    options = parser.parse_args()
    RESULTS["environment"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
    }
    say(RESULTS["environment"])
    parts = options.part or ["kernels", "round", "lockstep", "real"]
    data, small = pictures(32, 3), pictures(28, 1, 60_000)
    jobs: dict[str, Callable[[], None]] = {
        "kernels": kernels_part,
        "round": lambda: rounds_part(data, small),
        "lockstep": lambda: lockstep_part(data),
        "real": lambda: real_part(options.data) if options.data else None,
    }
    for part in parts:
        began = time.perf_counter()
        try:
            jobs[part]()
        except Exception as error:  # one part that fails must not hide the others
            say(f"{part} failed: {type(error).__name__}: {error}")
            RESULTS[part] = {"failed": str(error)[:500]}
        say(f"-- {part}: {time.perf_counter() - began:.0f} s")
    if options.out:
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(json.dumps(RESULTS, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
