"""The page of a silo's operator: served on this machine alone, drawn from this silo's own disk (view.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from feduca.errors import FeducaError
from feduca.flower import view
from feduca.flower.folder import read_silo
from feduca.report.cleaning import text
from feduca.report.dashboard.server import Listening
from feduca.report.page import filled, packed, part, policy


class Board(Listening):
    """What `feduca silo watch` serves, until closed."""

    def __init__(self, folder: Path, port: int = 8766) -> None:
        self.folder = read_silo(folder).path
        super().__init__("127.0.0.1", port)

    def answer(self, path: str, seen: str) -> tuple[str, str, bytes | None] | None:
        if path == "/":
            script = packed("dom.js", "live.js", "operator.js")
            page = filled("operator.html", {"STYLE": part("page.css"), "SCRIPT": script}, policy("'self'", script))
            return "text/html", "", page.encode()
        if path == "/silo.json":
            return "application/json", "", json.dumps(self._data(), allow_nan=False).encode()
        return None

    def _data(self) -> dict[str, object]:
        try:
            return view.seen(self.folder)
        except (FeducaError, OSError) as error:  # half a copy of a folder, a disk that is away
            return {"error": text(str(error))}


def watch(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted; `say` gets the address to open."""
    board = Board(folder, port)
    say(board.address)
    try:
        board.serve()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        board.stop()
