"""The server's side of a session: it carries messages, adds up, and takes the masks off the sum as the silos let it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from feduca.errors import RunError
from feduca.privacy import keys
from feduca.privacy.encoding import Ring, plausible
from feduca.privacy.protocol import Directory, Masked, Outcome, Revealed, complaint, threshold
from feduca.privacy.sharing import put_together
from feduca.privacy.silo import own_key


class Unreleased(RunError):
    """Why a session gives no sum. The silos' changes are in the next one that they take part in."""


def senders(directory: Directory, received: Mapping[str, Masked], least: int) -> tuple[str, ...]:
    """Who has sent, in the directory's order; Unreleased where that is too few."""
    names = tuple(name for name in directory.names if name in received)
    needed = threshold(len(directory.names), least)
    if len(names) < needed:
        raise Unreleased(f"{len(names)} of {len(directory.names)} silos sent their change, and it takes {needed}")
    if why := complaint([w for name, w in zip(directory.names, directory.weights) if name in names], least):
        raise Unreleased(why)
    return names


def outcome(who: str, names: Sequence[str], received: Mapping[str, Masked]) -> Outcome:
    """What `who` is told: who has sent, and what they sealed for it."""
    sealed = {name: received[name].shares[who] for name in names if name != who and who in received[name].shares}
    return Outcome(tuple(names), sealed)


def unmasked(
    directory: Directory,
    names: Sequence[str],
    received: Mapping[str, Masked],
    revealed: Mapping[str, Revealed],
    least: int,
) -> Ring:
    """The sum of the changes of `names`, from what the silos revealed; Unreleased where that does not suffice."""
    needed, size = threshold(len(directory.names), least), len(received[names[0]].change)
    total = np.zeros(size, np.uint64)
    said = {s.silo: s for s in directory.statements}
    for name in names:
        total += received[name].change
        shares = {
            place: revealed[by].shares[name]
            for place, by in enumerate(directory.names)
            if by in revealed and name in revealed[by].shares
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
            pair = revealed[name].pairs.get(gone) if name in revealed else None
            if pair is None:
                raise Unreleased(f"{gone} dropped out before it sent its change, and {name} before it could be helped")
            stream = keys.mask(pair, size)
            total = total - stream if name < gone else total + stream
    if not plausible(total, len(names)):
        raise Unreleased("what came out is no sum of updates: a silo has sent something else")
    return total
