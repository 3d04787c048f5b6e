"""Progress while a run goes on: a live table on a terminal, plain lines elsewhere. Always on stderr; data go to stdout."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from feduca.core.wording import SCORE, aligned, number, percent, points, scored

if TYPE_CHECKING:
    from feduca.core.records import ClientRecord, RoundRecord
    from feduca.studies.cell_summary import CellSummary

_MARKS = {"joined": ("■", "green"), "declined": ("·", "red"), "absent": ("?", "yellow"), "refused": ("x", "yellow")}
_MARKS["not asked"] = (" ", "dim")
_MARKS["left"] = ("/", "dim")  # for good; a sentence at the end of the run says who and when


FEW = 20  # silos whose marks fit a line


def strip(status: list[str] | Any) -> str:
    """One mark per silo: in, declined, absent, refused, left for good."""
    return "".join(_MARKS[word][0] for word in status)


def _coloured(status: list[str] | Any) -> str:
    return "".join(f"[{_MARKS[word][1]}]{_MARKS[word][0]}[/]" for word in status)


class Left:
    """How long it may take still, reckoned from the runs that were done since it was first asked."""

    def __init__(self) -> None:
        self._first, self._started = -1.0, time.monotonic()

    def said(self, done: float, total: int) -> str:
        """In words; nothing before the first is done."""
        if self._first < 0:
            self._first, self._started = done, time.monotonic()
        if not self._first < done < total:
            return ""
        left = (time.monotonic() - self._started) / (done - self._first) * (total - done)
        return f", about {left:.0f} s left" if left < 120 else f", about {left / 60:.0f} min left"


class Lines:
    """Plain lines of how far jobs are: one whenever a run is done, else one a minute."""

    def __init__(self) -> None:
        self._left, self._last, self._when = Left(), "", 0.0

    def tell(self, done: float, total: int, said: str, after: str = "") -> None:
        left, whole = self._left.said(done, total), f"{int(done)} {after}"
        if whole != self._last or time.monotonic() - self._when > 60:
            self._last, self._when = whole, time.monotonic()
            print(f"{said}{after}{left}", file=sys.stderr, flush=True)


class Progress:
    """Watches run after run, or batch after batch; `total` runs of `rounds` rounds each."""

    def __init__(self, rounds: int, total: int = 1, metric: str = "accuracy", elsewhere: bool = False) -> None:
        self._elsewhere, self._left, self._lines = elsewhere, Left(), Lines()
        self._rounds, self._total, self._metric = rounds, total, metric
        self._label = ""
        self._done = self._seen = self._of_batch = self._shown = 0
        self._started = time.monotonic()
        self._console = Console(stderr=True)
        self._live = None
        self._finished = ""
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, refresh_per_second=8)
            self._live.start()

    def start(self, done: float, total: int, label: str) -> None:
        """What runs now, after `done` of all runs; several in lockstep have one label, and the first of them is shown."""
        self._done, self._label = int(done), label
        self._of_batch = self._shown = 0
        if self._elsewhere and label:  # the rounds are another process's
            said = f"{int(done)} of {total} runs done, {label}"
            if self._live is None:
                self._lines.tell(done, total, said)
            else:
                self._live.update(self._below(Text(f"{said}{self._left.said(done, total)}")))
            return
        if self._live is not None and label:  # the first round may take a while
            self._live.update(self._below(Text(f"{self._title()}: round 1 of {self._rounds} ...")))

    def finished(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """What is done so far stays on screen while the next one runs."""
        if rows and self._live is not None:
            self._finished = comparison(rows, self._console.width)

    def _below(self, now: RenderableType) -> RenderableType:
        return Group(Text(self._finished, no_wrap=True, overflow="crop"), Text(), now) if self._finished else now

    def _title(self) -> str:
        return f"{self._label}  ({self._done + 1} of {self._total})" if self._total > 1 else self._label

    def __call__(self, record: RoundRecord, clients: ClientRecord) -> None:
        self._seen += 1
        self._of_batch += 1
        if record.round == self._shown:
            return
        self._shown = record.round
        to_do = (self._total - self._done) * self._rounds - max(self._of_batch, record.round)
        left = (time.monotonic() - self._started) / self._seen * to_do
        if self._live is not None:
            self._live.update(self._below(self._table(record, clients, left)))
        elif record.round % max(1, self._rounds // 5) == 0 or record.round == self._rounds:
            k = len(clients.status)
            promised = "" if record.satisfied is None else f"  Eq. 2 {record.satisfied}/{k}"
            inside = strip(clients.status) if k <= FEW else f"{record.joined}/{k}"
            print(
                f"{self._label}: round {record.round}/{self._rounds}  {said(record.accuracy, self._metric)}"
                f"  in {inside}{promised}  {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _table(self, record: RoundRecord, clients: ClientRecord, left: float) -> Table:
        table = Table(title=self._title())
        solved = record.satisfied is not None or record.slack is not None
        more = ("Eq. 2 holds", "slack") if solved else ()
        for name in ("round", heading(self._metric), "in", *more, "time left"):
            table.add_column(name, justify="right" if name != "in" else "left", no_wrap=name != "in")
        table.add_row(
            f"{record.round}/{self._rounds}",
            scored(record.accuracy, self._metric),
            f"{_coloured(clients.status[:FEW])}{' ...' * (len(clients.status) > FEW)}  {record.joined}/{len(clients.status)}",
            *([number(record.satisfied, 0), number(record.slack, 4)] if solved else []),
            f"{left:.0f} s",
        )
        return table


@contextmanager
def study(name: str, elsewhere: bool = False) -> Iterator[Callable[[float, int, str], None]]:
    """A bar of runs done and time left on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = Lines()

        def tell(done: float, total: int, label: str) -> None:
            after = f", {'' if elsewhere else 'next: '}{label}" if label else ""
            lines.tell(done, total, f"{name}: {int(done)} of {total} runs done", after)

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total, label: bar.update(task, completed=done, total=total, description=f"{name}: {label}")


def _number(decimals: int, scale: float = 1.0) -> Callable[[float | None], str]:
    return lambda value: number(value, decimals, scale=scale)


def _curve(choose: Callable[[list[float]], float]) -> Callable[[list[float | None] | None], str]:
    def show(values: list[float | None] | None) -> str:
        known = [value for value in values or [] if value is not None]
        return f"{choose(known):.4f}" if known else "-"

    return show


# Title, what it is of a cell (None: nothing to show), and how that is shown.
_Column = tuple[str, Callable[["CellSummary"], Any], Callable[[Any], str]]


def _of(table: Mapping[str, Any] | None, key: str) -> Any:
    return (table or {}).get(key)


NAMED_FOR: dict[str, tuple[_Column, ...]] = {  # the quantity that a study is about
    "jensen": (
        ("gap %", lambda c: _of(c.jensen, "mean"), _number(2, 100)),
        ("top 50", lambda c: _of(c.jensen, "top50"), _number(2, 100)),
        ("top 25", lambda c: _of(c.jensen, "top25"), _number(2, 100)),
    ),
    "concavity": (("median R^2", lambda c: _of(c.fits, "median"), _number(2)),),
    "discrepancy": (
        ("mean discrepancy", lambda c: c.discrepancy, _curve(statistics.fmean)),
        ("largest", lambda c: c.discrepancy, _curve(max)),
    ),
    "cost": (
        ("allocating, s", lambda c: c.seconds_allocate, _number(2)),
        ("peak MB", lambda c: c.peak_mb, _number(0)),
    ),
}


# Of studies that know the forced-in ceiling, offers, the model a silo would have had alone, or who left for good.
OFFERED: tuple[_Column, ...] = (
    ("ceiling", lambda c: c.ceiling_accuracy_mean, percent),
    ("mean concession", lambda c: c.concession, _number(2)),
    ("deployed %", lambda c: c.deployed_test_mean, percent),
    ("alone %", lambda c: c.alone_test_mean, percent),
    ("better off %", lambda c: c.better_off_share, percent),
    ("worst gain", lambda c: c.gain_worst, percent),
    ("surely better %", lambda c: c.better_share, percent),
    ("surely worse %", lambda c: c.worse_share, percent),
    ("undecided %", lambda c: c.undecided_share, percent),
    ("still in %", lambda c: c.members_share, percent),
)
USUAL = {"mean concession": 0, "still in %": 1}  # where all cells have this there is no column


def cells(summary: Sequence[Mapping[str, Any]], *, paper: bool = True, study: str = "") -> str:
    """The summary of a study as plain text, ours beside the paper's where those can be compared."""
    from feduca.studies.cell_summary import CellSummary

    found = [CellSummary.of(cell) for cell in summary]
    axes = list(dict.fromkeys(axis for cell in found for axis in cell.labels))
    about = [one for one in NAMED_FOR.get(study, ()) if any(one[1](cell) is not None for cell in found)]
    about += [one for one in OFFERED if any(one[1](cell) not in (None, USUAL.get(one[0])) for cell in found)]
    paper = paper and any(v is not None for c in found for v in (c.paper_accuracy, c.paper_participation))
    theirs = ("paper",) if paper else ()
    named = (title for title, _, _ in about)
    figures = ("accuracy %", *theirs, "participation %", *theirs, *named, "seeds", "seconds")

    def row(cell: CellSummary) -> list[str]:
        spread = "" if cell.accuracy_std is None else f" +- {100 * cell.accuracy_std:.1f}"
        return [
            *(cell.labels.get(axis, "") for axis in axes),
            percent(cell.accuracy_mean) + spread,
            *([percent(cell.paper_accuracy)] if paper else []),
            percent(cell.participation_mean),
            *([percent(cell.paper_participation)] if paper else []),
            *(show(value(cell)) for _, value, show in about),
            str(len(cell.seeds)),
            number(cell.seconds, 1),
        ]

    return aligned([*axes, *figures], map(row, found), len(axes))


def said(value: float | None, metric: str, whose: str = "") -> str:
    """The same in a line of text: with its name, and its unit."""
    return f"{metric}{whose} {scored(value, metric, unit=' %')}"


def heading(metric: str) -> str:
    return "accuracy %" if metric == "accuracy" else metric


def comparison(rows: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """The table of `feduca compare`, as plain text. Without a common test set silos' own scores stand in for the shared one."""
    metric = rows[0].get("metric", "accuracy")
    judged = any(row.get("better_off") is not None for row in rows)
    shared = any(row["accuracy"] is not None for row in rows)
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {}
    if shared or not judged:
        title = heading(metric).replace(" ", "\n") if shared else f"silos' own\n{heading(metric)}"
        columns[title] = lambda row: _score(row, "accuracy" if shared else "deployed", metric)
    columns["stay in\n%"] = lambda row: "-" if row.get("rule") == "never" else percent(row["participation"])
    if not judged:
        columns["Eq. 1\nholds %"] = lambda row: percent(row["eq1_share"])
    columns |= standing_columns(rows, metric)
    if not judged:
        columns["\nseconds"] = lambda row: f"{row['seconds']:.1f}"
    lines = ([row["method"], *(say(row) for say in columns.values())] for row in rows)
    return aligned(["method", *columns], lines, width=width)


def _score(row: Mapping[str, Any], key: str, metric: str) -> str:
    spread = row.get("accuracy_std")
    return scored(row[key], metric) + ("" if spread is None else f" +- {scored(spread, metric)}")


def standing_columns(
    rows: Sequence[Mapping[str, Any]], metric: str = "accuracy"
) -> dict[str, Callable[[Mapping[str, Any]], str]]:
    """What silos deploy and would have alone, who is better off and who is still in, as headings and what stands below.

    Without the first ones where no run recorded its models alone, without the last where nobody left for good.
    """
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {}
    unit = "%" if metric == SCORE else metric
    if any(row.get("better_off") is not None for row in rows):
        columns[f"deployed\n{unit}"] = lambda row: scored(_deployed(row), metric)
        columns[f"alone\n{unit}"] = lambda row: scored(row.get("alone"), metric)
        columns["better\noff %"] = lambda row: percent(row.get("better_off"))
        columns["worst\nsilo"] = lambda row: points(row.get("gain_worst"), metric)
    if any(row.get("better_share") is not None for row in rows):
        shares = ("better_share", "worse_share")
        columns["surely\n+ / - %"] = lambda row: " / ".join(_whole(row.get(key)) for key in shares)
    if any(row.get("still_in") not in (None, 1) for row in rows):
        columns["still\nin %"] = lambda row: percent(row.get("still_in"))
    return columns


def _deployed(row: Mapping[str, Any]) -> float | None:
    """On the data that models alone are judged on."""
    alone, gain = row.get("alone"), row.get("gain_mean")
    return None if alone is None or gain is None else alone + gain


def _whole(share: float | None) -> str:
    return percent(share, decimals=0)
