"""The wire between one silo and its server, read in the middle: TLS ends here and begins anew, every byte is kept."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

from feduca.flower.folder import ServerFolder


class Tapped:
    """Listens on 127.0.0.1 as the server would; `said` is all that the silo sent so far."""

    def __init__(self, server: ServerFolder) -> None:
        self._mine = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._mine.load_cert_chain(server.path / "server.crt", server.path / "server.key")
        self._theirs = ssl.create_default_context(cafile=str(server.path / "ca.crt"))
        self._server, self._pieces, self._open = server, [], True
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def said(self) -> bytes:
        return b"".join(self._pieces)

    def close(self) -> None:
        self._open = False
        self._socket.close()

    def _accept(self) -> None:
        while self._open:
            with contextlib.suppress(OSError):
                plain, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            silo = self._mine.wrap_socket(plain, server_side=True)
            host = self._server.local
            front = self._theirs.wrap_socket(socket.create_connection(host), server_hostname=host[0])
            threading.Thread(target=self._pump, args=(front, silo, False), daemon=True).start()
            self._pump(silo, front, True)

    def _pump(self, source: ssl.SSLSocket, to: ssl.SSLSocket, keep: bool) -> None:
        with contextlib.suppress(OSError, ValueError), source, to:
            while piece := source.recv(65536):
                if keep:
                    self._pieces.append(piece)
                to.sendall(piece)
