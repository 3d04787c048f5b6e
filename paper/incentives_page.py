"""The tables of docs/incentives.md and of its page of deeds, from the committed summary: `python -m paper.incentives_page`.

Each table stands between `<!-- table NAME -->` and `<!-- end -->`; what is there is replaced. Nothing is typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feduca.analysis.incentives import between, when
from feduca.core import wording
from feduca.recipes.schema import load
from feduca.studies.cells import cells
from paper.page import filled
from paper.tables import markdown
from paper.writer import main

Cell = Mapping[str, Any]
Pair = tuple[Cell | None, Cell | None]  # without standing, and with it


def pairs(found: list[Cell]) -> Iterator[tuple[str, str, Pair]]:
    """Cells by data and method, in the recipe's order; None where one has not been run."""
    at = {tuple(cell["labels"].values()): cell for cell in found}
    for data, method in dict.fromkeys((c.labels["data"], c.labels["method"]) for c in cells(load("incentives"))):
        yield data, method, (at.get((data, method, "off")), at.get((data, method, "on")))


def honest(found: list[Cell]) -> str:
    """Runs in which nobody deviates: what standing costs those who work."""
    head = [
        "data",
        "method",
        "runs",
        "honest silo-rounds without standing %",
        "shared model, points",
        "participation, points",
        "deployed, points",
    ]
    rows = []
    for data, method, (off, on) in pairs(found):
        if on is None:
            continue
        mine = on["honest"]
        changes = ["not run"] * 3
        if off is not None and off["seeds"] == on["seeds"]:
            names = ("accuracy", "participation", "deployed")
            changes = [_change(off["honest"][name], mine[name]) for name in names]
        rows.append([data, method, str(mine["seeds"]), _share(mine["honest_limited"]), *changes])
    return markdown(head, rows, 2)


def _change(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    return wording.points(after["mean"] - before["mean"])


def _share(value: float) -> str:
    return wording.percent(value, decimals=2)


COSTLY = ("withhold", "echo", "idle", "replay", "lapse")  # that are to cost three points, the interval's end below zero
MARK = -0.03
UNPAID = ("noise", "fixed")  # that are not to pay


def marks(found: list[Cell]) -> str:
    """What was asked of standing, and what came of it: a row per data and method."""
    head = [
        "data", "method", "deeds that cost 3 points, surely some", "that do not", "noise and fixed pay",
        "honesty is as good: of these and `stale` %",
        "of all deeds tried %",
        "honest silo-rounds without standing, at most %",
    ]  # fmt: skip
    rows = []
    for data, method, (_, on) in pairs(found):
        if on is None:
            continue
        there = {row["deed"]: row for row in on["rows"]}
        costs = {
            deed: there[deed]["own"]["mean"] <= MARK and there[deed]["interval"][1] < 0
            for deed in COSTLY
            if deed in there
        }
        paying = [deed for deed in UNPAID if deed in there and there[deed]["interval"][0] > 0]
        asked = [row for row in on["rows"] if row["deed"] in (*COSTLY, *UNPAID, "stale")]
        limited = max([on["honest"]["honest_limited"], *(row["honest_limited"] for row in on["rows"])])
        rows.append(
            [
                *(data, method),
                ", ".join(deed for deed, cost in costs.items() if cost) or "none",
                ", ".join(deed for deed, cost in costs.items() if not cost) or "none",
                ", ".join(paying) or ("no" if set(UNPAID) & set(there) else wording.NOTHING),
                *(wording.percent(_as_good(rows_of), decimals=0) for rows_of in (asked, on["rows"])),
                _share(limited),
            ]
        )
    return markdown(head, rows, 5)


def _as_good(rows: Sequence[Mapping[str, Any]]) -> float:
    """The share of (silo, deed) pairs in which the deed is not better for its doer than honesty."""
    return sum(row["cases"] * (1 - row["gained"]) for row in rows) / sum(row["cases"] for row in rows)


def rates() -> str:
    """Short training: who loses standing by the rule as it is and as it was."""
    found = json.loads((BENCHMARKS / "standing_rates.json").read_text(encoding="utf-8"))
    head = ["method", "rule", "epochs", "rounds", "honest %", "honest beside noise %", "noise found %"]
    rows = [
        [
            *(one["method"], one["rule"], str(one["epochs"]), str(one["rounds"])),
            *(_share(one[name]) for name in ("honest_limited", "beside_noise_limited")),
            wording.percent(one["noise_found"], decimals=0),
        ]
        for one in found["rows"]
    ]
    said = f"```console\n$ {found['command']}\n```\n\n{found['seeds']} seeds; cpu; commit {found['commit']}."
    return f"{markdown(head, rows, 2)}\n\n{said}"


def times() -> str:
    """What standing costs in time, from a summary of its own."""
    found = json.loads((BENCHMARKS / "standing.json").read_text(encoding="utf-8"))
    rows = [
        [one["data"], one["method"], str(one["turns"]), f"{100 * (one['ratio'] - 1):+.1f}"] for one in found["rows"]
    ]
    said = f"```console\n$ {found['command']}\n```\n\ncpu; commit {found['commit']}."
    return markdown(["data", "method", "turns", "more time a round %"], rows, 2) + "\n\n" + said


NATURAL = ("vowel", "azpro")


def on_digits(found: list[Cell]) -> str:
    return deeds([cell for cell in found if cell["labels"]["data"] == "digits"])


def on_natural(found: list[Cell]) -> str:
    return deeds([cell for cell in found if cell["labels"]["data"] in NATURAL])


def on_splits(found: list[Cell]) -> str:
    return deeds([cell for cell in found if cell["labels"]["data"] not in ("digits", *NATURAL)])


def deeds(found: list[Cell]) -> str:
    """One row per deed: what it changes of the deviator's own score, without and with standing, and both rates."""
    head = [
        "data", "method", "deed", "pairs", "its own, without", "its own, with standing", "95 %", "better off %", "the others'",
        "shared model's", "found", "honest without standing %",
    ]  # fmt: skip
    rows = []
    for data, method, (off, on) in pairs(found):
        before = {} if off is None else {row["deed"]: row for row in off["rows"]}
        for row in () if on is None else on["rows"]:
            earlier = before.get(row["deed"])
            rows.append(
                [
                    *(data, method, row["deed"], str(row["cases"])),
                    "not run" if earlier is None else wording.estimate(earlier["own"], sign=True),
                    wording.estimate(row["own"], sign=True),
                    between(row["interval"]),
                    wording.percent(row["gained"], decimals=0),
                    *(wording.estimate(row[name], sign=True) for name in ("others", "accuracy")),
                    when(row),
                    _share(row["honest_limited"]),
                ]
            )
    return markdown(head, rows, 3)


def commands(found: list[Cell]) -> str:
    """What was run, and at which commit; and what was not."""
    said = "\n".join(dict.fromkeys(f"$ {cell['command']}" for cell in found))
    where = ", ".join(sorted({str(cell["commit"]) for cell in found}))
    lacking = [f"{data}: {method}" for data, method, (off, on) in pairs(found) if off is None and on is None]
    where = f"On a CPU where no device is named; commits {where}."
    return f"```console\n{said}\n```\n\n{where}\n\nNot run yet: {'; '.join(lacking) or 'nothing'}."


PAGES = [
    "docs/incentives.md",
    "docs/incentives-costs.md",
    "docs/incentives-deeds.md",
    "docs/incentives-sets.md",
    "docs/incentives-splits.md",
    "docs/incentives-theory.md",
]
BLOCKS = {
    "incentives:honest": honest,
    "incentives:marks": marks,
    "incentives:deeds": on_digits,
    "incentives:sets": on_natural,
    "incentives:splits": on_splits,
    "incentives:commands": commands,
}


BENCHMARKS = Path(__file__).parents[1] / "benchmarks" / "results"
APART = {"incentives:times": times, "incentives:rates": rates}  # with summaries of their own


def block(name: str, results: Path) -> str:
    if name in APART:
        return APART[name]()
    path = results / "incentives.json"
    if not path.is_file():
        return "Not run yet: `feduca audit incentives --conduct --results results`."
    return BLOCKS[name](json.loads(path.read_text(encoding="utf-8")))


def write(results: Path, target: Path) -> list[str]:
    target.write_text(filled(target.read_text(encoding="utf-8"), lambda name: block(name, results)), encoding="utf-8")
    return [f"wrote {target}"]


if __name__ == "__main__":
    main("incentives_page", "The tables on what honest work pays.", PAGES, write)
