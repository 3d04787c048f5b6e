"""The solver against its peers, its robustness, the exact maximum, and the utility families.

    python benchmarks/solver.py            everything (minutes), into benchmarks/results/solver.json and docs/solver.md
    python benchmarks/solver.py --quick    small sizes, printed only
    python benchmarks/solver.py --docs     only the tables of docs/solver.md, from the committed summary

Times are medians over interleaved repetitions of the same instances in one process: `..._s` on the wall clock, `..._cpu_s` in
processor time, which another load on the machine disturbs less; ratios are of the latter (everything runs on one thread).
`peak_mb` is the peak of a process of its own that imports the library and solves once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from curves import digits_curves  # noqa: E402
from feduca.core.utility import families, nodes, r_squared  # noqa: E402
from feduca.program import allocate, max_participation  # noqa: E402
from feduca.program.instances import DEGENERATE_KINDS, KINDS, draw  # noqa: E402
from peers import ClarabelDirect, CvxpyParametrised  # noqa: E402
from tables import markdown, replace_tables  # noqa: E402

SUMMARY, DOCUMENT = HERE / "results" / "solver.json", HERE.parent / "docs" / "solver.md"
N_S = 5
CVXPY_LIMIT = 1_000  # the parametrised model is not tried above this


def timed(function, *arguments, **options):
    """(wall, processor) seconds, and the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function(*arguments, **options)
    return (time.perf_counter() - wall, time.process_time() - cpu), result


def peak_mb(n: int) -> float:
    """Peak memory of a process that solves one instance of `n` clients."""
    out = subprocess.run(
        [sys.executable, __file__, "--peak", str(n)], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    return float(out.stdout)


def compare(sizes: list[int]) -> list[dict]:
    rows = []
    for n in sizes:
        instances = [draw(kind, n, N_S, seed) for kind in ("previous", "inflated") for seed in range(2)]
        repetitions = 25 if n <= 100 else 3 if n <= 1_000 else 1
        if n >= 100_000:
            instances = instances[:1]
        direct = ClarabelDirect(n, N_S)
        modelled = CvxpyParametrised(n, N_S) if n <= CVXPY_LIMIT else None
        times = {"feduca": [], "clarabel": [], "cvxpy": []}
        gaps, relative, differences, statuses = [], [], [], Counter()
        for p in instances:
            arguments = (p["zeta"], p["gamma"], p["s"])
            if n <= CVXPY_LIMIT:  # a first solve of each outside the clock
                allocate(*arguments)
                direct.solve(*arguments)
            if modelled is not None:
                modelled.solve(*arguments)
            for _ in range(repetitions):
                seconds, ours = timed(allocate, *arguments)
                times["feduca"].append(seconds)
                seconds, (value, _, _) = timed(direct.solve, *arguments)
                times["clarabel"].append(seconds)
                if modelled is not None:
                    times["cvxpy"].append(timed(modelled.solve, *arguments)[0])
            certificate = ours.certificate
            statuses[ours.status] += 1
            gaps.append(certificate.gap)
            relative.append(certificate.gap / certificate.primal if certificate.primal > 0 else 0.0)
            differences.append(abs(value - certificate.primal) / max(certificate.primal, 1e-12))
        wall, cpu = (
            {
                name: float(np.median([pair[clock] for pair in pairs])) if pairs else None
                for name, pairs in times.items()
            }
            for clock in (0, 1)
        )
        rows.append(
            {
                "n": n,
                "n_s": N_S,
                **{f"{name}_s": seconds for name, seconds in wall.items()},
                **{f"{name}_cpu_s": seconds for name, seconds in cpu.items()},
                "times_faster_than_clarabel": cpu["clarabel"] / cpu["feduca"],
                "gap": max(gaps),
                "relative_gap": max(relative),
                "objective_difference": max(differences),
                "peak_mb": peak_mb(n),
                "statuses": dict(statuses),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def robustness(count: int) -> dict:
    """Random and degenerate instances: how often each status, and whether any claim is false."""
    rng = np.random.default_rng(0)
    statuses, by_kind = Counter(), {kind: Counter() for kind in KINDS}
    crashed, uncertified_claims, contradicted, compared, worst = 0, 0, 0, 0, 0.0
    more_than_maximum = 0
    for j in range(count):
        kind = KINDS[j % len(KINDS)]
        n, n_s = int(rng.choice([1, 2, 3, 5, 8, 10, 20, 50])), int(rng.choice([1, 2, 3, 5, 8, 12]))
        p = draw(kind, n, n_s, j, delta=float(rng.choice([0.01, 0.5, 1.0, 100.0])))
        try:
            answer = allocate(**p)
        except Exception as error:  # a benchmark of robustness counts whatever comes
            print(f"crash: {kind} {n} {n_s} {j}: {error!r}", file=sys.stderr)
            crashed += 1
            continue
        statuses[answer.status] += 1
        by_kind[kind][answer.status] += 1
        certificate = answer.certificate
        if answer.status == "optimal":
            proved = certificate.gap <= max(1e-9 * certificate.primal, 1e-12)
            sums = max(abs(answer.R.sum(1) - 1).max(), abs(answer.R.sum(0) - n_s / n).max() if n_s > 1 else 0)
            uncertified_claims += not (proved and sums <= 1e-9 and answer.R.min() >= 0)
        if kind not in DEGENERATE_KINDS and p["s"].min() >= 1e-8:  # 1e-9 of the objective, or 1e-12 in absolute terms
            worst = max(worst, certificate.gap / max(certificate.primal, 1e-3))
        best = max_participation(p["zeta"], p["gamma"])
        more_than_maximum += answer.satisfied.sum() > best.satisfied.sum()
        finite = np.isfinite(p["gamma"]).all()
        if j % 20 < 2 and finite and n > 1 and kind not in DEGENERATE_KINDS and p["s"].min() > 1e-9:
            value, _, status = ClarabelDirect(n, n_s).solve(p["zeta"], p["gamma"], p["s"])
            if status == "Solved":  # a value clearly below our proved bound would disprove it
                compared += 1
                contradicted += value < certificate.dual * (1 - 1e-5) - 1e-8
    return {
        "count": count,
        "robustness": dict(statuses),
        "by_kind": {kind: dict(counter) for kind, counter in by_kind.items()},
        "crashed": crashed,
        "uncertified_answers_called_optimal": int(uncertified_claims),
        "worst_relative_gap_of_ordinary_kinds": worst,
        "compared_with_clarabel": compared,
        "contradicted_by_clarabel": int(contradicted),
        "program_kept_more_than_maximum": int(more_than_maximum),
    }


def participation(count: int) -> list[dict]:
    """Mean number of satisfied clients of 10: the program with its three objectives, thresholds inflated."""
    rows = []
    for share in (0.0, 0.01, 0.05, 0.10):
        kept = {"squared": [], "linear": [], "participation": []}
        for seed in range(count):
            p = draw("previous", 10, N_S, seed)
            p["gamma"] = p["gamma"] + share * np.abs(p["gamma"])
            for objective, values in kept.items():
                values.append(allocate(**p, objective=objective).satisfied.sum())
        rows.append({"inflation": share, **{name: float(np.mean(values)) for name, values in kept.items()}})
    return rows


def selections(count: int) -> list[dict]:
    """How far the three selections are apart when zero slack is reachable."""
    rows = []
    for selection in ("centre", "closest", "margin"):
        distance, margin, times = [], [], []
        for seed in range(count):
            p = draw("feasible", 10, N_S, seed)
            seconds, answer = timed(allocate, **p, selection=selection)
            surplus = p["s"] @ families["quadratic"].value(p["zeta"], answer.R) - p["gamma"]
            distance.append(((answer.alpha - 0.1) ** 2).sum())
            margin.append(surplus.min())
            times.append(seconds[1])
        rows.append(
            {
                "selection": selection,
                "discrepancy": float(np.mean(distance)),
                "smallest_surplus": float(np.mean(margin)),
                "ms": 1e3 * float(np.median(times)),
            }
        )
    return rows


def family_comparison(rounds: int) -> list[dict]:
    """Both families on accuracy curves measured on scikit-learn's digits: R^2, and whom the weights satisfy in truth.

    Thresholds are the fitted utilities at random earlier weights; a client is satisfied in truth when the measured curve
    at its new weight is at least the measured curve at its earlier one.
    """
    grid = np.linspace(0, 1, 101)
    rows = []
    for count in (6, 8, 12):
        r, weights = nodes(count)
        measured = list(digits_curves(rounds, [r, grid]))
        for name, chosen in families.items():
            scores, promised, kept = [], [], []
            for index, (at_nodes, on_grid) in enumerate(measured):
                zeta = chosen.fit(r, at_nodes, weights)
                scores.append(r_squared(chosen, zeta, grid, on_grid))
                rng = np.random.default_rng(index)
                for _ in range(5):
                    before, s = rng.dirichlet(np.ones(len(zeta))), rng.dirichlet(np.full(N_S, 0.5))
                    answer = allocate(zeta, chosen.value(zeta, before), s, family=chosen)
                    truth = [np.interp(w, grid, u) for w, u in zip(answer.alpha, on_grid)]
                    demand = [np.interp(w, grid, u) for w, u in zip(before, on_grid)]
                    promised.append(answer.satisfied.mean())
                    kept.append(np.mean(np.array(truth) >= np.array(demand) - 1e-6))
            rows.append(
                {
                    "family": name,
                    "nodes": count,
                    "numbers": chosen.size,
                    "r2_mean": float(np.nanmean(scores)),
                    "r2_median": float(np.nanmedian(scores)),
                    "r2_tenth_percentile": float(np.nanpercentile(scores, 10)),
                    "satisfied_by_curve": float(np.mean(promised)),
                    "satisfied_in_truth": float(np.mean(kept)),
                    "curves": int(np.size(scores)),
                }
            )
    return rows


def first_solve() -> dict:
    """Wall and processor seconds of the first solve of a process whose cache is warm."""
    code = (
        "import time; from feduca.program import allocate; w, c = time.perf_counter(), time.process_time(); "
        "allocate([[.5,.6,.2],[.3,.1,.4]], [.3,.41], [.5,.5]); print(time.perf_counter() - w, time.process_time() - c)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
        for _ in range(5)
    ]
    wall, cpu = np.median([[float(x) for x in run.stdout.split()] for run in runs], axis=0)
    return {"wall_s": float(wall), "cpu_s": float(cpu)}


def environment() -> dict:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, encoding="utf-8"
    ).stdout.strip()
    packages = ("numpy", "numba", "clarabel", "cvxpy", "scipy", "scikit-learn")
    return {
        "commit": commit,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "versions": {name: version(name) for name in packages},
    }


def tables(summary: dict) -> dict[str, str]:
    """The tables of docs/solver.md."""

    def ms(value):
        return "not run" if value is None else f"{1e3 * value:.2f}" if value < 1 else f"{1e3 * value:.0f}"

    return {
        "peers": markdown(
            [
                "N",
                "feduca, ms",
                "Clarabel direct, ms",
                "CVXPY parametrised, ms",
                "times faster",
                "objective difference",
                "gap",
                "peak MB",
            ],
            [
                [
                    row["n"],
                    ms(row["feduca_cpu_s"]),
                    ms(row["clarabel_cpu_s"]),
                    ms(row["cvxpy_cpu_s"]),
                    f"{row['times_faster_than_clarabel']:.1f}",
                    f"{row['objective_difference']:.0e}",
                    f"{row['gap']:.0e}",
                    f"{row['peak_mb']:.0f}",
                ]
                for row in summary["rows"]
            ],
        ),
        "robustness": markdown(
            ["kind", *summary["robustness"]],
            [
                [kind, *(counts.get(s, 0) for s in summary["robustness"])]
                for kind, counts in summary["checks"]["by_kind"].items()
            ],
        ),
        "participation": markdown(
            ["thresholds inflated by", "squared slack", "linear slack", "exact maximum"],
            [
                [f"{row['inflation']:.0%}", *(f"{row[key]:.2f}" for key in ("squared", "linear", "participation"))]
                for row in summary["participation"]
            ],
        ),
        "selections": markdown(
            ["selection", "discrepancy", "smallest surplus", "ms"],
            [
                [row["selection"], f"{row['discrepancy']:.4f}", f"{row['smallest_surplus']:.4f}", f"{row['ms']:.2f}"]
                for row in summary["selections"]
            ],
        ),
        "families": markdown(
            ["family", "nodes", "numbers", "R^2 mean", "median", "10th percentile", "satisfied by curve", "in truth"],
            [
                [
                    row["family"],
                    row["nodes"],
                    row["numbers"],
                    *(f"{row[key]:.3f}" for key in ("r2_mean", "r2_median", "r2_tenth_percentile")),
                    *(f"{row[key]:.3f}" for key in ("satisfied_by_curve", "satisfied_in_truth")),
                ]
                for row in summary["families"]
            ],
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, printed only")
    parser.add_argument("--docs", action="store_true", help="only the tables, from the committed summary")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        allocate(**draw("previous", options.peak, N_S, 0))
        status = Path("/proc/self/status").read_text(encoding="utf-8")  # rusage would count the parent that started us
        print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
        return
    if options.docs:
        replace_tables(DOCUMENT, tables(json.loads(SUMMARY.read_text(encoding="utf-8"))))
        return
    quick = options.quick
    allocate(**draw("previous", 4, 2, 0))  # compile, if need be, outside all clocks
    summary: dict = {"environment": environment()}
    summary["rows"] = compare([10, 20, 100] if quick else [10, 20, 100, 1_000, 10_000, 100_000])
    checks = robustness(500 if quick else 10_000)
    summary["robustness"] = checks.pop("robustness")
    summary["checks"] = checks
    summary["participation"] = participation(20 if quick else 200)
    summary["selections"] = selections(20 if quick else 200)
    summary["families"] = family_comparison(2 if quick else 10)
    summary["first_solve"] = first_solve()
    text = json.dumps(summary, indent=1)
    if quick:
        print(text)
        return
    SUMMARY.parent.mkdir(exist_ok=True)
    SUMMARY.write_text(text + "\n", encoding="utf-8")
    replace_tables(DOCUMENT, tables(summary))


if __name__ == "__main__":
    main()
