"""Sinks: where a run's records go besides its directory. TensorBoard and MLflow, imported only when asked for.

feduca run --track tensorboard --track mlflow
feduca.run(watch=Sinks([TensorBoard("logs")]))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from feduca.core.records import ClientRecord, RoundRecord
from feduca.errors import ConfigError, InputError

# What is tracked of a round, by group: scalars that make sense as curves.
SCALARS = {
    "model": ("accuracy", "loss"),
    "participation": ("participation", "joined", "satisfied", "smallest_cohort", "largest_staleness", "concession"),
    "program": (
        "slack",
        "gap",
        "jensen",
        "discrepancy",
        "discrepancy_bound",
        "discrepancy_bound_expected",
        "r2",
        "promise_kept",
    ),
    "traffic": ("bytes_down", "bytes_up"),
}


class Sink(Protocol):
    """Something that wants every finished round."""

    def on_round(self, record: RoundRecord, clients: ClientRecord) -> None: ...

    def close(self) -> None: ...


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Everything of a round that is defined, as (group/name, value)."""
    for group, names in SCALARS.items():
        for name in names:
            value = getattr(record, name)
            if value is not None:
                yield f"{group}/{name}", float(value)
    for name, seconds in record.seconds.items():
        yield f"seconds/{name}", float(seconds)


class Sinks:
    """Several sinks as one watcher for `feduca.run(watch=...)`; close it when the run is over."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def __call__(self, record: RoundRecord, clients: ClientRecord) -> None:
        for sink in self._sinks:
            sink.on_round(record, clients)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()


def make(names: Sequence[str], run: str, folder: str | Path, config: Mapping[str, Any]) -> Sinks:
    """The sinks of these names for one run: `run` names it, `folder` is where TensorBoard's files go."""
    made: list[Sink] = []
    for name in names:
        if name == "tensorboard":
            from feduca.report.sinks.tensorboard import TensorBoard

            made.append(TensorBoard(Path(folder) / "tensorboard" / run))
        elif name == "mlflow":
            from feduca.report.sinks.mlflow import MLflow

            made.append(MLflow(run, config))
        else:
            raise ConfigError(f"there is no tracker {name!r}: choose tensorboard or mlflow")
    return Sinks(made)


def missing(package: str) -> InputError:
    """The one line for a tracker whose package is not there."""
    return InputError(f'tracking needs {package}, which is not installed; pip install "feduca[tracking]"')
