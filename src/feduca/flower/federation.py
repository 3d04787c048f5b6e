"""Silos behind a Flower Grid, as a Federation: one message per silo and round.

Nodes that nobody has met are asked who they are beside the round's own messages, and belong from the next round on. A node may
only speak for the silo whose key in `keys/` it holds (elsewhere: whose name it was registered with), never for one that another
live node speaks for. Errors and silence become `absent`, anything malformed `refused`, each with its reason; no silo can stop a
round.

A round that every silo declined before it looked at anything (closed hours, a pause, an approval that is missing) is asked again
once one of them is back: nobody worked in it, so it is none. Whether one is back is found out by asking who it is, which uses up
nobody's quota of rounds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from feduca.core.messages import alone, silent, together
from feduca.core.share import Share
from feduca.errors import RunError
from feduca.flower import codec
from feduca.flower.failures import DECIDED, ERASES, LEAVES, POLICY, UNAPPROVED, heard, numberless
from feduca.flower.keys import Keys
from feduca.flower.register import Member, Register
from feduca.flower.secure_server import SecureSums
from feduca.types import ABSENT, LEFT, REFUSED, Announcements, Array, Reports

log = logging.getLogger("feduca")

AWAY = "its node is not connected"
OUT = (POLICY, UNAPPROVED)  # of whoever says so nothing was looked at, or it decided by what it looked at
IDLE = (*OUT, f"failed: {UNAPPROVED}", AWAY)  # reasons of silos that did not work in a round
WAITS = "every silo declines by its policy, or waits for its operator's approval"


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds."""

    round_s: float = 3600.0  # for the answers of one round
    silos_s: float = 600.0  # for enough silos to be there
    poll_s: float = 0.25  # between two looks
    stranger_s: float = 60.0  # until a node that was turned away is asked again
    closed_s: float = 604800.0  # while every silo declines by its policy
    policy_s: float = 15.0  # until they are asked for the first time whether one is back; then twice as long, ...
    longest_s: float = 300.0  # ... and so on, up to this
    hello_s: float = 60.0  # for the answer to that


class FlowerFederation:
    """Implements `types.Federation` over `grid`. `size` and `curve` are how long a model and a utility curve are.

    `share` says what of a model travels; `secure` how many fresh updates a sum holds, where silos mask theirs. `waiting` is told
    for what the run waits, and an empty text when it goes on.
    """

    def __init__(
        self,
        grid: Grid,
        register: Register,
        *,
        run: str,
        recipe: str,
        size: int,
        curve: int,
        quorum: int = 1,
        patience: Patience | None = None,
        keys: Keys | None = None,
        share: Share | None = None,
        secure: int = 0,
        waiting: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.register = register
        self.heard: dict[str, tuple[codec.Hello, float]] = {}  # first answers, and when they were read
        self.events: list[str] = []  # what happened beside the rounds: arrivals, strangers turned away, ...
        self._grid, self._run, self._recipe = grid, run, recipe
        self._size, self._curve, self._share = size, curve, share
        self._quorum, self._patience, self._keys = quorum, patience or Patience(), keys
        self._greeted: dict[str, int] = {}  # first exchanges under way: message -> node
        self._turned_away: dict[int, tuple[float, str]] = {}  # node -> when last, and why
        self._waiting = waiting
        self._keys_said: dict[int, object] = {}  # under secure aggregation, by client: its key of the round
        self._sums = SecureSums(self._ask, self._peers, secure, self.note) if secure else None

    @property
    def silos(self) -> tuple[str, ...]:
        return self.register.names

    def snapshot(self) -> dict[str, Array]:
        """Silos keep their own memory. Under secure aggregation: of which round their contributions are."""
        if self._sums is None:
            return {}
        return {f"counted.{client}": np.array(round) for client, round in self._sums.counted.items()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        if self._sums is not None:
            self._sums.counted = {int(name.removeprefix("counted.")): int(round) for name, round in arrays.items()}

    # The first exchange ----------------------------------------------------------------------------------------------

    def gather(self, silos: int) -> None:
        """Wait until `silos` silos are connected and have said who they are; go on with fewer once time is up and the quorum met.

        At the first exchange places are given in the order of names; who comes later is appended.
        """
        met: dict[str, Member] = {}
        silos = max(1, silos - sum(m.left for m in self.register.members))  # who has left is not waited for
        deadline, waits = time.monotonic() + self._patience.silos_s, False
        while True:
            online = self._online()
            here = [m for m in (*self.register.members, *met.values()) if m.node in online and not m.left]
            if len(here) >= silos:
                break
            away = {node: why for node, (_, why) in self._turned_away.items() if node in online}
            if not waits and not here and away.keys() == online.keys() and away and set(away.values()) <= set(OUT):
                waits = self._closed()
            if time.monotonic() > deadline:
                if len(here) >= self._quorum:
                    self.note(
                        f"{len(here)} of {silos} silos came within {self._patience.silos_s:g} s; going on with them"
                    )
                    break
                there = len(here) + sum(why == POLICY for why in away.values())
                if there < self._quorum or time.monotonic() > deadline + self._patience.closed_s:
                    seen = ", ".join(m.name for m in here) or "none"
                    odd = "; ".join(
                        f"{self._called(node, online)} was turned away: {why}" for node, why in away.items()
                    )
                    raise RunError(
                        f"{silos} silos were expected within {self._patience.silos_s:g} s, these came: {seen};"
                        f" {odd}{'; ' * bool(odd)}start the others' SuperNodes (`feduca deploy check` helps) and resume"
                    )
                waits = waits or self._closed()  # they are there, and decide themselves when they come
            self._greet(online, {member.node for member in met.values()})
            for member in self._greetings(online, met):
                met[member.name] = member
            time.sleep(self._patience.poll_s)
        if waits:
            self._waiting("")
        self.register.add(met.values())

    def _online(self) -> dict[int, str]:
        """Nodes that are there now, and whose they are ('' where nobody knows).

        Where there are `keys`, a node is whose key it holds, and nobody without one is ever asked, whatever is registered.
        """
        there = self._grid.get_nodes()
        if self._keys is None:
            return {node.node_id: getattr(node, "name", "") or "" for node in there}
        names = self._keys.names()
        return {node.node_id: names[node.public_key] for node in there if node.public_key in names}

    def _greet(self, online: Mapping[int, str], met: Set[int] = frozenset()) -> None:
        """Ask every unknown node who it is."""
        lately = time.monotonic() - self._patience.stranger_s
        away = (node for node, (when, _) in self._turned_away.items() if when > lately)
        busy = {*met, *self._greeted.values(), *away}
        strangers = [node for node in online if node not in busy and self.register.of_node(node) is None]
        messages = [Message(codec.hello_request(self._run), node, MessageType.QUERY) for node in strangers]
        if messages:
            ids = self._grid.push_messages(messages)
            self._greeted |= {key: node for key, node in zip(ids, strangers) if key}

    def _greetings(self, online: Mapping[int, str], met: Mapping[str, Member] = {}) -> list[Member]:
        """New silos among the answers. A known name at a new node, its old one gone, just moves."""
        found: dict[str, Member] = {}
        if not self._greeted:
            return []
        for reply in self._grid.pull_messages(list(self._greeted)):
            node = self._greeted.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                if reply.has_error():
                    why = heard(reply)
                    raise codec.ProtocolError(
                        why if why in (*DECIDED, UNAPPROVED) else f"it answered with an error: {why}"
                    )
                hello = codec.read_hello(reply.content)
                self.heard[hello.silo] = hello, time.time()
                self._check(hello, online.get(node, ""))
                place = self.register.place(hello.silo)
                other = (
                    self.register.members[place] if place is not None else met.get(hello.silo, found.get(hello.silo))
                )
                if other is not None and other.node in online and other.node != node:
                    raise codec.ProtocolError(f"it calls itself {hello.silo!r}, which another node already is")
                if place is not None:
                    self.register.update(place, node=node, examples=hello.examples)
                    self.note(f"{hello.silo} is back at node {node}", "back", silo=hello.silo)
                else:
                    found[hello.silo] = Member(hello.silo, node, hello.examples)
                    words = f"{hello.silo} has come with {hello.examples} examples (node {node})"
                    self.note(words, "came", silo=hello.silo)
            except codec.ProtocolError as error:
                self._turn_away(node, str(error), online)
        return list(found.values())

    def _turn_away(self, node: int, why: str, online: Mapping[int, str]) -> None:
        """Said once for each reason, whatever line of its log that is now: it is asked again and again."""
        _, before = self._turned_away.get(node, (0.0, ""))
        self._turned_away[node] = time.monotonic(), why
        if numberless(why) == numberless(before):
            return
        about = {"silo": online[node]} if online.get(node) else {}
        said = f"takes no part: {why}" if why in (*DECIDED, UNAPPROVED) else f"was turned away: {why}"
        self.note(f"{self._called(node, online)} {said}", "turned-away", logging.WARNING, **about)

    def _called(self, node: int, online: Mapping[int, str]) -> str:
        """A node by the name of the key it holds, where that is known."""
        return f"{name} (node {node})" if (name := online.get(node)) else f"node {node}"

    def _check(self, hello: codec.Hello, registered: str) -> None:
        if registered and registered != hello.silo:
            raise codec.ProtocolError(f"it calls itself {hello.silo!r} and holds the key of {registered!r}")
        if hello.size != self._size:
            raise codec.ProtocolError(f"its model has {hello.size} entries, the server's has {self._size}")
        if hello.recipe != self._recipe:
            raise codec.ProtocolError(f"it runs recipe {hello.recipe}, the server runs {self._recipe}")

    # A round ---------------------------------------------------------------------------------------------------------

    def exchange(self, announcements: Announcements) -> Reports:
        reports = self._answers(announcements)
        while _idle(reports) and self._waited(announcements.round):
            reports = self._answers(announcements)
        if self._sums is None:
            return reports
        said, self._keys_said = self._keys_said, {}
        return self._sums.summed(announcements, reports, self.register.names, said)

    def _answers(self, announcements: Announcements) -> Reports:
        online = self._gathered(announcements.round)
        answers: dict[int, Reports] = {}
        sent: dict[str, int] = {}
        messages, places = [], []
        for place, client in enumerate(announcements.clients):
            member = self.register.members[int(client)]
            if member.left:
                answers[place] = self._silent(announcements, place, LEFT, "has left for good")
            elif member.node not in online:
                answers[place] = self._silent(announcements, place, ABSENT, AWAY)
            else:
                content = codec.announcement(alone(announcements, place), member.name)
                group = str(announcements.round)
                messages.append(
                    Message(content, member.node, MessageType.TRAIN, ttl=self._patience.round_s + 60, group_id=group)
                )
                places.append(place)
        if messages:
            keys = list(self._grid.push_messages(messages))
            for key, place in zip(keys, places):
                if key:
                    sent[key] = place
                else:
                    answers[place] = self._silent(
                        announcements, place, ABSENT, "the SuperLink did not take its message"
                    )
        self._greet(online)
        self._collect(announcements, sent, answers)
        newcomers = self._greetings(self._online()) if self._greeted else []
        if newcomers:
            self.register.add(newcomers)
        parts = [answers[place] for place in range(len(announcements.clients))]
        return together(parts, announcements.round, announcements.theta, self._curve)

    def _waited(self, round: int) -> bool:
        """Wait until a silo may work; False where one may all along, and declined by what it had worked in this round."""
        pause, waits, until = self._patience.policy_s, False, time.monotonic() + self._patience.closed_s
        while not self._anybody(round):
            if time.monotonic() > until:
                raise RunError(
                    f"round {round}: every silo has declined by its policy for {self._patience.closed_s:g} s (policy-timeout);"
                    " ask their operators, then resume"
                )
            if not waits:
                often = f"after {pause:g} s, then ever less often, at least every {self._patience.longest_s:g} s"
                self._wait(f"round {round}", f"they are asked again {often}, and no round is lost", round=round)
            waits = True
            time.sleep(pause)
            pause = min(2 * pause, self._patience.longest_s)
        if waits:
            self.note(f"round {round} is asked again: not every silo declines by its policy", "goes-on", round=round)
            self._waiting("")
        return waits

    def _closed(self) -> bool:
        """Nobody comes before round 1: True, once that is said."""
        self._wait("the run", f"they are asked again every {self._patience.stranger_s:g} s")
        return True

    def _wait(self, what: str, how: str, **about: object) -> None:
        """Say once for what the run waits."""
        self.note(f"{what} waits: {WAITS}; {how}", "waits", logging.WARNING, **about)
        self._waiting(WAITS)

    def _anybody(self, round: int) -> bool:
        """Whether a silo that is there says who it is, or one has come: then not everybody declines by its policy.

        Where nobody is connected, too: that is for `_gathered`.
        """
        online = self._online()
        self._greet(online)
        if come := self._greetings(online):
            self.register.add(come)
        here = [k for k, m in enumerate(self.register.members) if m.node in online and not m.left]
        if come or not here:
            return True
        about = {"ttl": self._patience.hello_s + 60, "group_id": str(round)}
        messages = [
            Message(codec.hello_request(self._run), self.register.members[k].node, MessageType.QUERY, **about)  # type: ignore[arg-type]
            for k in here
        ]
        sent = {key: client for key, client in zip(self._grid.push_messages(messages), here) if key}
        deadline = time.monotonic() + self._patience.hello_s
        while sent and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(list(sent)):
                client = sent.pop(reply.metadata.reply_to_message_id, None)
                words = heard(reply) if reply.has_error() else ""
                if client is not None and words in (LEAVES, ERASES):
                    self._gone(client, round, words == ERASES)
                elif words not in OUT:  # an error, too, is no policy
                    return True
            if sent:
                time.sleep(self._patience.poll_s)
        return False

    def _peers(self) -> Mapping[str, bytes]:
        return {} if self._keys is None else {name: key for key, name in self._keys.names().items()}

    def _ask(self, round: int, contents: Mapping[int, RecordDict]) -> dict[int, RecordDict]:
        """One more message of a round to some clients; the answers of those who give one in time."""
        messages = [
            Message(content, self.register.members[client].node, f"{MessageType.QUERY}.secure",
                    ttl=self._patience.round_s + 60, group_id=str(round))
            for client, content in contents.items()
        ]  # fmt: skip
        sent = {key: client for key, client in zip(self._grid.push_messages(messages), contents) if key}
        answers: dict[int, RecordDict] = {}
        deadline = time.monotonic() + self._patience.round_s
        while sent and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(list(sent)):
                client = sent.pop(reply.metadata.reply_to_message_id, None)
                if client is None:
                    continue
                if reply.has_error():
                    self.note(f"round {round}: {self.register.names[client]} dropped out: {heard(reply)}")
                else:
                    answers[client] = reply.content
            if sent:
                time.sleep(self._patience.poll_s)
        return answers

    def _gathered(self, round: int) -> dict[int, str]:
        """Who is there; waits while there are fewer known silos than the quorum."""
        deadline = time.monotonic() + self._patience.silos_s
        while True:
            online = self._online()
            here = [m.name for m in self.register.members if m.node in online and not m.left]
            if len(here) >= self._quorum:
                return online
            if time.monotonic() > deadline:
                raise RunError(
                    f"round {round}: {len(here)} of at least {self._quorum} silos are connected after"
                    f" {self._patience.silos_s:g} s; bring the others back and resume"
                )
            self._greet(online)
            self.register.add(self._greetings(online))
            time.sleep(self._patience.poll_s)

    def _collect(self, asked: Announcements, sent: dict[str, int], answers: dict[int, Reports]) -> None:
        """Wait for the answers to `sent` (message -> place), at most a round's time."""
        deadline = time.monotonic() + self._patience.round_s
        while sent and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(list(sent)):
                place = sent.pop(reply.metadata.reply_to_message_id, None)  # never its source: errors carry another's
                if place is not None:
                    answers[place] = self._read(asked, place, reply)
            if sent:
                time.sleep(self._patience.poll_s)
        for place in sent.values():
            answers[place] = self._silent(asked, place, ABSENT, f"no answer within {self._patience.round_s:g} s")

    def _read(self, asked: Announcements, place: int, reply: Message) -> Reports:
        client = int(asked.clients[place])
        member = self.register.members[client]
        if reply.has_error():
            words = heard(reply)
            if words in (LEAVES, ERASES):
                return self._left(asked, place, words == ERASES)
            if words == POLICY:  # a silo's own word: it is there, and takes no part
                return self._silent(asked, place, REFUSED, POLICY)
            return self._silent(asked, place, ABSENT, f"failed: {words}")
        try:
            told = alone(asked, place)
            masked = self._sums is not None
            report, leave = codec.read_report(reply.content, told, member.name, self._curve, self._share, masked)
            if masked and report.joined[0]:
                self._keys_said[client] = dict(reply.content.get("statement") or {}).get("text")  # type: ignore[call-overload]
        except codec.ProtocolError as error:
            self.note(f"round {asked.round}: the answer of {member.name} was refused: {error}")
            return self._silent(asked, place, REFUSED, f"answer refused: {error}")
        return self._left(asked, place, codec.wants_erasure(reply.content)) if leave else report

    def _left(self, asked: Announcements, place: int, erased: bool) -> Reports:
        self._gone(int(asked.clients[place]), asked.round, erased)
        return self._silent(asked, place, LEFT, "left for good")

    def _gone(self, client: int, round: int, erased: bool) -> None:
        name = self.register.members[client].name
        self.register.update(client, left=True, erased=erased)
        erases = "its update is erased"
        if self._sums is not None:  # which nobody can take apart
            erases = "its curve is erased; secure sums keep the update that they hold"
        said = f"round {round}: {name} has left for good{f'; {erases}' if erased else ''}"
        self.note(said, LEFT, round=round, silo=name)

    def _silent(self, asked: Announcements, place: int, status: str, reason: str) -> Reports:
        examples = self.register.members[int(asked.clients[place])].examples
        return silent(alone(asked, place), status, reason, self._curve, examples)

    def note(self, what: str, event: str = "note", level: int = logging.INFO, **about: object) -> None:
        """Something that happened beside the rounds; `event` and what it is `about` are for the server's log."""
        log.log(level, "%s", what, extra={"event": event, **about})
        self.events.append(what)


def _idle(reports: Reports) -> bool:
    """Whether no silo that is asked worked, and some say that they do not."""
    asked = [reason for status, reason in zip(reports.status, reports.reason) if status != LEFT]
    return all(reason in IDLE for reason in asked) and any(reason != AWAY for reason in asked)
