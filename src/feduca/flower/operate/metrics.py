"""What a run has come to, as Prometheus reads it. Figures of the last look at the disk; a scrape costs the run nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from feduca._version import __version__
from feduca.flower.operate.seen import STATUSES, Seen, Watched
from feduca.report.cleaning import number
from feduca.types import DECLINED

if TYPE_CHECKING:
    from prometheus_client import Metric


def exposition(watched: Watched, healthy: bool, failed_alerts: int) -> bytes:
    """All of it, in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Now:
        def collect(self) -> Iterator[Metric]:
            yield from _server(watched, healthy, failed_alerts)
            if watched.run is not None:
                yield from _run(watched.run)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Now())  # type: ignore[arg-type]
    return generate_latest(registry)


def _server(watched: Watched, healthy: bool, failed_alerts: int) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily as Count
    from prometheus_client.core import GaugeMetricFamily as Gauge

    about = Gauge("feduca_info", "The version that runs here.", labels=["version"])
    about.add_metric([__version__], 1)
    yield about
    yield Gauge("feduca_healthy", "1 where /health answers 200.", healthy)
    yield Gauge("feduca_app_running", "1 while the server app's process is there.", watched.app_alive)
    yield Gauge("feduca_round_overdue_seconds", "By how much the round that goes on is overdue.", watched.overdue())
    yield Count("feduca_alert_failures", "Alerts that could not be told.", failed_alerts)


def _run(run: Seen) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily as Count
    from prometheus_client.core import GaugeMetricFamily as Gauge

    about = Gauge("feduca_run", "The run, with its state.", labels=["run", "state"])
    about.add_metric([run.name, run.state], 1)
    yield about
    yield Count("feduca_rounds", "Finished rounds of the run; falls when it is rolled back.", run.round)
    yield Gauge("feduca_rounds_planned", "Rounds the recipe asks for.", run.planned)
    now = Counter(run.status)
    silos = Gauge("feduca_silos", "Silos in the last round, by what they did.", labels=["status"])
    ever = Count("feduca_silo_rounds", "Answers of all rounds, by what silos did.", labels=["status"])
    for status in STATUSES:
        silos.add_metric([status], now[status])
        ever.add_metric([status], run.totals[status])
    yield silos
    yield ever
    declined = Gauge("feduca_silos_declined", "Silos that declined in the last round, by reason.", labels=["reason"])
    for reason, count in sorted(Counter(w for s, w in zip(run.status, run.why) if s == DECLINED).items()):
        declined.add_metric([reason], count)
    yield declined
    each = Gauge("feduca_silo", "1 for what each silo did in the last round.", labels=["silo", "status"])
    yield Gauge("feduca_waiting", "1 while every silo declines by its policy, and the run waits.", bool(run.waits))
    silent = Gauge("feduca_silo_absent_rounds", "Rounds in a row without an answer.", labels=["silo"])
    for k, (status, rounds) in enumerate(zip(run.status, run.silent)):
        each.add_metric([run.name_of(k), status], 1)
        silent.add_metric([run.name_of(k)], rounds)
    yield each
    yield silent
    seconds = Count("feduca_phase_seconds", "Seconds of all rounds, by phase.", labels=["phase"])
    for phase, spent in sorted(run.seconds.items()):
        seconds.add_metric([phase], spent)
    yield seconds
    sent = Count("feduca_model_bytes", "Bytes of messages, to (down) and from (up) silos.", labels=["direction"])
    for way in ("down", "up"):
        sent.add_metric([way], run.totals[f"bytes_{way}"])
    yield sent
    if run.round:
        yield Gauge("feduca_last_round_timestamp_seconds", "When the last round was finished.", run.changed)
    for name in ("accuracy", "loss", "participation"):
        if (value := number(run.last.get(name))) is not None:
            yield Gauge(f"feduca_{name}", f"{name} of the last round.", value)
