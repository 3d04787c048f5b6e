"""The door: every request that is not a registered silo's own, fresh and first is refused before its body is read."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import http.client
import logging
import shutil
import socket
import ssl
import threading
import time
from base64 import b64decode, b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from feduca.flower import certificates, check, front
from feduca.flower.front import Door, speaks_for_itself
from feduca.flower.keys import Keys
from feduca.flower.processes import free_port

PULL = "/v1/fleet/pull-messages"
P384 = int("ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "keys").mkdir()
    for name in ("north", "south", "stranger"):
        (tmp_path / name).mkdir()
        certificates.make_silo_key(tmp_path / name)
        if name != "stranger":
            shutil.copy(tmp_path / name / "key.pub", tmp_path / "keys" / f"{name}.pub")
    return tmp_path


def signed(place, name, *, late=0.0, claims=None):
    private = load_ssh_private_key((place / name / "key").read_bytes(), None)
    public = load_ssh_private_key((place / (claims or name) / "key").read_bytes(), None).public_key()
    when = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=late)).isoformat()
    return {
        "flwr-public-key": b64encode(public_key_to_bytes(public)).decode(),  # type: ignore[arg-type]
        "flwr-timestamp": when,
        "flwr-signature": b64encode(sign_message(private, when.encode())).decode(),  # type: ignore[arg-type]
        "content-length": "0",
    }


def why(answer):
    assert answer is not None
    return answer


def test_a_registered_silo_passes(place):
    door = Door(Keys(place / "keys"))
    for name in ("north", "south", "north"):
        assert door.refuses("POST", PULL, signed(place, name)) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/list-nodes"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/fleet/register-node"),
        ("POST", "/v1/fleet/unregister-node"),
        ("POST", "/v1/fleet/../control/list-nodes"),
        ("POST", "/v1/fleet/pull-messages/../../control/list-nodes"),
        ("POST", "/v1/fleet//pull-messages"),
        ("GET", PULL),
        ("GET", "/"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/health"),
    ],
)
def test_no_other_door_is_open_even_to_a_silo(place, method, path):
    assert why(Door(Keys(place / "keys")).refuses(method, path, signed(place, "north")))[0] == 404


def test_strangers_impostors_and_damage(place):
    door = Door(Keys(place / "keys"))
    assert why(door.refuses("POST", PULL, {})) == (401, "not signed")
    assert why(door.refuses("POST", PULL, signed(place, "stranger")))[1] == "an unknown key"
    assert (
        "wrong signature with the key of south"
        in why(door.refuses("POST", PULL, signed(place, "north", claims="south")))[1]
    )
    for name in ("flwr-public-key", "flwr-timestamp", "flwr-signature"):
        for junk in ("", "\x00", "AAAA", "é", "9" * 5000):
            status, _ = why(door.refuses("POST", PULL, signed(place, "north") | {name: junk}))
            assert status == 401, (name, junk)


def test_a_call_says_beforehand_how_long_it_is(place):
    """Then no second one can hide in it, and nobody fills the server's memory."""
    door = Door(Keys(place / "keys"))
    for length, path, status in (
        *((junk, PULL, 411) for junk in ("", "-1", "+1", "1, 1", "0x1", "٣", "9" * 13)),
        (str(front.LONGEST + 1), PULL, 413),
        (str(front.LONGEST + 1), "/v1/fleet/push-object", None),
        (str(front.LONGEST_OBJECT + 1), "/v1/fleet/push-object", 413),
    ):
        answer = door.refuses("POST", path, signed(place, "north") | {"content-length": length})
        assert (answer and answer[0]) == status, (length, path)
    chunked = signed(place, "north") | {"transfer-encoding": "chunked"}
    assert why(door.refuses("POST", PULL, chunked))[0] == 411


@pytest.fixture
def listener(monkeypatch):
    """uvicorn with the front's protocol before an application that says who spoke to it."""
    import uvicorn

    monkeypatch.setattr(front, "HEADERS_S", 1.0)

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    server = uvicorn.Server(
        uvicorn.Config(
            application, port=free_port(), http=front.protocol(), ws="none", log_level="error", lifespan="off"
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.config.port
    server.should_exit = True
    thread.join(60)


def test_whoever_brings_no_request_is_cut_off(listener):
    """Nothing at all, half a request, headers without an end; a silo that asks again and again is not."""

    def spoken(sent: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", listener), 60) as one:
            one.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                return b"".join(iter(lambda: one.recv(4096), b""))  # until the other end closes
        return b""

    assert spoken(b"") == b""
    assert spoken(b"POST / HTTP/1.1\r\nHost: x\r\nX: ") == b""
    assert spoken(b"POST / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000)[:12] in (b"HTTP/1.1 400", b"")
    with socket.create_connection(("127.0.0.1", listener), 60) as one:
        for _ in range(8):
            one.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 204")
            time.sleep(0.3)


def test_a_clock_that_is_off_is_named(place):
    door = Door(Keys(place / "keys"))
    assert "the clock of north is 400 s behind" in why(door.refuses("POST", PULL, signed(place, "north", late=400)))[1]
    assert "the clock of north is 60 s ahead" in why(door.refuses("POST", PULL, signed(place, "north", late=-60)))[1]
    assert door.refuses("POST", PULL, signed(place, "north", late=200)) is None


def test_nothing_is_heard_twice(place):
    """Nor is the same signature in its other form, which anybody can work out from the first."""
    door = Door(Keys(place / "keys"))
    once = signed(place, "north")
    assert door.refuses("POST", PULL, once) is None
    assert "second time" in why(door.refuses("POST", PULL, once))[1]
    assert "second time" in why(door.refuses("POST", "/v1/fleet/push-messages", once))[1]
    r, s = decode_dss_signature(b64decode(once["flwr-signature"]))
    other = b64encode(encode_dss_signature(r, P384 - s)).decode()
    assert "second time" in why(door.refuses("POST", PULL, once | {"flwr-signature": other}))[1]


def test_a_key_that_is_taken_away_is_refused_at_once(place):
    door = Door(Keys(place / "keys"))
    assert door.refuses("POST", PULL, signed(place, "north")) is None
    (place / "keys" / "north.pub").unlink()
    assert why(door.refuses("POST", PULL, signed(place, "north")))[1] == "an unknown key"
    assert door.refuses("POST", PULL, signed(place, "south")) is None
    shutil.copy(place / "north" / "key.pub", place / "keys" / "north.pub")
    (place / "keys" / "west.pub").write_text("ssh-rsa half a")
    assert door.refuses("POST", PULL, signed(place, "north")) is None


def test_a_node_answers_for_itself_alone():
    def call(node, *senders):
        list_ = [Message(metadata=Metadata(src_node_id=sender)) for sender in senders]
        return PushMessagesRequest(node=Node(node_id=node), messages_list=list_).SerializeToString()

    assert speaks_for_itself(call(7, 7))
    assert not speaks_for_itself(call(7, 8))
    assert not speaks_for_itself(call(7, 7, 8))
    assert not speaks_for_itself(b"\xff\xff\xff")


@pytest.fixture
def door(place, monkeypatch):
    """The front before a SuperLink that does not answer, with TLS; where it is, and the authority's certificate."""
    from asyncio import sslproto

    import uvicorn

    certificates.make_ca(place)
    certificates.issue_server(place, place, ["127.0.0.1"])
    monkeypatch.setattr(sslproto, "SSLProtocol", sslproto.SSLProtocol)  # afterwards it is as it was
    noted = front.Seldom()
    front.tell_of_handshakes(noted)
    before = front.application(Door(Keys(place / "keys")), f"127.0.0.1:{free_port()}", place / "ca.crt", noted)
    tls = {"ssl_certfile": place / "server.crt", "ssl_keyfile": place / "server.key", "loop": "asyncio"}
    config = uvicorn.Config(before, port=free_port(), http=front.protocol(), ws="none", lifespan="off", **tls)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield config.port, place / "ca.crt"
    server.should_exit = True
    thread.join(60)


def test_the_operator_is_told_who_is_turned_away_and_not_at_every_request(door, place, caplog):
    """By what `ssh-keygen -l` prints of its key, whose key that was, and where it came from; another authority's, too."""
    port, authority = door
    caplog.set_level(logging.INFO)

    def ask(headers, path=PULL, ca=authority):
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        try:
            connection.request("POST", path, b"", headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def said(event):
        return [r.getMessage() for r in caplog.records if getattr(r, "event", "") == event]

    line = (place / "stranger" / "key.pub").read_text().split()[1]
    mark = "SHA256:" + b64encode(hashlib.sha256(b64decode(line)).digest()).decode().rstrip("=")
    for _ in range(5):
        assert ask(signed(place, "stranger")) == 401
    assert said("turned-away") == [f"refused POST '{PULL}' from 127.0.0.1: an unknown key ({mark})"]
    assert ask(signed(place, "north")) == 503  # it passes, and behind it is nobody
    (place / "keys" / "north.pub").unlink()
    assert ask(signed(place, "north")) == 401
    assert said("turned-away")[1].endswith("until lately the key of north)")
    for k in range(3):  # the same again, though the seconds differ
        assert ask(signed(place, "south", late=4000.0 + 60 * k)) == 401
    assert [text for text in said("turned-away") if "the clock of south is" in text][1:] == []
    assert "until lately" not in said("turned-away")[2]
    for junk in ("", "AAAA", b64encode(b"-----BEGIN PUBLIC KEY-----").decode()):
        assert ask(signed(place, "south") | {"flwr-public-key": junk}) == 401

    # Who trusts another authority breaks off by itself; that shows here alone.
    (place / "other").mkdir()
    certificates.make_ca(place / "other")
    for _ in range(3):
        with pytest.raises(ssl.SSLCertVerificationError):
            ask({}, ca=place / "other" / "ca.crt")
    deadline = time.monotonic() + 30
    while not (found := [text for text in said("turned-away") if "does not believe" in text]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(found) == 1
    assert "127.0.0.1 was turned away by itself: it does not believe this server's certificate" in found[0]

    # A check is no attack, and an attack no check.
    before = len(said("request-refused"))
    assert [f.ok for f in check._connection("127.0.0.1", port, place) if f.what == "control interface"] == [True]
    assert said("checked") == ["`feduca deploy check` looked, from 127.0.0.1"]
    assert len(said("request-refused")) == before
    assert ask({}, "/v1/control/start-run") == ask({"user-agent": front.CHECKER}, "/v1/control/register-node") == 404
    assert len(said("request-refused")) == before + 1


def test_however_many_are_turned_away_the_log_stays_short(monkeypatch):
    noted = front.Seldom()
    assert sum(noted("10.0.0.1", "an unknown key", str(k)) for k in range(10 * front.MOST)) == front.MOST
    monkeypatch.setattr(front, "AGAIN_S", 0.0)
    noted = front.Seldom()
    assert noted("a")
    time.sleep(0.01)
    assert noted("a")
