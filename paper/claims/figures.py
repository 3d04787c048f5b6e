"""Claims about one figure, or about two: what is compared with what stands in claims.toml, and how it is done here.

A row says what is seen: "gap" (how much more `ahead` has than `behind`, or than the best of several), "off" (how far a figure is
from the paper's) or "both" (an accuracy and a participation that the paper gives together). `at` is the study, `of` the quantity,
`each` the cells, one claim for every combination of labels; `must` is the comparator, `beside` what is told beside it.
A row without `see` is judged by the function of its name in the files beside this one, which is given the labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paper import printed as paper
from paper.claims import compare, look
from paper.claims.compare import CLOSE, CLOSE_SHARE, Figure
from paper.claims.judging import Case, Seen, Summaries, Verdict
from paper.claims.look import DATA, NAMES, TEXT, Pick, Quantity, pct

Labels = Mapping[str, str]
Row = Mapping[str, Any]  # the last field of a row of claims.toml

QUANTITIES: dict[str, tuple[Quantity, float]] = {  # and how close to the paper's is always close enough
    "accuracy": (look.accuracy, CLOSE),
    "share": (look.shares, CLOSE_SHARE),
}
COLUMNS = {"columns": look.COLUMNS, "columns and text": [*look.COLUMNS, TEXT], "text": [TEXT]}


def cases(row: Row) -> list[Case]:
    """The claims of a row, one for each combination of its labels that the paper has a figure for."""
    found = []
    for labels in _each(row.get("each", {})):
        try:
            found.append({"gap": _gap, "off": _off, "both": _both}[row["see"]](row, labels))
        except KeyError:  # a method that the paper leaves out on these data
            continue
    return found


def judged(row: Row, judge: Callable[..., Seen | Verdict]) -> list[Case]:
    """The same for a row without `see`: the judge is a function of the summaries and the labels."""
    shown = pct if row.get("shown") == "percent" else row.get("shown", "{:.2f}").format
    word, fails = compare.named(row.get("must")), row.get("fails", "")
    return [Case(partial(judge, **labels), word, _words(labels), shown, fails) for labels in _each(row.get("each", {}))]


def theirs(of: str, study: str, labels: Labels) -> Figure:
    """What the paper prints for a cell, over its three seeds; KeyError where it prints nothing."""
    column = labels.get("data", ""), labels.get("split", ""), labels.get("method", "")
    if study == "table":
        return Figure(*paper.ACCURACY[column], 3) if of == "accuracy" else compare.exact(paper.PARTICIPATION[column])
    if study == "delta":
        return compare.exact(paper.DELTA_PARTICIPATION[labels["delta"]])
    if study == "strategies":
        pair = paper.STRATEGIES[labels["data"], labels["n_s"]]
        default = labels["n_s"] == str(paper.N_S)  # its spread is that of the main table; others have none printed
        spread = paper.ACCURACY[labels["data"], "0.5,1.0", "feduca"][1] if default else 0.0
    else:
        pair, spread = paper.MISREPORTING[labels["inflation"]], paper.MISREPORTING_STD[labels["inflation"]]
    return Figure(pair[0], spread, 3) if of == "accuracy" else compare.exact(pair[1])


def _each(said: Mapping[str, Any]) -> list[dict[str, str]]:
    """Combinations of labels, the first one outermost; `column` stands for data and split together."""
    parts = [
        [dict(zip(("data", "split"), pair)) for pair in COLUMNS[values]]
        if key == "column"
        else [one if isinstance(one, dict) else {key: one} for one in values]
        for key, values in said.items()
    ]
    return [{key: value for part in chosen for key, value in part.items()} for chosen in itertools.product(*parts)]


def _pick(row: Row, labels: Labels) -> Pick:
    if row["at"] == "table":
        return look.table(labels["data"], labels["split"], labels["method"])
    return look.at(row["at"], **labels)


def _words(labels: Labels) -> dict[str, Any]:
    """What a claim's words have in place of {...}."""
    data, split = labels.get("data", ""), labels.get("split", "")
    return {
        **labels,
        "data": DATA.get(data),
        "method": NAMES.get(labels.get("method", "")),
        "place": look.place(data, split) if data else "",
        "table": look.title(data),
        "results": "Appendix, text" if data == TEXT[0] else "Section 4, results",
    }


def _gap(row: Row, labels: Labels) -> Case:
    quantity, close = QUANTITIES[row["of"]]
    ahead, behind = {**labels, **row["ahead"]}, {**labels, **row["behind"]}
    several = {key: value for key, value in row["behind"].items() if isinstance(value, list)}
    picks = [_pick(row, {**behind, **one}) for one in _each(several)]
    if behind.get("method") == "rivals":
        picks = look.rivals(labels["data"], labels["split"])
    see = look.gap(
        quantity, _pick(row, ahead), picks[0] if len(picks) == 1 else look.best(quantity, picks), _beside(row, labels)
    )
    fill = _words(labels) | {"n": len(picks) + 1}
    if row["must"] != "size":
        return Case(see, compare.named(row["must"]), fill)
    lead = compare.difference(*(theirs(row["of"], row["at"], side) for side in (ahead, behind)))
    fill |= {"ahead": NAMES.get(ahead.get("method", "")), "behind": NAMES.get(behind.get("method", ""))}
    return Case(see, lambda ours: compare.sized(ours, lead, close), {**fill, "size": 100 * abs(lead.value)})


def _off(row: Row, labels: Labels) -> Case:
    quantity, close = QUANTITIES[row["of"]]
    pick, fill = _pick(row, labels), _words(labels)
    if "printed" in row:  # a bound or a range that the paper gives for several cells at once
        bounds = getattr(paper, row["printed"])
        low, high = bounds if isinstance(bounds, tuple) else (bounds, bounds)

        def see(summaries: Summaries) -> Seen:
            nearest = min(max(quantity(pick(summaries)).mean, low), high)
            return look.off(quantity, pick, compare.exact(nearest), _beside(row, labels))(summaries)
    else:
        figure = theirs(row["of"], row["at"], labels)
        fill |= {"theirs": 100 * figure.mean, "share": pct(figure.mean)}
        see = look.off(quantity, pick, figure, _beside(row, labels))
    return Case(
        see, lambda apart: compare.level(apart, close) if row["must"] == "level" else compare.below(apart), fill
    )


def _both(row: Row, labels: Labels) -> Case:
    accuracy, share = (theirs(of, row["at"], labels) for of in ("accuracy", "share"))
    fill = _words(labels) | {"accuracy": pct(accuracy.mean), "share": pct(share.mean)}
    return Case(look.both(_pick(row, {**labels, **row.get("with", {})}), accuracy, share.mean), fill=fill)


# ---------------------------------------------------------------------------------------------------------------------
# What is told beside a figure


def _beside(row: Row, labels: Labels) -> Callable[[Summaries], str]:
    tell = {"uniform": _uniform, "random": _random, "fresh": _fresh, "deltas": _deltas}.get(row.get("beside", ""))
    return lambda summaries: tell(summaries, labels) if tell is not None else ""


def _control(summaries: Summaries, labels: Labels, method: str) -> Any:
    place = {"data": labels["data"], "split": labels["split"]}
    return look.find(summaries, look.study(labels["data"]), **place, method=method)


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
