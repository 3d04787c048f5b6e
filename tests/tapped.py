"""The wire between one silo and its server, read in the middle: TLS ends here and begins anew, every byte is kept."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from typing import Any

from feduca.flower.folder import ServerFolder


class Tapped:
    """Listens on 127.0.0.1 as the server would; `said` is all that the silo sent so far."""

    def __init__(self, server: ServerFolder) -> None:
        self._mine = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._mine.load_cert_chain(server.path / "server.crt", server.path / "server.key")
        self._theirs = ssl.create_default_context(cafile=str(server.path / "ca.crt"))
        self._server: ServerFolder = server
        self._pieces: list[bytes] = []
        self._open: list[Any] = []  # both ends of every connection there was
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def said(self) -> bytes:
        return b"".join(self._pieces)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def _run(self) -> None:
        serving = asyncio.start_server(self._serve, sock=self._socket, ssl=self._mine)
        server = self._loop.run_until_complete(serving)
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in self._open:
            end.transport.abort()
        await asyncio.sleep(0.5)  # until they are gone

    async def _serve(self, reader: Any, writer: Any) -> None:
        host, port = self._server.local
        with contextlib.suppress(OSError):
            answers, front = await asyncio.open_connection(host, port, ssl=self._theirs, server_hostname=host)
            self._open += [writer, front]
            await asyncio.gather(self._pump(reader, front, True), self._pump(answers, writer, False))

    async def _pump(self, source: Any, to: Any, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(65536):
                if keep:
                    self._pieces.append(piece)
                to.write(piece)
                await to.drain()
        to.close()
