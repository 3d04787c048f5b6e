"""Starting the parts of a deployment, and running federations on them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from feduca.config import Recipe
from feduca.config import load as load_recipe
from feduca.errors import RunError
from feduca.flower import folder as folders
from feduca.flower.folder import ServerFolder, SiloFolder
from feduca.flower.processes import Process, environment, free_port, supervise
from feduca.runs import RunDirectory, RunResult, check_writable, load

log = logging.getLogger("feduca")

CONNECTION = "feduca"  # Flower's name for our SuperLink
DEPLOYMENT = "deployment.json"  # as server.py writes it


# The parts -----------------------------------------------------------------------------------------------------------


def start_superlink(server: ServerFolder) -> Process:
    """The SuperLink of a server folder: TLS, authenticated silos, its state on disk."""
    command = [
        "flower-superlink",
        *("--host", server.bind, "--port", str(server.port)),
        *("--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key", "--ssl-ca-certfile", "ca.crt"),
        "--enable-supernode-auth",
        *("--database", "superlink.db"),
        "--disable-runtime-dependency-installation",  # every machine has feduca installed; nothing is fetched
    ]
    return Process(command, env=_env(server.path), cwd=server.path, log_file=server.path / "superlink.log")


def start_silo(silo: SiloFolder) -> Process:
    """The SuperNode of a silo folder."""
    silo.state.mkdir(exist_ok=True)  # a copy may have left the empty folder out
    config = {"silo": silo.name, "folder": str(silo.state), **silo.config}
    command = [
        "flower-supernode",
        *("--root-certificates", "ca.crt", "--superlink", silo.superlink),
        *("--auth-supernode-private-key", "key"),
        *("--host", "127.0.0.1", "--port", str(silo.port)),
        *("--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())),
    ]
    return Process(command, env=_env(silo.path), cwd=silo.path, log_file=silo.path / "supernode.log")


def keep_silo(silo: SiloFolder, stop: threading.Event, first_s: float = 1.0, longest_s: float = 30.0) -> None:
    """Keep a silo's SuperNode running until told to stop."""
    supervise(
        lambda: start_silo(silo), stop=stop, name=f"the SuperNode of {silo.name}", first_s=first_s, longest_s=longest_s
    )


def reachable(address: str, seconds: float = 1.0) -> bool:
    """Whether something listens at `address`."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), seconds):
        return True
    return False


def wait_until_reachable(address: str, process: Process, seconds: float = 60.0) -> None:
    """Wait for something to listen at `address`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.running():
        if reachable(address):
            return
        time.sleep(0.1)
    raise RunError(f"the SuperLink does not answer at {address}; its log says why")


# Flower's own command line -------------------------------------------------------------------------------------------


def flwr(server: ServerFolder, *arguments: str, seconds: float = 60.0) -> dict[str, Any]:
    """Run one `flwr` command against this deployment's SuperLink; its answer as JSON."""
    home = server.path / "flwr"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink.{CONNECTION}]\naddress = "{_local(server)}"\nroot-certificates = "{server.path / "ca.crt"}"\n'
    )
    command = ["flwr", *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            command, env=_env(server.path), cwd=server.path, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"`{' '.join(command[:3])}` did not end within {seconds:g} s; is the SuperLink busy?") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"success": False, "error-message": (done.stderr or done.stdout).strip()[-400:]}
    if done.returncode != 0 or not answer.get("success", True):
        raise RunError(
            f"`{' '.join(command[:3])}` failed: {' '.join(str(answer.get('error-message', answer)).split())}"
        )
    return answer


def registered(server: ServerFolder) -> dict[str, str]:
    """The silos whose keys the SuperLink knows, and how each is: registered, online or offline."""
    from flwr.proto.control_pb2 import ListNodesRequest

    with _control(server) as client:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    return {node.name: node.status for node in nodes if node.name and node.status != "unregistered"}


def register(server: ServerFolder) -> list[str]:
    """Register every key in `keys/` that the SuperLink does not know yet; returns the new names."""
    known = registered(server)
    new = [path for path in sorted((server.path / "keys").glob("*.pub")) if path.stem not in known]
    if new:
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        with _control(server) as client:
            for path in new:
                key = public_key_to_bytes(load_ssh_public_key(path.read_bytes()))  # type: ignore[arg-type]
                client.RegisterNode(RegisterNodeRequest(public_key=key, name=path.stem))
    return [path.stem for path in new]


def keep_registering(server: ServerFolder, process: Process, stop: threading.Event, every_s: float = 2.0) -> None:
    """While the SuperLink runs, register the keys that are put into `keys/`."""

    def keys() -> set[tuple[str, int]]:
        return {(path.name, path.stat().st_size) for path in (server.path / "keys").glob("*.pub")}

    seen = keys()
    while process.running() and not stop.wait(every_s):
        try:
            now = keys()
            if now == seen:
                continue
            seen = now
            for name in register(server):
                log.warning("newly registered: %s", name)
        except Exception as error:  # half a file, or no key: the SuperLink goes on, the next change is a chance
            log.warning("a key in %s cannot be registered: %s", server.path / "keys", error)


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
        server_address=_local(server),
        insecure=False,
        root_certificates=(server.path / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    except httpx.HTTPError as error:
        raise RunError(f"the SuperLink at {_local(server)} did not do as asked: {error}; see superlink.log") from None
    finally:
        client.close()


# A run ---------------------------------------------------------------------------------------------------------------

Watch = Callable[[dict[str, Any], dict[str, Any]], None]


def recipe_of(server: ServerFolder) -> Recipe:
    return load_recipe(server.path / "app" / "recipe.toml")


def out_of(server: ServerFolder) -> Path:
    """Where run directories go: `out` of server.toml, from the server's folder."""
    return (server.path / Path(server.settings["out"]).expanduser()).resolve()


def run_directory(server: ServerFolder) -> RunDirectory:
    recipe = recipe_of(server)
    return RunDirectory(out_of(server), recipe.name, recipe.hash(), recipe.seeds[0])


def submit(server: ServerFolder, **changes: Any) -> int:
    """Start the server app on the SuperLink; returns Flower's number of the run."""
    folders.write_pyproject(server.path / "app", server.settings)  # what the operator changed since
    settings = {**server.settings, "out": str(out_of(server)), "folder": str(server.path), **changes}
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    return int(flwr(server, "run", "app", CONNECTION, "--run-config", words)["run-id"])


def run(
    server: ServerFolder, *, again: bool = False, watch: Watch | None = None, seconds: float | None = None
) -> RunResult:
    """Run the deployment's federation to its end, or go on with it; one that is finished is read back."""
    directory = run_directory(server)
    if directory.state() == "finished" and not again:
        return load(directory.path)
    before = _age(directory.path / "status.json")
    number = submit(server, again=again)
    follow(server, number, directory, before, watch, seconds)
    return load(directory.path)


def follow(
    server: ServerFolder,
    number: int,
    directory: RunDirectory,
    before: float = 0.0,
    watch: Watch | None = None,
    seconds: float | None = None,
) -> None:
    """Wait until run `number` is over, telling `watch` of every round; RunError unless it finished well."""
    deadline = None if seconds is None else time.monotonic() + seconds
    ask_again, told = time.monotonic() + 5, 0
    while True:
        fresh = _age(directory.path / "status.json") > before
        state = directory.state() if fresh else None
        if fresh and watch is not None:
            for record, clients in _records(directory.path, told):
                told += 1
                watch(record, clients)
        if state == "finished":
            return
        if time.monotonic() > ask_again or state in ("failed", "interrupted"):
            how = ended(server, number)
            if how is not None and directory.state() != "finished":
                reason = _reason(directory.path) if fresh else how
                raise RunError(f"the server app ended early ({reason}); see superlink.log, then resume")
            ask_again = time.monotonic() + 5
        if deadline is not None and time.monotonic() > deadline:
            raise RunError(
                f"run {number} is not over after {seconds:g} s; `flwr log` and superlink.log say where it is"
            )
        time.sleep(0.3)


@contextlib.contextmanager
def standing(folder: Path) -> Iterator[ServerFolder]:
    """SuperLink and all silos of a deployment folder on this machine, for as long as the context lasts."""
    server = folders.read_server(folder)
    stop, threads = threading.Event(), []
    superlink = start_superlink(server)
    try:
        wait_until_reachable(f"127.0.0.1:{server.port}", superlink)
        register(server)
        for path in sorted((folder / "silos").iterdir()):
            silo = folders.read_silo(path)
            threads.append(threading.Thread(target=keep_silo, args=(silo, stop), daemon=True))
            threads[-1].start()
        yield server
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
        superlink.stop()


def up(recipe: Recipe, out: Path, *, silos: int = 3, again: bool = False, watch: Watch | None = None) -> RunResult:
    """A whole federation on this machine, with TLS and authentication: for trying out. Nothing is left running.

    Its deployment folder lies beside the run directory until the run is finished, so that an interrupted one can go on.
    """
    directory = RunDirectory(out.absolute(), recipe.name, recipe.hash(), recipe.seeds[0])
    if directory.state() == "finished" and not again:
        return load(directory.path)
    check_writable(out)
    folder = directory.path.with_name(f"{directory.path.name}.deployment")
    if again or not (folder / "server" / "server.toml").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        names = folders.silo_names(recipe, silos)
        ports = [free_port() for _ in range(len(names) + 1)]
        folders.init(
            folder,
            recipe,
            names,
            address=f"127.0.0.1:{ports.pop()}",
            ports=ports,
            out=str(out.absolute()),
            settings={"silos-timeout": 180.0},
        )
    with standing(folder) as server:
        result = run(server, again=again, watch=watch)
    shutil.rmtree(folder)
    return result


def resume(path: Path, watch: Watch | None = None) -> RunResult:
    """Go on with a deployed run, whose server app or SuperLink died."""
    if json.loads((path / "status.json").read_text())["state"] == "finished":
        return load(path)
    place = Path(json.loads((path / DEPLOYMENT).read_text())["folder"])
    server = folders.read_server(place)
    if reachable(f"127.0.0.1:{server.port}"):
        return run(server, watch=watch)
    if (place.parent / "silos").is_dir() and server.host == "127.0.0.1":  # a trial on this machine: bring it up again
        with standing(place.parent):
            return run(server, watch=watch)
    raise RunError(f"no SuperLink answers at {server.address}; start it with {place}/start.sh, then resume")


# ---------------------------------------------------------------------------------------------------------------------


def _env(path: Path) -> dict[str, str]:
    return environment(path / "flwr")


def _local(server: ServerFolder) -> str:
    """The SuperLink's address on its own machine."""
    return f"{'127.0.0.1' if server.bind == '0.0.0.0' else server.bind}:{server.port}"


def _age(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _reason(path: Path) -> str:
    try:
        return json.loads((path / "status.json").read_text()).get("reason", "no reason given")
    except (OSError, ValueError):
        return "no reason given"


def _records(path: Path, told: int) -> Sequence[tuple[dict[str, Any], dict[str, Any]]]:
    def lines(name: str) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError):
            text = (path / name).read_text()
            return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return []

    return list(zip(lines("rounds.jsonl"), lines("clients.jsonl")))[told:]
