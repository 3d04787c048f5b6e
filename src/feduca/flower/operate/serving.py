"""/metrics and /health, over HTTP, on this machine's loopback unless `server.toml` says otherwise. Reads alone."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

log = logging.getLogger("feduca")

Answer = tuple[int, str, bytes]  # status, content type, body
AT_ONCE = 8  # connections; who is one too many asks again
SECONDS = 10.0  # for a request to arrive


class Served:
    """Answers GET on a few paths until closed."""

    def __init__(self, address: tuple[str, int], paths: Mapping[str, Callable[[], Answer]]) -> None:
        free = threading.BoundedSemaphore(AT_ONCE)

        class Handler(BaseHTTPRequestHandler):
            timeout = SECONDS
            server_version, sys_version = "feduca", ""

            def do_GET(self) -> None:
                found = paths.get(self.path.partition("?")[0])
                status, kind, body = (404, "text/plain", b"/metrics or /health\n") if found is None else found()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.send_header("cache-control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return None

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

            def process_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
                if free.acquire(blocking=False):
                    super().process_request(request, client_address)
                else:
                    self.shutdown_request(request)

            def process_request_thread(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    free.release()

            def handle_error(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
                log.debug("a request of %s was not answered", client_address)

        self._server = Server(address, Handler)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
