"""The silo's policy in the SuperNode's own process: before a message reaches the app, and before its answer leaves.

Nothing here runs code that the server sent. A message that may not pass is answered with one of three fixed texts
(`failures.py`), whatever it asked; mostly it is not even fetched. Only where the policy is about which run and which round it is
for is it read here first.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.supercore.run import RunNotRunningException

from feduca.errors import FeducaError
from feduca.flower import approval, consent
from feduca.flower.failures import POLICY
from feduca.flower.folder import SiloFolder, read_silo
from feduca.flower.policy import Policy, epsilon_of
from feduca.flower.policy import read as read_policy
from feduca.flower.silo import kept_out
from feduca.flower.store import SiloStore
from feduca.types import JOINED, LEFT, REFUSED

log = logging.getLogger("feduca")

ASKS = 8  # messages of secure aggregation after a round's question; it takes two, and six more where silos drop out
READS = ("announcement", "secure", "hello")  # records that an app reads its run from, first of all
WORDS = 64 << 10  # bytes of an answer that cannot hold a model worth the name
FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk that will have room again
LATE = 600.0  # seconds until an app has to have written an answer that it announced


@contextlib.contextmanager
def or_stop() -> Iterator[None]:
    """Whatever goes wrong in here ends this SuperNode: what cannot be judged is neither let in nor let out.

    Flower would go on without its main loop. Whoever keeps the SuperNode running starts it again, or says what to mend.
    """
    try:
        yield
    except (Unfetched, RunNotRunningException):  # for the caller
        raise
    except Exception as error:
        log.error("this silo stops: %s", error, exc_info=None if isinstance(error, FeducaError) else error)
        os.kill(os.getpid(), signal.SIGTERM)  # so that Flower ends what it has started, too
        raise SystemExit(1) from None


class Unfetched(Exception):
    """A message whose objects the SuperLink does not give."""


@dataclass(frozen=True)
class Asked:
    """A message that was let through: what its answer is measured by."""

    run: str
    round: int
    policy: str  # mark of the policy it was let through under


@dataclass
class Counted:
    """The message that was counted last of a run of Flower's."""

    run: str
    round: int
    train: bool
    asks: int = 0  # messages of secure aggregation since


class Warden:
    """One silo's. Its policy is read anew with every message; one that is wrong is an error, and an error stops the silo."""

    def __init__(self, silo: Path) -> None:
        self.silo = silo
        self._asked: dict[str, Asked] = {}  # by message
        self._counted: dict[int, Counted] = {}  # by run of Flower's
        self._settings: dict[
            int, tuple[bytes, dict[str, Any]]
        ] = {}  # of the runs met: the app, and the server's additions

    def mine(self) -> tuple[SiloFolder, SiloStore, Policy]:
        mine = read_silo(self.silo)
        return mine, SiloStore(mine.state), read_policy(self.silo)

    # On the way in ----------------------------------------------------------------------------------------------------

    def verdict(
        self, message: Any, met: bool, get: Callable[[], tuple[bytes, Mapping[str, Any]]], content: Callable[[], Any]
    ) -> str:
        """What to answer instead of the app, or nothing where the message may pass.

        `met` is whether a message of this run was let in before; `get` fetches the app and the settings that the server adds to
        the run, `content` what the message says.
        """
        mine, store, policy = self.mine()
        said = {"silo": mine.name, "round": message.metadata.group_id}
        number, kind = message.metadata.run_id, message.metadata.message_type
        # What secure aggregation asks between a round's question and its sum belongs to that round, which was let in and counted.
        counted = self._counted.get(number) if kind == "query.secure" else None
        shut = policy if counted is None else policy.model_copy(update={"hours": None, "rounds": None})
        if (out := kept_out(store, shut, store.worked)) is not None:
            store.log(**said, decision="declined", reason=out.why)
            return out.said
        if kind == "query.secure" and (counted is None or not counted.train or counted.asks >= ASKS):
            why = f"a message of secure aggregation follows a round's question, at most {ASKS} times"
            store.log(**said, decision="declined", reason=why)
            return POLICY
        if not met:  # what is judged here is what is kept for the app, in this very call
            app, more = get()
            self._settings[number] = app, dict(more)
        app, more = self._settings[number]
        if (policy.looks or policy.approve) and not approval.judge(self.silo, app):
            return POLICY
        hello, run, turn, found = kind == "query", "", 0, None
        if policy.approve or policy.judges or policy.epsilon is not None or policy.rounds is not None:
            found = content()
            if (about := announced(found)) is None:
                store.log(**said, decision="declined", reason="the message does not say plainly which run it is of")
                return POLICY
            run, turn = about
            hello &= set(found) == {"hello"}
        if counted is not None and (counted.run, counted.round) != (run, turn):
            why = (
                f"a message of secure aggregation is of run {run} and round {turn}, and that was not the last question"
            )
            store.log(**said, decision="declined", reason=why)
            return POLICY
        if policy.looks:  # only then is the app approved, and looked into
            elsewhere = sum(epsilon for name, epsilon in store.promised.items() if name != run)
            if (why := policy.private(_recipe(app), elsewhere)) is not None:
                store.log(**said, decision="declined", reason=why)
                return POLICY
        if policy.approve:
            asked = consent.Proposal.of(app, more, run)
            if not consent.granted(self.silo, asked, hello):
                consent.propose(self.silo, asked)
                what = (
                    "its settings are not approved"
                    if run in ("", consent.REHEARSAL)
                    else f"run {asked.run} is not approved"
                )
                store.log(
                    **said, decision="declined", reason=f"{what}; look at them with `feduca silo approve {mine.path}`"
                )
                return POLICY
            if (why := consent.unlike(_recipe(app), found)) is not None:
                store.log(**said, decision="declined", reason=why)
                return POLICY
        if counted is not None:
            counted.asks += 1
        elif not hello:
            store.count(run, None if policy.epsilon is None else epsilon_of(_recipe(app)))
            self._counted[number] = Counted(run, turn, kind == "train")
        self._asked = {message.metadata.message_id: Asked(run, turn, policy.mark)}  # one message at a time
        return ""

    def for_app(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What an app sees of the server's additions: under `approve` no more than was approved."""
        return consent.for_app(settings) if self.mine()[2].approve else dict(settings)

    # On the way out ---------------------------------------------------------------------------------------------------

    def last_look(self, reply: Any, contents: Mapping[str, bytes], found: Any) -> str:
        """What to send instead of the app's answer, or nothing where it may leave. `found` is what it says."""
        mine, store, policy = self.mine()
        asked = self._asked.get(reply.metadata.reply_to_message_id, Asked("", 0, policy.mark))
        said = {"silo": mine.name, "run": asked.run, "round": asked.round or reply.metadata.group_id}
        if (out := kept_out(store, Policy(veto=policy.veto))) is not None:  # since the app began to work
            store.log(**said, decision="declined", reason=f"{out.why}; what the app had worked stays here")
            return out.said
        size = sum(map(len, contents.values()))
        model = bool(found.array_records) or size > WORDS
        if policy.judges and (model or asked.round):
            status, mark = store.decided(asked.run, asked.round) if asked.run else ("", "")
            good = mark in (policy.mark, asked.policy) and (status == JOINED or (status == LEFT and not model))
            if not good:
                if model or status != REFUSED:  # else the silo has logged why
                    why = f"the app sent {size} bytes that this silo's policy has not judged: nothing of it left"
                    store.log(**said, decision="declined", reason=why)
                return POLICY
        store.note_sent(**said, what="model" if model else "words", bytes=size)
        return ""

    def sent(self, reply: Any, words: str) -> None:
        """Note a message that is nothing but some words."""
        mine, store, _ = self.mine()
        asked = self._asked.get(reply.metadata.reply_to_message_id, Asked("", 0, ""))
        about = {"silo": mine.name, "run": asked.run, "round": asked.round or reply.metadata.group_id}
        try:
            store.note_sent(
                **about, what="decision" if words.startswith(POLICY) else "error", bytes=len(words), said=words
            )
        except OSError as error:
            if error.errno not in FULL:
                raise  # these words tell nothing of the silo; without them a round would wait in vain
            log.error("%r leaves this silo and could not be noted: %s", words, error)


def announced(content: Any) -> tuple[str, int] | None:
    """The run and round that a message is about, from the record that the app reads; empty where it says none.

    None where two records name a run, or one names it by no text: the app could take another one than was looked at here.
    """
    records = content.config_records
    named = [words for record in records.values() if (words := _naming(record)) is not None]
    if len(named) > 1 or not all(isinstance(words["run"], str) for words in named):
        return None
    first = next((name for name in READS if name in records), None)
    words = records[first] if first is not None else named[0] if named else {}
    run, turn = words.get("run", ""), words.get("round")
    return run, turn if isinstance(turn, int) else 0


def _naming(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What in a record names a run: our entry in an app's configuration (beside.py), or the record itself."""
    if isinstance(text := record.get("feduca"), str):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(words := json.loads(text), Mapping) and "run" in words:
                return words
    return record if "run" in record else None


def inflated(key: str, contents: Mapping[str, bytes]) -> Any:
    """What a message says, from its objects."""
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    return inflate_object_from_contents(key, dict(contents)).content  # type: ignore[attr-defined]


def gathered(store: Any, tree: Any) -> dict[str, bytes]:
    """All objects of an answer that an app is writing."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    found, deadline = {}, time.monotonic() + LATE
    for part in iterate_object_tree(tree):
        while not (content := store.get(part.object_id)):
            if time.monotonic() > deadline:
                raise TimeoutError("the app did not finish its answer")
            time.sleep(0.1)
        found[part.object_id] = content
    return found


def fetched(key: str, tree: Any, pull: Callable[[str], bytes]) -> tuple[Any, dict[str, bytes]]:
    """What a message says that has arrived, and all its objects."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    keys: Iterable[str] = dict.fromkeys(part.object_id for part in iterate_object_tree(tree))
    try:
        found = pull_objects(list(keys), pull_object_fn=pull)
        return inflated(key, found), found
    except RunNotRunningException:
        raise
    except Exception as error:  # of Flower's transport, or of what a server calls a message
        raise Unfetched(f"a message could not be read: {type(error).__name__} {error}") from None


def _recipe(app: bytes) -> dict[str, Any]:
    """The recipe inside an app; empty where there is none, or more than one, or it is not TOML."""
    texts = [text for name, text in approval.texts(app).items() if Path(name).name == consent.RECIPE]
    try:
        return tomllib.loads(texts[0]) if len(texts) == 1 else {}
    except tomllib.TOMLDecodeError:
        return {}
