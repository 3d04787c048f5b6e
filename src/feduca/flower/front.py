"""The one door to the outside: a TLS front before the SuperLink, which itself listens on this machine alone.

Flower serves its Fleet, Control and Runtime interfaces on one port, and only the first asks who is there: whoever reaches the
other two runs code on the server and on every silo. The front passes the Fleet calls a SuperNode needs, from keys in `keys/`,
each signature once, and answers 404 or 401 to everything else before its body is read, and closes. A key that is taken away is
refused from the next request on. Who brings no whole request in `HEADERS_S` seconds is cut off.

    python -m feduca.flower.front SERVER_FOLDER

starts the SuperLink and the front, and ends both together. `deploy.start_superlink` does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import logging
import re
import ssl
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feduca.flower import control
from feduca.flower.failures import numberless
from feduca.flower.folder import ServerFolder, read_server
from feduca.flower.keys import Keys
from feduca.flower.operate import log as events
from feduca.flower.processes import Process, environment, leashed, listening

log = logging.getLogger("feduca")

PREFIX = "/v1/fleet/"
CALLS = {  # not register-node, unregister-node: who belongs is the server's to say
    *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages"),
    *("get-run", "get-fab", "push-object", "pull-object", "confirm-message-received"),
}
LONGEST, LONGEST_OBJECT = 16 * 2**20, 2**31  # bytes of a call; of push-object, in which models travel
TOLD = {
    "content-type",
    "content-length",
    "accept",
    "accept-encoding",
    "user-agent",
}  # and flwr-*: nothing else is passed on
HOP = {"host", "connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "date", "server"}
HEADERS_S = 30.0  # seconds for a request's headers to arrive
CHECKED = "/v1/control/list-nodes"  # what `deploy check` asks, to see it refused ...
CHECKER = "feduca-check"  # ... and how it calls itself
AGAIN_S, MOST = 600.0, 200  # seconds until the same refusal is noted again; different ones noted meanwhile


class Door:
    """Who may pass. It remembers the signatures of the last minutes, for none is good twice."""

    def __init__(self, keys: Keys) -> None:
        from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

        self._keys = keys
        self._early, self._late = SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE  # as the SuperLink
        self._spent: dict[tuple[bytes, int], float] = {}  # (key, the signature's r): until when it is remembered
        self._sweep = 0.0
        self._ever: dict[bytes, str] = {}  # every key that was once in `keys/`, and whose

    def who(self, headers: Mapping[str, str]) -> str:
        """The key that a request shows, as `ssh-keygen -lf key.pub` names it, and whose it was if it is no longer."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key

        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            line = bytes_to_public_key(key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
            return ""
        seen = b64encode(hashlib.sha256(b64decode(line.split()[1])).digest()).decode().rstrip("=")
        name = "" if key in self._keys.names() else self._ever.get(key)
        return f" (SHA256:{seen}{f', until lately the key of {name}' if name else ''})"

    def refuses(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and reason where a request may not pass; None where it may."""
        if method != "POST" or not path.startswith(PREFIX) or path.removeprefix(PREFIX) not in CALLS:
            return 404, "no call of a SuperNode"
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            signed = headers[TIMESTAMP_HEADER]
            age = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(signed)).total_seconds()
        except (KeyError, ValueError, TypeError):
            return 401, "not signed"
        return self._judge(key, signature, signed, age) or _too_long(path, headers)

    def _judge(self, key: bytes, signature: bytes, signed: str, age: float) -> tuple[int, str] | None:
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        names = self._keys.names()
        self._ever |= names
        if (name := names.get(key)) is None:
            return 401, "an unknown key"
        if not verify_signature(bytes_to_public_key(key), signed.encode(), signature):
            return 401, f"a wrong signature with the key of {name}"
        if not -self._early < age < self._late:
            word = "behind" if age > 0 else "ahead"
            return 401, f"the clock of {name} is {abs(age):.0f} s {word}; set it (NTP)"
        now = time.monotonic()
        if now > self._sweep:
            self._spent = {mark: until for mark, until in self._spent.items() if until > now}
            self._sweep = now + 30
        mark = key, decode_dss_signature(signature)[0]  # s alone can be turned into n - s by anybody
        if mark in self._spent:
            return 401, f"a request of {name} for the second time"
        self._spent[mark] = now + self._late + self._early
        return None


def _too_long(path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
    """A call says beforehand how long it is: then it cannot be two, and does not fill the SuperLink's memory."""
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not re.fullmatch("[0-9]{1,12}", length):
        return 411, "its length is not said"
    most = LONGEST_OBJECT if path.endswith("/push-object") else LONGEST
    return (413, f"{length} bytes, at most {most} are read") if int(length) > most else None


class Seldom:
    """Whether something is to be noted: the same thing once in a while, and not more than so many different ones."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, ...], float] = {}

    def __call__(self, *what: str) -> bool:
        now = time.monotonic()
        self._until = {one: until for one, until in self._until.items() if until > now}
        if what in self._until or len(self._until) >= MOST:
            return False
        self._until[what] = now + AGAIN_S
        return True


def tell_of_handshakes(noted: Seldom) -> None:
    """From now on note who breaks off because it does not believe our certificate: asyncio itself drops that without a word."""
    from asyncio import sslproto

    plain = sslproto.SSLProtocol
    assert callable(plain._fatal_error)  # type: ignore[attr-defined]

    class Told(plain):  # type: ignore[misc, valid-type]
        def _fatal_error(self, exc: BaseException, message: str = "") -> None:
            reason = str(getattr(exc, "reason", "") or "")
            peer = self._transport.get_extra_info("peername") if self._transport else None
            if isinstance(exc, ssl.SSLError) and "ALERT" in reason and peer and noted(peer[0], reason):
                words = (
                    "%s was turned away by itself: it does not believe this server's certificate (%s); it has another"
                    " authority's ca.crt, or another address in silo.toml than the certificate's"
                )
                log.warning(words, peer[0], reason, extra={"event": "turned-away"})
            super()._fatal_error(exc, message)

    sslproto.SSLProtocol = Told  # type: ignore[misc]


def speaks_for_itself(body: bytes) -> bool:
    """Whether a push-messages call brings answers of the node that signed it alone (Flower checks the sender it names apart)."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from google.protobuf.message import DecodeError

    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    return all(message.metadata.src_node_id == request.node.node_id for message in request.messages_list)


def application(door: Door, inside: str, authority: Path, noted: Seldom) -> Any:
    """The front as an ASGI application; `inside` is where the SuperLink listens."""
    import httpx
    from starlette.background import BackgroundTask
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import request_response

    client = httpx.AsyncClient(
        base_url=f"https://{inside}",
        verify=ssl.create_default_context(cafile=str(authority)),
        timeout=httpx.Timeout(300.0, connect=10.0),
        # Idle connections are let go before the SuperLink closes them (after 5 s): a request on a closed one would be lost.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=2.0),
        trust_env=False,
    )

    async def pass_on(request: Request) -> Response:
        path = request.url.path
        if (refusal := door.refuses(request.method, path, request.headers)) is not None:
            status, why = refusal
            peer = request.client.host if request.client else "somebody"
            if path == CHECKED and request.headers.get("user-agent") == CHECKER:
                if noted(peer, CHECKER):
                    log.info("`feduca deploy check` looked, from %s", peer, extra={"event": "checked"})
            elif noted(peer, numberless(why), who := door.who(request.headers)):
                words = request.method, path[:80], peer, why, who
                event = "turned-away" if status == 401 else "request-refused"
                log.warning("refused %s %r from %s: %s%s", *words, extra={"event": event})
            if status == 401 and path.endswith(
                "/activate-node"
            ):  # Flower shows it where a SuperNode starts, and ends it
                say = why if "clock" in why else "the server does not know this silo's key"
                return JSONResponse({"code": status, "detail": say}, 400, closing)
            return Response(status_code=status, headers=closing)
        # Each header once, as the door read it.
        headers = {name: request.headers[name] for name in request.headers if name in TOLD or name.startswith("flwr-")}
        try:
            content = request.stream()
            if path.endswith("/push-messages"):
                content = await request.body()
                if not speaks_for_itself(content):
                    log.warning("refused an answer in another node's name", extra={"event": "request-refused"})
                    return Response(status_code=403, headers=closing)
            answer = await client.send(
                client.build_request("POST", path, headers=headers, content=content), stream=True
            )
        except ClientDisconnect:
            return Response(status_code=400)
        except httpx.HTTPError as error:
            words = path, type(error).__name__
            log.warning("the SuperLink did not answer %s (%s)", *words, extra={"event": "superlink-silent"})
            return Response(status_code=503)
        passed = {name: value for name, value in answer.headers.items() if name not in HOP}
        return StreamingResponse(
            answer.aiter_raw(), answer.status_code, passed, background=BackgroundTask(answer.aclose)
        )

    closing = {"connection": "close"}
    return request_response(pass_on)  # whatever the path and the method: the door alone decides


def protocol() -> type:
    """uvicorn's plainest HTTP, which bounds the headers' length; a connection that brings no request in time is closed."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Brisk(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._look(self)

        def _look(self, before: object) -> None:
            if self.transport.is_closing():
                return
            if self.cycle is before and self.conn.their_state is h11.IDLE:  # no request has begun since the last look
                self.transport.close()
            else:
                self.loop.call_later(HEADERS_S, self._look, self.cycle)

    return Brisk


def superlink(server: ServerFolder) -> Process:
    """Flower's own program: TLS, authenticated silos, its state on disk, on this machine's loopback only."""
    command = [
        *(sys.executable, "-m", "feduca.flower.launch", "superlink"),
        *("--host", "127.0.0.1", "--port", str(server.control)),
        *("--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key", "--ssl-ca-certfile", "ca.crt"),
        "--enable-supernode-auth",
        *("--database", "superlink.db"),
        "--disable-runtime-dependency-installation",  # every machine has feduca installed; nothing is fetched
    ]
    return Process(command, env=environment(server.path / "flwr"), cwd=server.path, log_file=None)


async def _serve(server: ServerFolder) -> int:
    import uvicorn

    inner = superlink(server)
    try:
        deadline = time.monotonic() + 300
        while not listening("127.0.0.1", server.control):
            if not inner.running() or time.monotonic() > deadline:
                log.error("the SuperLink does not start; see above")
                return 1
            await asyncio.sleep(0.1)
        control.settle(server)  # before a silo can ask: who is not registered yet is sent away and loses time
        noted, keys = Seldom(), Keys(server.path / "keys")
        tell_of_handshakes(noted)
        front = uvicorn.Server(
            uvicorn.Config(
                application(Door(keys), f"127.0.0.1:{server.control}", server.path / "ca.crt", noted),
                host=server.bind,
                port=server.port,
                ssl_certfile=server.path / "server.crt",
                ssl_keyfile=server.path / "server.key",
                http=protocol(),
                ws="none",
                timeout_keep_alive=75,  # longer than SuperNodes keep idle connections, for the same reason as above
                access_log=False,
                log_level="warning",
                lifespan="off",
            )
        )

        async def watch() -> None:
            while inner.running():
                await asyncio.sleep(0.2)
            front.should_exit = True

        watcher = asyncio.create_task(watch())
        await front.serve()
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
        return 0 if inner.running() else 1
    finally:
        inner.stop(6)


def main(folder: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s : %(message)s")
    events.begin(Path(folder), "front")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    leashed()
    return asyncio.run(_serve(read_server(Path(folder))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
