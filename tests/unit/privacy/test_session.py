"""One session of secure aggregation: exact sums, silos that drop out, and servers that lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feduca.privacy import keys, server, silo
from feduca.privacy.encoding import BITS, LIMIT, MOST_SILOS, OutOfRange, decode, encode, plausible
from feduca.privacy.protocol import Directory, Masked, Outcome, Untrusted, complaint, packed, threshold, unpacked
from feduca.privacy.server import Unreleased
from feduca.privacy.sharing import PRIME, put_together, shared_out

SIZE, LEAST = 40, 3


class World:
    """Silos and what they would add; the messages of a session, up to what each test is about."""

    def __init__(self, n: int = 6, weights: tuple[float, ...] | None = None) -> None:
        self.names = [f"silo-{k}" for k in range(n)]
        signers = {name: keys.new_signer() for name in self.names}
        self.signers = {name: private for name, (private, _) in signers.items()}
        self.peers = {name: public for name, (_, public) in signers.items()}
        rng = np.random.default_rng(n)
        self.changes = {name: encode(rng.normal(size=SIZE)) for name in self.names}
        self.sessions = {name: self.announced(name) for name in self.names}
        said = tuple(self.sessions[name].statement for name in self.names)
        self.directory = Directory(said, weights or (1 / n,) * n)
        self.received: dict[str, Masked] = {}

    def announced(self, name: str, run: str = "run", round: int = 1, model: bytes = b"model") -> silo.Session:
        return silo.announce(name, run, round, model, self.signers[name])

    def mask(self, name: str, directory: Directory | None = None) -> Masked:
        directory = directory or self.directory
        self.sessions[name], said = silo.mask(self.sessions[name], directory, self.changes[name], self.peers, LEAST)
        return said

    def mask_all(self, without: tuple[str, ...] = ()) -> tuple[str, ...]:
        self.received = {name: self.mask(name) for name in self.names if name not in without}
        return server.senders(self.directory, self.received, LEAST)

    def outcome(self, name: str, senders: tuple[str, ...]) -> Outcome:
        return server.outcome(name, senders, self.received)

    def sign(self, name: str, senders: tuple[str, ...]) -> bytes:
        told = self.outcome(name, senders)
        self.sessions[name], word = silo.sign(self.sessions[name], told, LEAST, self.signers[name])
        return word

    def reveal(self, name: str, senders: tuple[str, ...], words: dict[str, bytes] | None = None):
        told = self.outcome(name, senders)
        self.sessions[name], said = silo.reveal(self.sessions[name], told, self.peers, LEAST, words)
        return said

    def total(self, senders: tuple[str, ...]) -> np.ndarray:
        return sum((self.changes[name] for name in senders), np.zeros(SIZE, np.uint64))


def test_the_sum_is_exact():
    world = World()
    senders = world.mask_all()
    revealed = {name: world.reveal(name, senders) for name in senders}
    assert (server.unmasked(world.directory, senders, world.received, revealed, LEAST) == world.total(senders)).all()


@pytest.mark.parametrize("n", [4, 6, 9])
def test_who_drops_out_after_its_key_is_announced_is_left_out(n):
    world = World(n)
    gone = (world.names[1],) if n < 9 else (world.names[0], world.names[8])
    senders = world.mask_all(without=gone)
    words = {name: world.sign(name, senders) for name in senders}
    revealed = {name: world.reveal(name, senders, words) for name in senders}
    assert (server.unmasked(world.directory, senders, world.received, revealed, LEAST) == world.total(senders)).all()


def test_who_drops_out_after_it_has_sent_still_counts():
    world = World(6)
    senders = world.mask_all()
    revealed = {name: world.reveal(name, senders) for name in senders[1:]}
    assert (server.unmasked(world.directory, senders, world.received, revealed, LEAST) == world.total(senders)).all()


def test_who_drops_out_at_either_time_leaves_nothing_to_release():
    world = World(9)
    senders = world.mask_all(without=("silo-0",))
    words = {name: world.sign(name, senders) for name in senders}
    revealed = {name: world.reveal(name, senders, words) for name in senders[1:]}
    with pytest.raises(Unreleased, match="before it could be helped"):
        server.unmasked(world.directory, senders, world.received, revealed, LEAST)


def test_fewer_than_the_threshold_reveal_nothing():
    world = World(6)
    senders = world.mask_all()
    revealed = {name: world.reveal(name, senders) for name in senders[: threshold(6) - 1]}
    with pytest.raises(Unreleased, match="gave their share"):
        server.unmasked(world.directory, senders, world.received, revealed, LEAST)


def test_what_a_silo_sends_looks_like_noise():
    """Over many sessions the masked change is uniform, whatever is masked, and has nothing to do with it."""
    bits, agree = [], []
    for _ in range(30):
        world = World(3)
        said = world.mask("silo-0").change
        bits.append(np.unpackbits(said.view(np.uint8)).mean())
        agree.append(np.corrcoef(decode(world.changes["silo-0"]), said.astype(float))[0, 1])
    assert abs(np.mean(bits) - 0.5) < 0.01
    assert abs(np.mean(agree)) < 4 / np.sqrt(30 * SIZE)


def test_asked_again_a_silo_answers_the_same():
    world = World()
    first, again = world.mask("silo-0"), world.mask("silo-0")
    assert (first.change == again.change).all()
    assert first.shares == again.shares


def test_another_change_under_the_same_masks_is_refused():
    world = World()
    world.mask("silo-0")
    world.changes["silo-0"] = world.changes["silo-0"] + np.uint64(1)
    with pytest.raises(Untrusted, match="two under one mask"):
        world.mask("silo-0")


# A server that lies ------------------------------------------------------------------------------------------------


def test_two_directories_in_one_round_are_refused():
    """Sums over two sets of silos would tell them apart."""
    world = World()
    world.mask("silo-0")
    other = Directory(world.directory.statements[:5], world.directory.weights[:5])
    with pytest.raises(Untrusted, match="sent once"):
        world.mask("silo-0", other)


def swapped(world: World, **changes: object) -> Directory:
    """The directory with something else in place of what silo-1 said."""
    said = list(world.directory.statements)
    said[1] = replace(said[1], **changes)
    return Directory(tuple(said), world.directory.weights)


def test_a_swapped_key_is_refused():
    world = World()
    with pytest.raises(Untrusted, match="not signed by silo-1"):
        world.mask("silo-0", swapped(world, key=keys.public(bytes(range(32)))))
    # Nor does it help to sign it with a key of one's own.
    mine, _ = keys.new_signer()
    forged = swapped(world, key=keys.public(bytes(range(32)))).statements[1]
    with pytest.raises(Untrusted, match="not signed by silo-1"):
        world.mask("silo-0", swapped(world, key=forged.key, signature=keys.sign(mine, forged.text)))
    assert world.sessions["silo-0"].directory is None


def test_keys_of_another_round_or_model_are_refused():
    world = World()
    for told, why in (
        ({"round": 2}, "another round"),
        ({"run": "b"}, "another round"),
        ({"model": b"x"}, "another model"),
    ):
        other = world.announced("silo-1", **told).statement
        said = world.directory.statements
        with pytest.raises(Untrusted, match=why):
            world.mask("silo-0", Directory((said[0], other, *said[2:]), world.directory.weights))


def test_strangers_and_doubles_are_refused():
    world = World()
    said, weights = world.directory.statements, world.directory.weights
    stranger = World(7)
    cases = [
        (Directory((*said, stranger.sessions["silo-6"].statement), (*weights, 0.1)), "not known here"),
        (Directory((*said, said[1]), (*weights, 0.1)), "somebody twice"),
        (Directory(said[1:], weights[1:]), "own key"),
        (Directory(said[:2], weights[:2]), "needs 3"),
    ]
    for directory, why in cases:
        with pytest.raises(Untrusted, match=why):
            world.mask("silo-0", directory)


@pytest.mark.parametrize(
    "weights",
    [(1.0, 0, 0, 0), (1.0, 1e-9, 1e-9, 1e-9), (0.5, 0.5, 0, 0), (1.0, 0.3, 0.3, 0.3), (np.nan,) * 4, (1, 1, 1, -1)],
)
def test_weights_that_leave_a_silo_alone_are_refused(weights):
    world = World(4, weights)
    with pytest.raises(Untrusted):
        world.mask("silo-0")


def test_a_server_that_lies_about_who_dropped_out_is_refused():
    world = World(6)
    senders = world.mask_all()
    without_me = senders[1:]
    with pytest.raises(Untrusted, match="says it dropped out"):
        world.reveal("silo-0", without_me)
    # silo-5 has sent, the others are told that it has not: without a threshold of signatures nobody helps ...
    lie = senders[:5]
    with pytest.raises(Untrusted, match="have signed"):
        world.reveal("silo-0", lie)
    # ... and signatures on the truth, or of silos that are not in the set, are none on the lie.
    truth = {name: world.sign(name, senders) for name in senders[1:]}
    with pytest.raises(Untrusted, match="0 silos have signed"):
        world.reveal("silo-0", lie, truth)
    # Whoever has signed one set signs and reveals no other.
    with pytest.raises(Untrusted, match="others have sent than it said before"):
        world.sign("silo-1", lie)
    with pytest.raises(Untrusted, match="others have sent than it said before"):
        world.reveal("silo-1", lie)


def test_no_lie_gives_both_the_self_mask_and_the_pair_keys_of_a_silo():
    """The server tries every division of the silos into those who are told the truth and those who are told a lie."""
    for believers in range(2**6):
        world = World(6)
        senders = world.mask_all()
        target, lie = "silo-5", tuple(name for name in senders if name != "silo-5")
        told_lie = [name for k, name in enumerate(world.names) if believers >> k & 1 and name != target]
        words = {name: world.sign(name, lie) for name in told_lie}
        shares, pairs = 0, 0
        for name in world.names:
            try:
                said = world.reveal(name, lie, words) if name in told_lie else world.reveal(name, senders)
            except Untrusted:
                continue
            shares, pairs = shares + (target in said.shares), pairs + (target in said.pairs)
        assert shares < threshold(6) or pairs == 0


def test_too_few_senders_are_refused():
    world = World(6)
    senders = world.mask_all()
    with pytest.raises(Untrusted, match="it takes 5"):
        world.reveal("silo-0", senders[:4])
    with pytest.raises(Unreleased, match="it takes 5"):
        server.senders(world.directory, dict(list(world.received.items())[:4]), LEAST)


def test_two_silos_are_no_sum():
    world = World(3)
    with pytest.raises(Unreleased, match="2 of 3"):
        world.mask_all(without=("silo-2",))


def test_damaged_shares_are_noticed():
    world = World(4)
    senders = world.mask_all()
    told = world.outcome("silo-0", senders)
    bent = replace(told, shares={name: share[:-1] + bytes([share[-1] ^ 1]) for name, share in told.shares.items()})
    with pytest.raises(Untrusted, match="not sealed by"):
        silo.reveal(world.sessions["silo-0"], bent, world.peers, LEAST)
    revealed = {name: world.reveal(name, senders) for name in senders}
    wrong = replace(revealed["silo-0"], shares={name: bytes(66) for name in senders})
    with pytest.raises(Unreleased, match="do not fit together"):
        server.unmasked(world.directory, senders, world.received, {**revealed, "silo-0": wrong}, LEAST)


def test_a_silo_that_sends_something_else_is_noticed():
    world = World(4)
    senders = world.mask_all()
    revealed = {name: world.reveal(name, senders) for name in senders}
    other = replace(world.received["silo-2"], change=world.received["silo-2"].change + np.uint64(2**63))
    with pytest.raises(Unreleased, match="no sum of updates"):
        server.unmasked(world.directory, senders, {**world.received, "silo-2": other}, revealed, LEAST)


# Its parts ---------------------------------------------------------------------------------------------------------


def test_a_directory_travels_as_text():
    world = World(3, (0.1, 1 / 3, 0.7))
    assert unpacked(packed(world.directory)) == world.directory
    for text in ("", "[]", "[[1],[2]]", "[[],[1.0]]", '[[["a","b",true,"","","",""]],["0x1p0"]]', "[" * 5000):
        with pytest.raises(ValueError):  # noqa: PT011
            unpacked(text)


def test_numbers_keep_their_place():
    x = np.array([0.0, 1.5, -LIMIT, LIMIT, 1e-9])
    assert np.abs(decode(encode(x)) - x).max() <= 2.0 ** -(BITS + 1)
    for wild in (LIMIT * 1.001, np.nan, np.inf):
        with pytest.raises(OutOfRange):
            encode(np.array([wild]))


def test_as_many_silos_as_there_may_be_do_not_overflow():
    most = encode(np.array([LIMIT])) - encode(np.array([-LIMIT]))  # the longest change
    total = most * np.uint64(MOST_SILOS)
    assert decode(total)[0] == 2 * LIMIT * MOST_SILOS
    assert plausible(total, MOST_SILOS)
    assert not plausible(total, MOST_SILOS - 1)
    assert not plausible(np.array([2**63], np.uint64), MOST_SILOS)


def test_shares_fewer_than_the_threshold_fit_every_secret():
    secret = bytes(range(32))
    shares = dict(enumerate(shared_out(secret, 3, 5)))
    for places in ((0, 1, 2), (4, 2, 0), (1, 3, 4)):
        assert put_together({place: shares[place] for place in places}, 32) == secret
    two = {place: shares[place] for place in (0, 1)}
    for other in (bytes(32), bytes([255] * 32)):  # a third share that makes the first two say this
        number = int.from_bytes(other, "big")
        y = [int.from_bytes(share, "big") for share in two.values()]
        third = (number - 3 * y[0] + 3 * y[1]) % PRIME  # the value at 3 of the parabola through 0, 1 and 2
        assert put_together({**two, 2: third.to_bytes(66, "big")}, 32) == other


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**-60, 2.0, 2.0**30])
def test_weights_of_another_scale_are_refused(scale):
    """By their ratios alone they are good, and what cannot be encoded, or is rounded away, tells how long an update is."""
    world = World(4, (0.25 * scale,) * 4)
    with pytest.raises(Untrusted, match="shares of 1"):
        world.mask("silo-0")


@pytest.mark.parametrize("n", [3, 10, MOST_SILOS])
def test_weights_of_honest_servers_pass(n):
    rng = np.random.default_rng(n)
    for weights in (np.full(n, 1 / n), rng.dirichlet(np.full(n, 50.0)), np.full(n, 1 / n) * (1 + 5e-7)):
        assert not complaint(weights.tolist(), LEAST)


def test_a_directory_that_was_settled_is_the_only_one():
    world = World(4)
    session = silo.settle(world.sessions["silo-0"], world.directory, world.peers, LEAST)
    world.sessions["silo-0"] = session
    with pytest.raises(Untrusted, match="sent once"):
        world.mask("silo-0", replace(world.directory, weights=(0.2, 0.3, 0.25, 0.25)))
    world.received = {name: world.mask(name) for name in world.names[1:]}
    for ask in (world.sign, world.reveal):
        with pytest.raises(Untrusted, match="masked nothing"):
            ask("silo-0", tuple(world.names))
    assert world.mask("silo-0").change.any()
