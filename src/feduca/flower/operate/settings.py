"""What `server.toml` says about watching: `metrics`, `overdue` and the table `[alert]`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from feduca.errors import ConfigError, shown

LEFT, ABSENT, FAILED, DIED, BACK = "silo-left", "silo-absent", "round-failed", "app-died", "rollback"
WAITS = "run-waits"
EVENTS = (LEFT, ABSENT, FAILED, DIED, BACK, WAITS)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Alert:
    """Whom to tell, and of what."""

    command: tuple[str, ...] = ()
    webhook: str = ""
    events: tuple[str, ...] = EVENTS
    absent_rounds: int = 3
    timeout: float = 10.0


@dataclass(frozen=True)
class Operate:
    metrics: tuple[str, int] | None = None  # where /metrics and /health are; nowhere by default
    overdue: float = 0.0  # seconds after which a round is overdue; 0 = when all that it may wait for is over
    alert: Alert = field(default_factory=Alert)


def read(tree: Mapping[str, Any], path: Path) -> Operate:
    """From what `server.toml` holds; ConfigError where it makes no sense."""
    return Operate(_address(tree.get("metrics", ""), path), _overdue(tree, path), _alert(tree.get("alert", {}), path))


def _address(value: Any, path: Path) -> tuple[str, int] | None:
    if value == "":
        return None
    host, _, port = str(value).rpartition(":")
    if not isinstance(value, str) or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f'{path}: metrics is {shown(value)}; write host:port, for instance "127.0.0.1:9464", or ""')
    return host.strip("[]"), int(port)


def _overdue(tree: Mapping[str, Any], path: Path) -> float:
    return _number(tree, "overdue", 0.0, 0.0, f"{path}: overdue", "seconds, 0 for the longest a round may take")


def _alert(tree: Any, path: Path) -> Alert:
    where = f"{path}: [alert]"
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where} is {shown(tree)}; it is a table")
    known = ("command", "webhook", "events", "absent-rounds", "timeout")
    if strange := [name for name in tree if name not in known]:
        raise ConfigError(f"{where} has an entry {shown(strange[0])} that is not known; it takes {', '.join(known)}")
    command, webhook = tree.get("command", ""), tree.get("webhook", "")
    try:
        words = tuple(shlex.split(command)) if isinstance(command, str) and "\0" not in command else None
    except ValueError:
        words = None
    if words is None:
        raise ConfigError(f"{where} command is {shown(command)}; write a program and its arguments")
    events = tree.get("events", list(EVENTS))
    if not isinstance(events, list) or any(one not in EVENTS for one in events):
        raise ConfigError(f"{where} events is {shown(events)}; it is a list of some of {', '.join(EVENTS)}")
    rounds = _number(tree, "absent-rounds", 3, 1, f"{where} absent-rounds", "a number of rounds, from 1 on")
    if rounds != int(rounds):
        raise ConfigError(f"{where} absent-rounds is {shown(rounds)}; it is a number of rounds, from 1 on")
    timeout = _number(tree, "timeout", 10.0, 0.1, f"{where} timeout", "seconds, from 0.1 on")
    return Alert(words, _webhook(webhook, where), tuple(events), int(rounds), timeout)


def _webhook(value: Any, where: str) -> str:
    """https, or http to this very machine: what is said about silos is not for others on the way."""
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        good = parts is not None and (
            value == ""
            or (parts.scheme == "https" and bool(parts.hostname) and value.isprintable())
            or (parts.scheme == "http" and parts.hostname in LOOPBACK and value.isprintable())
        )
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{where} webhook is {shown(value)}; write an https:// address (http:// on 127.0.0.1 alone)")
    return value


def _number(tree: Mapping[str, Any], name: str, default: float, least: float, where: str, what: str) -> float:
    value = tree.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e9:
        raise ConfigError(f"{where} is {shown(value)}; it is {what}")
    return float(value)
