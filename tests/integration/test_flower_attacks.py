"""Attacks on one running deployment, from outside and from inside; each is refused, and the federation still works afterwards."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from base64 import b64encode
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from feduca.cli.main import app
from feduca.errors import RunError
from feduca.flower import approval, certificates, control, deploy
from feduca.flower import folder as folders
from feduca.flower.check import examine
from feduca.flower.processes import alive, descendants, environment, free_port
from feduca.runs import checkpoint
from flower_world import World, wait_for

pytestmark = pytest.mark.slow
BARE = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}  # no environment is activated


def feduca(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Three silos; a fourth, `spare`, is registered and its key is in an attacker's hands."""
    made = World(tmp_path_factory.mktemp("attacked"))
    try:
        folders.add_silo(made.place, "spare", free_port())
        made.start()
        made.wait_online()
        made.stop_silo("spare")
        yield made
    finally:
        made.stop()


class Attacker:
    """Speaks Fleet with a silo's key, and keeps what it sent."""

    def __init__(self, world: World, key: Path) -> None:
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        private = load_ssh_private_key(key.read_bytes(), None)
        self.public = public_key_to_bytes(private.public_key())  # type: ignore[arg-type]
        self.sent: list[httpx.Request] = []
        self._authority = world.server.path / "ca.crt"
        self.client = FleetHttpClient.from_server_address(
            world.server.address, False, self._authority.read_bytes(),
            interceptors=[NodeAuthHttpInterceptor(private, private.public_key()), self],  # type: ignore[arg-type,list-item]
        )  # fmt: skip

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_) -> None:
        self.client.close()

    def intercept(self, context, call_next):
        self.sent.append(context.request)
        return call_next(context)

    def again(self) -> int:
        """The last request once more, to the letter."""
        last = self.sent[-1]
        context = ssl.create_default_context(cafile=str(self._authority))
        with httpx.Client(verify=context, trust_env=False) as plain:
            return plain.send(
                httpx.Request(last.method, last.url, headers=last.headers, content=last.content)
            ).status_code


def status(call, *arguments) -> int:
    """200, or the status with which a call is refused."""
    try:
        call(*arguments)
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


def test_from_outside_there_is_no_control_no_runtime_and_no_registration(world):
    """What list-nodes, register-node and acquire-task answered without any key; and what `flwr run` does."""
    host, port = world.server.local
    before = {node.node_id for node in control.nodes(world.server)}
    context = ssl.create_default_context(cafile=str(world.server.path / "ca.crt"))
    for path in (
        *("control/list-nodes", "control/register-node", "control/start-run", "control/stop-run", "control/list-runs"),
        *("runtime/acquire-task", "runtime/get-nodes", "fleet/register-node", "fleet/unregister-node"),
    ):
        connection = http.client.HTTPSConnection(host, port, timeout=30, context=context)
        connection.request("POST", f"/v1/{path}", b"", {"content-type": "application/x-protobuf"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (404, b""), path
        connection.close()

    home, evil = world.folder / "elsewhere", world.folder / "evil"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.theirs]\naddress = "{world.server.address}"\nroot-certificates = "{world.server.path}/ca.crt"\n'
    )
    shutil.copytree(world.server.path / "app", evil)
    mark = world.folder / "was-here"
    with (evil / "deployed.py").open("a") as file:
        file.write(f"open({str(mark)!r}, 'a').close()\n")
    done = subprocess.run(
        ["flwr", "run", str(evil), "theirs", "--format", "json"],
        env=environment(home), capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert '"success": true' not in done.stdout
    assert "404" in done.stdout + done.stderr
    assert not mark.exists()
    assert {node.node_id for node in control.nodes(world.server)} == before


def test_no_request_line_and_no_framing_reaches_past_a_silos_calls(world):
    """With a registered silo's own signatures; `stop-run` stands for everything behind the front."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    private = load_ssh_private_key((world.place / "silos" / "spare" / "key").read_bytes(), None)
    public = b64encode(public_key_to_bytes(private.public_key()))  # type: ignore[arg-type]
    context = ssl.create_default_context(cafile=str(world.server.path / "ca.crt"))

    def answers(line: str, *headers: str, body: bytes = b"") -> list[bytes]:
        when = dt.datetime.now(dt.UTC).isoformat().encode()
        sealed = b64encode(sign_message(private, when))  # type: ignore[arg-type]
        head = [line, "Host: x", "Content-Type: application/protobuf", *headers]
        keys = (b"flwr-public-key: " + public, b"flwr-timestamp: " + when, b"flwr-signature: " + sealed)
        with (
            socket.create_connection(world.server.local, 60) as plain,
            context.wrap_socket(plain, server_hostname=world.server.local[0]) as one,
        ):
            one.sendall(b"\r\n".join([*(text.encode() for text in head), *keys, b"", body]))
            said = b"".join(iter(lambda: one.recv(4096), b""))
        return re.findall(rb"^HTTP/1.1 (\d+)", said, re.MULTILINE)

    fleet, past = "/v1/fleet/", "control/stop-run"
    for path in (
        *(f"/v1/{past}", f"//v1/{past}", f"{fleet}../{past}", f"{fleet}%2e%2e/{past}", f"{fleet}..%2f{past}"),
        *(f"{fleet}pull-messages/../../{past}", f"{fleet}pull-messages%2f..%2f..%2f{past}", f"{fleet}/pull-messages"),
        *(f"https://{world.server.address}/v1/{past}", f"https://127.0.0.1:{world.server.control}/v1/{past}", "*"),
        *(f"{fleet}pull-messages%00", f"{fleet}pull-messages;/../../{past}", "/V1/FLEET/pull-messages"),
    ):
        assert answers(f"POST {path} HTTP/1.1", "Content-Length: 0", "Connection: close") == [b"404"], path
    inner = f"POST /v1/{past} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
    call = f"POST {fleet}pull-messages HTTP/1.1"
    for headers, body in (
        (("Content-Length: 5", "Transfer-Encoding: chunked"), b"0\r\n\r\n" + inner),
        (("Transfer-Encoding: chunked",), b"0\r\n\r\n" + inner),
        (("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), b"0\r\n\r\n" + inner),
        (("Content-Length: 0", f"Content-Length: {len(inner)}"), inner),
        (("Content-Length: 99999999999",), inner),
        (("Content-Length: -1",), inner),
        ((), inner),
    ):
        assert set(answers(call, *headers, body=body)) <= {b"400", b"411", b"413", b"404"}, headers
    for verb in ("GET", "TRACE", "FOO", "post", "CONNECT"):
        path = f"127.0.0.1:{world.server.control}" if verb == "CONNECT" else f"{fleet}pull-messages"
        assert answers(f"{verb} {path} HTTP/1.1", "Content-Length: 0", "Upgrade: h2c")[:1] in ([b"404"], [b"400"]), verb
    assert b"200" not in answers("PRI * HTTP/2.0")
    log = (world.server.path / "superlink.log").read_text()
    assert f"{past} HTTP" not in log  # as the SuperLink itself logs what reaches it


def test_keys_that_are_not_registered_replays_and_other_nodes_names(world, tmp_path):
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node

    certificates.make_silo_key(tmp_path)
    with Attacker(world, tmp_path / "key") as stranger:
        join = ActivateNodeRequest(public_key=stranger.public, heartbeat_interval=30.0)
        assert status(stranger.client.ActivateNode, join) == 400
        assert status(stranger.client.PullMessages, PullMessagesRequest(node=Node(node_id=1))) == 401

    ids = {node.name: node.node_id for node in control.nodes(world.server)}
    mine, other = Node(node_id=ids["spare"]), Node(node_id=ids["silo-0"])
    ask, told = PullMessagesRequest(node=mine), Message(metadata=Metadata(src_node_id=other.node_id))
    with Attacker(world, world.place / "silos" / "spare" / "key") as spare:
        assert status(spare.client.PullMessages, ask) == 200
        assert spare.again() == 401
        assert status(spare.client.PullMessages, PullMessagesRequest(node=other)) == 401
        assert status(spare.client.PushMessages, PushMessagesRequest(node=mine, messages_list=[told])) == 403
    at = world.server.path / "superlink.log"  # written by another process than the one that answers: a moment later
    wait_for(lambda: "in another node's name" in at.read_text(), 20, "the front noted the last request")
    log = at.read_text()
    for words in ("an unknown key", "a request of spare for the second time", "in another node's name"):
        assert words in log
    assert "\x1b" not in log
    assert all(line[:2] == "20" and line[19:20] == "Z" for line in log.splitlines())


def test_a_changed_app_is_refused_before_it_is_imported_and_runs_once_approved(world):
    """Sent by the server itself: the front does not help against that."""
    good = world.server.path / "app" / "deployed.py"
    mark, text = world.folder / "silo-was-here", good.read_text()
    path = world.recipe({"rounds": 2}, silos_timeout=60.0)
    good.write_text(f"{text}\nif 'silos' in os.getcwd():\n    open({str(mark)!r}, 'a').close()\n")
    number = deploy.submit(world.server)
    silos = [world.place / "silos" / f"silo-{k}" for k in range(3)]
    with pytest.raises(RunError, match="these came: none"):
        deploy.follow(world.server, number, deploy.run_directory(world.server), seconds=600)
    assert not mark.exists()
    for silo in silos:
        assert (silo / approval.PROPOSED).is_file()
        assert not list((silo / "state" / "flwr").rglob("deployed.py"))  # not even unpacked
        assert "is not the approved one" in (silo / "state" / "log.jsonl").read_text()
    found = {f.what: f for f in examine(silos[0])}
    assert "the server sent another one" in found["silo-0's app"].seen
    shown = feduca("deploy", "approve", str(silos[0]), "--yes")
    assert "+if 'silos' in os.getcwd():" in shown.output
    assert not (silos[0] / approval.PROPOSED).exists()

    good.write_text(text)  # and the federation goes on with the app that all approved
    world.recipe({"rounds": 2}, silos_timeout=300.0)
    result = deploy.run(world.server, seconds=900)
    assert result.summary["rounds"] == 2
    assert not mark.exists()
    assert path == result.run_dir
    for private in (
        world.server.path / "superlink.db",
        world.server.path / "superlink.log",
        silos[0] / "state" / "supernode.log",
    ):
        assert private.stat().st_mode & 0o077 == 0, private
    for closed in (world.server.path, silos[0], silos[0] / "state"):
        assert closed.stat().st_mode & 0o077 == 0, closed


def test_a_useless_update_of_one_silo_is_cut_to_the_others_length(world):
    """Norm 18 and 5.6e6, with the settings that a recipe has by default."""
    world.mischief("silo-2", {"3": "length 18", "4": "length 5.6e6"})
    path = world.recipe({"rounds": 4, "mechanism.name": "fedavg", "participation.rule": "always"})
    deploy.run(world.server, seconds=900)
    world.mischief("silo-2", {})
    rows = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert all(row["advice"] is None for row in rows[:2])
    for row, length in zip(rows[2:], (18.0, 5.6e6)):
        assert row["update_norm"][2] == pytest.approx(length, rel=1e-3)  # as it came
        assert "times as long as its own usual; it was shortened to" in row["advice"][2]
        assert row["advice"][:2] == ["", ""]
    honest = max(length for row in rows for length in row["update_norm"][:2])
    models = [checkpoint.read(found).state.theta for found in checkpoint.existing(path / "checkpoint")]
    assert len(models) == 4
    assert all(np.linalg.norm(after - before) <= 3 * honest for after, before in pairwise(models))


def test_a_revoked_silo_is_offline_at_once_and_a_new_key_brings_it_back(world):
    node = world.nodes["silo-2"]
    old = world.folder / "old-key"
    shutil.copy(world.place / "silos" / "silo-2" / "key", old)
    assert feduca("deploy", "remove", str(world.place), "silo-2").exit_code == 0
    from flwr.proto.fleet_pb2 import ActivateNodeRequest

    with Attacker(world, old) as thief:
        join = ActivateNodeRequest(public_key=thief.public, heartbeat_interval=30.0)
        assert status(thief.client.ActivateNode, join) == 400
        assert wait_for(lambda: not node.running(), 300, "its SuperNode to be sent away")
        assert "silo-2" not in control.registered(world.server)
        assert feduca("deploy", "rotate", str(world.place), "silo-2").exit_code == 0
        assert status(thief.client.ActivateNode, join) == 400
    world.wait_online("silo-2")  # its supervisor has started it again, with the new key


def test_a_stranger_who_is_registered_all_the_same_is_reported_and_put_out(world, tmp_path):
    """As somebody with an account on the server could do."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    certificates.make_silo_key(tmp_path)
    with Attacker(world, tmp_path / "key") as stranger, control._control(world.server) as client:
        client.RegisterNode(RegisterNodeRequest(public_key=stranger.public, name="silo-9"))
    found = {f.what: f for f in examine(world.place)}
    assert not found["unknown node"].ok
    assert "silo-9" in found["unknown node"].seen
    assert found["control interface"].ok
    assert control.register(world.server) == ([], ["silo-9"])
    assert all(f.ok for f in examine(world.place) if f.what in ("unknown node", "control interface"))


def test_killed_supervisors_leave_nothing_behind_and_scripts_need_no_environment(world):
    """kill -9 of the two supervisors, started by their scripts; then of the server app."""
    world.stop_silo("silo-0")
    world.superlink.stop()  # the other SuperNodes wait for it
    started = {}
    try:
        server = world.server
        for name, path in (("server", server.path), ("silo-0", world.place / "silos" / "silo-0")):
            started[name] = subprocess.Popen([path / "start.sh"], env=BARE, cwd="/", stderr=subprocess.DEVNULL)
        wait_for(lambda: deploy.reachable(server), 400, "start.sh of the server")
        world.wait_online("silo-0")

        world.mischief("silo-0", {"1": "hang"})
        path = world.recipe({"rounds": 3}, silos=1)
        runner = subprocess.Popen([server.path / "run.sh"], env=BARE, cwd="/", stderr=subprocess.PIPE, text=True)
        app = wait_for(lambda: _app(server, path), 400, "the server app")
        busy = _busy()
        os.kill(app, signal.SIGKILL)
        began = time.monotonic()
        assert runner.wait(300) == 1
        assert time.monotonic() - began < 10 * max(busy, _busy())  # ten seconds on a machine of one's own
        assert "was killed" in runner.stderr.read()
        runner.stderr.close()
        assert json.loads((path / "status.json").read_text())["state"] == "failed"

        families = {name: descendants(process.pid) for name, process in started.items()}
        assert all(families.values())
        for process in started.values():
            process.kill()
            process.wait()
        for name, family in families.items():
            wait_for(lambda family=family: not alive(family), 60, f"everything of {name} to end")
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    world.start_superlink()  # the port is free again


def _busy() -> float:
    """How many times as much as it can do at once this machine has to do, in the last minute or now."""
    load, _, _, tasks, _ = Path("/proc/loadavg").read_text().split()
    return max(1.0, max(float(load), int(tasks.partition("/")[0])) / (os.cpu_count() or 1))


def _app(server: folders.ServerFolder, path: Path) -> int | None:
    """The process of the server app once its run has begun."""
    begun = (path / "status.json").is_file() and json.loads((path / "status.json").read_text())["state"] == "running"
    return json.loads((server.path / deploy.RUNNING).read_text())["pid"] if begun else None
