"""What a server learns of one silo's update that writes down everything it receives for a hundred rounds.

Silos refuse most rounds, so that contributions stand for long: that is where the naive scheme, in which silos mask their last
update times a weight that the server sets anew every round, gives them all away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from feduca.core.messages import measurements, unmeasured
from feduca.core.rng import stream
from feduca.federation.masked import MaskedSilos
from feduca.privacy.encoding import decode, encode
from feduca.types import DECLINED, JOINED, Announcements, LocalSpec, Reports

SILOS, ROUNDS, SIZE = 6, 100, 200


def joins(round: int) -> np.ndarray:
    """Who joins: every seventh round or so a few, now and then fewer than three."""
    rng = stream(4, "joins", round)
    return rng.random(SILOS) < (0.7 if rng.random() < 0.15 else 0.03)


class Drawn:
    """Silos whose updates are random vectors; `instead[round]` replaces what silos have drawn."""

    def __init__(self, instead: dict[int, dict[int, np.ndarray]] | None = None) -> None:
        self.silos = tuple(f"silo-{k}" for k in range(SILOS))
        self.instead = instead or {}

    def update(self, round: int, client: int) -> np.ndarray:
        other = self.instead.get(round, {})
        return other[client] if client in other else drawn(round, client)

    def exchange(self, asked: Announcements) -> Reports:
        status = [JOINED if yes else DECLINED for yes in joins(asked.round)]
        theta = np.stack([-self.update(asked.round, k) for k in range(SILOS)])
        empty = np.full(SILOS, np.nan), np.full((SILOS, 3), np.nan), measurements(unmeasured(SILOS))
        return Reports(asked.round, asked.clients, status, [""] * SILOS, theta, *empty)


def drawn(round: int, client: int) -> np.ndarray:
    """An update that its silo made; multiples of 2^-20, so that half of one is exact as well."""
    return np.round(stream(0, "update", round, client).normal(size=SIZE) * 2**20) / 2**20


@dataclass
class Wire:
    """What the server received."""

    released: dict[int, np.ndarray]
    counted: dict[int, np.ndarray]
    masked: dict[tuple[int, int], np.ndarray]


def hundred_rounds(silos: Drawn) -> Wire:
    wire, round = Wire({}, {}, {}), 0
    federation = MaskedSilos(silos, least=3, parameters=SIZE)

    def listen(what: str, said: object) -> None:
        if what == "masked":
            wire.masked.update({(round, int(name[5:])): one.change for name, one in said.items()})

    federation.wire = listen
    for round in range(1, ROUNDS + 1):
        asked = Announcements(
            "run", round, np.arange(SILOS), np.zeros(SIZE), *[np.full(SILOS, 1 / 8)] * 2, np.ones(1), LocalSpec(),
            weights=np.full(SILOS, 1 / 8),
        )  # fmt: skip
        answer = federation.exchange(asked)
        assert not answer.theta.any(), "a single update reached the server"
        if answer.released.counted.any():
            wire.released[round], wire.counted[round] = answer.released.total, answer.released.counted
    return wire


@pytest.fixture(scope="module")
def secure() -> Wire:
    return hundred_rounds(Drawn())


# Which sums of updates the server has: a row of coefficients for each, over all (round, silo) whose update went in ----


def coefficients_secure(wire: Wire) -> tuple[np.ndarray, list[tuple[int, int]]]:
    unknown = [(t, k) for t, counted in wire.counted.items() for k in np.flatnonzero(counted)]
    rows, last = np.zeros((len(wire.counted), len(unknown))), {}
    for row, (t, counted) in enumerate(wire.counted.items()):
        for k in np.flatnonzero(counted):
            rows[row, unknown.index((t, k))] = 1 / 8
            if k in last:
                rows[row, unknown.index((last[k], k))] = -1 / 8
            last[k] = t
    return rows, unknown


def coefficients_naive(wire: Wire) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Every round everybody adds its last update times this round's weight, fresh or not."""
    unknown = [(t, k) for t, counted in wire.counted.items() for k in np.flatnonzero(counted)]
    rows, last = np.zeros((ROUNDS, len(unknown))), {}
    for t in range(1, ROUNDS + 1):
        last |= dict.fromkeys(np.flatnonzero(wire.counted.get(t, np.zeros(SILOS))), t)
        for k, weight in enumerate(stream(5, "weights", t).dirichlet(np.ones(SILOS))):
            if k in last:
                rows[t - 1, unknown.index((last[k], k))] = weight
    return rows, unknown


def identified(rows: np.ndarray) -> np.ndarray:
    """For each update, how much of it is in what can be computed from the sums: 1 = all of it."""
    return np.diag(np.linalg.pinv(rows, rcond=1e-9) @ rows)


def combinations(rows: np.ndarray, of: int) -> bool:
    """Whether some combination of the sums holds `of` updates alone."""
    from itertools import combinations as choose

    inside = np.linalg.pinv(rows, rcond=1e-9) @ rows  # the projection onto what can be computed
    n = len(inside)
    for places in choose(range(n), of):
        block = inside[np.ix_(places, places)]
        if np.linalg.eigvalsh(block).max() > 1 - 1e-9:
            return True
    return False


def test_the_rounds_are_what_this_is_about(secure):
    assert len(secure.released) > 10
    held = sum(0 < joins(t).sum() < 3 for t in range(1, ROUNDS + 1))
    assert held > 10, "rounds with one or two joiners, of which nothing was released"


def test_the_sums_are_those_of_the_coefficients(secure):
    rows, unknown = coefficients_secure(secure)
    updates = np.stack([drawn(t, k) for t, k in unknown])
    for row, total in zip(rows, secure.released.values()):
        assert np.abs(row @ updates - decode(total)).max() < 1e-9


def test_rank_no_combination_of_sums_holds_one_or_two_updates(secure):
    rows, _ = coefficients_secure(secure)
    assert identified(rows).max() < 0.5
    assert not combinations(rows, 1)
    assert not combinations(rows, 2)


def test_rank_of_the_naive_scheme_gives_updates_away(secure):
    rows, _ = coefficients_naive(secure)
    assert (identified(rows) > 1 - 1e-6).mean() > 0.5
    assert combinations(rows, 1)


def correlations(rows: np.ndarray, unknown: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Of the best linear estimates with the truth, and with random vectors."""
    updates = np.stack([drawn(t, k) for t, k in unknown])
    guesses = np.linalg.pinv(rows, rcond=1e-9) @ (rows @ updates)
    other = np.stack([drawn(10**6, i) for i in range(len(unknown))])

    def with_(truth):
        return np.array([np.corrcoef(a, b)[0, 1] for a, b in zip(guesses, truth)])

    return with_(updates), with_(other)


def test_correlation_of_the_naive_schemes_estimates_is_one_for_most(secure):
    right, random = correlations(*coefficients_naive(secure))
    assert (right > 0.999).mean() > 0.5
    assert np.abs(random).max() < 0.4


def test_correlation_no_estimate_is_an_update(secure):
    """A sum of three has a correlation of .58 with each of its parts, and nothing that was received says much more."""
    right, random = correlations(*coefficients_secure(secure))
    assert right.max() < 0.8
    assert right.mean() < 1 / np.sqrt(3)
    assert np.abs(random).max() < 0.4


def test_correlation_what_silos_send_has_nothing_to_do_with_their_updates(secure):
    """Masked changes of a hundred rounds, each beside the update in it and beside a random vector."""
    true, random = [], []
    for (t, k), change in secure.masked.items():
        seen = change.view(np.int64).astype(float)
        true.append(np.corrcoef(seen, drawn(t, k))[0, 1])
        random.append(np.corrcoef(seen, drawn(t, 500 + k))[0, 1])
    assert len(true) > 40
    for found in (true, random):
        assert abs(np.mean(found)) < 4 / np.sqrt(len(found) * SIZE)
        assert np.std(found) == pytest.approx(1 / np.sqrt(SIZE), rel=0.3)


def test_any_update_could_have_been_a_random_one(secure):
    """For every silo and round: with a random vector in its place the server would have received the very same sums.

    What the silo's updates differ by from then on, those of another one that was in the same sum make up for; both have the
    same weight. So everything received says nothing of whether the update is the true one.
    """
    rng = np.random.default_rng(1)
    for t, counted in list(secure.counted.items())[::4]:
        k, j = np.flatnonzero(counted)[:2]
        offset = np.round(rng.normal(size=SIZE) * 2**20) / 2**20 - drawn(
            t, k
        )  # in place of its update: a random vector
        instead = {s: {k: drawn(s, k) + offset, j: drawn(s, j) - offset} for s in range(t, ROUNDS + 1)}
        other = hundred_rounds(Drawn(instead))
        assert other.released.keys() == secure.released.keys()
        assert all((other.released[s] == secure.released[s]).all() for s in secure.released)
        assert not (encode(drawn(t, k)) == encode(instead[t][k])).all()


def test_of_the_naive_scheme_hardly_anything_but_the_truth_fits(secure):
    """Hardly anything is free: other updates do not give the sums that the server received."""
    rows, unknown = coefficients_naive(secure)
    free = len(unknown) - np.linalg.matrix_rank(rows)
    assert free / len(unknown) < 0.25
