"""Secure aggregation around silos of this process: the whole protocol runs, with real keys, masks and shares.

What comes out says of updates nothing but the sum. The silos' own memory of what they contributed last lies here, for this *is*
the silos. `drops` says who stops answering in the middle of a session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from feduca.client.requests import Steps
from feduca.core.arrays import repeat, take
from feduca.core.messages import models
from feduca.federation.in_process import BESIDE, InProcess
from feduca.privacy import keys, server
from feduca.privacy import silo as silos
from feduca.privacy.contribution import contribution, kept
from feduca.privacy.encoding import OutOfRange, Ring
from feduca.privacy.protocol import Directory, Masked, Outcome, complaint, model_digest
from feduca.privacy.server import Unreleased
from feduca.types import REFUSED, Announcements, Array, Bools, Federation, Ints, Released, Reports

STEPS = ("masking", "signing", "parting", "revealing")  # what a silo is asked in a session, in this order
Drops = Callable[[int, int], str | None]  # (round, client) -> from which step on the silo is silent, if at all


class MaskedSilos:
    """`federation`, whose joiners hand over masked changes. `parameters` is how many leading entries of a model are trained.

    `memory` says whether a contribution stays when a silo sits a round out.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        least: int,
        bound: float = 0.0,
        parameters: int,
        memory: bool = True,
        drops: Drops = lambda round, client: None,
    ) -> None:
        self.silos = tuple(federation.silos)
        self._federation = federation
        self._least, self._bound, self._parameters, self._memory, self._drops = least, bound, parameters, memory, drops
        signers = {name: keys.new_signer() for name in self.silos}
        self._signers = {name: private for name, (private, _) in signers.items()}
        self._peers = {name: public for name, (_, public) in signers.items()}
        self._last: dict[int, np.ndarray] = {}  # by client, what it contributed last
        self.wire: Callable[[str, object], None] = lambda what, said: None  # who listens in on the server

    def exchange(self, announcements: Announcements) -> Reports:
        return self._masked(announcements, self._federation.exchange(announcements))

    def steps(self, announcements: Announcements) -> Steps[Reports]:
        """The same as a coroutine, for drivers that answer several federations at once."""
        assert isinstance(self._federation, InProcess)
        return self._masked(announcements, (yield from self._federation.steps(announcements)))

    def _masked(self, asked: Announcements, reports: Reports) -> Reports:
        assert asked.weights is not None
        of_client = dict(zip(asked.clients.tolist(), asked.weights.tolist()))
        weights = np.array([of_client[k] for k in reports.clients.tolist()])
        reports, made = self._contributions(asked, reports, weights)
        rows = sorted(made)
        total, counted, why = np.zeros(len(asked.theta), np.uint64), np.zeros(len(weights), bool), ""
        if rows:
            try:
                total, counted[rows] = self._session(
                    asked, reports.clients[rows], weights[rows], [made[r] for r in rows]
                )
            except Unreleased as error:
                why = str(error)
        else:
            why = "nobody joined"
        if self._memory:
            for row in np.flatnonzero(counted):
                self._last[int(reports.clients[row])] = kept(made[int(row)], self._parameters)
        nothing = repeat(asked.theta, len(weights))  # as if nobody had moved: single updates end here
        return replace(reports, theta=nothing, released=Released(total, counted, weights, why))

    def _contributions(
        self, asked: Announcements, reports: Reports, weights: np.ndarray
    ) -> tuple[Reports, dict[int, Ring]]:
        """What each joiner would add, by row; one that cannot be added up is not sent."""
        made, status, reason = {}, list(reports.status), list(reports.reason)
        joiners = np.flatnonzero(reports.joined)
        moved = take(models(asked, reports.clients), joiners) - take(reports.theta, joiners)
        for row, delta in zip(joiners.tolist(), _host(moved)):
            try:
                made[row] = contribution(delta, weights[row], self._parameters, self._bound)
            except OutOfRange as error:
                status[row], reason[row] = REFUSED, str(error)
        return replace(reports, status=status, reason=reason), made

    def _session(
        self, asked: Announcements, clients: Ints, weights: np.ndarray, made: list[Ring]
    ) -> tuple[Ring, Bools]:
        """One session among the joiners: the sum of their changes, and whose are in it."""
        names = [self.silos[k] for k in clients]
        if why := complaint(weights.tolist(), self._least):
            raise Unreleased(why)
        model = model_digest(asked.run, asked.round, _host(asked.theta), repr(asked.local))
        sessions = {name: silos.announce(name, asked.run, asked.round, model, self._signers[name]) for name in names}
        directory = Directory(tuple(sessions[name].statement for name in names), tuple(weights.tolist()))
        fate = {name: self._drops(asked.round, int(k)) for name, k in zip(names, clients)}
        received: dict[str, Masked] = {}
        for name, k, added in zip(names, clients.tolist(), made):
            if fate[name] == STEPS[0]:
                continue
            change = added - self._last[k] if k in self._last else added
            sessions[name], received[name] = silos.mask(sessions[name], directory, change, self._peers, self._least)
        self.wire("masked", received)

        def told(step: str, listed: tuple[str, ...], answer: Callable[[str, Outcome], tuple[silos.Session, Any]]):
            """What the silos of the list answer that are still there at this step."""
            found = {}
            for name in listed:
                if fate[name] is None or STEPS.index(fate[name]) > STEPS.index(step):
                    sessions[name], found[name] = answer(name, server.outcome(name, listed, received))
            self.wire(step, found)
            return found

        least, peers = self._least, self._peers
        agreed = server.agreed(
            directory, received, least,
            lambda listed: told("signing", listed, lambda name, outcome: silos.sign(
                sessions[name], outcome, least, self._signers[name])),
            lambda listed, words: told("parting", listed, lambda name, outcome: silos.part(
                sessions[name], outcome, peers, least, words)),
        )  # fmt: skip
        revealed = told("revealing", agreed.senders, lambda name, outcome: silos.reveal(
            sessions[name], outcome, peers, least, agreed.signatures))  # fmt: skip
        total = server.unmasked(directory, agreed, received, revealed, least)
        self.wire("released", total)
        return total, np.isin(names, agreed.senders)

    def snapshot(self) -> dict[str, Array]:
        return self._federation.snapshot() | {f"{BESIDE}last.{k}": value for k, value in self._last.items()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        mine = {name.removeprefix(BESIDE): x for name, x in arrays.items() if name.startswith(BESIDE)}
        self._last = {int(name.removeprefix("last.")): x for name, x in mine.items()}
        self._federation.restore(arrays)


def _host(x: Array) -> np.ndarray:
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)
