"""What a finished run gives back, and how a run directory is read: checked first, believed then."""

from __future__ import annotations

import csv
import logging
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from feduca.core.records import mean
from feduca.core.wording import percent, points, scored
from feduca.errors import InputError, shown
from feduca.runs import files, manifest, standing
from feduca.runs.environment import silos_of
from feduca.runs.lines import Lines, columns
from feduca.runs.pictures import Picture, lines, strip
from feduca.runs.summary import summarise
from feduca.types import JOINED, NOT_ASKED, Array

log = logging.getLogger("feduca")

WHY = {
    "joins always": "everybody trains along",
    "stays alone": "every silo trains alone",
}  # reasons of a rule alike for all
WORDS = ("metric", "gain_worst_silo")  # what a summary has beside numbers


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run: what `feduca.run` returns and `feduca.load` reads back."""

    name: str
    config: Mapping[str, Any]
    seed: int
    rounds: Sequence[Mapping[str, Any]]  # RoundRecords
    clients: Sequence[Mapping[str, Any]]  # ClientRecords
    summary: Mapping[str, Any]
    run_dir: Path | None = None
    theta: Array | None = field(default=None, repr=False)  # the final global model, where it is at hand
    silos: Sequence[str] = ()  # their names

    @property
    def accuracy(self) -> float | None:
        """The score (`summary["metric"]`, where it is not accuracy) on the global test set, mean over the last ten rounds.

        None without such a set: `summary["deployed"]` is the mean of what silos' deployed models score on their own data.
        """
        return self.summary["accuracy"]

    @property
    def participation(self) -> float:
        """Mean over rounds and silos."""
        return self.summary["participation"]

    def row(self, label: str | None = None) -> dict[str, Any]:
        """One line for a table or for `--json`."""
        offer, rule = self.config["offer"]["kind"], self.config["participation"]["rule"]
        return {
            "method": label or self.config["mechanism"]["name"],
            "mechanism": self.config["mechanism"]["name"],
            "rule": rule,
            "offer": offer,
            "memory": self.config["memory"]["kind"],
            "seed": self.seed,
            **self.summary,
            "run_dir": None if self.run_dir is None else str(self.run_dir),
        }

    # In a notebook ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        better = self.summary.get("better_off")
        judged = "" if better is None else f", {percent(better)} % of silos better off than alone"
        return (
            f"RunResult({self.name!r}, seed {self.seed}: {len(self.rounds)} rounds, {self._scored()},"
            f" {percent(self.participation)} % stay in{judged})"
        )

    def _scored(self) -> str:
        metric, shared = self.summary.get("metric", "accuracy"), self.accuracy
        value = self.summary.get("deployed") if shared is None else shared
        whose = "" if shared is not None else "silos' own "
        return f"{whose}{metric} {scored(value, metric, unit=' %')}"

    def _repr_html_(self) -> str:
        """The same with a line for every silo; needs nothing from elsewhere."""
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in self._cells(k))}</tr>"
            for k in range(len(self._names))
        )
        head = "".join(
            f"<th>{word}</th>" for word in ("silo", "rounds in", "deploys", "alone", "gain", "at last", "why")
        )
        return f"<p>{escape(repr(self))}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    @property
    def _names(self) -> Sequence[str]:
        return self.silos or [f"silo-{k}" for k in range(len(self.clients[-1]["status"]))]

    def _cells(self, k: int) -> list[str]:
        metric, last = self.summary.get("metric", "accuracy"), self.clients[-1]
        deployed, alone = standing.each(self.clients) or (standing.last(self.clients, "test_deployed"), None)
        mine, without = (None if of is None or k >= len(of) else of[k] for of in (deployed, alone))
        said = [record["status"][k] for record in self.clients if k < len(record["status"])]
        asked = len(self.clients) - said.count(NOT_ASKED)
        why: str = last["reason"][k]
        return [
            self._names[k],
            f"{said.count(JOINED)} of {asked}",
            scored(mine, metric, unit=" %"),
            scored(without, metric, unit=" %"),
            points(standing.gain(mine, without), metric),
            last["status"][k],
            WHY.get(why, why),
        ]

    def to_frame(self) -> Any:
        """The rounds as a pandas DataFrame, a row each: `rounds` with a column for every number (`seconds.round`, ...)."""
        return _frame([_flat(record) for record in self.rounds], "rounds")

    def clients_frame(self) -> Any:
        """A pandas DataFrame with a row per round and silo, of what is one number or word for each."""
        return _frame([row for record in self.clients for row in self._rows(record)], "clients")

    def to_csv(self, folder: str | Path) -> list[Path]:
        """The same two tables as files, rounds.csv and clients.csv; needs nothing installed."""
        tables = {
            "rounds": list(self.rounds),
            "clients": [row for record in self.clients for row in self._rows(record)],
        }
        folder, written = Path(folder), []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, rows in tables.items():
                columns = list(dict.fromkeys(key for row in rows for key in row if not isinstance(row[key], Mapping)))
                with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, columns, extrasaction="ignore")
                    writer.writeheader()
                    writer.writerows({key: _inert(value) for key, value in row.items()} for row in rows)
                written.append(folder / f"{name}.csv")
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror}; choose another folder with -o") from None
        return written

    def _rows(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        n = len(record["status"])
        each = {
            key: values
            for key, values in record.items()
            if isinstance(values, Sequence) and not isinstance(values, str) and len(values) == n
            if not any(isinstance(value, Sequence | Mapping) and not isinstance(value, str) for value in values)
        }
        return [
            {"round": record["round"], "silo": name, **{key: values[k] for key, values in each.items()}}
            for k, name in enumerate(self._names[:n])
        ]

    def plot(self) -> Picture:
        """The shared model's score, or silos' own, and who stays in, over the rounds."""
        metric = self.summary.get("metric", "accuracy")
        if metric != "accuracy":
            series = {metric: [record["accuracy"] for record in self.rounds]}
            return lines(self._numbers, series, self.name, "", 1)
        series = {"accuracy": [record["accuracy"] for record in self.rounds]}
        series = series if any(value is not None for value in series["accuracy"]) else {}
        deployed = [_mean(record.get("test_deployed")) for record in self.clients]
        alone = [_mean(record.get("test_alone")) for record in self.clients]
        series |= {
            name: of for name, of in (("deployed", deployed), ("alone", alone)) if any(v is not None for v in of)
        }
        return lines(
            self._numbers, {**series, "stay in": [record["participation"] for record in self.rounds]}, self.name
        )

    def strip(self) -> Picture:
        """Who was in: a row per silo, a column per round."""
        return strip(self._numbers, [record["status"] for record in self.clients], self._names)

    def silo(self, which: int | str) -> Picture:
        """What one silo, by name or number, was offered and had, over the rounds."""
        names = list(self._names)
        k = names.index(which) if which in names else which
        if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < len(names):
            raise InputError(
                f"there is no silo {shown(which)}; there are {', '.join(names[:NAMED])}, or numbers from 0"
            )
        keys = {"offered": "offered_accuracy", "own": "own_accuracy", "shared": "global_accuracy"}
        keys |= {"deployed, untouched": "test_deployed", "alone, untouched": "test_alone"}
        series = {name: [_of(record.get(key), k) for record in self.clients] for name, key in keys.items()}
        metric = self.summary.get("metric", "accuracy")
        there = {name: values for name, values in series.items() if any(value is not None for value in values)}
        unit, scale = ("%", 100) if metric == "accuracy" else ("", 1)
        return lines(self._numbers, there, f"{names[k]}: {self.clients[-1]['reason'][k]}"[:90], unit, scale)

    @property
    def _numbers(self) -> list[int]:
        return [record["round"] for record in self.rounds]


NAMED = 10  # silos that a complaint names


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings inside as columns of their own."""
    parts = (
        {f"{key}.{k}": v for k, v in x.items()} if isinstance(x, Mapping) else {key: x} for key, x in record.items()
    )
    return {key: value for part in parts for key, value in part.items()}


def _of(values: Any, k: int) -> float | None:
    return None if values is None or k >= len(values) else values[k]


def _mean(values: Any) -> float | None:
    return None if values is None else mean([float("nan") if value is None else value for value in values])


def _inert(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: silos choose their names and reasons themselves."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _frame(rows: list[Any], what: str) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise InputError(
            f"a data frame needs pandas, which is not installed: pip install pandas; result.{what} has the same as a list"
        ) from None
    return pd.DataFrame(rows)


def _since(rounds: Sequence, clients: Sequence, silos: Sequence[str]) -> dict[str, Any]:
    return {**standing.summary(clients, silos), **standing.membership(rounds, clients, silos)}


def _unlike(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> str:
    """Where a summary cannot be that of these rounds, in a few words: an edited one may have a fitting seal."""
    for key, value in summary.items():
        if key in WORDS:
            fits = isinstance(value, str) or (key == "gain_worst_silo" and value is None)
        elif key == "left":
            fits = isinstance(value, Mapping)
        else:
            fits = value is None or isinstance(value, int | float)
        if not fits:
            return f"{key[:40]} of its summary is {str(value)[:40]!r}"
    if not {"accuracy", "participation", "seconds"} <= summary.keys() or None in (
        summary["participation"],
        summary["seconds"],
    ):
        return "its summary lacks figures"
    means = {"accuracy": rounds[-standing.LAST :], "participation": rounds}
    for key, those in means.items():
        told, found = summary[key], mean([float("nan") if line[key] is None else line[key] for line in those])
        if (told is None) != (found is None) or not math.isclose(told or 0, found or 0, rel_tol=1e-9, abs_tol=1e-12):
            return f"{key} of its summary is not that of its rounds"
    return ""


def load(path: str | Path) -> RunResult:
    """Read a run directory back. InputError where its records are not those that the run wrote."""
    path = files.place(path)
    state = None
    try:
        status = manifest.readable(files.read_json(path / manifest.STATUS), path)
        state = status.get("state")
        if why := manifest.complaint(path, status):
            raise InputError(manifest.damaged(path, state, why))
        config = tomllib.loads(files.read(path / manifest.CONFIG).decode())
        rounds: Sequence = list(Lines.of(path / manifest.ROUNDS, state == "finished"))
        clients: Sequence = Lines.of(path / manifest.CLIENTS, state == "finished")
        if state != "finished":  # it may have been stopped between the two
            whole = min(len(rounds), len(clients))
            rounds, clients = rounds[:whole], clients[:whole]
        believed = "seal" in status and len(clients) == len(rounds)
        numbers = list(range(1, len(rounds) + 1))
        if not believed and any(
            [record["round"] for record in columns(one, "round")] != numbers for one in (rounds, clients)
        ):
            raise InputError(manifest.damaged(path, state, "its lines are not those of rounds 1, 2, ..."))
        kept = status.get("summary")
        if kept is not None and not len(rounds) == len(clients) == kept.get("rounds", len(rounds)):
            there = min(len(rounds), len(clients))
            raise InputError(
                manifest.damaged(path, state, f"{there} of {str(kept.get('rounds'))[:20]} rounds are there")
            )
        if kept and rounds and (wrong := _unlike(kept, rounds)):
            raise InputError(manifest.damaged(path, state, wrong))
        if not rounds:
            raise InputError(f"{path} holds no finished round yet; wait for one, or run it again")
        silos = silos_of(path, len(clients[-1]["status"]) if clients else 0)
        # A run of before there were these figures gets them now.
        since = {} if kept and "left" in kept else _since(rounds, clients, silos)
        summary = {**since, **kept} if kept else summarise(rounds, clients, silos)
        result = RunResult(config["name"], config, config["seeds"][0], rounds, clients, summary, path, silos=silos)
        result.row()  # whatever a table needs is there
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        if state == "finished":
            raise InputError(manifest.damaged(path, state, " ".join(str(error).split()))) from None
        why = f"no {Path(error.filename).name}" if isinstance(error, FileNotFoundError) else str(error)
        raise InputError(f"{path} is not a run directory ({why}); give one that `feduca run` wrote") from None
    if manifest.unchecked(status):
        log.warning("%s %s", path, manifest.UNCHECKED)
    return result
