"""Flower's two programs, as we start them: they end with whoever started them, what they write is their user's alone, and a
SuperNode looks at an app before anything of it is unpacked or run, and at errors before they leave.

    python -m feduca.flower.launch superlink ARGUMENTS
    python -m feduca.flower.launch supernode SILO_FOLDER ARGUMENTS

The guard stands in the SuperNode's own process, between the arrival of a run's app and its being kept for the processes that will
run it, at the place where Flower verifies publishers. It enforces that only approved bytes are installed and started. The name of
their folder comes from the bundle itself, not from the server. It does not watch what approved code does.
"""

from __future__ import annotations

import hashlib
import os
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

from feduca.flower import approval
from feduca.flower.failures import spoken
from feduca.flower.folder import SiloFolder, read_silo
from feduca.flower.processes import leashed

_TRUSTED = {"feduca": "the app's fingerprint"}  # not empty: Flower then verifies every app, or replies with an error


def guard(silo: Path) -> None:
    """Let this process's SuperNode accept approved apps only. Fails where Flower has no such place any more."""
    from flwr.common.config import get_fab_config, get_metadata_from_config
    from flwr.supercore.constant import TaskType
    from flwr.supernode import start_client_internal as flower

    pull, verify = flower._pull_and_store_message, flower._verify_fab
    assert callable(pull)
    assert callable(verify)

    def guarded(*, get_run: Any, get_fab: Any, trusted_entities: Any, **rest: Any) -> int | None:
        runs: dict[int, Any] = {}

        def checked_run(number: int) -> Any:
            runs[number] = get_run(number)
            return runs[number]

        def checked_fab(wanted: str, number: int) -> Any:
            fab, run = get_fab(wanted, number), runs[number]
            agent = run.primary_task_type == TaskType.AGENT_APP  # a program that was never part of what was approved
            good = not agent and approval.judge(silo, fab.content)
            fab.hash_str = run.fab_hash = hashlib.sha256(fab.content).hexdigest()
            if good:  # else one that was approved earlier could run under this one's content, or from another folder
                run.fab_id, run.fab_version = get_metadata_from_config(get_fab_config(fab.content))
            fab.verifications = {"valid_license": "looked at here", "good": "true" if good else "false"}
            return fab

        return pull(get_run=checked_run, get_fab=checked_fab, trusted_entities=_TRUSTED, **rest)

    push = flower._push_messages
    assert callable(push)

    def quiet(*, state: Any, object_store: Any, **rest: Any) -> None:
        push(state=cast(Any, Discreet(state, object_store, read_silo(silo))), object_store=object_store, **rest)

    flower._push_messages = quiet
    flower._pull_and_store_message = guarded
    flower._verify_fab = lambda fab, trusted: fab.verifications["good"] == "true"


class Discreet:
    """A SuperNode's state whose error replies say what may leave the silo (failures.py), and nothing else."""

    def __init__(self, state: Any, store: Any, silo: SiloFolder) -> None:
        self._state, self._store, self._silo = state, store, silo

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_messages_legacy(self, **asked: Any) -> list[Any]:
        return [self._said(reply) if reply.has_error() else reply for reply in self._state.get_messages_legacy(**asked)]

    def _said(self, reply: Any) -> Any:
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode
        from flwr.supernode import start_client_internal as flower

        if reply.error.code == ErrorCode.INVALID_FAB:
            words = "its operator has not approved this app"
        else:
            about = {"silo": self._silo.name, "round": reply.metadata.group_id}
            words = spoken(reply.error.reason or "", self._silo.state, **about)
        old, error = reply.metadata.message_id, Error(code=reply.error.code, reason=words)
        fresh = Message(error=error, metadata=deepcopy(reply.metadata))  # type: ignore[call-overload]
        fresh.metadata.__dict__["_message_id"] = ""
        flower._insert_message(fresh, self._state, self._store)
        self._state.delete_messages(message_ids=[old])
        self._store.delete(old)
        return fresh


def main(program: str, *arguments: str) -> None:
    leashed()
    os.umask(0o077)  # the database, logs, apps and everything a run writes
    if program == "superlink":
        from flwr.superlink.cli import flower_superlink

        sys.argv = ["flower-superlink", *arguments]
        flower_superlink()
        return
    folder, *rest = arguments
    guard(Path(folder))
    from flwr.supernode.cli import flower_supernode

    sys.argv = ["flower-supernode", *rest]
    flower_supernode()


if __name__ == "__main__":
    main(*sys.argv[1:])
