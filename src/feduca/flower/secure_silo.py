"""The silo's part of secure aggregation in a deployment: every message starts a new process, so a session lies on its disk.

SILO/key                                  signs this silo's keys of a round: the one by which it is registered
SILO/peers/NAME.pub                       whose keys it believes; who is not there takes no part in a sum with this silo
SILO/state/runs/RUN/secure-000007.json        the session of round 7; its secrets never leave this folder
SILO/state/runs/RUN/update-000007.npy         the update of that round ...
SILO/state/runs/RUN/contribution-000007.npy   ... and what of it was masked and sent
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from feduca.errors import InputError
from feduca.flower import codec
from feduca.privacy import silo as protocol
from feduca.privacy.contribution import contribution, kept
from feduca.privacy.encoding import OutOfRange, Ring
from feduca.privacy.protocol import (
    Outcome,
    Statement,
    Untrusted,
    model_digest,
    packed,
    statement_of,
    unpacked,
    words_of,
)
from feduca.privacy.silo import Session
from feduca.recipes.schema import Recipe
from feduca.runs.files import write_whole
from feduca.runs.locks import held
from feduca.types import Announcements

KEPT = 12  # contributions: as far back as a server may go with its checkpoints
LAST = 1_000_000  # round of a recipe


def asked_for(asked: Announcements) -> bytes:
    """The digest of what all silos of a round are asked alike."""
    local = json.dumps(asdict(asked.local), sort_keys=True)
    return model_digest(asked.run, asked.round, codec.host(asked.theta), local)


class SecureSilo:
    """One silo of a run with `recipe`; `state` is where it keeps its things."""

    def __init__(self, name: str, state: Path | str, recipe: Recipe, run: str) -> None:
        self._name, self._home, self._run = name, Path(state).parent, run
        if not run or not all(c.isalnum() or c in "-_." for c in run) or run.startswith("."):
            raise InputError(f"{run[:80]!r} is not the name of a run")
        self._folder = Path(state) / "runs" / run
        self._privacy, self._memory = recipe.privacy, recipe.memory.kind != "none"

    def announce(self, asked: Announcements, theta: np.ndarray, new: np.ndarray) -> Statement:
        """This silo's key of the round; `new` is the model whose change it will send. The same where it was asked before."""
        model = asked_for(asked)
        if not 1 <= asked.round <= LAST:
            raise Untrusted(f"round {asked.round} is none: a run has at most {LAST}")
        self._folder.mkdir(parents=True, exist_ok=True)
        with held(self._folder):
            known = self._session(asked.round)
            if known is not None and known.directory is not None:
                return known.statement
            self._not_older(asked.round)
            if known is not None and known.statement.model == model:
                return known.statement
            session = protocol.announce(self._name, self._run, asked.round, model, self._signer())
            self._keep("update", asked.round, theta - new)
            self._save(session)
            return session.statement

    def answer(self, content: RecordDict, parameters: int) -> RecordDict:
        """What the silo says to a message in the middle of a session."""
        words = codec._config(content, "secure")
        try:
            round, step = int(words["round"]), str(words["step"])
            if words["silo"] != self._name:
                raise codec.ProtocolError(f"this message is for {words['silo']!r}, and here is {self._name!r}")
            if not 1 <= round <= LAST or not self._path("secure", round).is_file():
                raise Untrusted(f"this silo announced no key in round {round}")
            with held(self._folder):  # two processes at once could mask one update for two directories
                return self._step(round, step, words, parameters)
        except (KeyError, TypeError, ValueError) as error:
            raise codec.ProtocolError(f"the message is damaged: {type(error).__name__} {error}") from None

    def _step(self, round: int, step: str, words: Mapping[str, Any], parameters: int) -> RecordDict:
        session = self._session(round)
        if session is None:
            raise Untrusted(f"this silo announced no key in round {round}")
        if step == "mask":
            return self._mask(session, words, parameters)
        outcome, least = Outcome(tuple(json.loads(words["senders"])), unhexed(words["shares"])), self._privacy.least
        if step == "sign":
            after, signature = protocol.sign(session, outcome, least, self._signer())
            answer = {"signature": signature.hex()}
        elif step in ("part", "reveal"):
            does, what = (protocol.part, "pairs") if step == "part" else (protocol.reveal, "shares")
            after, shown = does(session, outcome, self._peers(), least, unhexed(words["signatures"]))
            answer = {what: hexed(shown)}
        else:
            raise ValueError(f"{step[:20]!r} is no step of a session")
        self._save(after)  # before anything of it leaves
        return said(round, self._name, **answer)

    def _not_older(self, round: int) -> None:
        """Refuse to begin a round anew that lies behind: its update under other keys, for other silos, would be a second sum.

        The record is the contributions: the highest of them, of the last round that was masked, is never deleted.
        """
        highest = max(self._rounds("contribution"), default=0)
        if round <= highest:
            raise Untrusted(f"round {round} lies behind: this silo has masked a change in round {highest} of this run")

    def _mask(self, session: Session, words: Mapping[str, Any], parameters: int) -> RecordDict:
        directory, last = unpacked(words["directory"]), int(words["last"])
        round = session.statement.round
        if self._name not in directory.names:
            raise Untrusted("the directory does not name this silo")
        if session.directory is None:
            self._not_older(round)
        # First of all and once a round: else a server could try weights until it knows how long the update is.
        session = protocol.settle(session, directory, self._peers(), self._privacy.least)
        self._save(session)
        weight = directory.weights[directory.names.index(self._name)]
        try:
            added = contribution(self._read("update", round), weight, parameters, self._privacy.bound)
        except OutOfRange as error:  # whose name would leave this silo
            raise Untrusted(str(error)) from None
        change = added - self._counted(last, round) if self._memory and last else added
        after, masked = protocol.mask(session, directory, change, self._peers(), self._privacy.least)
        self._keep("contribution", round, kept(added, parameters))
        self._save(after)  # before anything of it leaves: no second change under these masks
        for what, most in (("contribution", KEPT), ("update", 2), ("secure", 2)):
            for old in self._rounds(what)[:-most]:
                if old != round and not (what == "contribution" and old == last):
                    self._path(what, old).unlink()
        content = said(round, self._name, shares=hexed(masked.shares))
        content["change"] = ArrayRecord({"theta": Array(masked.change.view(np.int64))})
        return content

    def _counted(self, last: int, round: int) -> Ring:
        """What the server says of this silo's is in its sum: of an earlier round in which it sent something."""
        if last >= round or not self._path("contribution", last).is_file():
            raise Untrusted(
                f"the server counts a contribution of round {last}, which is not in {self._folder} any more: without it no change"
                " can be formed"
            )
        return self._read("contribution", last)

    def _signer(self) -> Any:
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        path = self._home / "key"
        try:
            return load_ssh_private_key(path.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot sign this silo's keys ({error}); `feduca deploy init` makes one") from None

    def _peers(self) -> dict[str, bytes]:
        own = self._home / "key.pub"
        known = {path.stem: path.read_bytes() for path in (self._home / "peers").glob("*.pub")}
        return {**known, self._name: own.read_bytes()}

    # On disk -----------------------------------------------------------------------------------------------------------

    def _path(self, what: str, round: int) -> Path:
        return self._folder / f"{what}-{round:06d}.{'json' if what == 'secure' else 'npy'}"

    def _rounds(self, what: str) -> list[int]:
        """Of which there is such a file, oldest first."""
        ending = self._path(what, 1).suffix
        return sorted(int(path.stem.rpartition("-")[2]) for path in self._folder.glob(f"{what}-*{ending}"))

    def _keep(self, what: str, round: int, x: np.ndarray) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(what, round)
        part = path.with_suffix(f".part{os.getpid()}")
        with part.open("wb") as file:
            np.save(file, np.ascontiguousarray(x), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def _read(self, what: str, round: int) -> np.ndarray:
        try:
            return np.load(self._path(what, round), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(
                f"{self._path(what, round)} cannot be read ({error}); this silo sits the round out"
            ) from None

    def _save(self, session: Session) -> None:
        words = {
            "statement": words_of(session.statement),
            "private": session.private.hex(),
            "seed": session.seed.hex(),
            "directory": None if session.directory is None else packed(session.directory),
            "change": session.change.hex(),
            "shares": None if session.shares is None else hexed(session.shares),
            "senders": None if session.senders is None else list(session.senders),
            "given": session.given,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path("secure", session.statement.round)
        write_whole(path, json.dumps(words))
        path.chmod(0o600)

    def _session(self, round: int) -> Session | None:
        path = self._path("secure", round)
        if not path.is_file():
            return None
        try:
            words = json.loads(path.read_text(encoding="utf-8"))
            return Session(
                statement_of(words["statement"]),
                bytes.fromhex(words["private"]),
                bytes.fromhex(words["seed"]),
                None if words["directory"] is None else unpacked(words["directory"]),
                bytes.fromhex(words["change"]),
                None if words["shares"] is None else unhexed(words["shares"]),
                None if words["senders"] is None else tuple(words["senders"]),
                bool(words["given"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}); this silo sits the round out") from None


def said(round: int, silo: str, **words: str | int) -> RecordDict:
    head = {"protocol": codec.PROTOCOL, "round": round, "silo": silo}
    return RecordDict({"secure": ConfigRecord({**head, **words})})


def hexed(values: Mapping[str, bytes]) -> str:
    return json.dumps({name: value.hex() for name, value in values.items()})


def unhexed(text: Any) -> dict[str, bytes]:
    """The inverse; ValueError or TypeError where it is none."""
    if not isinstance(text, str) or len(text) > codec.LARGEST_TEXT:
        raise ValueError("that is no text, or too long a one")
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("that is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("that is no mapping")
    return {str(name): bytes.fromhex(value) for name, value in found.items()}
