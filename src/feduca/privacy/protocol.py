"""What silo and server say to each other in a session of secure aggregation, and the rules that both hold to.

    silo    -> server   Statement: a fresh public key for this round and model, signed; with the round's report
    server  -> silos    Directory: everybody's statements and weights
    silo    -> server   Masked: the masked change, and shares of the self-mask, sealed for each silo
    server  -> silos    only if somebody has dropped out: whose changes are to be added up
    silo    -> server   a signature on that list
    server  -> silos    enough of such signatures
    silo    -> server   the keys of the masks it shares with whoever is not in the list
                        Whoever drops out here is left out as well: the same again with a shorter list
    server  -> silos    Outcome: the list, the signatures, and the shares for you
    silo    -> server   shares of the self-masks of who is in the list

Everything is made of words, numbers and bytes, so that any transport can carry it.

Why a server that lies gets one sum at most, and of one such list: write n for the session's silos, t > 2n/3 for the threshold,
and let fewer than n/3 silos work with the server. A silo acts on lists that only get shorter, and once it has given shares on no
other. Two lists that t silos have signed have an honest signer in common, so one holds the other: all lists are a chain, the
whole directory on top. Say an honest silo stands at the last list for which it gave anything. Masks that two honest silos share
are off once either stands at a list without the other. Take a smallest set of silos whose sum the server can lay bare, and of
the last lists of its honest silos the longest: A, of silo S. The set is within A, and t silos gave shares of S, the honest of
them standing at A or above. Now every honest silo J of A is in the set. If J stands at A or above, both are in each other's
lists and the mask between them is on: what has S in it has J. If J stands below, then the t silos of its list and the t that
gave shares of S have an honest one in common; it is in A, stands at A or above, and the masks it shares with both are on. So the
set is A with nobody left out; and of two such sets, one within the other, the smaller would not be one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from feduca.errors import RunError
from feduca.privacy import keys
from feduca.privacy.encoding import MOST_SILOS, Ring

LEAST = 3
MATTERS = 1 / 20  # of the largest weight: a silo below that hides nobody
HIDDEN = (
    1 / 2
)  # of the largest weight's square: what the others' squares add up to, at least. Of three alike they make twice that


SMALLEST = (
    2.0**-14
)  # of the largest weight: far below, an update is rounded away; no legitimate one, of 1 / MOST_SILOS on
ROUNDING = 1e-6  # what a mechanism's weights may add up to beyond 1 (core/weights.py)


class Untrusted(RunError):
    """What a silo refuses to answer: the server asked for something that would give a single silo away."""


@dataclass(frozen=True)
class Statement:
    """A silo's own words, as it signed them: who it is, this round's key, the model it was sent."""

    silo: str
    run: str
    round: int
    key: bytes  # X25519, of this session alone
    model: bytes  # digest of what the silo was asked: server and silos must speak of the same
    commitment: bytes  # digest of the self-mask's seed: shares of something else are noticed
    signature: bytes = b""

    @cached_property
    def text(self) -> bytes:
        words = [self.silo, self.run, self.round, self.key.hex(), self.model.hex(), self.commitment.hex()]
        return keys.canonical(["statement", *words])


@dataclass(frozen=True)
class Directory:
    """Who takes part in a session, in the server's order, and the weights with which their updates count."""

    statements: tuple[Statement, ...]
    weights: tuple[float, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(s.silo for s in self.statements)

    @cached_property
    def digest(self) -> bytes:
        """What names a session: every key is derived with it, so that whoever is told something else has other keys."""
        words = [[s.text.decode(), s.signature.hex(), float(w).hex()] for s, w in zip(self.statements, self.weights)]
        return keys.digest(keys.canonical(words))


@dataclass(frozen=True)
class Masked:
    change: Ring  # [P]
    shares: Mapping[str, bytes]  # by the silo that can open it


@dataclass(frozen=True)
class Outcome:
    senders: tuple[str, ...]  # whose changes are added up, in the directory's order
    shares: Mapping[str, bytes]  # those sealed for this silo, by sender


def threshold(silos: int, least: int = LEAST) -> int:
    """Shares it takes: more than two thirds, so that the server and fewer than a third of the silos cannot have two truths."""
    return max(least, 2 * silos // 3 + 1)


def complaint(weights: Sequence[float], least: int) -> str:
    """Why nothing may be released of silos with these weights; "" where it may."""
    return _complaint(tuple(weights), least)


@lru_cache(maxsize=256)  # in a simulation every silo asks the same
def _complaint(weights: tuple[float, ...], least: int) -> str:
    if len(weights) > MOST_SILOS:
        return f"{len(weights)} silos are more than the {MOST_SILOS} whose changes can be added up"
    if not all(math.isfinite(w) and w >= 0 for w in weights):
        return "a weight is negative or no number"
    largest = max(weights, default=0.0)
    if largest > 0 and not (largest >= SMALLEST and sum(weights) <= 1 + ROUNDING):  # a scale of its own tells how long
        return f"weights of at most {largest:.3g} that add up to {sum(weights):.6g}: they are shares of 1"
    if len(weights) >= least and sum(w * w for w in weights) - largest**2 < HIDDEN * largest**2:
        return f"one update has a weight of {largest:.3g}, and the others too little to hide it"
    matter = sum(w > 0 and w >= MATTERS * largest for w in weights)
    if len(weights) < least or matter < least:
        return f"{matter} fresh updates that matter, and a sum needs {least} (privacy.least)"
    return ""


def survivors_text(directory: Directory, senders: Sequence[str]) -> bytes:
    return keys.canonical(["senders", directory.digest.hex(), list(senders)])


def model_digest(run: str, round: int, theta: np.ndarray, local: str) -> bytes:
    """Of what every silo of a round is asked: a model of one's own would make one's update stand out."""
    return keys.digest(run.encode(), str(round).encode(), local.encode(), np.ascontiguousarray(theta).tobytes())


# As words ------------------------------------------------------------------------------------------------------------


def words_of(s: Statement) -> list[object]:
    return [
        keys.VERSION, s.silo, s.run, s.round, s.key.hex(), s.model.hex(), s.commitment.hex(), s.signature.hex()
    ]  # fmt: skip


def statement_of(words: object) -> Statement:
    """The inverse; ValueError where it is none."""
    if not isinstance(words, list) or not words or words[0] != keys.VERSION or isinstance(words[0], bool):
        raise ValueError(
            f"that is no silo's statement of version {keys.VERSION} of secure aggregation; install the same feduca on both sides"
        )
    words = words[1:]
    if len(words) != 7 or not all(isinstance(w, str) for w in (*words[:2], *words[3:])):
        raise ValueError("that is no silo's statement")
    if not isinstance(words[2], int) or isinstance(words[2], bool):
        raise ValueError("a statement is for one round")
    return Statement(words[0], words[1], words[2], *(bytes.fromhex(w) for w in words[3:]))


def packed(directory: Directory) -> str:
    return json.dumps([[words_of(s) for s in directory.statements], [float(w).hex() for w in directory.weights]])


def unpacked(text: str) -> Directory:
    """The inverse; ValueError where it is none."""
    try:
        statements, weights = json.loads(text)
        directory = Directory(tuple(map(statement_of, statements)), tuple(map(float.fromhex, weights)))
    except (TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"that is no directory ({error})") from None
    if len(directory.weights) != len(directory.statements):
        raise ValueError("a directory has a weight for each silo")
    return directory
