"""A small web server over run directories: the report's page and the data it polls for. Standard library only.

It reads files and changes none. Bound to this machine it answers only requests addressed to this machine (so that a web page
elsewhere cannot reach it through a name of its own); bound to any other address it wants a token, which is part of the address
it prints.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from stat import S_ISREG
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from feduca.errors import InputError
from feduca.report.cleaning import text
from feduca.report.names import labels
from feduca.report.page import filled, packed, page_data, part, policy, render, require_report
from feduca.report.payload import MAX_RUNS
from feduca.report.reading import Run, RunReader, find_runs, glance

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SPARK = 60  # points of a line in the list
AT_ONCE = 32  # connections that are answered, and as many that wait
POLICY = re.compile(rb'http-equiv="Content-Security-Policy" content="([^"]+)"')  # of a page; sent as a header, too


class _Server(ThreadingHTTPServer):
    """A thread per connection, up to a bound; who is one too many is hung up on and asks again."""

    daemon_threads = True
    request_queue_size = AT_ONCE

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # a tab that was closed is no error
            super().handle_error(request, client_address)


class Source:
    """The runs behind one page: read again when their files have grown, with a version that changes when they have."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._readers: list[RunReader] = []
        self._start = secrets.token_hex(4)
        self._version = 0
        self._body = b""
        self._lock = threading.Lock()

    def current(self, seen: str) -> tuple[str, bytes | None]:
        """The version there is now, and its data unless the asker has `seen` them."""
        with self._lock:
            try:
                changed = not self._readers
                self._readers = self._readers or [RunReader(path) for path in self.paths]
                for reader in self._readers:
                    changed |= reader.refresh()
                if changed:
                    self._set(page_data([reader.run for reader in self._readers]))
            except (InputError, OSError) as error:  # a file may vanish between a look and the next
                self._readers = []
                self._set({"error": str(error)})
            version = f"{self._start}-{self._version}"
            return version, None if seen == version else self._body

    def _set(self, data: dict[str, Any]) -> None:
        body = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
        if body != self._body:
            self._body = body
            self._version += 1


class Listening:
    """Answers requests at one address, until closed. What is at which path, its heirs say."""

    def __init__(self, host: str, port: int) -> None:
        self.token = None if host in LOOPBACK else secrets.token_urlsafe(16)
        self._host = host
        try:
            self._server = _Server(host, port, _handler(self))
        except (OSError, OverflowError) as error:
            raise InputError(f"cannot listen on {host}:{port} ({error}); choose another --port or --host") from None
        self.port = self._server.server_address[1]

    @property
    def address(self) -> str:
        """What to open, token included."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/" + (f"?token={quote(self.token)}" if self.token else "")

    def answer(self, path: str, seen: str) -> tuple[str, str, bytes | None] | None:
        """(content type, version, body); a body of None means that nothing has changed since `seen`."""
        raise NotImplementedError

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """After `serve` has ended."""
        self._server.server_close()

    def close(self) -> None:
        """From another thread than the one that serves."""
        self._server.shutdown()
        self._server.server_close()


class Dashboard(Listening):
    """Serves a run directory, or a folder of them, until closed."""

    def __init__(self, path: str | Path, host: str = "127.0.0.1", port: int = 8765) -> None:
        require_report()
        self.root = Path(path)
        if not self.root.is_dir():
            raise InputError(f"there is no folder {path}; give a run directory or a folder of runs")
        self.single = (self.root / "status.json").is_file()
        self._sources: dict[str, Source] = {}
        self._rows: dict[str, tuple[Any, dict[str, Any]]] = {}  # of the list, with what their files were
        self._runs_read: dict[str, Run] = {}  # ... and the runs behind them
        self._names: tuple[Any, list[str]] = ((), [])  # what they are called together, and of which configurations
        super().__init__(host, port)

    # What is at which path: a content type and a body, or None. Names are looked up among the runs found, never joined to a path.

    def answer(self, path: str, seen: str) -> tuple[str, str, bytes | None] | None:
        if not path.endswith(("/", ".json")):
            return None  # pages fetch their data from beside themselves
        parts = [unquote(part) for part in path.strip("/").split("/")]
        runs = {} if self.single else self._runs()
        if parts == [""]:
            return self._page() if self.single else ("text/html", "", _list_page())
        if parts == ["data.json"] and self.single:
            return self._data("", [self.root], seen)
        if parts == ["list.json"] and not self.single:
            return "application/json", "", json.dumps(self._list(runs)).encode()
        if len(parts) in (2, 3) and parts[0] == "run" and parts[1] in runs:
            if len(parts) == 2:
                return self._page("../../")
            return self._data(parts[1], [runs[parts[1]]], seen) if parts[2] == "data.json" else None
        if parts[0] == "together" and 0 < len(runs) <= MAX_RUNS:
            if parts[1:] == []:
                return self._page("../")
            return self._data("*", list(runs.values()), seen) if parts[1:] == ["data.json"] else None
        return None

    def _runs(self) -> dict[str, Path]:
        return {text(path.relative_to(self.root).as_posix()): path for path in find_runs(self.root)}

    def _page(self, back: str = "") -> tuple[str, str, bytes]:
        """The page of one run or several, which fetches its data; `back` leads to the list it was chosen from."""
        return "text/html", "", render({"live": "data.json", **({"back": back} if back else {})}).encode()

    def _data(self, key: str, paths: Sequence[Path], seen: str) -> tuple[str, str, bytes | None]:
        source = self._sources.get(key)
        if source is None or source.paths != list(paths):
            source = self._sources[key] = Source(paths)
        version, body = source.current(seen)
        return "application/json", version, body

    def _list(self, runs: dict[str, Path]) -> dict[str, Any]:
        rows = self._told([self._row(key, path) for key, path in runs.items()])
        return {"runs": rows, "together": 1 < len(rows) <= MAX_RUNS, "folder": text(self.root.resolve().name)}

    def _told(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows with what tells runs of one method apart. Names change only with the configurations."""
        shown = [row for row in rows if "method" in row]
        runs = [self._runs_read[row["key"]] for row in shown]
        asked = tuple((run.path, run.config_text) for run in runs)
        known, names = self._names  # once: other threads may change it
        if known != asked:
            names = labels(runs)
            self._names = asked, names
        differs = (name.partition(row["method"])[2].lstrip(", ") for name, row in zip(names, shown))
        told = {row["key"]: {"differs": more} for row, more in zip(shown, differs)}
        return [row | told.get(row["key"], {}) for row in rows]

    def _row(self, key: str, path: Path) -> dict[str, Any]:
        """A run in a list. Files are read again when they have changed, or while somebody may be writing them."""
        try:
            version = tuple(_plain_files(path))
            known, row = self._rows.get(key, (None, {}))
            if known != version or row["state"] == "running":
                self._runs_read[key] = run = glance(path)
                row = _row(key, run)
                self._rows[key] = (version, row)
            return row | {"age": round(max(0.0, time.time() - max(at for _, at, _ in version) / 1e9))}
        except (InputError, OSError, ValueError) as error:
            return {"key": key, "error": text(error), "state": "unreadable"}


def _plain_files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Names, times and sizes; a file that vanishes while we look, as a part does when it is whole, is left out."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat(follow_symlinks=False)
                if S_ISREG(stat.st_mode):
                    yield entry.name, stat.st_mtime_ns, stat.st_size


def _row(key: str, run: Run) -> dict[str, Any]:
    last = run.rounds[-1] if run.rounds else None
    every = max(1, len(run.rounds) // SPARK)
    shown = [line.numbers for line in run.rounds[-1::-every][::-1]]
    return {
        "key": key,
        "name": run.name,
        "method": labels([run])[0],
        "seed": run.seed,
        "state": run.state_shown,
        "score": run.score,
        "done": 0 if last is None else last.round,
        "planned": run.planned,
        "accuracy": None if last is None else last.numbers["accuracy"],
        "participation": None if last is None else last.numbers["participation"],
        "rounds": len(run.rounds),
        "scores": [line["accuracy"] for line in shown],
        "shares": [line["participation"] for line in shown],
    }


def _list_page() -> bytes:
    script = packed("dom.js", "live.js", "list.js")
    return filled("list.html", {"STYLE": part("page.css"), "SCRIPT": script}, policy("'self'", script)).encode()


def _handler(dashboard: Listening) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "feduca", ""
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            try:
                where = urlsplit(self.path)
            except ValueError:  # an address that is none, such as http://[::1
                return self._send(400, "text/plain", b"this is no address\n")
            asked = parse_qs(where.query)
            if not self._allowed(asked.get("token", [""])[0]):
                return self._send(403, "text/plain", b"open the address that was printed when this began\n")
            found = dashboard.answer(where.path, asked.get("version", [""])[0])
            if found is None:
                return self._send(404, "text/plain", b"there is nothing here\n")
            kind, version, body = found
            return self._send(204 if body is None else 200, kind, body or b"", version)

        def _allowed(self, token: str) -> bool:
            if dashboard.token is not None:
                return hmac.compare_digest(token.encode(), dashboard.token.encode())
            name = (self.headers.get("Host") or "").rsplit(":", 1)[0].strip("[]")
            return name in LOOPBACK

        def _send(self, code: int, kind: str, body: bytes, version: str = "") -> None:
            self.send_response(code)
            if code != 204:
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
            allowed = POLICY.search(body) if kind == "text/html" else None
            for name, value in (
                ("X-Version", version),
                ("Content-Security-Policy", allowed.group(1).decode() if allowed else "default-src 'none'"),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("Referrer-Policy", "no-referrer"),
                ("X-Frame-Options", "DENY"),
            ):
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler


def watch(path: str | Path, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted; `say` gets the address to open."""
    dashboard = Dashboard(path, host, port)
    say(dashboard.address)
    try:
        dashboard.serve()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        dashboard.stop()
