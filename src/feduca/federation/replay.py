"""Recorded reports: keep what clients answered, on disk if you like, and play it back to the same loop.

Useful to try another mechanism's arithmetic on real answers, to pin a round in a test, and to look into a run afterwards. Arrays
go into safetensors, the rest into its metadata; nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feduca.core.messages import columns, measurements
from feduca.errors import InputError, RunError
from feduca.types import Announcements, Array, Federation, Reports


class Recording:
    """A federation that passes everything on to another and keeps the reports."""

    def __init__(self, federation: Federation) -> None:
        self.silos = federation.silos
        self.reports: list[Reports] = []
        self._federation = federation

    def exchange(self, announcements: Announcements) -> Reports:
        reports = self._federation.exchange(announcements)
        self.reports.append(reports)
        return reports

    def snapshot(self) -> dict[str, Array]:
        return self._federation.snapshot()

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self._federation.restore(arrays)


class Replay:
    """A federation of recorded answers, by round."""

    def __init__(self, silos: Sequence[str], reports: Sequence[Reports]) -> None:
        self.silos = tuple(silos)
        self._by_round = {report.round: report for report in reports}

    def exchange(self, announcements: Announcements) -> Reports:
        try:
            return self._by_round[announcements.round]
        except KeyError:
            rounds = sorted(self._by_round)
            seen = f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "no rounds"
            raise RunError(f"the recording holds {seen}, not round {announcements.round}; record more rounds") from None

    def snapshot(self) -> dict[str, Array]:
        return {}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        return None


def pack(reports: Reports) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reports as named arrays and JSON-ready words."""
    arrays = {
        "clients": reports.clients,
        "theta": _host(reports.theta),
        "gamma": reports.gamma,
        "zeta": reports.zeta,
        **columns(reports.measurements),
    }
    words = {"round": reports.round, "status": list(reports.status), "reason": list(reports.reason)}
    return {name: np.ascontiguousarray(value) for name, value in arrays.items()}, words


def unpack(arrays: Mapping[str, np.ndarray], words: Mapping[str, Any]) -> Reports:
    """The inverse of `pack`."""
    rest = dict(arrays)
    head = {name: rest.pop(name) for name in ("clients", "theta", "gamma", "zeta")}
    return Reports(
        round=words["round"],
        status=tuple(words["status"]),
        reason=tuple(words["reason"]),
        measurements=measurements(rest),
        released=None,
        **head,
    )


def save(reports: Reports, path: Path) -> None:
    """Write one round's reports to a safetensors file."""
    from safetensors.numpy import save_file

    arrays, words = pack(reports)
    save_file(arrays, str(path), metadata={"feduca": json.dumps(words)})


def load(path: Path) -> Reports:
    """Read what `save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            words = json.loads((file.metadata() or {})["feduca"])
            return unpack({name: file.get_tensor(name) for name in file.keys()}, words)  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        raise InputError(f"{path} is not a recording of reports ({error}); record it anew") from None


def _host(x: Array) -> np.ndarray:
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
