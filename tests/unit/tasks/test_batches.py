"""Plans drawn a round early are the plans."""

import copy
import pickle

import numpy as np

from feduca.tasks import build_task
from feduca.tasks.data import batches
from feduca.tasks.data.batches import Ahead, plan
from feduca.types import LocalSpec


def same(a, b):
    assert np.array_equal(a.index, b.index)
    assert np.array_equal(a.sizes, b.sizes)
    assert (a.augment is None) == (b.augment is None)
    assert a.augment is None or np.array_equal(a.augment, b.augment)


def test_plans_drawn_ahead_are_those_drawn_when_asked_for():
    rows = [np.arange(7), np.arange(10, 23), np.arange(30, 35)]
    plain = LocalSpec(epochs=2, batch_size=4, lr=0.1)
    moved = LocalSpec(epochs=2, batch_size=4, lr=0.1, augment=True)
    ahead = Ahead()
    asked = [
        (0, plain, [0, 1, 2], 5),
        (0, moved, [0, 1, 2], 5),  # two kinds of training in one round
        (1, plain, [0, 1, 2], 5),
        (1, moved, [0, 2], 5),  # somebody left
        (2, plain, [0, 1, 2], 6),  # other seeds
        (4, moved, [0, 2], 5),  # a round was passed over
        (3, moved, [0, 2], 5),  # and back, as a resumed run may ask
    ]
    for round, spec, silos, seed in asked:
        who, seeds = np.array(silos), np.full(len(silos), seed)
        chosen = [rows[k] for k in silos]
        same(ahead.plan(who, chosen, who, spec, round, seeds), plan(chosen, who, spec, round, seeds))


def test_what_nobody_asks_for_any_more_is_forgotten():
    ahead, rows, spec = Ahead(), [np.arange(5)], LocalSpec(epochs=1, batch_size=2, lr=0.1)
    for round in range(20):
        ahead.plan(np.array([round % 3]), rows, np.array([0]), spec, round, np.array([0]))
    assert len(ahead._drawn) <= 4


def test_a_round_that_asks_twice_draws_once(monkeypatch):
    drawn = []
    monkeypatch.setattr(batches, "plan", lambda rows, clients, spec, round, *more: drawn.append(round) or round)
    ahead, who, spec = Ahead(), np.array([0]), LocalSpec(epochs=1, batch_size=2, lr=0.1)
    for round in range(4):
        for _ in range(2):
            assert ahead.plan(who, [np.arange(5)], who, spec, round, who) == round
    ahead._thread.shutdown()
    assert drawn == [0, 1, 2, 3, 4]


def test_a_task_can_be_copied_and_sent_elsewhere():
    task = build_task(max_examples=200)
    task.ahead.plan(
        np.array([0]), [np.arange(5)], np.array([0]), LocalSpec(epochs=1, batch_size=2, lr=0.1), 0, np.array([0])
    )
    assert copy.deepcopy(task).ahead._drawn == {}
    assert pickle.loads(pickle.dumps(task.ahead))._thread is None


def test_a_silos_augmentation_does_not_depend_on_who_else_is_in_the_call():
    spec = LocalSpec(epochs=3, batch_size=50, lr=0.1, augment=True)
    rows, seeds = [np.arange(20), np.arange(20, 80), np.arange(80, 200)], np.zeros(3, int)
    together = plan(rows, np.arange(3), spec, 4, seeds)
    for k, own in enumerate(rows):
        alone = plan([own], np.array([k]), spec, 4, seeds[:1])
        steps, _, wide = alone.index.shape
        assert np.array_equal(together.index[:steps, k, :wide], alone.index[:, 0])
        assert np.array_equal(together.sizes[:steps, k], alone.sizes[:, 0])
        assert np.array_equal(together.augment[:steps, k, :wide], alone.augment[:, 0])
        assert not together.augment[:steps, k, wide:].any()


def test_every_step_and_epoch_is_augmented_anew():
    codes = plan(
        [np.arange(40)], np.array([0]), LocalSpec(epochs=2, batch_size=20, augment=True), 0, np.array([0])
    ).augment
    assert codes.shape == (4, 1, 20)
    assert len({step.tobytes() for step in codes}) == 4


def test_the_augmentation_of_full_batches_is_as_it_was():
    """Committed results were computed with these numbers."""
    spec = LocalSpec(epochs=2, batch_size=5, lr=0.1, augment=True)
    drawn = plan([np.arange(12), np.arange(5)], np.arange(2), spec, 3, np.array([7, 8])).augment
    assert drawn[:2, 0].tolist() == [[245, 11, 201, 155, 85], [177, 190, 171, 216, 293]]
    assert drawn[:2, 1].tolist() == [[252, 294, 233, 40, 165], [108, 70, 119, 154, 253]]
