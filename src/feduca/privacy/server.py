"""The server's side of a session: it carries messages, adds up, and takes the masks off the sum as the silos let it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from feduca.errors import RunError
from feduca.privacy import keys
from feduca.privacy.encoding import Ring, plausible
from feduca.privacy.protocol import Directory, Masked, Outcome, complaint, threshold
from feduca.privacy.sharing import put_together
from feduca.privacy.silo import own_key

# A SuperNode lets eight messages pass: two for each list, two beside.
TRIES = 3  # lists that silos are asked about in a round


class Unreleased(RunError):
    """Why a session gives no sum. The silos' changes are in the next one that they take part in."""


@dataclass(frozen=True)
class Agreed:
    """Whose changes are added up; where that is not everybody, what those silos said to it."""

    senders: tuple[str, ...]
    signatures: Mapping[str, bytes] = field(default_factory=dict)
    pairs: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)  # by sender, then by who is left out


Signs = Callable[[tuple[str, ...]], Mapping[str, bytes]]
Parts = Callable[[tuple[str, ...], Mapping[str, bytes]], Mapping[str, Mapping[str, bytes]]]


def agreed(directory: Directory, received: Mapping[str, Masked], least: int, sign: Signs, part: Parts) -> Agreed:
    """The list that silos agree on; whoever falls silent meanwhile is left out of it, too. Unreleased where too few are left.

    `sign(list)` and `part(list, signatures)` put the question to the silos in the list and give the answers that came.
    """
    names, everybody = senders(directory, received, least), len(directory.names)
    if len(names) == everybody:
        return Agreed(names)
    for _ in range(TRIES):
        signatures = sign(names)
        still: Mapping[str, object] = signatures
        if len(signatures) == len(names):
            still = pairs = part(names, signatures)
            if len(pairs) == len(names):
                return Agreed(names, signatures, pairs)
        names = senders(directory, still, least, "are still there to agree on who dropped out")
    raise Unreleased(f"silos dropped out while the others agreed on who is left, {TRIES} times in a row")


def senders(
    directory: Directory, received: Mapping[str, object], least: int, did: str = "sent their change"
) -> tuple[str, ...]:
    """Who has sent, in the directory's order; Unreleased where that is too few."""
    names = tuple(name for name in directory.names if name in received)
    needed = threshold(len(directory.names), least)
    if len(names) < needed:
        raise Unreleased(f"{len(names)} of {len(directory.names)} silos {did}, and it takes {needed}")
    if why := complaint([w for name, w in zip(directory.names, directory.weights) if name in names], least):
        raise Unreleased(why)
    return names


def outcome(who: str, names: Sequence[str], received: Mapping[str, Masked]) -> Outcome:
    """What `who` is told: who has sent, and what they sealed for it."""
    sealed = {name: received[name].shares[who] for name in names if name != who and who in received[name].shares}
    return Outcome(tuple(names), sealed)


def unmasked(
    directory: Directory,
    found: Agreed,
    received: Mapping[str, Masked],
    revealed: Mapping[str, Mapping[str, bytes]],
    least: int,
) -> Ring:
    """The sum of the changes of those who are agreed on, from the shares revealed; Unreleased where these do not suffice."""
    names = found.senders
    needed, size = threshold(len(directory.names), least), len(received[names[0]].change)
    total = np.zeros(size, np.uint64)
    said = {s.silo: s for s in directory.statements}
    for name in names:
        total += received[name].change
        shares = {
            place: revealed[by][name]
            for place, by in enumerate(directory.names)
            if by in revealed and name in revealed[by]
        }
        if len(shares) < needed:
            raise Unreleased(f"{len(shares)} silos gave their share of the mask of {name}, and it takes {needed}")
        try:
            seed = put_together(dict(list(shares.items())[:needed]), keys.SEED)
        except ValueError:
            seed = b""
        if keys.digest(b"seed", seed) != said[name].commitment:
            raise Unreleased(f"the shares of the mask of {name} do not fit together")
        total -= keys.mask(own_key(seed, directory), size)
    for gone in (name for name in directory.names if name not in names):
        for name in names:
            pair = found.pairs[name].get(gone, b"")
            if len(pair) != keys.SEED:
                raise Unreleased(f"{gone} dropped out, and {name} did not say what hides its own change from it")
            stream = keys.mask(pair, size)
            total = total - stream if name < gone else total + stream
    if not plausible(total, len(names)):
        raise Unreleased("what came out is no sum of updates: a silo has sent something else")
    return total
