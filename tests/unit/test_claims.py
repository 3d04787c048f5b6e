"""Every judge can say yes and no: the paper's own world makes all claims hold, a contrary one none, an empty one is silent."""

from __future__ import annotations

import copy

import pytest

from feduca.reproduce import paper
from feduca.reproduce.claims import CLAIMS, register
from feduca.reproduce.claims.judging import (
    COLUMNS,
    DIRECTION,
    FAILS,
    HOLDS,
    NAMES,
    PROOF,
    SILENT,
    UNTESTED,
    WORDS,
    Figure,
    correlation,
    noise,
    tolerance,
)

JUDGED = [claim for claim in CLAIMS if claim.criterion not in (PROOF, SILENT)]
BY_TEXT = {claim.text: claim for claim in CLAIMS}
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
        "accuracy_mean": accuracy,
        "accuracy_std": std,
        "participation_mean": share,
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
                "promise_kept": 0.5 if contrary else 0.0,
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
            cells.append(made(labels, accuracy, 1.0 if contrary else kept, eq1_share=0.5 if contrary else 0.3))
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
        delta.append(made({"delta": name}, 0.67, share, jensen=jensen, discrepancy=[level] * 100))

    strategies = [
        made({"data": d, "n_s": n, "schedule": "lagged"}, acc(a), part(p), schedule="lagged", n_s=int(n))
        for (d, n), (a, p) in (paper.STRATEGIES | {(d, "10"): (0.5, 0.55) for d in ("cifar10", "cifar100")}).items()
    ]
    misreporting = [
        made({"inflation": level}, acc(a), part(p), std(paper.MISREPORTING_STD[level]))
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
        {"kind": "inflate", "share": share, "decide_by": by, "own": {"mean": sign * 0.2, "stderr": 0.01}}
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
        "concavity": [made({"data": d}, 0.6, 0.5, r2=0.2 if contrary else r2) for d, r2 in paper.R2.items()],
        "audit": {"silos": 10, "alone": alone, "best_response": [{"truthful": 0 if contrary else 10}]},
    }


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


def test_texts_are_unique_and_most_claims_are_asked_of_runs():
    assert len(BY_TEXT) == len(CLAIMS)
    assert len(JUDGED) > 0.8 * len(CLAIMS)


@pytest.mark.parametrize("claim", JUDGED, ids=lambda claim: claim.text)
def test_a_judge_says_yes_no_and_nothing(claim):
    verdict = claim.judge(PAPER)
    assert verdict.word == HOLDS, verdict
    against = [claim.judge(CONTRARY), claim.judge(UPSIDE_DOWN)]
    assert FAILS in {verdict.word for verdict in against}, against
    assert claim.judge({}).word == UNTESTED
    assert claim.judge({}).why.startswith("no committed ")


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c not in JUDGED], ids=lambda claim: claim.text)
def test_what_no_run_decides_says_the_same_to_all(claim):
    words = {claim.judge(summaries).word for summaries in (PAPER, CONTRARY, {})}
    assert len(words) == 1
    assert (words == {UNTESTED}) == (claim.criterion == SILENT)


def test_a_missing_cell_stops_nobody():
    for study, found in PAPER.items():
        for index in range(len(found)) if isinstance(found, list) else []:
            fewer = {**PAPER, study: found[:index] + found[index + 1 :]}
            assert all(claim.judge(fewer).word in WORDS for claim in JUDGED)


def test_what_was_not_recorded_stops_nobody():
    optional = (
        "accuracy_std", "jensen", "discrepancy", "r2", "promise_kept", "eq1_share", "seconds", "peak_mb", "gain_mean",
        "deployed_test_mean", "accuracy_by_round", "participation_by_round", "accuracy_mean",
    )  # fmt: skip
    for key in optional:
        bare = copy.deepcopy(PAPER)
        for found in bare.values():
            for cell in found if isinstance(found, list) else []:
                if key in cell:
                    cell[key] = None
        assert all(claim.judge(bare).word in WORDS for claim in JUDGED), key
    short = copy.deepcopy(PAPER)
    for cell in (cell for found in short.values() if isinstance(found, list) for cell in found):
        for key in ("discrepancy", "accuracy_by_round", "participation_by_round"):
            if cell.get(key):
                cell[key] = cell[key][:3]
    assert all(claim.judge(short).word in WORDS for claim in JUDGED)
    assert BY_TEXT["FedUCA sustains its participation"].judge(short).word == UNTESTED


def edited(study, change, **wanted):
    """The paper's world with some of its cells changed."""
    found = copy.deepcopy(PAPER)
    for cell in found[study]:
        if all(cell["labels"].get(key) == value for key, value in wanted.items()):
            cell.update(change)
    return found


def test_noise_is_not_a_direction():
    rise = BY_TEXT["participation rises by 24 points from delta = 0.01 to 1"]
    assert rise.judge(edited("delta", {"participation_mean": 0.535}, delta="0.01")).word == FAILS
    assert rise.judge(edited("delta", {"participation_mean": 0.42}, delta="0.01")).word == DIRECTION
    single = edited("delta", {"participation_mean": 0.50, "seeds": [0]}, delta="0.01")
    assert rise.judge(single).word == FAILS  # four points of one seed

    lead = BY_TEXT["FedUCA leads FedAvg-WS by 19.2 points on CIFAR-10 (0.5,1.0)"]
    at = {"data": "cifar10", "split": "0.5,1.0", "method": "feduca"}
    assert lead.judge(edited("table1", {"accuracy_mean": 0.60}, **at)).word == DIRECTION
    assert lead.judge(edited("table1", {"accuracy_mean": 0.485}, **at)).word == FAILS
    assert lead.judge(edited("table1", {"accuracy_mean": 0.60, "accuracy_std": 0.2}, **at)).word == FAILS
    assert lead.judge(edited("table1", {"accuracy_mean": 0.52, "accuracy_std": None, "seeds": [0]}, **at)).word == FAILS


def test_a_wide_spread_does_not_make_a_figure_the_papers():
    level = BY_TEXT["FedAvg reaches 16.63 % on CIFAR-10 (0.5,1.0)"]
    at = {"data": "cifar10", "split": "0.5,1.0", "method": "fedavg"}
    assert level.judge(edited("table1", {"accuracy_mean": 0.23, "accuracy_std": 0.2}, **at)).word == FAILS
    assert level.judge(edited("table1", {"accuracy_mean": 0.18}, **at)).word == HOLDS


def test_directions_that_are_not_differences():
    half = BY_TEXT["twice as many clients halve the discrepancy (CIFAR-100 against CIFAR-10)"]
    at = {"data": "cifar100", "split": "0.5,1.0", "method": "feduca"}
    assert half.judge(edited("table1", {"discrepancy": [0.015] * 100}, **at)).word == DIRECTION
    collapse = next(claim for claim in CLAIMS if claim.text.startswith("everybody inflating by 10 % ends"))
    weaker = edited("misreporting", {"participation_mean": 0.2, "accuracy_mean": 0.5}, inflation="10")
    assert collapse.judge(weaker).word == DIRECTION
    alone = BY_TEXT["inflating its threshold defeats the client that does it"]
    unclear = copy.deepcopy(PAPER)
    unclear["audit"]["alone"][1]["own"] = {"mean": -0.01, "stderr": 0.01}
    assert alone.judge(unclear).word == DIRECTION


def test_the_papers_text_and_tables_agree():
    """Figures that the paper states twice: leads in its text, differences of its table; overhead, cost table."""
    leads = {
        column: paper.ACCURACY[*column, "feduca"][0] - paper.ACCURACY[*column, "fedavg-ws"][0] for column in COLUMNS
    }
    assert [round(100 * lead, 1) for lead in leads.values()] == [19.2, 20.2, 5.6, 7.7, 9.0, 1.2]
    text = ("20news", "0.5,1.0")
    assert round(100 * (paper.ACCURACY[*text, "feduca"][0] - paper.ACCURACY[*text, "aaggff"][0]), 2) == 25.51
    assert paper.STRATEGIES["cifar10", "5"][0] == paper.ACCURACY["cifar10", "0.5,1.0", "feduca"][0]
    assert paper.STRATEGIES["cifar100", "5"][0] == paper.ACCURACY["cifar100", "0.5,1.0", "feduca"][0]
    assert paper.MISREPORTING["0"] == (paper.STRATEGIES["cifar10", "5"][0], paper.STRATEGIES["cifar10", "5"][1])


def test_noise_and_tolerance():
    first, second = Figure(0.5, 0.03, 3), Figure(0.4, 0.04, 3)
    assert noise(first, second) == pytest.approx(2 * 0.05 / 3**0.5)
    assert noise(Figure(0.5, 0.0, 3), Figure(0.4, 0.0, 3)) == 0.01
    assert noise(first, Figure(0.4, None, 1)) == tolerance(first, Figure(0.4, None, 1)) == 0.05
    assert tolerance(first, second) == 0.05  # never more
    assert tolerance(Figure(0.5, 0.001, 3)) == 0.02  # never less
    assert correlation([1, 2, 3], [5, 6, 9]) == pytest.approx(1)
    assert correlation([1, 2, 3], [1, 1, 1]) == 0


def test_the_register_is_a_table_of_all_claims():
    text = register(PAPER)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "**" in line]
    assert len(rows) == len(CLAIMS)
    assert all(line.count("|") == 6 for line in rows)
    counted = [
        int(field) for line in text.splitlines() if line.startswith("| all |") for field in line.split("|")[2:-1]
    ]
    assert sum(counted) == len(CLAIMS)
