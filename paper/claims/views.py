"""What a row of claims.toml can look at without code of its own: a figure, or two beside each other.

`see` says how:

    gap     how much more `ahead` has than `behind`, or than the best of several
    leads   the same of two methods in every column of Table 2 that has both; `mean`: that is judged, and a column can only refute
    off     how far a figure is from the paper's, or from what it gives for several cells at once (`printed`, in printed.py)
    both    an accuracy and a participation that the paper gives together, and which of them is off

`at` is the study, `of` the quantity (QUANTITIES), `beside` what is told beside the figures (BESIDE). With "size" or "level" for
a comparator the paper's figures are those of `theirs`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import CLOSE, CLOSE_SHARE, FAILS, UNDECIDED, Difference, Figure, difference, exact
from paper.claims.judging import Missing, Seen, Summaries, Verdict, caveats
from paper.claims.look import BASELINES, DATA, NAMES, TEXT, Quantity, pct
from paper.tables import Cell

Labels = Mapping[str, str]
Row = Mapping[str, Any]  # the last field of a row of claims.toml

QUANTITIES: dict[str, tuple[Quantity, float]] = {  # and how close to the paper's is always close enough
    "accuracy": (look.accuracy, CLOSE),
    "share": (look.shares, CLOSE_SHARE),
    "Eq. 1": (lambda cell: Figure(look.entry(cell, "eq1_share"), None, len(cell["seeds"])), CLOSE_SHARE),
}
COLUMNS = {"columns": look.COLUMNS, "columns and text": [*look.COLUMNS, TEXT], "text": [TEXT]}


def each(said: Mapping[str, Any]) -> list[dict[str, str]]:
    """Combinations of labels, the first one outermost; `column` stands for data and split together."""
    parts = [
        [dict(zip(("data", "split"), pair)) for pair in COLUMNS[values]]
        if key == "column"
        else [one if isinstance(one, dict) else {key: one} for one in values]
        for key, values in said.items()
    ]
    return [{key: value for part in chosen for key, value in part.items()} for chosen in itertools.product(*parts)]


def words(row: Row, labels: Labels) -> dict[str, Any]:
    """What a claim's words have in place of {...}; KeyError where the paper has no figure to claim."""
    data, see = labels.get("data", ""), row.get("see")
    said: dict[str, Any] = {
        **labels,
        "data": DATA.get(data),
        "method": NAMES.get(labels.get("method", "")),
        "place": look.place(data, labels["split"]) if "split" in labels else "",
        "table": look.title(data),
        "results": "Appendix, text" if data == TEXT[0] else "Section 4, results",
    }
    if see == "gap":
        ahead, *behind = _sides(row, labels)
        said |= {"n": len(behind) + 1, "ahead": NAMES.get(ahead.get("method", ""))}
        said |= {"behind": NAMES.get(behind[0].get("method", ""))}
        if row["must"] == "size":
            said["size"] = 100 * abs(_lead(row, ahead, behind[0]).value)
    elif see == "both":
        said |= {of: pct(theirs(of, row["at"], labels).mean) for of in ("accuracy", "share")}
    elif see == "off" and "printed" not in row:
        figure = theirs(row["of"], row["at"], labels).mean
        said |= {"theirs": 100 * figure, "share": pct(figure)}
    return said


def theirs(of: str, study: str, labels: Labels) -> Figure:
    """What the paper prints for a cell, over its three seeds; KeyError where it prints nothing."""
    column = labels.get("data", ""), labels.get("split", ""), labels.get("method", "")
    if study == "table":
        return look.printed(*column) if of == "accuracy" else exact(paper.PARTICIPATION[column])
    if study == "delta":
        return exact(paper.DELTA_PARTICIPATION[labels["delta"]])
    if study == "strategies":
        pair = paper.STRATEGIES[labels["data"], labels["n_s"]]
        default = labels["n_s"] == str(paper.N_S)  # its spread is that of the main table; others have none printed
        spread = paper.ACCURACY[labels["data"], "0.5,1.0", "feduca"][1] if default else 0.0
    else:
        pair, spread = paper.MISREPORTING[labels["inflation"]], paper.MISREPORTING_STD[labels["inflation"]]
    return Figure(pair[0], spread, 3) if of == "accuracy" else exact(pair[1])


def _cell(summaries: Summaries, row: Row, labels: Labels) -> Cell:
    if row["at"] == "table":
        return look.table(summaries, labels["data"], labels["split"], labels["method"])
    return look.need(summaries, row["at"], **labels)


# ---------------------------------------------------------------------------------------------------------------------
# The views


def gap(row: Row, labels: Labels, summaries: Summaries) -> Seen:
    """How much more one cell has than another, or than the best of several."""
    quantity, close = QUANTITIES[row["of"]]
    places = _sides(row, labels)
    ahead = _cell(summaries, row, places[0])
    behind = max((_cell(summaries, row, place) for place in places[1:]), key=lambda cell: quantity(cell).mean)
    first, second = quantity(ahead), quantity(behind)
    whose = f" ({NAMES[behind['method']]})" if ahead["method"] != behind["method"] in NAMES else ""
    told = f": {pct(first.mean)} against {pct(second.mean)}{whose}{_beside(row, labels, summaries)}"
    must = partial(compare.sized, theirs=_lead(row, *places[:2]), close=close) if row["must"] == "size" else None
    return Seen(difference(first, second), "ours ", told + _caveats(quantity, ahead, behind), must=must)


def _sides(row: Row, labels: Labels) -> list[dict[str, str]]:
    """Where a gap is seen: who is ahead, then everybody behind; "rivals" are the baselines that the paper has on the data."""
    behind = {**labels, **row["behind"]}
    if behind.get("method") == "rivals":
        behind["method"] = [name for name in BASELINES if (labels["data"], "0.5,1.0", name) in paper.ACCURACY]
    others = each({key: value if isinstance(value, list) else [value] for key, value in behind.items()})
    return [{**labels, **row["ahead"]}, *others]


def _lead(row: Row, ahead: Labels, behind: Labels) -> Difference:
    return difference(*(theirs(row["of"], row["at"], side) for side in (ahead, behind)))


def leads(row: Row, labels: Labels, summaries: Summaries) -> Seen:
    """How much more one method has than another in every column; where their `mean` is judged, a column can only refute."""
    quantity, _ = QUANTITIES[row["of"]]
    pairs = {name: (quantity(a), quantity(b)) for name, (a, b) in look.columns(summaries, row["ahead"], row["behind"])}
    found = {name: difference(*pair) for name, pair in pairs.items()}
    if "mean" not in row:
        return Seen(found)
    means = {}
    for part in paper.SPLITS if row["mean"] == "by split" else [""]:
        there = [pair for name, pair in pairs.items() if part in name]
        if not there:
            raise Missing(f"column of table1 for split {part}")
        means[part or row["mean"]] = difference(*map(compare.together, zip(*there)))
    return Seen(means, against=found)


def off(row: Row, labels: Labels, summaries: Summaries) -> Seen:
    """How far a cell's figure is from the paper's, or from a range that the paper gives for several cells at once."""
    quantity, close = QUANTITIES[row["of"]]
    cell = _cell(summaries, row, labels)
    ours = quantity(cell)
    if "printed" in row:
        bounds = getattr(paper, row["printed"])
        low, high = bounds if isinstance(bounds, tuple) else (bounds, bounds)
        figure = exact(min(max(ours.mean, low), high))
    else:
        figure = theirs(row["of"], row["at"], labels)
    spread = "" if ours.std is None else f" (± {100 * ours.std:.1f})"
    told = f"ours {pct(ours.mean)}{spread}{_beside(row, labels, summaries)}, off by "
    must = partial(compare.level, close=close) if row["must"] == "level" else None
    if quantity is look.accuracy and paper.other_start(cell):  # says nothing of the level of the paper's model
        must = compare.undecided
    return Seen(difference(ours, figure), told, _caveats(quantity, cell), must=must)


def both(row: Row, labels: Labels, summaries: Summaries) -> Verdict:
    """The verdict on an accuracy and a participation that the paper gives together, and which of them is off."""
    cell = _cell(summaries, row, {**labels, **row.get("with", {})})
    parts = {}
    for name, of in (("accuracy", "accuracy"), ("participation", "share")):
        quantity, close = QUANTITIES[of]
        parts[name] = compare.level(difference(quantity(cell), theirs(of, row["at"], labels)), close)
    if paper.other_start(cell):
        parts["accuracy"] = UNDECIDED
    missed = " and ".join(name for name, word in parts.items() if word == FAILS)
    said = f"ours {pct(look.share(cell))} participation, {pct(look.accuracy(cell).mean)} accuracy"
    return Verdict(compare.every(parts.values()), f"{said}{missed and f'; off: {missed}'}{caveats(cell)}")


VIEWS = {"gap": gap, "leads": leads, "off": off, "both": both}


# ---------------------------------------------------------------------------------------------------------------------
# What is told beside a figure


def _caveats(quantity: Quantity, *cells: Cell) -> str:
    """The caveats of cells; with participation also where the spread of several seeds was not recorded."""
    several = min(len(cell["seeds"]) for cell in cells) > 1
    unknown = quantity is look.shares and several and any(look.shares(cell).std is None for cell in cells)
    return caveats(*cells) + ("; spread over seeds not recorded" if unknown else "")


def _beside(row: Row, labels: Labels, summaries: Summaries) -> str:
    return BESIDE[row["beside"]](summaries, labels) if "beside" in row else ""


def _control(summaries: Summaries, labels: Labels, method: str) -> Cell | None:
    return look.find(summaries, look.study(labels["data"]), **{**labels, "method": method})


def _uniform(summaries: Summaries, labels: Labels) -> str:
    control = _control(summaries, labels, "uniform")
    if control is None:
        return ""
    return f"; constant uniform weights under FedUCA's rule reach {pct(look.accuracy(control).mean)}"


def _random(summaries: Summaries, labels: Labels) -> str:
    """What random weights keep, said beside FedUCA."""
    control = _control(summaries, labels, "random")
    if control is None or labels["method"] != "feduca":
        return ""
    return f" (random weights under the same rule: {pct(look.share(control))})"


def _fresh(summaries: Summaries, labels: Labels) -> str:
    pair = [look.find(summaries, "strategies", **labels, n_s=n, schedule="fresh") for n in ("1", "5")]
    known = [pct(look.share(cell)) for cell in pair if cell is not None]
    return "" if len(known) < 2 else f"; with the fresh schedule {known[1]} against {known[0]}"


def _deltas(summaries: Summaries, labels: Labels) -> str:
    kept = [look.share(cell) for cell in look.cells(summaries, "delta")]
    return f" (at any delta {pct(min(kept))} to {pct(max(kept))})"


BESIDE = {"uniform": _uniform, "random": _random, "fresh": _fresh, "deltas": _deltas}
