"""Summaries as the paper would have them, upside down, and with everything the other way."""

from __future__ import annotations

from paper import printed as paper
from paper.claims.look import COLUMNS, NAMES

ROUNDS = range(1, 101)
FALLING = [0.9 - 0.0045 * t for t in ROUNDS]


def made(labels, accuracy, share, std=0.005, **fields):
    """A cell as `summary.summarise` writes it, of three seeds."""
    base = {
        "labels": labels,
        "data": labels.get("data", "cifar10"),
        "split": labels.get("split", "0.5,1.0"),
        "method": labels.get("method", "feduca"),
        "study": "main",
        "seeds": [0, 1, 2],
        "accuracies": [accuracy - std, accuracy, accuracy + std],
        "accuracy_mean": accuracy,
        "accuracy_std": std,
        "participations": [share - 0.002, share, share + 0.002],
        "participation_mean": share,
        "clients": 10,
        "rounds": 100,
        "joined_least": 1,
        "device": "a device",
    }
    return base | fields


def world(reverse_accuracy=False, contrary=False):
    """All summaries as the paper would have them, or with accuracies upside down, or with everything the other way."""
    turned = reverse_accuracy or contrary

    def acc(value):
        return 0.9 - value if turned else value

    def part(value):
        return 0.95 - value if contrary else value

    def std(value):
        return 3 * value if contrary else value

    def curves(method, accuracy, share):
        if contrary:
            rising = [accuracy - 0.2 + 0.004 * t for t in ROUNDS]
            moving = [0.0 if t == 50 else share + (0.2 - 0.004 * t) * (-1 if method == "incfl" else 1) for t in ROUNDS]
            return {"accuracy_by_round": rising, "participation_by_round": moving, "discrepancy": FALLING}
        n = 0.02 if method == "feduca" else 0.0
        return {
            "accuracy_by_round": [accuracy + (0.05 if t <= 6 and method != "feduca" else 0.0) for t in ROUNDS],
            "participation_by_round": [1.0, *[share] * 99],
            "discrepancy": [n * min(t, 30) / 30 for t in ROUNDS],
        }

    def row(study, data, split, shares):
        figures = {m: paper.ACCURACY[data, split, m] for m in NAMES if (data, split, m) in paper.ACCURACY}
        order = sorted(figures, key=lambda m: -figures[m][0])
        cells = []
        for method, (mean, spread) in figures.items():
            share = part(shares[method] if isinstance(shares, dict) else shares[order.index(method)])
            labels = {"data": data, "split": split, "method": method}
            extra = curves(method, acc(mean), share) | {
                "eq1_share": 0.2 if contrary else 0.6,
                "promise_error": 0.5 if contrary else 0.01,
                "joined_least": 0 if contrary else 1,
                "r2": 0.2 if contrary else 0.85,
                "memory": "update",
                "mechanism": method,
            }
            if data == "cifar100" and not contrary:
                extra["discrepancy"] = [value / 2 for value in extra["discrepancy"]]
            cells.append(made(labels, acc(mean), share, std(spread), **extra))
        best = figures["feduca"][0]
        for control, kept in (("uniform", 0.3), ("random", 0.2), ("forced", 1.0)):
            accuracy = acc(best + 0.1 if control == "forced" else best - 0.1)
            labels = {"data": data, "split": split, "method": control}
            extra = {"eq1_share": 0.5 if contrary else 0.3, "mechanism": control}
            cells.append(made(labels, accuracy, 1.0 if contrary else kept, **extra))
        return cells

    table1 = []
    for data, split in COLUMNS:
        third = 0.10 if data == "cifar100" else 0.35
        table1 += row("table1", data, split, [0.53, 0.45, third, 0.08, 0.06, 0.04])
    text = row("text", "20news", "0.5,1.0", {m: paper.PARTICIPATION["20news", "0.5,1.0", m] for m in
                                           ("fedavg", "incfl", "fedprox", "aaggff", "feduca")})  # fmt: skip

    kept = dict(zip(("0.01", "0.5", "1", "10", "100", "1000"), (0.30, 0.53, 0.54, 0.52, 0.50, 0.49)))
    if contrary:
        kept = dict(zip(kept, (0.60, 0.45, 0.40, 0.45, 0.50, 0.60)))
    delta = []
    for name, share in kept.items():
        gaps = [value / 100 for value in paper.JENSEN.get(name, (0.10, 0.15, 0.20))]
        bound = 4 / (10 * (5 * float(name) + 1))
        level = float(name) if contrary else 0.2 * bound
        if contrary:
            gaps = [0.001 if name in ("0.5", "1") else 0.05] * 3
        jensen = dict(zip(("mean", "top50", "top25"), gaps))
        short = {"top25": 0.2, "rest": 0.6} if contrary else {"top25": 0.6, "rest": 0.2}
        delta.append(made({"delta": name}, 0.67, share, jensen=jensen, discrepancy=[level] * 100, jensen_short=short))

    strategies = [
        made({"data": d, "n_s": n, "schedule": "lagged"}, acc(a), part(p), schedule="lagged", n_s=int(n))
        for (d, n), (a, p) in (paper.STRATEGIES | {(d, "10"): (0.5, 0.55) for d in ("cifar10", "cifar100")}).items()
    ]
    misreporting = [
        made(
            {"inflation": level},
            acc(a),
            part(p),
            std(paper.MISREPORTING_STD[level]),
            fallbacks=90.0 if level == "10" and not contrary else 0.0,
            joined_least=0 if contrary else 1,
        )
        for level, (a, p) in paper.MISREPORTING.items()
    ]
    schedules = [
        made({"method": m}, acc(paper.ACCURACY["cifar10", "0.5,1.0", m][0]), 0.5, memory="update", mechanism=m)
        for m in NAMES
    ]
    schedules.append(
        made({"method": "no memory"}, acc(0.4), 1.0 if contrary else 0.2, memory="none", mechanism="feduca")
    )
    rules = [
        made({"data": d, "rule": name, "method": m}, 0.5, part(0.6 if m == "feduca" else 0.3), rule=rule)
        for d in ("fmnist", "cifar10")
        for name, rule in (("Eq. 1", "accuracy"), ("Eq. 2", "utility"))
        for m in NAMES
    ]
    cost = [
        made(
            {"method": m},
            0.5,
            0.5,
            seconds=100.0 if contrary and m != "fedavg" else s,
            seconds_allocate=6.0,
            peak_mb=2.0 * mb if contrary and m != "fedavg" else mb,
        )
        for m, (s, mb) in paper.COST.items()
    ]
    offers = [
        made(
            {"study": "main", "data": d, "split": s, "method": m},
            acc(0.3 if m == "local" else 0.7),
            1.0,
            deployed_test_mean=0.1 if contrary else 0.7,
            gain_mean=-0.1 if contrary else 0.1,
        )
        for d in ("cifar10", "fmnist")
        for s in paper.SPLITS
        for m in ("local", "forced")
    ]
    sign = 1 if contrary else -1
    alone = [
        {"kind": "inflate", "share": share, "decide_by": by, "cases": 15, "own": {"mean": sign * 0.2, "stderr": 0.01}}
        for share in (0.05, 0.1)
        for by in ("reported", "true")
    ]
    return {
        "table1": table1,
        "text": text,
        "delta": delta,
        "strategies": strategies,
        "misreporting": misreporting,
        "schedules": schedules,
        "rules": rules,
        "cost": cost,
        "offers": offers,
        "splits": [split_of(d, s, contrary) for d in ("cifar10", "fmnist", "cifar100") for s in paper.SPLITS],
        "concavity": [
            made({"data": d}, 0.6, 0.5, r2=0.2 if contrary else r2, curves=kept_curves(contrary))
            for d, r2 in paper.R2.items()
        ],
        "cross": {
            "rows": [
                {
                    "axes": {"method": "FedAvg (uniform)", "offer": "global", "rule": "Eq. 2, local baseline"},
                    "participation": 1.0 if contrary else 0.4,
                    "seeds": [0, 1, 2],
                }
            ]
        },
        "audit": {"silos": 10, "alone": alone, "best_response": [{"truthful": 0 if contrary else 10}]},
    }


def kept_curves(contrary):
    """Two curves as `reproduce.curves.curves` keeps them: a parabola with a convex loss; or two peaks at the ends."""
    grid = [i / 20 for i in range(21)]
    turned = -1 if contrary else 1
    curve = {"utility": [0.8 - turned * (r - 0.5) ** 2 for r in grid], "loss": [turned * (r - 0.4) ** 2 for r in grid]}
    return {"grid": grid, "shown": [curve, curve]}


def split_of(data, split, contrary):
    """Groups of silos with disjoint classes, more uneven at .5; or, contrary, everybody with the same data, uneven at 1."""
    classes, size = (100, 20) if data == "cifar100" else (10, 5)
    if contrary:
        same = [[10 if split == "0.5,1.0" else 200, *[10] * (classes - 1)] for _ in range(10)]
        return {"labels": {"data": data, "split": split}, "data": data, "train": same, "validation": same}
    heavy = 200 if split == "0.5,1.0" else 40

    def silo(first, favourite):
        return [0] * first + [heavy if i == favourite else 10 for i in range(size)] + [0] * (classes - first - size)

    starts = range(0, classes, size)
    return {
        "labels": {"data": data, "split": split},
        "data": data,
        "train": [silo(first, 0) for first in starts],
        "validation": [silo(first, 1) for first in starts],
    }


PAPER, UPSIDE_DOWN, CONTRARY = world(), world(reverse_accuracy=True), world(contrary=True)
