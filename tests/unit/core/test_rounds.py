"""One hand-computed round of FedAvg and of FedUCA on two tiny clients, and what the loop promises around it.

The silos are those of pencil.py, so every number below can be checked by hand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feduca.client.behaviour import Behaviour
from feduca.client.conduct import Conduct
from feduca.client.offers import BestMixture, Global, LeastConcession
from feduca.client.participation import AccuracyImproves, Always, UtilityThreshold
from feduca.core import rounds as loop
from feduca.core.aggregation import Weighted
from feduca.core.memory import memories
from feduca.core.rounds import Server
from feduca.core.utility import Quadratic
from feduca.errors import RunError
from feduca.federation import InProcess, Recording, Replay
from feduca.federation import replay as recordings
from feduca.mechanisms import FedAvg, FedUCA
from feduca.types import LocalSpec, Needs
from numpy_task import NumpyTask
from pencil import Pencil, play


def test_fedavg_by_hand():
    items, _ = play(FedAvg(), AccuracyImproves(), rounds=2)
    (first, _, state), (second, after, last) = items
    # Round 1: both join, train 0 to 1 and 0 to -2; theta = (1 - 2) / 2 = -1/2.
    assert state.theta == pytest.approx([-0.5])
    assert first.participation == 1
    assert first.accuracy == pytest.approx(0.75)
    # Round 2: silo 0 scores 1 - 2.25 = -1.25 with theta and 1 with its own: stays out, trains 1 to 2, sends nothing.
    # Silo 1 scores 1 - .25 = .75 with theta and 1 - 1 = 0 with its own: joins and trains -1/2 to -5/2.
    assert list(after.status) == ["declined", "joined"]
    assert after.global_accuracy == pytest.approx([-1.25, 0.75])
    assert after.own_accuracy == pytest.approx([1.0, 0.0])
    # The remembered update of silo 0 is 0 - 1 = -1, silo 1's new one -1/2 + 5/2 = 2: theta = -1/2 - (-1 + 2) / 2 = -1.
    assert last.theta == pytest.approx([-1.0])
    assert list(after.staleness) == [1, 0]
    assert second.smallest_cohort == 1


def test_the_three_memories_by_hand():
    thetas = {
        memory: play(FedAvg(), AccuracyImproves(), memory, rounds=2)[0][-1][2].theta[0]
        for memory in ("update", "model", "none")
    }
    # model: silo 0 is remembered as 1, so theta = (1 - 5/2) / 2; none: only silo 1 counts, theta = -5/2.
    assert thetas == pytest.approx({"update": -1.0, "model": -0.75, "none": -2.5})


def test_weights_by_examples():
    items, _ = play(FedAvg(beta="examples"))
    assert items[0][2].theta == pytest.approx([0.25 * 1 + 0.75 * -2])
    assert items[0][0].discrepancy == pytest.approx(0)


def test_feduca_by_hand():
    mechanism = FedUCA(n_s=1, start="uniform", selection="closest")
    items, federation = play(mechanism, UtilityThreshold(), rounds=1)
    record, _, state = items[0]
    # Round 1, theta_-k = theta = 0. Silo 0's path is x = r: 1 - (r - 1)^2 = -r^2 + 2r + 0. Silo 1's is x = -2r:
    # 1 - (1 - 2r)^2 = -4r^2 + 4r + 0. Quadratic curves are fitted exactly.
    assert federation.reports[0].zeta == pytest.approx(np.array([[1, 2, 0], [4, 4, 0]]), abs=1e-9)
    # gamma = u(1/2) = -1/4 + 1 = 3/4 and -1 + 2 = 1; uniform weights meet both, and `closest` keeps them.
    assert federation.reports[0].gamma == pytest.approx([0.75, 1.0])
    assert state.announced.alpha == pytest.approx([0.5, 0.5], abs=1e-6)
    assert state.theta == pytest.approx([-0.5], abs=1e-5)
    assert record.satisfied == 2
    assert record.slack == pytest.approx(0, abs=1e-6)
    assert record.r2 == pytest.approx(1)


def test_feduca_second_round_by_hand():
    items, federation = play(FedUCA(n_s=1, start="uniform", selection="closest"), UtilityThreshold(), rounds=2)
    clients = items[1][1]
    assert list(clients.status) == ["joined", "joined"]
    # Own models are 1 and -2, theta = -1/2, a = 1/2, so theta_-k = 2 theta - own = -2 and 1. New models: 1/2 and -5/2.
    # Silo 0: x = -2 + 2.5 r, 1 - (2.5 r - 3)^2 = -6.25 r^2 + 15 r - 8.
    # Silo 1: x = 1 - 3.5 r, 1 - (2 - 3.5 r)^2 = -12.25 r^2 + 14 r - 3.
    assert federation.reports[1].zeta == pytest.approx(np.array([[6.25, 15, -8], [12.25, 14, -3]]), abs=1e-5)
    # The promise of round 1 was u_0(1/2) = 3/4; the realised utility at theta = -1/2 is 1 - 2.25.
    assert clients.promise_kept == pytest.approx([-1.25 - 0.75, 0.75 - 1.0], abs=1e-4)
    assert list(clients.eq1) == [False, True]
    assert list(clients.eq2) == [1, 1]


def test_lagged_and_announce_next_announce_what_they_say():
    start = FedUCA().init(Pencil.examples, 3)[1].alpha
    for schedule in ("fresh", "lagged", "announce-next"):
        items, _ = play(FedUCA(schedule=schedule), Always(), rounds=2)
        first, second = items[0][2], items[1][2]
        if schedule == "fresh":
            assert first.formed is first.announced
            assert first.formed.alpha != pytest.approx(start)
        else:  # the first aggregation can only use the initial weights
            assert first.formed.alpha == pytest.approx(start)
            assert second.formed is first.pending
        assert first.announced is (first.formed if schedule == "lagged" else first.pending)


def test_least_concession_takes_the_first_point_that_beats_the_own_model():
    items, _ = play(FedAvg(), AccuracyImproves(), offer=LeastConcession(points=4), rounds=2)
    clients = items[1][1]
    # Silo 0 owns 1 (perfect: nothing beats it, the best point is its own). Silo 1 owns -2 and theta is -1/2: consensus does.
    assert clients.concession == pytest.approx([1.0, 0.0])
    assert list(clients.status) == ["declined", "joined"]
    assert list(clients.evaluations) == [3, 0]


def test_best_mixture_takes_the_best_point():
    items, _ = play(FedAvg(), AccuracyImproves(), offer=BestMixture(points=3), rounds=2)
    clients = items[1][1]
    # Silo 1: theta = -1/2 and own = -2; at c = 1/3 the model is exactly -1, the goal.
    assert clients.concession == pytest.approx([1.0, 1 / 3])
    assert clients.offered_accuracy == pytest.approx([1.0, 1.0])


def test_whoever_accepts_trains_from_its_offer_or_from_consensus():
    for train_from, start in (("offer", -1.0), ("consensus", -0.5)):
        items, federation = play(
            FedAvg(), AccuracyImproves(), offer=BestMixture(points=3), rounds=2, train_from=train_from
        )
        assert list(items[1][1].status) == ["declined", "joined"]
        assert items[1][1].offered_accuracy[1] == pytest.approx(1.0)  # what it deploys is the offer either way
        assert federation.reports[1].theta[1] == pytest.approx(start - 2)  # silo 1's training subtracts 2
        assert federation.snapshot()["own"][0] == pytest.approx(2.0)  # who declines goes on with its own model, 1


@pytest.mark.parametrize("kind", ["echo", "idle"])
@pytest.mark.parametrize("train_from", ["offer", "consensus"])
def test_whoever_shirks_sends_back_its_offer_wherever_training_starts(kind, train_from):
    class Late(Conduct):
        """Honest in the first round, so that silo 1 has a model of its own to be offered something on the way to."""

        def works(self, seen):
            return seen.new if seen.round == 1 else super().works(seen)

        def sends(self, seen):
            return seen.new if seen.round == 1 else super().sends(seen)

    how = {"offer": BestMixture(points=3), "train_from": train_from, "conduct": Late(kind, (1,))}
    items, federation = play(FedAvg(), AccuracyImproves(), rounds=2, **how)
    assert list(items[1][1].status) == ["declined", "joined"]
    assert federation.reports[1].theta[1] == pytest.approx(-1.0)  # the offer, not the shared model, -1/2
    assert federation.snapshot()["own"][1] == pytest.approx(
        -1.0 if kind == "idle" else {"offer": -3.0}.get(train_from, -2.5)
    )


def test_server_learning_rate():
    server = Server(FedAvg(), memories["update"], Quadratic(), LocalSpec(), 1, 3, aggregation=Weighted(0.5))
    federation = InProcess(Pencil(), Behaviour(Always(), Global(), Quadratic(), 3))
    assert loop.play(loop.rounds(server, np.zeros(1), Pencil.examples), federation).theta == pytest.approx([-0.25])


def test_buffers_are_averaged_plainly_over_participants():
    theta = np.array([0.0, 4.0])  # one parameter, one running statistic
    delta = theta - np.array([[1.0, 6.0], [3.0, 2.0], [9.0, 9.0]])
    joined = np.array([True, True, False])
    after = Weighted().next(theta, np.array([0.9, 0.1, 0]), delta, np.zeros(3), 0 * delta, joined, parameters=1)[0]
    assert after == pytest.approx([0.9 * 1 + 0.1 * 3, (6 + 2) / 2])


def test_a_model_that_diverges_stops_the_run_with_advice():
    class Diverges(Pencil):
        def train(self, theta, clients, spec, round, seed, anchor=None):
            return theta * np.inf if round > 1 else theta + 1

    server = Server(FedAvg(), memories["update"], Quadratic(), LocalSpec(), 3, 3)
    federation = InProcess(Diverges(), Behaviour(Always(), Global(), Quadratic(), 3))
    with pytest.raises(RunError, match=r"round 2: .*no longer finite; lower local\.lr"):
        loop.play(loop.rounds(server, np.zeros(1), Pencil.examples), federation)


def test_a_recording_replays_to_the_same_models(tmp_path):
    task = NumpyTask()
    mechanism = FedUCA(n_s=2)
    server = Server(mechanism, memories["update"], Quadratic(), LocalSpec(epochs=1), 4, seed=5)
    federation = Recording(InProcess(task, Behaviour(UtilityThreshold(), Global(), Quadratic(), 5)))
    lived = loop.play(loop.rounds(server, task.init(5), task.examples), federation)
    for reports in federation.reports:
        recordings.save(reports, tmp_path / f"{reports.round}.safetensors")
    again = [recordings.load(tmp_path / f"{t}.safetensors") for t in range(1, 5)]
    replayed = loop.play(loop.rounds(server, task.init(5), task.examples), Replay(task.silos, again))
    assert np.array_equal(lived.theta, replayed.theta)
    assert np.array_equal(lived.announced.alpha, replayed.announced.alpha)
    with pytest.raises(RunError, match="rounds 1 to 4, not round 5"):
        loop.play(loop.rounds(replace(server, rounds=5), task.init(5), task.examples), Replay(task.silos, again))


def test_a_continued_loop_equals_an_undisturbed_one():
    task, mechanism = NumpyTask(), FedUCA(n_s=2)
    server = Server(mechanism, memories["update"], Quadratic(), LocalSpec(epochs=1), 5, seed=5)
    how = Behaviour(UtilityThreshold(), Global(), Quadratic(), 5, needs=Needs(curve=True))
    whole = loop.play(loop.rounds(server, task.init(5), task.examples), InProcess(task, how))
    half = InProcess(task, how)
    state = loop.play(loop.rounds(replace(server, rounds=2), task.init(5), task.examples), half)
    rest = InProcess(task, how)
    rest.restore(half.snapshot())
    resumed = loop.play(loop.rounds(server, task.init(5), task.examples, state=state), rest)
    assert np.array_equal(whole.theta, resumed.theta)


def test_randomness_of_a_client_does_not_depend_on_the_others():
    few, many = NumpyTask(3), NumpyTask(4)
    spec = LocalSpec(epochs=2, batch_size=5)
    start = np.tile(few.init(0), (4, 1))
    a = few.train(start[:3], np.arange(3), spec, 1, seed=0)
    b = many.train(start, np.arange(4), spec, 1, seed=0)
    assert np.array_equal(a, b[:3])
    assert np.array_equal(a[[2, 0]], few.train(start[:2], np.array([2, 0]), spec, 1, seed=0))


def test_bytes_are_what_one_message_per_silo_carries():
    items, _ = play(FedUCA(n_s=5), AccuracyImproves(), rounds=2)
    record = items[1][0]
    assert record.bytes_down == 2 * (4 * 1 + 8 * (2 + 5))
    assert record.bytes_up == record.joined * 4 + 2 * 8 * (1 + 3)
