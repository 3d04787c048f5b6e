"""Where a silo's app processes come from: a template that has imported what they need, and is forked for every message.

Flower starts a Python for every message, and its imports take many times as long as a small silo's work. The template imports
once: Flower, feduca, and those installed modules that the approved app imports. It never runs a line of the app itself, holds no
key, no data and no connection, and has one thread. Every message still has a process of its own, which unpacks and runs
the app as Flower's does and ends with its answer: nothing of it is left for the next one but what it wrote to the silo's disk.

The SuperNode hands it the token of a message that it let in, through a pair of sockets that only these two hold; so the
template ends when the SuperNode is gone, and the SuperNode when the template is. `fresh = true` in silo.toml does without it.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import io
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from feduca.flower import approval
from feduca.flower.folder import SiloFolder

log = logging.getLogger("feduca")

GRACE_S = 3.0  # for app processes when their SuperNode ends; then they are killed
OURS = ("feduca.flower.client", "flwr.supernode.runtime.run_clientapp")  # every app's
# What a recipe's own task needs, and its app imports too late to be seen.
RECIPE_APP = ("feduca.tasks", "sklearn.datasets")
READY = b"\n"


class Template:
    """The SuperNode's end of it."""

    def __init__(self, silo: SiloFolder, port: int) -> None:
        """Fork it off: before this process has a second thread, a key in its memory or a connection."""
        for name in OURS:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # what both share stays shared: the collector would write to every page
        self._end, its = socket.socketpair()
        if os.fork() == 0:
            self._end.close()
            _live(silo, f"127.0.0.1:{port}", its)
        its.close()

    def wait(self) -> None:
        """Until it has imported everything: a token is good for half a minute. From then on this process ends if it does."""
        if self._end.recv(1) != READY:
            raise SystemExit("the process that runs the app did not start; see above")
        threading.Thread(target=self._watch, name="template", daemon=True).start()

    def serve(self, state: Any) -> None:
        """Let the app work on what waits in this SuperNode's `state`."""
        from flwr.common.constant import Status

        for task in state.get_tasks(statuses=[Status.PENDING]):
            if token := state.claim_task(task.task_id):
                self._end.sendall(f"{token}\n".encode())

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            self._end.recv(1)
        log.error("the process that runs the app has ended; this silo stops, to be started again")
        os.kill(os.getpid(), signal.SIGTERM)


def _live(silo: SiloFolder, address: str, end: socket.socket) -> NoReturn:
    """The template itself; what goes on after `_offspring` is an app's process."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT):  # it ends with its SuperNode, which may have to say goodbye
            signal.signal(number, signal.SIG_IGN)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # else it was the SuperNode's leash
        imported(wanted(silo))
        if why := unfit():
            log.warning("every message gets a new Python, for %s", why)
        gc.collect()
        gc.freeze()
        end.sendall(READY)
        token = _offspring(end, address if why else "")
    except OSError as error:
        log.error("the process that starts the app ends: %s", error)
        os._exit(1)
    if not token:
        os._exit(0)
    draw_anew()
    _run(address, token)
    sys.exit()


def _offspring(end: socket.socket, anew: str) -> str:
    """Fork for every token that comes; returns it in the new process, and nothing here when the SuperNode is gone.

    Where a fork would not do, `anew` is the SuperNode's address, and a new Python is started in its place.
    """
    me, young, heard = os.getpid(), set[int](), b""
    while True:
        young -= {pid for pid in young if os.waitpid(pid, os.WNOHANG)[0]}
        if not select.select([end], [], [], 0.5 if young else None)[0]:
            continue
        try:
            said = end.recv(4096)
        except ConnectionError:
            said = b""
        if not said:
            _end_all(young)
            return ""
        *tokens, heard = (heard + said).split(b"\n")
        for token in map(bytes.decode, tokens):
            if anew:
                command = ["flwr-clientapp", "--runtime-api-address", anew, "--token", token, "--insecure"]
                command += ["--parent-pid", str(me)]
                young.add(os.posix_spawnp(command[0], command, os.environ, setsigdef=(signal.SIGTERM, signal.SIGINT)))
                continue
            pid = os.fork()
            if pid == 0:
                end.close()
                _die_with(me)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                return token
            young.add(pid)


def _end_all(young: set[int]) -> None:
    deadline = time.monotonic() + GRACE_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in young:
            os.kill(pid, number)  # not waited for yet, so it is still this one
        while young and (number == signal.SIGKILL or time.monotonic() < deadline):
            young -= {pid for pid in young if os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.05)


def _die_with(parent: int) -> None:
    """This process is killed when the one that forked it is (Linux)."""
    import ctypes

    PR_SET_PDEATHSIG = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _run(address: str, token: str) -> None:
    """What `flwr-clientapp` does, in this process."""
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    sys.argv = ["flwr-clientapp"]
    run_clientapp(runtime_api_address=address, token=token, insecure=True, parent_pid=os.getppid())


def imported(names: Iterable[str]) -> None:
    """Import these; what cannot be is the app's own to meet, and to say."""
    sys.path[0] = str(Path(sys.executable).parent)  # as for Flower's own programs: not the silo's folder
    for name in names:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)


def draw_anew() -> None:
    """No two messages may draw the same noise: generators that were copied with the process start somewhere else."""
    import numpy as np

    np.random.seed()  # noqa: NPY002  Python's own, the system's and OpenSSL's notice a fork by themselves
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def unfit() -> str:
    """Why this process must not be forked; nothing where it may."""
    if threading.active_count() > 1:
        started = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        return f"what the app imports has started threads ({started})"
    held = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink() and path.exists()]
    if any(name.startswith("/dev/nvidia") for name in held):
        return "what the app imports has opened the GPU"
    return ""


def wanted(silo: SiloFolder) -> list[str]:
    """Installed modules that the approved app imports, in its order."""
    try:
        content = (silo.path / approval.APPROVED).read_bytes()
        if approval.fingerprint(content) != silo.app:
            return []
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            texts = {name: bundle.read(name) for name in bundle.namelist() if name.endswith(".py")}
    except (OSError, zipfile.BadZipFile):
        return []
    own = {PurePosixPath(name).parts[0].removesuffix(".py") for name in texts}
    found: dict[str, None] = {}
    for text in texts.values():
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(text)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
                if isinstance(node, ast.ImportFrom):
                    found |= dict.fromkeys([node.module] if node.module and not node.level else [])
                    found |= dict.fromkeys(RECIPE_APP if "RecipeApp" in names else [])
                elif isinstance(node, ast.Import):
                    found |= dict.fromkeys(names)
    return [name for name in found if name.partition(".")[0] not in own]
