"""Flower's two programs, as we start them: they end with whoever started them, what they write is their user's alone, and a
SuperNode looks at its silo's policy and at an app before anything of it is unpacked or run, and at answers before they leave.

    python -m feduca.flower.launch superlink ARGUMENTS
    python -m feduca.flower.launch supernode SILO_FOLDER PORT

The guard stands in the SuperNode's own process, between the arrival of a run's app and its being kept for the processes that will
run it, at the place where Flower verifies publishers. It enforces that only approved bytes are installed and started. The name of
their folder comes from the bundle itself, not from the server. It does not watch what approved code does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

from feduca.flower import approval
from feduca.flower.failures import DECIDED, UNAPPROVED, note, spoken
from feduca.flower.folder import SiloFolder, read_silo
from feduca.flower.processes import leashed
from feduca.flower.template import Template
from feduca.flower.warden import FULL, Unfetched, Warden, fetched, gathered, inflated, or_stop

log = logging.getLogger("feduca")

_TRUSTED = {"feduca": "the app's fingerprint"}  # not empty: Flower then verifies every app, or replies with an error


def guard(silo: Path, template: Template | None = None) -> None:
    """Let this process's SuperNode heed the silo's policy and accept approved apps only. Fails where Flower has no such place.

    With a `template` (template.py) what was let in is handed to it; else it waits for a program of Flower's that asks.
    """
    from flwr.app import Error, Message
    from flwr.common.config import get_fab_config, get_metadata_from_config
    from flwr.common.constant import ErrorCode
    from flwr.supercore.constant import TaskType
    from flwr.supercore.run import RunNotRunningException
    from flwr.supernode import start_client_internal as flower

    pull, verify = flower._pull_and_store_message, flower._verify_fab
    assert callable(pull)
    assert callable(verify)
    warden = Warden(silo)

    def guarded(
        *, state: Any, object_store: Any, receive: Any, get_run: Any, get_fab: Any, pull_object: Any, **rest: Any
    ) -> Any:
        runs: dict[int, Any] = {}
        fabs: dict[int, Any] = {}
        objects: dict[str, bytes] = {}

        def the_run(number: int) -> Any:
            if number not in runs:
                runs[number] = get_run(number)
            return runs[number]

        def the_fab(wanted: str, number: int) -> Any:
            if number not in fabs:
                fabs[number] = get_fab(wanted, number)
            return fabs[number]

        def checked_run(number: int) -> Any:
            run = the_run(number)
            run.override_config = warden.for_app(run.override_config)
            return run

        def checked_fab(wanted: str, number: int) -> Any:
            fab, run = the_fab(wanted, number), runs[number]
            agent = run.primary_task_type == TaskType.AGENT_APP  # a program that was never part of what was approved
            good = not agent and approval.judge(silo, fab.content)
            fab.hash_str = run.fab_hash = hashlib.sha256(fab.content).hexdigest()
            if good:  # else one that was approved earlier could run under this one's content, or from another folder
                run.fab_id, run.fab_version = get_metadata_from_config(get_fab_config(fab.content))
            fab.verifications = {"valid_license": "looked at here", "good": "true" if good else "false"}
            return fab

        try:
            if (arrived := receive()) is None:
                return None
            message, tree = arrived
            number = message.metadata.run_id

            def app() -> tuple[bytes, dict[str, Any]]:
                run = the_run(number)
                return the_fab(run.fab_hash, number).content, dict(run.override_config)

            def content() -> Any:
                said, found = fetched(message.metadata.message_id, tree, lambda key: pull_object(number, key))
                objects.update(found)
                return said

            with or_stop():
                try:
                    words = warden.verdict(message, state.get_run(number) is not None, app, content)
                except OSError as error:  # what cannot be counted is not let in
                    words = f"<class 'OSError'>:<'{full_disk(silo, error, message)}'>"  # as Flower words an exception
            if words:
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, words), reply_to=message)
                flower._insert_message(reply, state, object_store)
                return number
        except RunNotRunningException:
            return None
        except Unfetched as error:  # as Flower does: it is not confirmed, and not answered
            log.error("%s", error)
            return None
        ways = {"receive": lambda: arrived, "get_run": checked_run, "get_fab": checked_fab}
        once = {"pull_object": lambda number, key: objects.pop(key, None) or pull_object(number, key)}
        rest = {**rest, **ways, **once, "trusted_entities": _TRUSTED}
        done = pull(state=state, object_store=object_store, **rest)
        if template is not None:
            with or_stop():
                template.serve(state)
        return done

    push = flower._push_messages
    assert callable(push)

    def quiet(*, state: Any, object_store: Any, **rest: Any) -> None:
        seen = cast(Any, Discreet(state, object_store, read_silo(silo), warden))
        push(state=seen, object_store=object_store, **rest)

    flower._push_messages = quiet
    flower._pull_and_store_message = guarded
    flower._verify_fab = lambda fab, trusted: fab.verifications["good"] == "true"


def full_disk(silo: Path, error: OSError, message: Any) -> str:
    """What to say in the place of an answer where the silo's disk is full; any other error goes on its way."""
    if error.errno not in FULL:
        raise error
    log.error("round %s is without this silo: %s", message.metadata.group_id, error)
    mine = read_silo(silo)
    return note(mine.state, "OSError", str(error), silo=mine.name, round=message.metadata.group_id)


class Discreet:
    """A SuperNode's state whose replies are what may leave the silo (failures.py, warden.py), and nothing else."""

    def __init__(self, state: Any, store: Any, silo: SiloFolder, warden: Warden) -> None:
        self._state, self._store, self._silo, self._warden = state, store, silo, warden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_messages_legacy(self, **asked: Any) -> list[Any]:
        with or_stop():
            return [self._may_leave(reply) for reply in self._state.get_messages_legacy(**asked)]

    def _may_leave(self, reply: Any) -> Any:
        if reply.has_error():
            return self._said(reply)
        key = reply.metadata.message_id
        contents = gathered(self._store, self._store.get_object_tree(key))
        try:
            words = self._warden.last_look(reply, contents, inflated(key, contents))
        except OSError as error:  # what cannot be noted does not leave
            words = full_disk(self._silo.path, error, reply)
        return self._instead(reply, words) if words else reply

    def _said(self, reply: Any) -> Any:
        from flwr.common.constant import ErrorCode

        if reply.error.reason in DECIDED:
            self._warden.sent(reply, reply.error.reason)
            return reply
        if reply.error.code == ErrorCode.INVALID_FAB:
            words = UNAPPROVED
        else:
            about = {"silo": self._silo.name, "round": reply.metadata.group_id}
            words = spoken(reply.error.reason or "", self._silo.state, **about)
        return self._instead(reply, words, reply.error.code)

    def _instead(self, reply: Any, words: str, code: int | None = None) -> Any:
        """An error reply with these words, in the place of what an app wrote."""
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode
        from flwr.supernode import start_client_internal as flower

        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION if code is None else code
        old, error = reply.metadata.message_id, Error(code=code, reason=words)
        fresh = Message(error=error, metadata=deepcopy(reply.metadata))  # type: ignore[call-overload]
        fresh.metadata.__dict__["_message_id"] = ""
        flower._insert_message(fresh, self._state, self._store)
        self._state.delete_messages(message_ids=[old])
        self._store.delete(old)
        self._warden.sent(reply, words)
        return fresh


def supernode(silo: SiloFolder, port: int) -> None:
    """Be the SuperNode of `silo`. The working directory is its folder, and this process has one thread."""
    from flwr.supernode.cli import flower_supernode

    template = None if silo.fresh else Template(silo, port)
    leashed()
    config = {"silo": silo.name, "folder": str(silo.state), **silo.config}
    sys.argv = [
        *("flower-supernode", "--host", "127.0.0.1", "--port", str(port)),
        *("--root-certificates", "ca.crt", "--superlink", silo.superlink, "--auth-supernode-private-key", "key"),
        *("--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())),
    ]
    if template is not None:
        template.wait()
        sys.argv += ["--isolation", "process"]  # Flower starts nothing by itself
    guard(silo.path, template)
    flower_supernode()


def patient() -> None:
    """Let the SuperLink wait for its database for as long as silos wait for it: Flower's five seconds are over when twenty silos
    answer at once on a busy machine, and then an answer is lost ("database is locked") and its silo absent."""
    from flwr.supercore import sql_mixin

    sql_mixin.SQLITE_PRAGMAS = (*sql_mixin.SQLITE_PRAGMAS, ("busy_timeout", "60000"))  # type: ignore[assignment]


def main(program: str, *arguments: str) -> None:
    os.umask(0o077)  # the database, logs, apps and everything a run writes
    if program == "supernode":
        folder, port = arguments
        supernode(read_silo(Path(folder)), int(port))
        return
    leashed()
    from flwr.superlink.cli import flower_superlink

    patient()
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
