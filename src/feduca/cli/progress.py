"""Progress while a run goes on: a live table on a terminal, plain lines elsewhere. Always on stderr; data go to stdout."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from feduca.records import ClientRecord, RoundRecord

_MARKS = {"joined": ("■", "green"), "declined": ("·", "red"), "absent": ("?", "yellow"), "refused": ("x", "yellow")}
_MARKS["left"] = ("/", "dim")  # for good; a sentence at the end of the run says who and when
WIDEST = 10_000  # a plain table is not cut: its labels are there to be copied


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def strip(status: list[str] | Any) -> str:
    """One mark per silo: in, declined, absent, refused, left for good."""
    return "".join(_MARKS[word][0] for word in status)


def _coloured(status: list[str] | Any) -> str:
    return "".join(f"[{_MARKS[word][1]}]{_MARKS[word][0]}[/]" for word in status)


class Progress:
    """Watches one run after another; `total` runs of `rounds` rounds each."""

    def __init__(self, rounds: int, total: int = 1, metric: str = "accuracy") -> None:
        self._rounds, self._total, self._metric = rounds, total, metric
        self._done = 0
        self._label = ""
        self._started = time.monotonic()
        self._console = Console(stderr=True)
        self._live = None
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, refresh_per_second=8)
            self._live.start()

    def start(self, label: str) -> None:
        self._label = label
        if self._live is not None:  # the first round may take a while
            self._live.update(Text(f"{self._title()}: round 1 of {self._rounds} ..."))

    def _title(self) -> str:
        return f"{self._label}  ({self._done + 1} of {self._total})" if self._total > 1 else self._label

    def __call__(self, record: RoundRecord, clients: ClientRecord) -> None:
        finished = self._done * self._rounds + record.round
        left = (time.monotonic() - self._started) / finished * (self._total * self._rounds - finished)
        if self._live is not None:
            self._live.update(self._table(record, clients, left))
        elif record.round % max(1, self._rounds // 5) == 0 or record.round == self._rounds:
            satisfied = "-" if record.satisfied is None else f"{record.satisfied}/{len(clients.status)}"
            slack = "-" if record.slack is None else f"{record.slack:.4f}"
            print(
                f"{self._label}: round {record.round}/{self._rounds}  {said(record.accuracy, self._metric)}"
                f"  in {strip(clients.status)}  satisfied {satisfied}  slack {slack}  {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def end_of_run(self) -> None:
        self._done += 1

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _table(self, record: RoundRecord, clients: ClientRecord, left: float) -> Table:
        table = Table(title=self._title())
        for name in ("round", heading(self._metric), "in", "satisfied", "slack", "time left"):
            table.add_column(name, justify="right" if name != "in" else "left")
        table.add_row(
            f"{record.round}/{self._rounds}",
            scored(record.accuracy, self._metric),
            f"{_coloured(clients.status)}  {record.joined}/{len(clients.status)}",
            "-" if record.satisfied is None else str(record.satisfied),
            "-" if record.slack is None else f"{record.slack:.4f}",
            f"{left:.0f} s",
        )
        return table


@contextmanager
def study(name: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar of runs done and time left on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:

        def tell(done: int, total: int, label: str) -> None:
            print(
                f"{name}: {done} of {total} runs done{', next: ' + label if label else ''}", file=sys.stderr, flush=True
            )

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total, label: bar.update(task, completed=done, total=total, description=f"{name}: {label}")


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table as plain text: the first `left` columns to the left, the others, figures, to the right."""
    table = Table(box=None, pad_edge=False, header_style="")
    for place, name in enumerate(head):
        table.add_column(Text(name), justify="left" if place < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))  # a label in brackets is no markup
    console = Console(width=WIDEST, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _number(decimals: int, scale: float = 1.0) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else f"{scale * value:.{decimals}f}"


def _curve(choose: Callable[[list[float]], float]) -> Callable[[list[float | None] | None], str]:
    def show(values: list[float | None] | None) -> str:
        known = [value for value in values or [] if value is not None]
        return f"{choose(known):.4f}" if known else "-"

    return show


_Column = tuple[str, str, Callable[[Any], str]]  # where in a cell (a dot goes into a table), title, how it is shown

NAMED_FOR: dict[str, tuple[_Column, ...]] = {  # the quantity that a study is about
    "jensen": (
        ("jensen.mean", "gap %", _number(2, 100)),
        ("jensen.top50", "top 50", _number(2, 100)),
        ("jensen.top25", "top 25", _number(2, 100)),
    ),
    "concavity": (("fits.median", "median R^2", _number(2)),),
    "discrepancy": (
        ("discrepancy", "mean discrepancy", _curve(statistics.fmean)),
        ("discrepancy", "largest", _curve(max)),
    ),
    "cost": (("seconds_allocate", "allocating, s", _number(2)), ("peak_mb", "peak MB", _number(0))),
}


# Of studies that know the forced-in ceiling, offers, the model a silo would have had alone, or who left for good.
OFFERED: tuple[_Column, ...] = (
    ("ceiling_accuracy_mean", "ceiling", percent),
    ("concession", "mean concession", _number(2)),
    ("deployed_test_mean", "deployed %", percent),
    ("alone_test_mean", "alone %", percent),
    ("better_off_share", "better off %", percent),
    ("gain_worst", "worst gain", percent),
    ("members_share", "still in %", percent),
)
USUAL = {"concession": 0, "members_share": 1}  # where all cells have this there is no column


def _at(cell: dict[str, Any], key: str) -> Any:
    table, _, inner = key.partition(".")
    return (cell.get(table) or {}).get(inner) if inner else cell.get(table)


def cells(summary: list[dict[str, Any]], *, paper: bool = True, study: str = "") -> str:
    """The summary of a study as plain text, ours beside the paper's where those can be compared."""
    axes = list(dict.fromkeys(axis for cell in summary for axis in cell["labels"]))
    about = [column for column in NAMED_FOR.get(study, ()) if any(_at(cell, column[0]) is not None for cell in summary)]
    about += [c for c in OFFERED if any(cell.get(c[0]) not in (None, USUAL.get(c[0])) for cell in summary)]
    paper = paper and any(
        cell[key] is not None for cell in summary for key in ("paper_accuracy", "paper_participation")
    )
    theirs = ("paper",) if paper else ()
    figures = (
        "accuracy %",
        *theirs,
        "participation %",
        *theirs,
        *(column[1] for column in about),
        "seeds",
        "seconds",
    )

    def row(cell: dict[str, Any]) -> list[str]:
        spread = "" if cell["accuracy_std"] is None else f" +- {100 * cell['accuracy_std']:.1f}"
        return [
            *(cell["labels"].get(axis, "") for axis in axes),
            percent(cell["accuracy_mean"]) + spread,
            *([percent(cell["paper_accuracy"])] if paper else []),
            percent(cell["participation_mean"]),
            *([percent(cell["paper_participation"])] if paper else []),
            *(show(_at(cell, key)) for key, _, show in about),
            str(len(cell["seeds"])),
            f"{cell['seconds']:.1f}",
        ]

    return aligned([*axes, *figures], map(row, summary), len(axes))


def scored(value: float | None, metric: str = "accuracy") -> str:
    """A score as it is printed: accuracy in percent, any other as it is."""
    return percent(value) if metric == "accuracy" or value is None else f"{value:.3f}"


def said(value: float | None, metric: str, whose: str = "") -> str:
    """The same in a line of text: with its name, and its unit."""
    return f"{metric}{whose} {scored(value, metric)}{' %' if metric == 'accuracy' else ''}"


def heading(metric: str) -> str:
    return "accuracy %" if metric == "accuracy" else metric


def comparison(rows: list[dict[str, Any]]) -> str:
    """The table of `feduca compare`, as plain text. Without a common test set silos' own scores stand in for the shared one."""
    metric = rows[0].get("metric", "accuracy")
    shared = any(row["accuracy"] is not None for row in rows)
    title = heading(metric) if shared else f"silos' own {heading(metric)}"
    more = standing_columns(rows, metric)

    def line(row: dict[str, Any]) -> list[str]:
        spread = row.get("accuracy_std")
        accuracy = scored(row["accuracy"] if shared else row["deployed"], metric)
        accuracy += "" if spread is None else f" +- {scored(spread, metric)}"
        shares = (percent(row["participation"]), percent(row["eq1_share"]))
        return [row["method"], accuracy, *shares, *(say(row) for say in more.values()), f"{row['seconds']:.1f}"]

    return aligned(["method", title, "participation %", "Eq. 1 holds %", *more, "seconds"], map(line, rows))


def standing_columns(
    rows: list[dict[str, Any]], metric: str = "accuracy"
) -> dict[str, Callable[[dict[str, Any]], str]]:
    """Who is better off than alone and who is still in, as headings and what stands below.

    Without the first two where no run recorded its models alone, without the last where nobody left for good.
    """
    from feduca.standing import points

    columns: dict[str, Callable[[dict[str, Any]], str]] = {}
    if any(row.get("better_off") is not None for row in rows):
        worst = "worst silo, points" if metric == "accuracy" else f"worst silo, {metric}"
        columns["better off %"] = lambda row: percent(row.get("better_off"))
        columns[worst] = lambda row: points(row.get("gain_worst"), metric)
    if any(row.get("still_in") not in (None, 1) for row in rows):
        columns["still in %"] = lambda row: percent(row.get("still_in"))
    return columns
