"""The silo's side of a session: a small state machine that is passed in and returned, and would rather say no than yes.

    announce -> mask -> (sign -> part, for ever fewer silos) -> reveal

What a silo holds to, whatever the server says: one masked change a round, for one directory; every key in it signed by a silo it
knows; the same model for all; at least `least` weights that matter; lists of senders that only get shorter, and shares for one
of them alone; with silos missing nothing before a threshold of silos have signed that very list. So the server never gets both a
silo's self-mask and the keys of its pairs (protocol.py says why).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from feduca.privacy import keys
from feduca.privacy.encoding import Ring
from feduca.privacy.protocol import (
    Directory,
    Masked,
    Outcome,
    Statement,
    Untrusted,
    complaint,
    survivors_text,
    threshold,
)
from feduca.privacy.sharing import shared_out

Peers = Mapping[str, bytes]  # the silos this one knows, by name: their public signing keys


@dataclass(frozen=True)
class Session:
    """What a silo knows of one round; `private` and `seed` never leave it."""

    statement: Statement
    private: bytes
    seed: bytes
    directory: Directory | None = None  # once it has been checked: the only one of this session
    change: bytes = b""  # digest of the change, once it is masked
    shares: Mapping[str, bytes] | None = None  # that it sealed then
    senders: tuple[str, ...] | None = None  # the last list that it signed, or gave anything for
    given: bool = False  # shares of these senders' self-masks: from then on there is no other list


def announce(name: str, run: str, round: int, model: bytes, signer: Any) -> Session:
    """A fresh key for this round."""
    private, seed = secrets.token_bytes(32), secrets.token_bytes(keys.SEED)
    said = Statement(name, run, round, keys.public(private), model, keys.digest(b"seed", seed))
    return Session(replace(said, signature=keys.sign(signer, said.text)), private, seed)


def settle(session: Session, directory: Directory, peers: Peers, least: int) -> Session:
    """The session with this directory and no other: before anything is computed with the weights that it gives."""
    if session.directory is not None and session.directory != directory:
        raise Untrusted("this round's change was masked for other silos already; it is sent once")
    check(session.statement, directory, peers, least)
    return replace(session, directory=directory)


def mask(session: Session, directory: Directory, change: Ring, peers: Peers, least: int) -> tuple[Session, Masked]:
    """The change under all its masks. Asked again with the same directory, the same answer."""
    session = settle(session, directory, peers, least)
    said = keys.digest(change.tobytes())
    if session.change not in (b"", said):
        raise Untrusted(
            "this round's change was masked already, and this is another one; two under one mask give both away"
        )
    me, names = session.statement.silo, directory.names
    total = change + keys.mask(own_key(session.seed, directory), len(change))
    shares = {} if session.shares is None else dict(session.shares)
    parts = shared_out(session.seed, threshold(len(names), least), len(names)) if not shares else []
    for place, other in enumerate(directory.statements):
        if other.silo == me:
            if parts:
                shares[me] = parts[place]  # stays here
            continue
        pair = _pair(session, other, directory)
        stream = keys.mask(pair.mask, len(change))
        total = total + stream if me < other.silo else total - stream
        if parts:
            key = pair.upwards if me < other.silo else pair.downwards
            shares[other.silo] = keys.sealed(key, parts[place], directory.digest)
    after = replace(session, change=said, shares=shares)
    return after, Masked(total, {to: share for to, share in shares.items() if to != me})


def check(mine: Statement, directory: Directory, peers: Peers, least: int) -> None:
    """Refuse a directory that could be anything but the round's joiners."""
    names = directory.names
    if mine not in directory.statements or len(set(names)) < len(names):
        raise Untrusted("the directory does not hold this silo's own key, or somebody twice")
    for said in directory.statements:
        if said.silo not in peers:
            raise Untrusted(f"the directory names {said.silo[:60]!r}, a silo whose key is not known here")
        if not keys.signed(peers[said.silo], said.text, said.signature):
            raise Untrusted(f"the key of {said.silo} is not signed by {said.silo}: somebody may stand in between")
        if (said.run, said.round) != (mine.run, mine.round):
            raise Untrusted(f"the key of {said.silo} is of another round")
        if said.model != mine.model:
            raise Untrusted(f"{said.silo} was sent another model than this silo")
    if len({said.key for said in directory.statements}) < len(names):
        raise Untrusted("two silos have the same key")
    if why := complaint(directory.weights, least):
        raise Untrusted(why)


def sign(session: Session, outcome: Outcome, least: int, signer: Any) -> tuple[Session, bytes]:
    """The silo's word that these are to be added up."""
    directory = _agrees(session, outcome, least)
    after = replace(session, senders=outcome.senders)
    return after, keys.sign(signer, survivors_text(directory, outcome.senders))


def part(
    session: Session, outcome: Outcome, peers: Peers, least: int, signatures: Mapping[str, bytes]
) -> tuple[Session, dict[str, bytes]]:
    """The keys of the masks that this silo shares with whoever is not among `outcome.senders`."""
    directory = _agrees(session, outcome, least)
    _signed(outcome, directory, peers, least, signatures)
    gone = [said for said in directory.statements if said.silo not in outcome.senders]
    return replace(session, senders=outcome.senders), {s.silo: _pair(session, s, directory).mask for s in gone}


def reveal(
    session: Session, outcome: Outcome, peers: Peers, least: int, signatures: Mapping[str, bytes]
) -> tuple[Session, dict[str, bytes]]:
    """Shares of the self-masks of `outcome.senders`, and of nobody else's."""
    directory = _agrees(session, outcome, least)
    _signed(outcome, directory, peers, least, signatures)
    me = session.statement.silo
    assert session.shares is not None
    shares = {me: session.shares[me]}
    for said in directory.statements:
        if said.silo in outcome.senders and said.silo != me:
            if said.silo not in outcome.shares:
                raise Untrusted(f"{said.silo} is said to have sent, and there is no share of its mask")
            pair = _pair(session, said, directory)
            key = pair.upwards if said.silo < me else pair.downwards
            try:
                shares[said.silo] = keys.opened(key, outcome.shares[said.silo], directory.digest)
            except ValueError as error:
                raise Untrusted(f"{error}: {said.silo}") from None
    return replace(session, senders=outcome.senders, given=True), shares


def _signed(outcome: Outcome, directory: Directory, peers: Peers, least: int, signatures: Mapping[str, bytes]) -> None:
    """Refuse a list without some silos that too few of those in it have signed."""
    missing = [name for name in directory.names if name not in outcome.senders]
    if not missing:
        return
    text, needed = survivors_text(directory, outcome.senders), threshold(len(directory.names), least)
    good = [
        name
        for name, signature in signatures.items()
        if name in outcome.senders and keys.signed(peers[name], text, signature)
    ]
    if len(good) < needed:
        raise Untrusted(
            f"{len(good)} silos have signed that {missing[0]} dropped out, and it takes {needed}: the server may have told others"
            " otherwise"
        )


def _agrees(session: Session, outcome: Outcome, least: int) -> Directory:
    """The session's directory, provided that these may have sent."""
    directory = session.directory
    if directory is None or not session.change:
        raise Untrusted("this silo has masked nothing in this round")
    before, now = session.senders, outcome.senders
    if before is not None and now != before and (session.given or not set(now) < set(before)):
        raise Untrusted("the server says now that others have sent than it said before")
    names = directory.names
    if outcome.senders != tuple(name for name in names if name in outcome.senders):
        raise Untrusted("the senders are not silos of this session, each once and in its order")
    if session.statement.silo not in outcome.senders:
        raise Untrusted("this silo has sent its change, and the server says it dropped out")
    needed = threshold(len(names), least)
    if len(outcome.senders) < needed:
        raise Untrusted(f"{len(outcome.senders)} of {len(names)} silos have sent, and it takes {needed}")
    weights = [w for name, w in zip(names, directory.weights) if name in outcome.senders]
    if why := complaint(weights, least):
        raise Untrusted(why)
    return directory


def _pair(session: Session, other: Statement, directory: Directory) -> keys.Pair:
    me = session.statement.silo
    low, high = (me, other.silo) if me < other.silo else (other.silo, me)
    try:
        return keys.pair(session.private, other.key, directory.digest, low, high)
    except ValueError:
        raise Untrusted(f"the key of {other.silo} is none") from None


def own_key(seed: bytes, directory: Directory) -> bytes:
    """The key of the mask that a silo has for itself in this session."""
    return keys.derived(seed, b"self", directory.digest)
