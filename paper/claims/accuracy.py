"""What the paper says about accuracy: levels, leads, orders, spreads over seeds, and where they come from."""

from __future__ import annotations

import itertools
import math

from scipy import stats

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import DIRECTION, FAILS, HOLDS, UNDECIDED, Difference
from paper.claims.judging import Case, Missing, Seen, Summaries, Verdict
from paper.claims.look import NAMES, pct


def both_splits(summaries: Summaries) -> Seen:
    """The mean lead on each split; a single column that is clearly the other way refutes it."""
    found = look.leads(summaries, look.accuracy, "feduca", "fedavg-ws")
    means = {split: _on_average(summaries, "feduca", "fedavg-ws", split) for split in paper.SPLITS}
    return Seen(means, about="mean lead in points: ", against=found)


def _on_average(summaries: Summaries, ahead: str, behind: str, split: str = "") -> Difference:
    """How much more accurate one method is, mean over the columns (of one split), seed by seed where all ran the same seeds."""
    rows = [row for name, row in look.columns(summaries, ahead, behind) if split in name]
    if not rows:
        raise Missing(f"column of table1 for split {split}")
    return compare.difference(*(compare.together([look.accuracy(cell) for cell in side]) for side in zip(*rows)))


def _order(data: str, split: str) -> Case:
    """All pairs of methods that the paper's own spreads separate."""
    figures = {method: look.printed(data, split, method) for method in NAMES if (data, split, method) in paper.ACCURACY}
    ordered = sorted(figures, key=lambda method: -figures[method].mean)
    pairs = [
        pair
        for pair in itertools.combinations(ordered, 2)
        if compare.positive(compare.difference(*(figures[method] for method in pair))) == HOLDS
    ]

    def see(summaries: Summaries) -> Verdict:
        ours = {method: look.accuracy(look.table(data, split, method)(summaries)) for method in figures}
        words = {(a, b): compare.positive(compare.difference(ours[a], ours[b])) for a, b in pairs}
        same = sum(word == HOLDS for word in words.values())
        turned = ", ".join(f"{NAMES[b]} over {NAMES[a]}" for (a, b), word in words.items() if word == FAILS)
        word = compare.every(words.values())
        word = DIRECTION if word == UNDECIDED and same > len(pairs) / 2 else word
        listed = turned and f"; clearly the other way: {turned}"
        return Verdict(word, f"{same} of {len(pairs)} pairs clearly in the paper's order{listed}")

    fill = {"table": look.title(data), "place": look.place(data, split), "order": ", ".join(NAMES[m] for m in ordered)}
    return Case(see, fill=fill)


def _spread(method: str) -> Case:
    """Root mean square over the columns, of ours and the paper's."""

    def see(summaries: Summaries) -> Verdict:
        found = [(look.find(summaries, "table1", data=d, split=s, method=method), (d, s)) for d, s in look.COLUMNS]
        pairs = [
            (cell["accuracy_std"], look.printed(*column, method).std or 0.0, len(cell["seeds"]) - 1)
            for cell, column in found
            if cell is not None and cell.get("accuracy_std") is not None
        ]
        if len(pairs) < 2:
            raise Missing(f"runs of {NAMES[method]} with several seeds in two columns of table1")
        ours, theirs = (math.hypot(*side) / math.sqrt(len(pairs)) for side in list(zip(*pairs))[:2])
        chance = math.sqrt(stats.f.ppf(0.975, sum(n for *_, n in pairs), 2 * len(pairs)))
        words = (
            f"over {len(pairs)} columns: ours {100 * ours:.1f} points, the paper's {100 * theirs:.1f}"
            f" (equal spreads would differ by a factor of up to {chance:.1f})"
        )
        return Verdict(HOLDS if ours <= 2 * theirs else FAILS if ours > chance * theirs else UNDECIDED, words)

    largest = 100 * max(look.printed(*column, method).std or 0.0 for column in look.COLUMNS)
    return Case(see, fill={"method": NAMES[method], "largest": largest})


def attrition(summaries: Summaries) -> Seen:
    lost = look.leads(summaries, look.accuracy, "forced", "fedavg")
    mean = {"over columns": _on_average(summaries, "forced", "fedavg")}
    return Seen(mean, about="points that FedAvg loses against everybody forced in, mean ", against=lost)


def worsens(summaries: Summaries) -> Seen:
    """Over rounds, because a summary's curve is the mean over seeds."""
    changes = {}
    for method in ("fedavg", "fedprox", "aaggff"):
        rounds = look.curve(look.table("cifar10", "0.5,1.0", method)(summaries), "accuracy_by_round")
        changes[NAMES[method]] = compare.difference(look.block(rounds, 91, 100), look.block(rounds, 2, 6))
    return Seen(changes, about="change from rounds 2-6 to the last ten, in points: ")


def follows(summaries: Summaries) -> Verdict:
    found = {
        name: compare.correlation([look.share(cell) for cell in row], [look.accuracy(cell).mean for cell in row])
        for name, row in look.columns(summaries, *NAMES)
    }
    least = min(found.values())
    word = HOLDS if least >= 0.8 else DIRECTION if least >= 0.5 else UNDECIDED if least >= 0 else FAILS
    listed = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    against = _same_share(summaries)
    return Verdict(FAILS if against else word, f"rank correlation of the six methods: {listed}{against}")


def _same_share(summaries: Summaries) -> str:
    """Counterexamples: random weights under FedUCA's rule that keep as many clients and clearly learn more or less."""
    found = []
    try:
        for name, (feduca, random) in look.columns(summaries, "feduca", "random"):
            for control in filter(None, (random, look.near(summaries, feduca))):
                kept = compare.difference(look.shares(control), look.shares(feduca))
                learnt = compare.difference(look.accuracy(control), look.accuracy(feduca))
                if not kept.clear and learnt.clear:
                    pair = f"{pct(look.share(control))} against {pct(look.share(feduca))}"
                    found.append(f"{name} {pair}, {look.points(learnt.value)} ({control['method']})")
    except Missing:
        return ""
    listed = "; ".join(found)
    return listed and f"; but random weights keep as many clients as FedUCA and learn otherwise: {listed}"


def beside_uniform(summaries: Summaries) -> Seen:
    """FedUCA beside constant uniform weights under FedUCA's own rule: only the weights differ."""
    about = "FedUCA minus constant uniform weights under the same rule (Eq. 2), in points: "
    return Seen(look.leads(summaries, look.accuracy, "feduca", "uniform"), about=about)


def memory_matters(summaries: Summaries) -> Seen:
    """Two runs of one study that differ in the memory alone, seed by seed."""
    kept = look.need(summaries, "schedules", method="feduca")
    alike = [
        c for c in look.cells(summaries, "schedules") if all(c.get(k) == kept.get(k) for k in ("mechanism", "schedule"))
    ]
    without = next((cell for cell in alike if cell.get("memory") == "none"), None)
    if without is None:
        raise Missing("run of schedules: FedUCA without memory (memory.kind = none)")
    found = {
        "participation": compare.difference(look.shares(kept), look.shares(without)),
        "accuracy": compare.difference(look.accuracy(kept), look.accuracy(without)),
    }
    return Seen(found, [kept, without], "with memory minus without, in points: ")


def steady(summaries: Summaries) -> Seen:
    moves = {}
    for name, (feduca,) in look.columns(summaries, "feduca"):
        rounds = look.curve(feduca, "accuracy_by_round")
        moves[name] = compare.difference(look.block(rounds, 91, 100), look.block(rounds, 71, 90))
    return Seen(moves, about="last ten rounds minus the twenty before, in points: ")


CASES = {
    "order": [_order(*column) for column in [*look.COLUMNS, look.TEXT]],
    "spread": [_spread(method) for method in NAMES],
}
