"""The CNN's GPU kernels, side by side: errors against PyTorch, tiles, whole rounds.

    python benchmarks/sweep.py [--out FILE] [--only errors tiles rounds] [--workers N]

`errors` compiles all candidates too, in parallel processes (they share Triton's cache on disk). `tiles` times each for
10 and for 210 clients in a captured graph, bf16, 50 images a step. `rounds` trains one epoch of 1, 7 and 21 federations
of ten clients in lockstep, and says where the time goes.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from engine import timed
from feduca.tasks.engines.gpu import convolution_kernels as kernels
from feduca.tasks.engines.gpu.convolution_kernels import ConvShape, Tile

RESULTS: dict = {}
FAILED: dict[tuple, str] = {}  # candidates that did not compile or run, and why
BEGAN = time.perf_counter()
SHAPES = {"conv1": ConvShape(32, 28, 16, 64, 5, across=1), "conv2": ConvShape(14, 14, 64, 64, 5)}
CLIENTS = (10, 210)

# What is tried. A forward tile is places x filter rows; a filter gradient's is (places at a time) x (filter rows of a
# program); an input gradient's is places x all channels. `programs` only cuts filter gradients.
CANDIDATES: dict[tuple[str, str], list[tuple[Tile, int]]] = {
    ("conv1", "forward"): [
        (Tile(p, t, w, s), 0)
        for p, t, w, s in (
            (64, 16, 4, 3), (64, 16, 4, 5), (128, 16, 8, 3), (32, 16, 4, 4), (64, 32, 4, 2), (64, 32, 4, 3),
            (128, 32, 8, 2), (64, 128, 4, 1), (64, 128, 8, 1),
        )
    ],
    ("conv2", "forward"): [
        (Tile(p, t, w, s), 0)
        for p, t, w, s in (
            (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (64, 64, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3),
            (32, 64, 4, 3), (64, 32, 4, 4), (128, 32, 8, 4),
        )
    ],
    ("conv1", "filter masked"): [
        (Tile(p, t, w, s), n)
        for p, t, w, s, n in ((64, 128, 4, 1, 264), (64, 128, 8, 1, 264), (64, 128, 4, 2, 264), (64, 64, 4, 1, 528))
    ],
    ("conv2", "filter masked"): [
        (Tile(p, t, w, s), n) for p, t, w, s, n in ((64, 64, 4, 2, 528), (64, 128, 8, 2, 264), (64, 128, 4, 1, 528))
    ],
    ("conv1", "filter unpooled"): [
        (Tile(p, t, w, s), n)
        for p, t, w, s, n in (
            (64, 128, 4, 3, 264), (64, 128, 4, 3, 396), (64, 128, 4, 4, 264), (64, 128, 8, 3, 264),
            (128, 128, 8, 3, 132), (128, 128, 8, 2, 264), (64, 16, 4, 4, 1320), (128, 128, 4, 3, 132),
        )
    ],
    ("conv2", "filter unpooled"): [
        (Tile(p, t, w, s), n)
        for p, t, w, s, n in (
            (64, 128, 4, 4, 130), (64, 128, 4, 4, 260), (64, 128, 4, 3, 390), (64, 128, 8, 4, 260),
            (64, 256, 8, 4, 130), (64, 256, 8, 3, 264), (128, 128, 8, 3, 130), (64, 64, 4, 4, 500),
            (128, 128, 4, 3, 130),
        )
    ],
    ("conv2", "input masked"): [(Tile(128, 64, 8, 2), 0), (Tile(128, 64, 4, 3), 0)],
    ("conv2", "input unpooled"): [
        (Tile(p, 64, w, s), 0)
        for p, w, s in (
            (64, 4, 4), (128, 4, 3), (128, 4, 4), (128, 4, 5), (128, 8, 3), (128, 8, 4), (256, 8, 3), (256, 8, 4),
            (256, 4, 3),
        )
    ],
    ("conv1", "unpool"): [(Tile(places=p), 0) for p in (32, 64, 128, 256)],
    ("conv2", "unpool"): [(Tile(places=p), 0) for p in (32, 64, 128, 256)],
}  # fmt: skip


def say(*words: object) -> None:
    print(f"[{time.perf_counter() - BEGAN:5.1f}]", *words, flush=True)


class Case:
    """One convolution of K clients with everything its kernels need."""

    def __init__(self, name: str, K: int, B: int = 50, dtype: torch.dtype = torch.bfloat16, precision: str = "tf32"):
        self.shape, self.precision, self.border = SHAPES[name], precision, name == "conv2"
        shape, g = self.shape, torch.Generator(device="cuda").manual_seed(0)

        def draw(*sizes: int) -> Tensor:
            return torch.randn(*sizes, generator=g, device="cuda")

        self.x = draw(K, B, shape.rows, shape.columns, shape.channels).to(dtype)
        flat = torch.zeros(K, 860_032, device="cuda", dtype=dtype)  # parameters as training has them: far apart
        size = shape.taps * shape.outputs
        flat[:, :size] = (draw(K, size) / shape.taps**0.5).to(dtype)
        flat[:, size : size + shape.outputs] = (0.1 * draw(K, shape.outputs)).to(dtype)
        self.gradient = torch.zeros_like(flat)
        self.w, self.b = self._views(flat)
        self.into = self._views(self.gradient)
        self.out, self.winner = kernels.convolve(self.x, self.w, self.b, shape, precision)
        self.d = draw(*self.out.shape).to(dtype)
        self.dense = kernels.unpool(self.d, self.winner, shape, border=self.border)

    def _views(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.shape
        size = shape.taps * shape.outputs
        return flat[:, :size].unflatten(1, (shape.taps, shape.outputs)), flat[:, size : size + shape.outputs]

    def run(self, job: str, tile: Tile | None = None, programs: int = 0) -> object:
        """One job; filter gradients with the fold that ends them."""
        shape, precision = self.shape, self.precision
        splits = None
        if programs and tile:
            splits = max(1, programs // (-(-shape.taps // tile.taps) * len(self.x)))
        if job == "forward":
            return kernels.convolve(self.x, self.w, self.b, shape, precision, tile)
        if job == "unpool":
            places = {} if tile is None else {"places": tile.places}
            return kernels.unpool(self.d, self.winner, shape, border=self.border, **places)
        if job == "filter masked":
            parts = kernels.filter_masked(self.x, self.d, self.winner, shape, precision, tile, splits)
            return kernels.fold(*parts, *self.into)
        if job == "filter unpooled":
            return kernels.fold(
                *kernels.filter_unpooled(self.x, self.dense, shape, precision, tile, splits), *self.into
            )
        if job == "input masked":
            return kernels.input_masked(self.d, self.winner, self.w, shape, precision, tile)
        return kernels.input_unpooled(self.dense, self.w, shape, precision, tile)


# ---------------------------------------------------------------------------------------------------------------------
# Errors


def errors_of(name: str, kind: str, precision: str) -> dict:
    """Every way against PyTorch in float64: errors relative to the largest value; is a repetition bit-equal?"""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    case = Case(name, 3, 7, getattr(torch, kind), precision)
    shape = case.shape
    x, w, b = (t.detach().double().requires_grad_() for t in (case.x, case.w, case.b))
    bank = w.view(3, shape.kernel, shape.width, shape.channels, shape.outputs).permute(0, 4, 3, 1, 2)
    out = torch.stack([F.max_pool2d(F.relu(F.conv2d(x.movedim(4, 2)[k], bank[k], b[k])), 2) for k in range(3)])
    out = out.movedim(2, 4)
    dx, dw, db = torch.autograd.grad(out, (x, w, b), case.d.double())

    def error(got: Tensor, want: Tensor) -> float:
        return float((got.double() - want).abs().max() / want.abs().max())

    row: dict = {"layer": name, "precision": f"{kind} {precision}", "out": error(case.out, out.detach())}
    for how in ("masked", "unpooled"):
        bits = []
        for _ in range(2):
            case.gradient.zero_()
            case.run(f"filter {how}")
            bits.append(case.gradient.clone())
        row[f"dw {how}"], row[f"db {how}"] = error(case.into[0], dw), error(case.into[1], db)
        row[f"repeats {how}"] = bool(torch.equal(*bits))
        if name == "conv2":
            got = case.run(f"input {how}")
            assert isinstance(got, Tensor)
            row[f"dx {how}"] = error(got, dx)
    return row


# ---------------------------------------------------------------------------------------------------------------------
# Tiles


def compile_one(key: tuple[str, str], tile: Tile, programs: int) -> str:
    """Run one candidate once, in a worker: leaves its binary in Triton's cache."""
    try:
        _case(key[0]).run(key[1], tile, programs)
        torch.cuda.synchronize()
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"


@functools.cache
def _case(name: str) -> Case:
    return Case(name, 10)


def warm() -> None:
    """Train a little, in a worker, for the binaries of a whole step."""
    from engine import pictures
    from feduca.tasks import build_task
    from feduca.types import LocalSpec

    task = build_task(data=pictures(32, 3, 1_000, 100), model="cnn", device="cuda", precision="bf16")
    spec = LocalSpec(epochs=1, batch_size=50, lr=0.1, weight_decay=1e-3, clip=10.0, augment=True)
    out = task.train(task.init(0).expand(10, -1), np.arange(10), spec, 0, 0)
    task.evaluate(out, np.arange(10), "train")


def workers_part(workers: int, seconds: float = 60) -> None:
    """In parallel processes: the errors of every way, and all candidates compiled."""
    jobs = [(key, tile, programs) for key, tries in CANDIDATES.items() for tile, programs in tries]
    kinds = (("bfloat16", "tf32"), ("float32", "tf32"), ("float32", "tf32x3"))
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    warming = {"step": pool.submit(warm)}
    checks = {(name, *kinds[0]): pool.submit(errors_of, name, *kinds[0]) for name in SHAPES}
    compiled = {job: pool.submit(compile_one, *job) for job in jobs}
    checks |= {(name, *kind): pool.submit(errors_of, name, *kind) for kind in kinds[1:] for name in SHAPES}
    until = time.perf_counter() + seconds

    def result(future: Future, otherwise: Callable[[str], object]) -> object:
        try:
            return future.result(max(0.0, until - time.perf_counter()))
        except Exception as error:  # a worker that failed or is late says so, and the rest goes on
            return otherwise(f"{type(error).__name__}: {str(error)[:200]}")

    FAILED.update({job: why for job, future in compiled.items() if (why := result(future, str))})
    say(f"compiled {len(jobs) - len(FAILED)} of {len(jobs)} candidates in {workers} processes")
    for (key, tile, _), why in FAILED.items():
        say("  not", key, shown(tile), why)
    for way, future in warming.items():
        if why := result(future, str):
            say(f"  the step {way}:", why)
    say("== errors, relative to the largest value (bf16: about 1e-2 is rounding), and equal bits on repetition")
    RESULTS["errors"] = []
    for (name, kind, precision), future in checks.items():
        row = result(future, lambda why: {"layer": name, "precision": f"{kind} {precision}", "failed": why})  # noqa: B023
        assert isinstance(row, dict)
        RESULTS["errors"].append(row)
        say(" ".join(f"{k} {v:.1e}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    late = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in late:  # ours alone; those that are done do not mind
        process.terminate()


def shown(tile: Tile, programs: int = 0) -> str:
    return f"{tile.places}x{tile.taps} w{tile.warps} s{tile.stages}" + (f" n{programs}" if programs else "")


def tiles_part() -> None:
    """The best few tiles of each kernel, and which way backward is faster."""
    say("== tiles (bf16): ms for all clients, best three; filter gradients with their fold")
    table: dict = {}
    for K in CLIENTS:
        for name in SHAPES:
            case = Case(name, K)
            for (layer, job), tries in CANDIDATES.items():
                if layer != name:
                    continue
                found = []
                for tile, programs in tries:
                    if ((layer, job), tile, programs) in FAILED:
                        continue
                    try:
                        ms = timed(functools.partial(case.run, job, tile, programs), 20 if K < 100 else 4)
                    except Exception as error:
                        say("  not", layer, job, shown(tile), type(error).__name__, str(error).splitlines()[0][:100])
                        continue
                    found.append((ms, tile, programs))
                found.sort(key=lambda row: row[0])
                say(f"K={K:3} {name} {job:16}", "; ".join(f"{ms:.4f} {shown(t, n)}" for ms, t, n in found[:3]))
                table[f"K={K} {name} {job}"] = [(ms, shown(tile, n)) for ms, tile, n in found]
            del case
            torch.cuda.empty_cache()
    RESULTS["tiles"] = table
    constants(table)


def constants(table: dict) -> None:
    """The best tile over both numbers of clients (least sum of times relative to the best), ready to paste."""
    say("== constants (conv1, conv2), least slow-down over", CLIENTS)
    best: dict[tuple[str, str], tuple[float, Tile, int]] = {}
    for (layer, job), tries in CANDIDATES.items():
        columns = [{how: ms for ms, how in table[f"K={K} {layer} {job}"]} for K in CLIENTS]
        scored = []
        for tile, programs in tries:
            how = shown(tile, programs)
            if all(how in column for column in columns):
                scored.append((sum(column[how] / min(column.values()) for column in columns), tile, programs))
        if scored:
            best[layer, job] = min(scored, key=lambda row: row[0])
    lines = []
    for job in ("forward", "filter masked", "filter unpooled", "input masked", "input unpooled", "unpool"):
        pair = [best.get((layer, job)) for layer in SHAPES]
        words = [
            "-"
            if row is None
            else f"Tile({row[1].places}, {row[1].taps}, {row[1].warps}, {row[1].stages})"
            + (f" n={row[2]}" if row[2] else "")
            for row in pair
        ]
        lines.append(f'    "{job}": ({", ".join(words)}),')
        say(lines[-1])
    RESULTS["constants"] = lines
    for K in CLIENTS:
        for layer in SHAPES:

            def least(job: str, K: int = K, layer: str = layer) -> float:
                rows = table.get(f"K={K} {layer} {job}")
                if rows is None:  # the first convolution has no gradient at its input
                    return 0.0
                return min((ms for ms, _ in rows), default=float("nan"))

            masked = least("filter masked") + least("input masked")
            unpooled = least("unpool") + least("filter unpooled") + least("input unpooled")
            say(f"K={K:3} {layer} backward: masked {masked:.4f} ms, unpooled {unpooled:.4f} ms")
            RESULTS.setdefault("backward", {})[f"K={K} {layer}"] = {"masked": masked, "unpooled": unpooled}


# ---------------------------------------------------------------------------------------------------------------------
# Rounds


def rounds_part() -> None:
    """One epoch of several federations in lockstep: ms per step, of all and of one federation."""
    from engine import pictures
    from feduca.tasks import build_task, merge
    from feduca.types import LocalSpec

    say("== rounds (bf16 CNN, one epoch, batch 50, augmented, clipped): ms per step and federation")
    data = pictures(32, 3, 12_500, 1_000)
    tasks = [build_task(data=data, model="cnn", device="cuda", precision="bf16", seed=s) for s in range(21)]
    say("tasks are built")
    spec = LocalSpec(epochs=1, batch_size=50, lr=0.1, weight_decay=1e-3, clip=10.0, augment=True)
    table = []
    for count in (1, 7, 21):
        task = merge(tasks[:count])
        task.engine.kept.clear()
        K = 10 * count
        models = task.init(0).expand(K, -1)
        seeds = np.repeat(np.arange(count), 10)
        first = task.train(models, np.arange(K), spec, 0, seeds)
        torch.cuda.synchronize()
        began = time.perf_counter()
        again = task.train(models, np.arange(K), spec, 0, seeds)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        trainer = next(iter(task.engine.kept["fused"].made.values()))
        row = {
            "federations": count,
            "step_ms": _replay(trainer) / count,
            "round_ms": 1e3 * seconds / count,
            "steps": trainer.steps,
            "repeats": bool(torch.equal(first, again)),
            "loss": float(task.evaluate(again, np.arange(K), "train").loss.mean()),
            "peak_mb": torch.cuda.max_memory_allocated() / 2**20,
        }
        say(" ".join(f"{k} {v:.5g}" for k, v in row.items()))
        if count in (1, 21):
            profile(trainer, count)
        del task, models, first, again, trainer
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        table.append(row)
    RESULTS["rounds"] = table


def _replay(trainer, repeat: int = 5) -> float:
    """Milliseconds per step of the captured graph (its numbers do not matter here, its step counter stays in range)."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    total = 0.0
    for i in range(repeat + 1):
        trainer.step_number.zero_()
        start.record()
        trainer.graphs.made[len(trainer.flat)].replay()
        end.record()
        torch.cuda.synchronize()
        total += start.elapsed_time(end) if i else 0.0
    return total / repeat / trainer.unroll


def profile(trainer, count: int) -> None:
    """Where one step goes, kernel by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with torch.no_grad(), profiler(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            trainer.step_number.zero_()
            trainer.step()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda e: -e.device_time_total)
    say(f"   one step of {count} federations, microseconds by kernel")
    for e in rows[:24]:
        say(f"   {e.device_time_total / 5:9.1f} us  x{e.count / 5:4.1f}  {e.key[:80]}")
    total = sum(e.device_time_total for e in rows) / 5
    say(f"   {total:9.1f} us in all, {sum(e.count for e in rows) / 5:.0f} kernels")
    RESULTS[f"step_us {count}"] = {e.key[:80]: [e.device_time_total / 5, e.count / 5] for e in rows[:24]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write the figures here, as JSON")
    parser.add_argument("--only", nargs="*", choices=["errors", "tiles", "rounds"])
    parser.add_argument("--workers", type=int, default=min(12, os.cpu_count() or 1))
    options = parser.parse_args()
    RESULTS["environment"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }
    say(RESULTS["environment"])
    jobs: dict[str, Callable[[], None]] = {
        "errors": functools.partial(workers_part, options.workers),
        "tiles": tiles_part,
        "rounds": rounds_part,
    }
    for part in options.only or jobs:
        try:
            jobs[part]()
        except Exception as error:  # one part that fails must not hide the others
            say(f"{part} failed: {type(error).__name__}: {str(error)[:2000]}")
            RESULTS[part] = {"failed": str(error)[:2000]}
        if options.out:  # after every part, so that a run cut short still leaves what it had
            Path(options.out).parent.mkdir(parents=True, exist_ok=True)
            Path(options.out).write_text(json.dumps(RESULTS, indent=1) + "\n", encoding="utf-8")
    say("done")


if __name__ == "__main__":
    main()
