"""The server's part of secure aggregation in a deployment: two more messages in a round, four or more where a silo drops out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from feduca.core.arrays import repeat
from feduca.errors import InputError
from feduca.flower import codec
from feduca.flower.secure_silo import asked_for, hexed, said, unhexed
from feduca.flower.vectors import numbers
from feduca.privacy import keys, server
from feduca.privacy.encoding import Ring
from feduca.privacy.protocol import (
    Directory,
    Masked,
    Statement,
    complaint,
    packed,
    statement_of,
)
from feduca.privacy.server import Unreleased
from feduca.types import REFUSED, Announcements, Bools, Released, Reports

Ask = Callable[
    [int, Mapping[int, RecordDict]], Mapping[int, RecordDict]
]  # a round's messages, and the answers that came


class SecureSums:
    """Sessions among the silos called `names`, by client. `peers` gives their registered keys; `note` takes what was odd."""

    def __init__(
        self, ask: Ask, peers: Callable[[], Mapping[str, bytes]], least: int, note: Callable[[str], None]
    ) -> None:
        self._ask, self._peers, self._least, self._note = ask, peers, least, note
        self.counted: dict[int, int] = {}  # by client, the last round whose contribution is in the running sum

    def summed(
        self, asked: Announcements, reports: Reports, names: Sequence[str], statements: Mapping[int, Any]
    ) -> Reports:
        """The reports with the sum of the joiners' changes. `statements` are what joiners sent as their keys, by client."""
        assert asked.weights is not None
        of_client = dict(zip(asked.clients.tolist(), asked.weights.tolist()))
        weights = np.array([of_client[k] for k in reports.clients.tolist()])
        status, reason, good = list(reports.status), list(reports.reason), {}
        for row in np.flatnonzero(reports.joined).tolist():
            client = int(reports.clients[row])
            try:
                good[row] = self._statement(asked, names[client], statements.get(client))
            except ValueError as error:
                status[row], reason[row] = REFUSED, f"answer refused: {error}"
                self._note(f"round {asked.round}: {names[client]} takes no part in the sum: {error}")
        total, counted, why = np.zeros(len(asked.theta), np.uint64), np.zeros(len(weights), bool), ""
        rows = sorted(good)
        try:
            directory = Directory(tuple(good[row] for row in rows), tuple(weights[rows].tolist()))
            clients = dict(zip(directory.names, reports.clients[rows].tolist()))
            total, counted[rows] = self._session(asked.run, asked.round, directory, clients, len(asked.theta))
        except Unreleased as error:
            why = str(error)
            self._note(f"round {asked.round}: no sum was released: {why}")
        for row in np.flatnonzero(counted):
            self.counted[int(reports.clients[row])] = asked.round
        nothing = repeat(asked.theta, len(weights))
        released = Released(total, counted, weights, why)
        return replace(reports, status=status, reason=reason, theta=nothing, released=released)

    def _statement(self, asked: Announcements, name: str, text: object) -> Statement:
        """A silo's key, checked as the others will: one that they would refuse must not cost them the round."""
        if not isinstance(text, str) or len(text) > 10_000:
            raise ValueError("it joins and announces no key")
        try:
            found = statement_of(json.loads(text))
        except RecursionError:
            raise ValueError("its key is nested too deeply") from None
        if (found.silo, found.run, found.round) != (name, asked.run, asked.round) or found.model != asked_for(asked):
            raise ValueError("its key is for another silo, round or model")
        key = self._peers().get(name)
        if key is None or not keys.signed(key, found.text, found.signature):
            raise ValueError("its key is not signed with the one it is registered by")
        return found

    def _session(
        self, run: str, round: int, directory: Directory, clients: Mapping[str, int], size: int
    ) -> tuple[Ring, Bools]:
        if why := complaint(directory.weights, self._least):
            raise Unreleased(why)
        text = packed(directory)
        received = self._told(
            run, round, clients, lambda name: {"step": "mask", "directory": text, "last": self.counted.get(clients[name], 0)},
            lambda content, words: Masked(_change(content, size), unhexed(words["shares"])),
        )  # fmt: skip

        def told(step: str, listed: Sequence[str], read: Callable[[Any], Any], **more: str) -> dict[str, Any]:
            """What the silos in a list say to it."""

            def words(name: str) -> dict[str, Any]:
                found = server.outcome(name, listed, received)
                return {"step": step, "senders": json.dumps(list(listed)), "shares": hexed(found.shares), **more}

            here = {name: clients[name] for name in listed}
            return self._told(run, round, here, words, lambda content, said: read(said))

        agreed = server.agreed(
            directory, received, self._least,
            lambda listed: told("sign", listed, lambda said: bytes.fromhex(said["signature"])),
            lambda listed, signed: told("part", listed, lambda said: unhexed(said["pairs"]), signatures=hexed(signed)),
        )  # fmt: skip
        signed = hexed(agreed.signatures)
        revealed = told("reveal", agreed.senders, lambda said: unhexed(said["shares"]), signatures=signed)
        total = server.unmasked(directory, agreed, received, revealed, self._least)
        return total, np.isin(directory.names, agreed.senders)

    def _told(
        self,
        run: str,
        round: int,
        clients: Mapping[str, int],
        tell: Callable[[str], Mapping[str, Any]],
        read: Callable[[RecordDict, Mapping[str, Any]], Any],
    ) -> dict[str, Any]:
        """What the silos answer to `tell(name)`; whoever does not answer, or something else, is not in it."""
        names, found = {client: name for name, client in clients.items()}, {}
        contents = {client: said(round, name, run=run, client=client, **tell(name)) for name, client in clients.items()}
        for client, content in self._ask(round, contents).items():
            name = names[client]
            try:
                words = codec._config(content, "secure")
                if (words.get("round"), words.get("silo")) != (round, name):
                    raise ValueError("it is for another silo or round")
                found[name] = read(content, words)
            except (codec.ProtocolError, InputError, KeyError, TypeError, ValueError) as error:
                self._note(f"round {round}: a message of {name} was refused: {type(error).__name__} {error}")
        return {name: found[name] for name in clients if name in found}


def _change(content: RecordDict, size: int) -> Ring:
    record = content.get("change")
    if not isinstance(record, ArrayRecord) or list(record) != ["theta"]:
        raise ValueError("there is no masked change in it")
    change = numbers(record["theta"])
    if change.shape != (size,) or change.dtype != np.int64:
        raise ValueError(f"the masked change is {change.dtype}{list(change.shape)}, asked was one of {size} integers")
    return change.view(np.uint64)
