"""One session of secure aggregation: exact sums, silos that drop out, and servers that lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from feduca.privacy import keys, server, silo
from feduca.privacy.encoding import BITS, LIMIT, MOST_SILOS, OutOfRange, decode, encode, plausible
from feduca.privacy.protocol import (
    Directory,
    Masked,
    Outcome,
    Untrusted,
    complaint,
    packed,
    statement_of,
    survivors_text,
    threshold,
    unpacked,
    words_of,
)
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
        self.silent: set[str] = set()

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

    def part(self, name: str, senders: tuple[str, ...], words: Mapping[str, bytes]) -> dict[str, bytes]:
        told = self.outcome(name, senders)
        self.sessions[name], said = silo.part(self.sessions[name], told, self.peers, LEAST, words)
        return said

    def reveal(self, name: str, senders: tuple[str, ...], words: Mapping[str, bytes] | None = None):
        told = self.outcome(name, senders)
        self.sessions[name], said = silo.reveal(self.sessions[name], told, self.peers, LEAST, words or {})
        return said

    def agreed(self, gone: Mapping[str, set[str]]) -> server.Agreed:
        """What silos agree on if these are silent from the first, second ... time on that they are asked to sign or part."""
        asked = {"sign": 0, "part": 0}

        def told(step: str, listed: tuple[str, ...], answer: Callable[[str], Any]) -> dict[str, Any]:
            asked[step] += 1
            self.silent |= gone.get(f"{step} {asked[step]}", set())
            return {name: answer(name) for name in listed if name not in self.silent}

        return server.agreed(
            self.directory, self.received, LEAST,
            lambda listed: told("sign", listed, lambda name: self.sign(name, listed)),
            lambda listed, words: told("part", listed, lambda name: self.part(name, listed, words)),
        )  # fmt: skip

    def summed(self, agreed: server.Agreed) -> np.ndarray:
        here = [name for name in agreed.senders if name not in self.silent]
        revealed = {name: self.reveal(name, agreed.senders, agreed.signatures) for name in here}
        return server.unmasked(self.directory, agreed, self.received, revealed, LEAST)

    def total(self, senders: tuple[str, ...]) -> np.ndarray:
        return sum((self.changes[name] for name in senders), np.zeros(SIZE, np.uint64))


def test_the_sum_is_exact():
    world = World()
    senders = world.mask_all()
    assert (world.summed(world.agreed({})) == world.total(senders)).all()


@pytest.mark.parametrize("n", [4, 6, 9])
def test_who_drops_out_after_its_key_is_announced_is_left_out(n):
    world = World(n)
    senders = world.mask_all(without=(world.names[1],) if n < 9 else (world.names[0], world.names[8]))
    assert (world.summed(world.agreed({})) == world.total(senders)).all()


def test_who_drops_out_after_it_has_sent_still_counts():
    world = World(6)
    senders = world.mask_all()
    agreed = world.agreed({})
    world.silent = {senders[0]}
    assert (world.summed(agreed) == world.total(senders)).all()


@pytest.mark.parametrize("step", ["sign 1", "part 1"])
@pytest.mark.parametrize("who", ["silo-4", "silo-8"])
def test_silos_that_drop_out_before_and_after_they_have_sent_leave_a_sum_of_the_others(step, who):
    """The one that vanishes with the keys of what hides it from the first: both are left out, and the rest is released."""
    world = World(9)
    world.mask_all(without=("silo-0",))
    agreed = world.agreed({step: {who}})
    assert agreed.senders == tuple(name for name in world.names[1:] if name != who)
    assert (world.summed(agreed) == world.total(agreed.senders)).all()


def test_silos_may_drop_out_at_every_step_while_more_than_two_thirds_are_left():
    world = World(16)
    world.mask_all(without=("silo-0",))
    agreed = world.agreed({"sign 1": {"silo-1"}, "part 1": {"silo-2"}})
    world.silent |= {"silo-3", "silo-4"}  # those still count
    assert agreed.senders == tuple(world.names[3:])
    assert (world.summed(agreed) == world.total(agreed.senders)).all()


def test_too_few_that_are_still_there_release_nothing():
    world = World(6)
    world.mask_all(without=("silo-0",))
    with pytest.raises(Unreleased, match="4 of 6 silos are still there to agree on who dropped out, and it takes 5"):
        world.agreed({"sign 1": {"silo-4"}})
    world = World(6)
    world.mask_all(without=("silo-0",))
    with pytest.raises(Unreleased, match="0 of 6 silos are still there"):
        world.agreed({"part 1": set(world.names)})


def test_after_three_lists_a_round_is_given_up():
    world = World(22)
    world.mask_all(without=("silo-0",))
    with pytest.raises(Unreleased, match="3 times in a row"):
        world.agreed({"sign 1": {"silo-1"}, "part 1": {"silo-2"}, "sign 3": {"silo-3"}})


def test_a_silo_that_says_nothing_of_who_is_left_out_spoils_a_round_and_no_more():
    world = World(9)
    world.mask_all(without=("silo-0",))
    agreed = world.agreed({})
    for said in ({}, {"silo-0": b""}, {"silo-0": bytes(31)}):
        damaged = replace(agreed, pairs={**agreed.pairs, "silo-3": said})
        with pytest.raises(Unreleased, match="silo-0 dropped out, and silo-3 did not say"):
            world.summed(damaged)
    damaged = replace(agreed, pairs={**agreed.pairs, "silo-3": {"silo-0": bytes(32)}})
    with pytest.raises(Unreleased, match="no sum of updates"):
        world.summed(damaged)


def test_fewer_than_the_threshold_reveal_nothing():
    world = World(6)
    senders = world.mask_all()
    agreed = world.agreed({})
    world.silent = set(senders[threshold(6) - 1 :])
    with pytest.raises(Unreleased, match="gave their share"):
        world.summed(agreed)


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
    for ask in (world.part, world.reveal):
        with pytest.raises(Untrusted, match="have signed"):
            ask("silo-0", lie, {})
    # ... and signatures on the truth, or of silos that are not in the set, are none on the lie.
    truth = {name: world.sign(name, senders) for name in senders[1:]}
    for ask in (world.part, world.reveal):
        with pytest.raises(Untrusted, match="0 silos have signed"):
            ask("silo-0", lie, truth)


def test_lists_get_shorter_and_never_longer_or_other():
    world = World(9)
    senders = world.mask_all()
    eight, other, seven = senders[:8], (*senders[:7], senders[8]), senders[:7]
    world.sign("silo-1", eight)
    for wrong in (senders, other):
        with pytest.raises(Untrusted, match="others have sent than it said before"):
            world.sign("silo-1", wrong)
        with pytest.raises(Untrusted, match="others have sent than it said before"):
            world.reveal("silo-1", wrong)
    for k in (0, 2, 3, 4, 5, 6):
        world.sign(f"silo-{k}", seven)
    words = {
        name: world.sign(name, seven) for name in seven
    }  # silo-1, too: it has signed a longer list, and given nothing
    assert set(world.part("silo-1", seven, words)) == {"silo-7", "silo-8"}
    with pytest.raises(Untrusted, match="others have sent than it said before"):
        world.part("silo-1", eight, words)


def test_who_has_given_shares_gives_no_keys_for_a_shorter_list():
    """Else the server has the self-mask of a silo that it says afterwards has dropped out, and then its pairs as well."""
    world = World(9)
    senders = world.mask_all()
    for name in senders:
        world.reveal(name, senders)
    with pytest.raises(Untrusted, match="others have sent than it said before"):
        world.sign("silo-0", senders[:8])
    world = World(9)
    world.mask_all()
    eight, seven = senders[:8], senders[:7]
    words = {name: world.sign(name, eight) for name in eight}
    for name in eight:
        world.reveal(name, eight, words)
        with pytest.raises(Untrusted, match="others have sent than it said before"):
            world.sign(name, seven)
        with pytest.raises(Untrusted, match="others have sent than it said before"):
            world.part(name, seven, words)
        assert set(world.part(name, eight, words)) == {"silo-8"}  # of that very list it does


# What a server could lay bare -----------------------------------------------------------------------------------------


class Liar:
    """A server that takes whatever silos give it; `with_it` are silos that tell it everything and sign what it likes."""

    def __init__(self, n: int, with_it: tuple[str, ...] = ()) -> None:
        self.world, self.with_it = World(n), with_it
        self.world.mask_all()
        self.honest = [name for name in self.world.names if name not in with_it]
        self.lists: dict[tuple[str, ...], dict[str, bytes]] = {}  # and who has signed them
        self.shares: dict[str, set[str]] = {name: set(with_it) for name in self.world.names}
        self.known: set[frozenset[str]] = set()  # pairs whose mask is off

    def ask(self, step: str, name: str, listed: tuple[str, ...]) -> None:
        words = self.lists.setdefault(listed, {})
        for other in self.with_it:
            if other in listed and other not in words:
                text = survivors_text(self.world.directory, listed)
                words[other] = keys.sign(self.world.signers[other], text)
        try:
            if step == "sign":
                words[name] = self.world.sign(name, listed)
            elif step == "part":
                self.known |= {frozenset((name, other)) for other in self.world.part(name, listed, words)}
            else:
                for other in self.world.reveal(name, listed, words):
                    self.shares[other].add(name)
        except Untrusted:
            pass

    def bare(self) -> list[set[str]]:
        """The smallest sets of honest silos whose sum has no mask on it any more."""
        needed, left, found = threshold(len(self.world.names)), set(self.honest), []
        while left:
            reached, edge = set(), [left.pop()]
            while edge:
                one = edge.pop()
                reached.add(one)
                edge += [o for o in self.honest if o not in reached and frozenset((one, o)) not in self.known]
            left -= reached
            if all(len(self.shares[name]) >= needed for name in reached):
                found.append(reached)
        return found


@pytest.mark.parametrize(("n", "with_it"), [(4, 0), (6, 0), (7, 2), (9, 2)])
def test_whatever_a_server_asks_it_lays_bare_one_sum_at_most_and_of_a_list(n, with_it):
    """It asks at random: for lists that are too short, too, of silos in any order, and with others' help."""
    rng, laid = np.random.default_rng(n), 0
    for turn in range(60):
        liar = Liar(n, tuple(f"silo-{k}" for k in range(with_it)))
        names, lists = liar.world.names, []
        for _ in range(4):  # half of them nested, as a server would have them that wants to get through
            inside = lists[-1] if lists and rng.random() < 0.7 else names
            gone = rng.choice(inside, size=min(len(inside), rng.integers(0, 3)), replace=False)
            lists.append(tuple(name for name in inside if name not in gone))
        if turn % 2:  # step by step, as an honest server asks, but not of all
            lists.sort(key=len, reverse=True)
            plan = [(step, name, listed) for listed in lists for step in ("sign", "part", "reveal")
                    for name in listed if rng.random() < (0.95 if step == "sign" else 0.6)]  # fmt: skip
        else:
            steps = ("sign", "sign", "part", "reveal")
            plan = [(steps[rng.integers(4)], rng.choice(names), lists[rng.integers(4)]) for _ in range(40 * n)]
        for step, name, listed in plan:
            if name in liar.honest:
                liar.ask(step, str(name), listed)
        sets = liar.bare()
        assert len(sets) <= 1
        for found in sets:
            laid += 1
            assert found in [{name for name in listed if name in liar.honest} for listed in liar.lists]
            assert len(found) >= threshold(n) - with_it
    assert laid > 3, "it never got a sum at all"


def test_a_silo_that_would_forget_its_list_is_laid_bare(monkeypatch):
    """The same asking with silos that give shares for one list and keys for another: the check can fail."""
    agrees = silo._agrees
    monkeypatch.setattr(silo, "_agrees", lambda s, *rest: agrees(replace(s, senders=None, given=False), *rest))
    liar = Liar(6)
    names = tuple(liar.world.names)
    for name in names:
        liar.ask("reveal", name, names)
    for step in ("sign", "part"):
        for name in names[:5]:
            liar.ask(step, name, names[:5])
    assert {"silo-5"} in liar.bare()


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
        silo.reveal(world.sessions["silo-0"], bent, world.peers, LEAST, {})
    revealed = {name: world.reveal(name, senders) for name in senders}
    wrong = {**revealed, "silo-0": {name: bytes(66) for name in senders}}
    with pytest.raises(Unreleased, match="do not fit together"):
        server.unmasked(world.directory, server.Agreed(senders), world.received, wrong, LEAST)


def test_a_silo_that_sends_something_else_is_noticed():
    world = World(4)
    senders = world.mask_all()
    other = replace(world.received["silo-2"], change=world.received["silo-2"].change + np.uint64(2**63))
    world.received = {**world.received, "silo-2": other}
    with pytest.raises(Unreleased, match="no sum of updates"):
        world.summed(server.Agreed(senders))


# Its parts ---------------------------------------------------------------------------------------------------------


def test_a_directory_travels_as_text():
    world = World(3, (0.1, 1 / 3, 0.7))
    assert unpacked(packed(world.directory)) == world.directory
    for text in ("", "[]", "[[1],[2]]", "[[],[1.0]]", '[[["a","b",true,"","","",""]],["0x1p0"]]', "[" * 5000):
        with pytest.raises(ValueError):  # noqa: PT011
            unpacked(text)


def test_a_statement_of_another_version_is_none():
    words = words_of(World(3).directory.statements[0])
    assert statement_of(words).silo == "silo-0"
    for other in (words[1:], [1, *words[1:]], [True, *words[1:]], []):
        with pytest.raises(ValueError, match="version 2 of secure aggregation; install the same feduca"):
            statement_of(other)


def test_what_a_process_remembers_is_what_each_end_would_compute():
    """Both silos of a pair are asked in a simulation, and what one has computed serves the other."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    one, other, session = bytes(range(32)), bytes(range(1, 33)), b"session"
    first = keys.pair(one, keys.public(other), session, "a", "b")
    assert keys.pair(other, keys.public(one), session, "a", "b") is first
    keys._pairs.clear()
    second = keys.pair(other, keys.public(one), session, "a", "b")
    assert second == first
    assert second is not first
    secret = X25519PrivateKey.from_private_bytes(other).exchange(X25519PublicKey.from_public_bytes(keys.public(one)))
    about = keys.digest(b"pair", session, b"a", b"b")
    found = HKDF(hashes.SHA256(), 96, b"feduca secure aggregation 2", about).derive(secret)
    assert found == first.mask + first.upwards + first.downwards
    for changed in ((b"other", "a", "b"), (session, "a", "c")):
        assert keys.pair(one, keys.public(other), *changed) != first

    key, size = first.mask, 1000
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(12) + (2).to_bytes(4, "big"))).encryptor()  # where GCM begins
    assert keys.mask(key, size).tobytes() == stream.update(bytes(8 * size))
    assert keys.mask(key, size) is keys.mask(key, size)
    assert not keys.mask(key, size).flags.writeable
    assert keys.mask(key, keys.SHORT + 1)[:size].tobytes() == keys.mask(key, size).tobytes()


def test_a_long_mask_is_made_in_parts_that_differ(monkeypatch):
    whole = keys._stream(bytes(32), 50)
    monkeypatch.setattr(keys, "CHUNK", 20)
    parts = keys._stream(bytes(32), 50)
    assert len(parts) == 50
    assert (parts[:20] == whole[:20]).all()
    assert len(set(parts.tolist())) == 50


def test_signatures_made_here_are_taken_for_what_they_are():
    """Without computing them again; any others are looked at."""
    private, known = keys.new_signer()
    _, stranger = keys.new_signer()
    signature = keys.sign(private, b"text")
    assert keys.signed(known, b"text", signature)
    assert keys.verified(known, b"text", signature)
    assert not keys.signed(known, b"other", signature)
    assert not keys.signed(stranger, b"text", signature)
    assert not keys.signed(known, b"text", bytes(64))
    assert keys.signed(known, b"by hand", private.sign(b"by hand"))


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
