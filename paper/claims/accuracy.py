"""What the paper says about accuracy beyond single figures and leads: orders, spreads over seeds, and where they come from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from scipy import stats

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import DIRECTION, FAILS, HOLDS, UNDECIDED, Difference, Figure
from paper.claims.judging import Missing, Seen, Summaries, Verdict, caveats
from paper.claims.look import NAMES, pct


def _ranked(data: str, split: str) -> dict[str, Figure]:
    """The paper's figures of a column, the best method first."""
    figures = {method: look.printed(data, split, method) for method in NAMES if (data, split, method) in paper.ACCURACY}
    return dict(sorted(figures.items(), key=lambda item: -item[1].mean))


def order(summaries: Summaries, data: str, split: str) -> Verdict:
    """All pairs of methods that the paper's own spreads separate."""
    theirs = _ranked(data, split)
    ours = {method: look.accuracy(look.table(summaries, data, split, method)) for method in NAMES if method in theirs}

    def ahead(figures: Mapping[str, Figure], pair: tuple[str, str]) -> str:
        return compare.positive(compare.difference(*(figures[method] for method in pair)))

    words = {pair: ahead(ours, pair) for pair in itertools.combinations(theirs, 2) if ahead(theirs, pair) == HOLDS}
    same = sum(word == HOLDS for word in words.values())
    turned = ", ".join(f"{NAMES[b]} over {NAMES[a]}" for (a, b), word in words.items() if word == FAILS)
    word = compare.every(words.values())
    word = DIRECTION if word == UNDECIDED and same > len(words) / 2 else word
    listed = turned and f"; clearly the other way: {turned}"
    return Verdict(word, f"{same} of {len(words)} pairs clearly in the paper's order{listed}")


def spread(summaries: Summaries, method: str) -> Verdict:
    """Root mean square over the columns, of ours and the paper's."""
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
    said = (
        f"over {len(pairs)} columns: ours {100 * ours:.1f} points, the paper's {100 * theirs:.1f}"
        f" (equal spreads would differ by a factor of up to {chance:.1f})"
    )
    return Verdict(HOLDS if ours <= 2 * theirs else FAILS if ours > chance * theirs else UNDECIDED, said)


def worsens(summaries: Summaries) -> dict[str, Difference]:
    """Over rounds, because a summary's curve is the mean over seeds."""
    changes = {}
    for method in ("fedavg", "fedprox", "aaggff"):
        cell = look.table(summaries, "cifar10", "0.5,1.0", method)
        changes[NAMES[method]] = compare.difference(*look.blocks(cell, "accuracy_by_round", (91, 100), (2, 6)))
    return changes


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


def memory_matters(summaries: Summaries) -> Seen:
    """Two runs of one study that differ in the memory alone, seed by seed."""
    kept = look.need(summaries, "schedules", method="feduca")
    alike = {key: kept.get(key) for key in ("mechanism", "schedule")} | {"memory": "none"}
    for without in look.cells(summaries, "schedules"):
        if all(without.get(key) == value for key, value in alike.items()):
            break
    else:
        raise Missing("run of schedules: FedUCA without memory (memory.kind = none)")
    found = {
        "participation": compare.difference(look.shares(kept), look.shares(without)),
        "accuracy": compare.difference(look.accuracy(kept), look.accuracy(without)),
    }
    return Seen(found, behind=caveats(kept, without))


def steady(summaries: Summaries) -> dict[str, Difference]:
    return {
        name: compare.difference(*look.blocks(feduca, "accuracy_by_round", (91, 100), (71, 90)))
        for name, (feduca,) in look.columns(summaries, "feduca")
    }


WORDS = {
    "order": lambda data, split: {"order": ", ".join(NAMES[method] for method in _ranked(data, split))},
    "spread": lambda method: {"largest": 100 * max(look.printed(*c, method).std or 0.0 for c in look.COLUMNS)},
}
