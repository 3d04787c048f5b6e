"""Rounds as MLflow metrics and the recipe as its parameters, wherever MLflow's own settings (MLFLOW_TRACKING_URI) point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feduca.core.records import ClientRecord, RoundRecord
from feduca.report.sinks import missing, scalars


class MLflow:
    """One MLflow run named `run`, with the recipe's entries as parameters."""

    def __init__(self, run: str, config: Mapping[str, Any]) -> None:
        try:
            from mlflow.tracking import MlflowClient  # type: ignore[import-not-found]
        except ImportError:
            raise missing("mlflow") from None
        self._client = MlflowClient()
        name = "feduca"
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        self._run = self._client.create_run(experiment, run_name=run).info.run_id
        for key, value in _flat(config):
            self._client.log_param(self._run, key, str(value)[:500])

    def on_round(self, record: RoundRecord, clients: ClientRecord) -> None:
        for name, value in scalars(record):
            self._client.log_metric(self._run, name, value, step=record.round)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in tree.items():
        out += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return out
