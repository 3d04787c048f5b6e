"""One sentence per study about what its cells show: computed from them, and not said where they do not suffice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feduca.core.records import mean
from paper import printed as paper
from paper.claims.look import BASELINES, pct, points, where
from paper.tables import LATE, Cell, Cells, gap, known, pointwise_bound, theirs


def sentence(name: str, cells: Cells) -> str:
    """What a study shows, or nothing."""
    return SENTENCES[name](cells) if name in SENTENCES else ""


def _at(cells: Cells, **labels: str) -> Cell | None:
    return next((c for c in cells if all(c["labels"].get(k) == v for k, v in labels.items())), None)


def _range(values: list[float]) -> str:
    low, high = (f"{100 * f(values):.1f}" for f in (min, max))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _accuracies(cells: Cells) -> str:
    differences = [(c["accuracy_mean"] - theirs(c)[0], c) for c in cells if theirs(c)[0] is not None]
    if not differences:
        return ""
    worst, there = max(differences, key=lambda item: abs(item[0]))
    typical = mean([abs(value) for value, _ in differences]) or 0.0
    text = f"Over {len(differences)} cells that the paper prints, ours differ from it by {100 * typical:.1f} points on average"
    text += f" (most: {points(worst)}, {where(there)})"
    feduca = [abs(value) for value, c in differences if c["method"] == "feduca"]
    if feduca:
        text += f"; FedUCA's by at most {100 * max(feduca):.1f}"
    pairs = _beside(cells, "feduca", "uniform")
    if pairs:
        ahead = sum(control["accuracy_mean"] > ours["accuracy_mean"] for ours, control in pairs)
        text += f". The uniform control is more accurate than FedUCA in {ahead} of {len(pairs)} cells"
    return text + "."


def _beside(cells: Cells, one: str, other: str) -> list[tuple[Cell, Cell]]:
    """Pairs of cells that differ in the method alone."""
    by = {tuple(sorted(c["labels"].items())): c for c in cells}
    pairs = []
    for cell in cells:
        if cell["labels"].get("method") == one:
            twin = by.get(tuple(sorted({**cell["labels"], "method": other}.items())))
            if twin is not None:
                pairs.append((cell, twin))
    return pairs


def _participation(cells: Cells) -> str:
    def of(*methods: str) -> list[float]:
        return [c["participation_mean"] for c in cells if c["labels"]["method"] in methods]

    parts = [
        f"{who} {_range(of(*methods))}"
        for who, methods in (
            ("FedUCA keeps", ("feduca",)),
            ("the baselines under Eq. 1 keep", BASELINES),
            ("random weights keep", ("random",)),
            ("uniform weights", ("uniform",)),
        )
        if of(*methods)
    ]
    return ", ".join(parts) + "." if parts else ""


def _delta(cells: Cells) -> str:
    shares = {c["labels"]["delta"]: c["participation_mean"] for c in cells}
    if len(shares) < 2:
        return ""
    high, low = max(shares, key=lambda d: shares[d]), min(shares, key=lambda d: shares[d])
    return (
        f"Participation lies between {pct(shares[low])} (delta {low}) and {pct(shares[high])} (delta {high});"
        f" the paper's between {100 * min(paper.DELTA_PARTICIPATION.values()):.0f} and"
        f" {100 * max(paper.DELTA_PARTICIPATION.values()):.0f} %."
    )


def _jensen(cells: Cells) -> str:
    ours = {c["labels"]["delta"]: value for c in cells if (value := gap(c, "mean")) is not None}
    if not ours:
        return ""
    peak, printed = max(ours, key=lambda d: ours[d]), max(paper.JENSEN, key=lambda d: paper.JENSEN[d][0])
    return f"Ours is largest at delta {peak} ({ours[peak]:.2f} %), the paper's at {printed} ({paper.JENSEN[printed][0]:.2f} %)."


def _strategies(cells: Cells) -> str:
    parts = []
    for data in dict.fromkeys(c["labels"]["data"] for c in cells):
        one, five = (_at(cells, data=data, n_s=n, schedule="lagged") for n in ("1", "5"))
        if one is not None and five is not None:
            printed = [paper.STRATEGIES.get((data, n)) for n in ("1", "5")]
            text = f"on {data} participation {points(five['participation_mean'] - one['participation_mean'])}"
            text += f" and accuracy {points(five['accuracy_mean'] - one['accuracy_mean'])}"
            if printed[0] and printed[1]:
                text += f" (paper: {points(printed[1][1] - printed[0][1])} and {points(printed[1][0] - printed[0][0])})"
            parts.append(text)
    return f"Five strategies instead of one, lagged: {'; '.join(parts)}." if parts else ""


def _concavity(cells: Cells) -> str:
    listed = [f"{c['r2']:.2f} on {c['data']}" for c in cells if c["r2"] is not None]
    fits = {c["data"]: c["fits"] for c in cells if c.get("fits")}
    text = f"R^2 is {', '.join(listed)}" if listed else ""
    shares = ", ".join(
        f"{100 * f['above']:.0f} % on {data} (a quarter below {f['quarter']:.2f})" for data, f in fits.items()
    )
    if shares:
        text += f"; of the fits that have one, above .8 are {shares}"
    return text + "." if text else ""


def _discrepancy(cells: Cells) -> str:
    shares, growth = [], []
    for cell in cells:
        curve, bound = known(cell["discrepancy"]), pointwise_bound(cell)
        if curve and bound:
            shares.append(max(curve) / bound)
        if len(curve) >= 2 * LATE and (early := mean(curve[:LATE])):
            growth.append((mean(curve[-LATE:]) or 0.0) / early)
    if not shares:
        return ""
    text = f"Averaged over seeds it never exceeds {100 * max(shares):.0f} % of (n_s - 1)/N"
    if growth:
        text += (
            f"; the mean of the last {LATE} rounds is {min(growth):.2f} to {max(growth):.2f} times that of the first"
        )
    return text + "."


def _misreporting(cells: Cells) -> str:
    honest = _at(cells, inflation="0")
    parts = [
        f"+{c['labels']['inflation']} %: participation {points(c['participation_mean'] - honest['participation_mean'])},"
        f" accuracy {points(c['accuracy_mean'] - honest['accuracy_mean'])}"
        for c in cells
        if honest is not None and c is not honest
    ]
    return f"Against honest thresholds, {'; '.join(parts)}." if parts else ""


def _cost(cells: Cells) -> str:
    feduca, fedavg = _at(cells, method="feduca"), _at(cells, method="fedavg")
    if feduca is None or fedavg is None:
        return ""
    printed = paper.COST["feduca"][0] / paper.COST["fedavg"][0] - 1
    ours = feduca["seconds"] / fedavg["seconds"] - 1
    return f"FedUCA takes {100 * ours:+.1f} % time over FedAvg; in the paper {100 * printed:+.1f} %."


def _schedules(cells: Cells) -> str:
    lagged = _at(cells, method="feduca")
    parts = [
        f"{c['labels']['method']} {points(c['accuracy_mean'] - lagged['accuracy_mean'])} of accuracy,"
        f" {points(c['participation_mean'] - lagged['participation_mean'])} of participation"
        for c in cells
        if lagged is not None and c is not lagged and c["mechanism"] == "feduca"
    ]
    return f"Against the lagged schedule: {'; '.join(parts)}." if parts else ""


def _rules(cells: Cells) -> str:
    parts = []
    for method in ("fedavg", "feduca"):
        pairs = [
            (first, second)
            for data in dict.fromkeys(c["labels"]["data"] for c in cells)
            if (first := _at(cells, data=data, rule="Eq. 1", method=method)) is not None
            and (second := _at(cells, data=data, rule="Eq. 2", method=method)) is not None
        ]
        for first, second in pairs:
            one, two = (pct(c["participation_mean"]) for c in (first, second))
            parts.append(f"{method} on {first['data']} keeps {one} under Eq. 1 and {two} under Eq. 2")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _splits(cells: Cells) -> str:
    classes = [sum(count > 0 for count in silo) for cell in cells for silo in cell["train"]]
    equal = all(len({sum(silo) for silo in cell["train"]}) == 1 for cell in cells)
    sizes = "all of one size" if equal else "of different sizes"
    return f"Silos hold {min(classes)} to {max(classes)} classes; within a data set they are {sizes}."


def _causes(cells: Cells) -> str:
    parts = []
    for part in dict.fromkeys(c["labels"].get("study") for c in cells):
        found: dict[str, list[float]] = {}
        for cell in cells:
            printed = theirs(cell)[0]
            if cell["labels"].get("study") == part and "method" in cell["labels"] and printed is not None:
                found.setdefault(cell["labels"].get("change", ""), []).append(abs(cell["accuracy_mean"] - printed))
        listed = ", ".join(f"{100 * (mean(values) or 0.0):.1f} ({change})" for change, values in found.items())
        parts += [f"{part}: {listed}"] if listed else []
    return f"Mean distance to the paper's accuracies in points, by change: {'; '.join(parts)}." if parts else ""


SENTENCES: dict[str, Callable[[Any], str]] = {
    "table1": _accuracies,
    "text": _accuracies,
    "participation": _participation,
    "delta": _delta,
    "jensen": _jensen,
    "strategies": _strategies,
    "concavity": _concavity,
    "discrepancy": _discrepancy,
    "misreporting": _misreporting,
    "causes": _causes,
    "cost": _cost,
    "schedules": _schedules,
    "rules": _rules,
    "splits": _splits,
}
