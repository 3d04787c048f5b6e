"""The SuperLink's control interface: who is registered, which runs there are. It listens on the server's loopback alone."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feduca.errors import RunError
from feduca.flower import approval
from feduca.flower.folder import ServerFolder
from feduca.flower.keys import Keys
from feduca.flower.processes import Process, listening

log = logging.getLogger("feduca")


def address(server: ServerFolder) -> str:
    return f"127.0.0.1:{server.control}"


def running(server: ServerFolder) -> bool:
    return listening("127.0.0.1", server.control)


def nodes(server: ServerFolder) -> list[Any]:
    """Everybody the SuperLink knows, as Flower's NodeInfo."""
    from flwr.proto.control_pb2 import ListNodesRequest

    with _control(server) as client:
        found = client.ListNodes(ListNodesRequest()).nodes_info
    return [node for node in found if node.status != "unregistered"]


def registered(server: ServerFolder) -> dict[str, str]:
    """The silos whose keys the SuperLink knows, and how each is: registered, online or offline."""
    return {node.name: node.status for node in nodes(server) if node.name}


def register(server: ServerFolder) -> tuple[list[str], list[str]]:
    """Make the SuperLink know the keys in `keys/` and no others; returns the names that came and those that went."""
    from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

    belong = Keys(server.path / "keys").names()
    there = nodes(server)
    strange = [node for node in there if belong.get(node.public_key) != node.name]
    new = belong.keys() - {node.public_key for node in there if node not in strange}
    if new or strange:
        with _control(server) as client:
            for node in strange:
                client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
            for key in new:
                client.RegisterNode(RegisterNodeRequest(public_key=key, name=belong[key]))
    return sorted(belong[key] for key in new), sorted(node.name or str(node.node_id) for node in strange)


def keep_registering(server: ServerFolder, process: Process, stop: threading.Event, every_s: float = 2.0) -> None:
    """While the SuperLink runs, let it know of keys that are put into `keys/` or taken away; what fails is tried again."""
    keys = Keys(server.path / "keys")
    seen: dict[bytes, str] | None = None  # at first, what came since the front opened
    said = ""
    while process.running() and not stop.wait(every_s):
        try:
            now = keys.names()
            if now == seen:
                continue
            settle(server)
            seen, said = now, ""
        except Exception as error:
            if str(error) != said:
                log.warning("the keys in %s cannot be registered: %s", server.path / "keys", error)
            said = str(error)


def settle(server: ServerFolder) -> None:
    """`register`, and say who came and who went."""
    for word, names in zip(("newly registered", "no longer registered"), register(server)):
        if names:
            log.warning("%s: %s", word, ", ".join(names), extra={"event": "keys"})


def start(server: ServerFolder, app: Path, config: dict[str, Any]) -> int:
    """Start a Flower app with this run configuration, as `flwr run` does; returns Flower's number of the run."""
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    content = approval.bundle(app)
    fab = Fab(approval.fingerprint(content), content, {})
    with _control(server) as client:
        answer = client.StartRun(StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(config)))
    if not answer.HasField("run_id"):
        raise RunError("the SuperLink did not start the run; see superlink.log")
    return answer.run_id


def ended(server: ServerFolder, number: int) -> str | None:
    """How run `number` ended, in Flower's words; None while it goes on."""
    from flwr.proto.control_pb2 import ListRunsRequest

    with _control(server) as client:
        status = client.ListRuns(ListRunsRequest(run_id=number)).run_dict[number].status
    return f"{status.sub_status} {status.details}".strip() if status.status == "finished" else None


@contextlib.contextmanager
def _control(server: ServerFolder) -> Iterator[Any]:
    """The SuperLink's control interface. The same requests as `flwr` makes, without a new process for each."""
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    client = ControlHttpClient.from_server_address(
        server_address=address(server),
        insecure=False,
        root_certificates=(server.path / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    except httpx.HTTPError as error:
        raise RunError(f"the SuperLink at {address(server)} did not do as asked: {error}; see superlink.log") from None
    finally:
        client.close()
