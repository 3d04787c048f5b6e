"""What a page gets to see of its runs: plain JSON, compact, and thinned where a screen could not show more.

A thousand rounds of a hundred silos are tens of megabytes on disk and must fit a page that opens at once. So curves are
averaged into at most a few hundred points, and the details of single silos (reasons, utility curves) are kept for evenly spaced
rounds, as many as the budget allows; the strip of who was in keeps every round as long as it can. What was thinned is in `notes`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feduca.errors import InputError
from feduca.report.answer import answer, compared
from feduca.report.better_off import kept, margin, option, shares
from feduca.report.better_off import rows as judged_rows
from feduca.report.better_off import sentence as judgement
from feduca.report.cleaning import STATUSES, ClientRound, Number, text
from feduca.report.names import labels
from feduca.report.reading import Run
from feduca.report.silos import MEANS
from feduca.report.verdict import (
    average,
    better_off,
    comparison,
    figures,
    gone,
    level,
    notices,
    research,
    untouched,
    verdict,
)
from feduca.runs import standing
from feduca.runs.manifest import UNCHECKED

MAX_RUNS = 60
SERIES_POINTS = 1500  # over all runs ...
MOST_POINTS = 400  # ... and of one run: more than a chart has pixels for
STRIP_CELLS = 200_000  # over all runs
DETAIL_CHARACTERS = 600_000  # over all runs
CONFIG_CHARACTERS = 60_000  # over all runs
STANDING_ROWS = 3000  # over all runs
SCALE = 10_000  # utilities and weights travel as integers in units of 1e-4

GRID = [round(0.05 * i, 2) for i in range(21)]  # where fitted curves are sampled

SERIES = (
    "accuracy", "participation", "slack", "gap", "jensen", "discrepancy", "discrepancy_bound", "discrepancy_bound_expected",
    "promise_kept", "concession", "r2",
)  # fmt: skip


def payload(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything the page shows, for one run or several side by side."""
    if not runs:
        raise InputError("there is no run to show; give one or more run directories")
    if len(runs) > MAX_RUNS:
        raise InputError(f"{len(runs)} runs do not fit one page; show at most {MAX_RUNS} at a time")
    names = labels(runs)
    shares = len(runs)
    notes: list[str] = []
    allowed = _shared(DETAIL_CHARACTERS, [_detail_size(run) * len(run.clients) for run in runs])
    shown = [_run(run, name, shares, most, notes) for run, name, most in zip(runs, names, allowed)]
    twins = [f"{name}, seed {run.seed}" for name, run in zip(names, runs)]
    for twin, times in Counter(twins).items():
        if times > 1:
            notes.append(
                f"{twin}: shown {times} times; each counts as a seed of its own, and copies of a run are none."
            )
    scores = {run.score for run in runs}
    head = verdict(runs[0]) if shares == 1 else [comparison(runs, names)]
    table = _table(runs, names)
    return {
        "verdict": head,
        "runs": shown,
        "table": table,
        "compared_by": "deployed" if all(row["deployed"] is not None for row in table) else "accuracy",
        "alone": level([row["alone"] for row in table]) if len({run.data for run in runs}) == 1 else None,
        "notes": list(dict.fromkeys(notes)),
        "grid": GRID,
        "score": scores.pop() if len(scores) == 1 else "score",
    }


def _run(run: Run, label: str, shares: int, details: int, notes: list[str]) -> dict[str, Any]:
    where = f"{label}, seed {run.seed}"
    if run.doubt:
        notes.append(f"{where}: the records are not those that the run wrote ({run.doubt}): do not believe them.")
    if run.unchecked:
        notes.append(f"{where}: this run {UNCHECKED}.")
    if run.unreadable:
        notes.append(f"{where}: {run.unreadable} lines of the record could not be read and are left out.")
    strip, before, strip_rounds = _strip(run, STRIP_CELLS // shares, where, notes)
    return {
        "label": label,
        "seed": run.seed,
        "name": run.name,
        "directory": text("/".join(run.path.parts[-2:])),
        "state": run.state_shown,
        "verdict": verdict(run),
        "answer": answer(run, label),
        "notices": notices(run),
        "research": research(run),
        "figures": {key: _short(value) for key, value in figures(run).items()} if run.rounds else {},
        "silos": list(run.silos),
        "validation": run.validation_examples,
        "done": len(run.rounds),
        "planned": run.planned,
        "metric": run.setting("utility", "metric", "accuracy"),
        "series": _series(run, min(MOST_POINTS, max(25, SERIES_POINTS // shares)), where, notes),
        "fallbacks": [
            [line.round, line.words["fallback"]] for line in run.rounds if line.words["fallback"] is not None
        ],
        "strip": strip,
        "before": before,
        "strip_rounds": strip_rounds,
        "standing": _standing(run, STANDING_ROWS // shares, where, notes),
        "details": _details(run, details, where, notes),
        "config": run.config_text[: CONFIG_CHARACTERS // shares],
        "environment": [[key, text(value)] for key, value in _flat(run.environment)][:60],
    }


def _table(runs: Sequence[Run], names: Sequence[str]) -> list[dict[str, Any]]:
    """One row per method, seeds averaged."""
    groups: dict[str, list[Run]] = {}
    for run, name in zip(runs, names):
        groups.setdefault(name, []).append(run)
    rows = []
    for name, group in groups.items():
        found = [figures(run) for run in group]
        row: dict[str, Any] = {key: _short(average(f[key] for f in found)) for key in found[0]}
        scores = [f["accuracy"] for f in found if f["accuracy"] is not None]
        spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
        row["gain_worst"] = _short(min((f["gain_worst"] for f in found if f["gain_worst"] is not None), default=None))
        row["judged"] = shares(group)
        row["silos"] = max(len(run.silos) for run in group)
        rows.append(
            {"method": name, "number": len(rows) + 1, "seeds": len(group), "accuracy_std": _short(spread), **row}
        )
    return rows


def _standing(run: Run, most: int, where: str, notes: list[str]) -> dict[str, Any] | None:
    """Every silo against the model it would have had alone: [place, alone, deployed, gain, test examples, how it ended].

    `judged` says, row by row, what is sure of it (better_off.py).
    """
    found = standing.each(untouched(run))
    if found is None:
        return None
    left, last, tested = gone(run), run.clients.glimpses[-1].status, run.test_examples
    words = {word[0]: f"out: {word}" for word in STATUSES} | {"j": "in"}
    better = {k: f"out: its {option(run)} is better ({margin(*pair, run.score)})" for k, pair in kept(run).items()}
    rows = [
        [
            k,
            alone,
            deployed,
            _short(standing.gain(deployed, alone)),
            tested[k],
            f"quit in round {left[k]}" if k in left else better.get(k, words[last[k]]),
        ]
        for k, (deployed, alone) in enumerate(zip(*found))
    ]
    if len(rows) > most:
        notes.append(f"{where}: the table of gains shows the {most} silos that gain least.")
        rows = sorted(rows, key=lambda row: (row[3] is None, row[3]))[:most]
    judged = judged_rows(run)
    judged = judged and [judged[row[0]] for row in rows]
    return {"sentence": " ".join(filter(None, (better_off(run), judgement(run)))), "rows": rows, "judged": judged}


def _series(run: Run, most: int, where: str, notes: list[str]) -> dict[str, list[Any]]:
    """Columns over rounds; buckets of rounds are averaged where there are more than `most`."""
    total = len(run.rounds)
    width = max(1, -(-total // most))
    if width > 1:
        notes.append(f"{where}: each point of the curves is the mean of {width} rounds.")
    buckets = [run.rounds[i : i + width] for i in range(0, total, width)]
    columns: dict[str, list[Any]] = {"round": [bucket[-1].round for bucket in buckets]}
    for name in SERIES:
        values = [_short(average(line.numbers[name] for line in bucket)) for bucket in buckets]
        if any(value is not None for value in values):
            columns[name] = values
    means = {c.round: c.means for c in run.clients.glimpses}
    for name in MEANS:
        values = [_short(average(means[r.round][name] for r in bucket if r.round in means)) for bucket in buckets]
        if any(value is not None for value in values):
            columns[name] = values
    low = {c.round: c.promise_low for c in run.clients.glimpses if c.promise_low is not None}
    high = {c.round: c.promise_high for c in run.clients.glimpses if c.promise_high is not None}
    if "promise_kept" in columns and low:
        for name, choose, kept in (("promise_low", min, low), ("promise_high", max, high)):
            columns[name] = [
                _short(choose((kept[line.round] for line in bucket if line.round in kept), default=None))
                for bucket in buckets
            ]
    return columns


def _strip(run: Run, cells: int, where: str, notes: list[str]) -> tuple[list[str], list[str], list[int]]:
    """One string of letters per silo (joined, declined, absent, refused, left), one letter per shown round.

    Twice: who was in, and who would have been with what the page compares it with (answer.py), if there is such a thing.
    """
    silos = len(run.silos)
    if not run.clients or silos == 0:
        return [], [], []
    most = max(1, cells // silos)
    step = max(1, -(-len(run.clients) // most))
    if step > 1:
        notes.append(f"{where}: the strip shows every {step}th round.")
    chosen = run.clients.glimpses[::step]
    which = compared(run)
    both = [[c.status for c in chosen], [getattr(c, which[0]) for c in chosen] if which else []]
    strip, before = (["".join(letters) for letters in zip(*columns)] for columns in both)
    return strip, before, [c.round for c in chosen]


def _shared(total: int, needs: Sequence[int]) -> list[int]:
    """`total` dealt out fairly: nobody gets more than it needs, and what is left goes to those who need more."""
    given = [0] * len(needs)
    order = sorted(range(len(needs)), key=lambda i: needs[i])
    for left, i in zip(range(len(needs), 0, -1), order):
        given[i] = min(needs[i], total // left)
        total -= given[i]
    return given


def _detail_size(run: Run) -> int:
    """Characters that one round's details take."""
    if not run.clients:
        return 0
    middle, curves = run.clients[len(run.clients) // 2], _Curves(run)
    return len(_json([_silo(middle, k, curves) for k in range(len(run.silos))])) + 1


def _details(run: Run, characters: int, where: str, notes: list[str]) -> dict[str, Any]:
    """Reasons, weights, thresholds, curves and points of every silo, for evenly spaced rounds that fit the budget."""
    if not run.clients:
        return {"rounds": [], "silos": [], "places": []}
    curves = _Curves(run)
    size = _detail_size(run)
    count = min(len(run.clients), max(1, characters // size))
    if count * size > 2 * characters:  # not even one round of so many silos
        notes.append(
            f"{where}: too many silos to show each one's curve; the strip and the curves over rounds show all."
        )
        return {"rounds": [], "silos": [], "places": []}
    if count < len(run.clients):
        notes.append(f"{where}: reasons and utility curves are kept for {count} of {len(run.clients)} rounds.")
    index = np.unique(np.linspace(0, len(run.clients) - 1, count).round().astype(int)) if count > 1 else [-1]
    chosen = [run.clients[i] for i in index]
    return {
        "rounds": [c.round for c in chosen],
        "silos": [[_silo(c, k, curves) for k in range(len(run.silos))] for c in chosen],
        "places": next((list(c.places) for c in chosen if c.places), []),
    }


class _Curves:
    """Fitted curves sampled at GRID, for whichever family the run used; None where its parameters make no sense."""

    def __init__(self, run: Run) -> None:
        from feduca.core.utility import families

        self._family = families.get(run.setting("utility", "family", "quadratic"))

    def at(self, zeta: Sequence[float] | None, r: Sequence[float]) -> Sequence[Number]:
        if zeta is None or self._family is None or len(zeta) != self._family.size:
            return []
        curve = np.asarray([zeta], float)
        values = [float(self._family.value(curve, np.array([x]))[0]) for x in r]
        return values if np.isfinite(values).all() else []

    def sampled(self, zeta: Sequence[float] | None) -> Sequence[Number]:
        if zeta is None or self._family is None or len(zeta) != self._family.size:
            return []
        values = self._family.value(np.asarray([zeta], float), np.asarray(GRID)[:, None])[:, 0]
        return values.tolist() if np.isfinite(values).all() else []


def _silo(c: ClientRound, k: int, curves: _Curves) -> list[Any]:
    """[reason, weight used, weight announced, gamma, u(announced), r2, own, offered, concession, curve, points]."""
    n, zeta = c.numbers, c.zeta[k]
    announced = n["announced"][k]
    at = curves.at(zeta, [announced]) if announced is not None else []
    points = c.points[k]
    return [
        c.reason[k][:120],
        _scaled(n["alpha"][k]),
        _scaled(announced),
        _scaled(n["gamma"][k]),
        _scaled(at[0]) if at else None,
        _scaled(n["r2"][k]),
        _scaled(n["own_accuracy"][k]),
        _scaled(n["offered_accuracy"][k]),
        _scaled(n["concession"][k]),
        [_scaled(v) for v in curves.sampled(zeta)],
        [_scaled(v) for v in points] if points else [],
    ]


def _scaled(value: Number) -> int | None:
    return None if value is None or abs(value) > 1e9 else round(value * SCALE)


def _short(value: Number) -> Number:
    return None if value is None else float(f"{value:.6g}")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element, whatever strings it holds."""
    return _json(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in tree.items():
        name = f"{prefix}{text(key)}"
        if key == "silos":
            continue
        if isinstance(value, Mapping) and prefix.count(".") < 3:
            out += _flat(value, f"{name}.")
        else:
            out.append((name, value))
    return out
