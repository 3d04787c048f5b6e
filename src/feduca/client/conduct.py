"""What a silo does beside deciding and reporting: its work, or something cheaper (free-riding). A deed is one small class.

honest     trains and sends what it trained
refuse     never takes an offer after the first round, however good
take       says that it declines, and deploys the offer all the same
withhold   takes offers, trains, keeps the result to itself: it sends the shared model back, an update of nothing
echo       takes offers, trains, and sends its unchanged offer back
noise      takes offers, trains, and sends the shared model plus noise as large as its real update
fixed      the same, in one direction that was drawn once
idle       takes offers and does not train: what it has is what it was given, and that is what it sends back
lapse      works for `after` rounds, then idles
replay     does not train: it sends the shared model's last step on as its own, with some noise
stale      trains once, then sends that first update again and again, with some noise
forge      the same, less a part of the way the model has gone since: it knows how work is told from noise (trust/work.py)
copy       two silos or more that share one's work: all of them send what the first of them trained

Deeds after `idle` save the work as it does, but for the first of those that copy. Claiming more examples than one has is no deed
but a word, given before the first round (analysis/incentives.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from feduca.core.arrays import like, repeat, select, take
from feduca.core.rng import stream
from feduca.errors import ConfigError
from feduca.types import Array, Bools, Ints

MODEL, UPDATE = "deed.model", "deed.update"  # what deeds keep in `ClientMemory.extra`
GONE = 0.3  # the part of the model's way that a forger takes off its update


@dataclass(frozen=True)
class Seen:
    """What deeds are made of, a row for each silo."""

    round: int
    seed: int
    clients: Ints
    shared: Array  # [K, P]
    given: Array  # what was accepted, or the own model
    new: Array  # the models after training
    before: Bools  # who took part in an earlier round
    who: Bools  # who does the deed
    kept: Mapping[str, Array] = field(default_factory=dict)  # by those, [K, P] each

    def noise(self, purpose: str, *path: int) -> Array:
        """Unit vectors `[K, P]`."""
        size = self.new.shape[1]
        draws = np.stack([stream(self.seed, purpose, *path, int(k)).normal(size=size) for k in self.clients])
        return like(self.new, draws / np.linalg.norm(draws, axis=1, keepdims=True))


def lengths(rows: Array) -> Array:
    return ((rows * rows).sum(1) ** 0.5)[:, None]


class Honest:
    willing = True  # to take a good offer at all
    sly = False  # deploys the offer, and says that it declined

    def works(self, seen: Seen) -> Array:
        """The models silos have after training `[K, P]`."""
        return seen.new

    def sends(self, seen: Seen) -> Array:
        """The models participants send `[K, P]`; `seen.new` are those that `works` gave."""
        return seen.new

    def keeps(self, seen: Seen) -> dict[str, Array]:
        """What to have again in the next round."""
        return {}


class Refuse(Honest):
    willing = False


class Take(Honest):
    sly = True


class Withhold(Honest):
    def sends(self, seen: Seen) -> Array:
        return seen.shared


class Echo(Honest):
    def sends(self, seen: Seen) -> Array:
        return seen.given


class Noise(Honest):
    def sends(self, seen: Seen) -> Array:
        return seen.shared + lengths(seen.new - seen.shared) * seen.noise("free-rider", seen.round)


class Fixed(Honest):
    def sends(self, seen: Seen) -> Array:
        return seen.shared + lengths(seen.new - seen.shared) * seen.noise("fixed direction")


class Idle(Honest):
    def works(self, seen: Seen) -> Array:
        return seen.given


@dataclass(frozen=True)
class Lapse(Honest):
    after: int

    def works(self, seen: Seen) -> Array:
        return seen.new if seen.round <= self.after else seen.given


@dataclass(frozen=True)
class Replay(Idle):
    share: float  # of noise

    def sends(self, seen: Seen) -> Array:
        step = seen.shared - seen.kept.get(MODEL, seen.shared)
        sent = seen.shared + step + self.share * lengths(step) * seen.noise("replayed", seen.round)
        return select(seen.before, sent, seen.given)

    def keeps(self, seen: Seen) -> dict[str, Array]:
        return {MODEL: seen.shared}


@dataclass(frozen=True)
class Stale(Honest):
    share: float

    def works(self, seen: Seen) -> Array:
        return select(seen.before, seen.given, seen.new)

    def sends(self, seen: Seen) -> Array:
        update = seen.kept.get(UPDATE, seen.new - seen.shared)
        sent = seen.shared + update + self.share * lengths(update) * seen.noise("replayed", seen.round)
        return select(seen.before, sent, seen.new)

    def keeps(self, seen: Seen) -> dict[str, Array]:
        first = {MODEL: seen.shared, UPDATE: seen.new - seen.shared}
        return {name: select(seen.before, seen.kept.get(name, now), now) for name, now in first.items()}


class Forge(Stale):
    def sends(self, seen: Seen) -> Array:
        gone = seen.shared - seen.kept.get(MODEL, seen.shared)
        return select(seen.before, super().sends(seen) - GONE * gone, seen.new)


class Copy(Honest):
    def works(self, seen: Seen) -> Array:
        return select(self._first(seen), seen.new, seen.given)

    def sends(self, seen: Seen) -> Array:
        update = take(seen.new - seen.shared, np.flatnonzero(self._first(seen)))[0]
        return seen.shared + repeat(update, len(seen.clients))

    def _first(self, seen: Seen) -> Bools:
        if seen.who.sum() < 2:
            raise ConfigError(
                "conduct.kind is 'copy' with no other silo to copy from in this process; use it in a simulation, with"
                " conduct.clients naming two silos or more"
            )
        return np.arange(len(seen.who)) == np.flatnonzero(seen.who)[0]


DEEDS: Mapping[str, Callable[[int, float], Honest]] = {
    "honest": lambda after, share: Honest(),
    "refuse": lambda after, share: Refuse(),
    "take": lambda after, share: Take(),
    "withhold": lambda after, share: Withhold(),
    "echo": lambda after, share: Echo(),
    "noise": lambda after, share: Noise(),
    "fixed": lambda after, share: Fixed(),
    "idle": lambda after, share: Idle(),
    "lapse": lambda after, share: Lapse(after),
    "replay": lambda after, share: Replay(share),
    "stale": lambda after, share: Stale(share),
    "forge": lambda after, share: Forge(share),
    "copy": lambda after, share: Copy(),
}
KINDS = tuple(DEEDS)


@dataclass(frozen=True)
class Conduct:
    """How some clients (None: all) go about their part."""

    kind: str = "honest"
    clients: tuple[int, ...] | None = None
    after: int = 10  # rounds of work before a lapse
    noise: float = 0.1  # on what is sent again, as a share of it

    @property
    def deed(self) -> Honest:
        return DEEDS[self.kind](self.after, self.noise)

    def who(self, clients: Ints) -> Bools:
        return np.ones(len(clients), bool) if self.clients is None else np.isin(clients, self.clients)

    def willing(self, clients: Ints) -> Bools:
        """Who would take a good offer at all."""
        return ~self.who(clients) | self.deed.willing

    def sly(self, clients: Ints) -> Bools:
        """Who says that it declines, and deploys the offer."""
        return self.who(clients) & self.deed.sly

    def works(self, seen: Seen) -> Array:
        """The models clients have after training `[K, P]`."""
        return seen.new if self.kind == "honest" else select(seen.who, self.deed.works(seen), seen.new)

    def sends(self, seen: Seen) -> Array:
        """The models participants send `[K, P]`."""
        return seen.new if self.kind == "honest" else select(seen.who, self.deed.sends(seen), seen.new)
