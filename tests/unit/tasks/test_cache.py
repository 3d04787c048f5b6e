"""What is kept of costly things, and the trainers that rely on it."""

from dataclasses import replace

import numpy as np

from feduca.tasks import Dataset, build_task
from feduca.tasks.data.batches import plan
from feduca.tasks.engines.gpu import graphs
from feduca.tasks.engines.gpu.cache import KEPT, cached
from feduca.tasks.engines.gpu.graphs import AutogradTrainers
from feduca.tasks.models import CNN
from feduca.types import LocalSpec


def test_what_was_not_asked_for_the_longest_goes_first():
    held, made = {}, []

    def ask(key):
        return cached(held, key, lambda: made.append((key, len(held))) or key.upper(), 3)

    assert [ask(key) for key in "abcabda"] == list("ABCABDA")
    assert list(held) == ["b", "d", "a"]
    assert made == [("a", 0), ("b", 1), ("c", 2), ("d", 2)]  # room is made before there is a new one


def test_the_kinds_of_a_round_are_captured_once(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 16, 16, 3), dtype=np.uint8), np.arange(60) % 3
    data = Dataset("noise", x, y, x[:9], y[:9], 3, (), np.full(3, 0.5), np.full(3, 0.25))
    task = build_task(
        data=data, clients=2, classes_per_client=3, model=lambda: CNN((3, 16, 16), (5,), 3, filters=3), validation_share=0.4
    )  # fmt: skip
    made, whole = [], graphs.AutogradTrainer.__init__
    monkeypatch.setattr(
        graphs.AutogradTrainer, "__init__", lambda self, *args, **options: (made.append(1), whole(self, *args, **options))[1]
    )  # fmt: skip
    plain = LocalSpec(epochs=1, batch_size=4, lr=0.1)
    kinds = [
        plain,
        replace(plain, prox=0.1),
        replace(plain, objective="propfair", bound=5.0),
        replace(plain, augment=True),
    ]
    trainers, theta = (
        AutogradTrainers(task.engine.module, task.layout, task.pool, task.criterion),
        task.init(0).expand(2, -1),
    )
    rows, who = [silo.rows["train"][:4] for silo in task.members], np.arange(2)
    ends = []
    for _ in range(3):
        for spec in kinds:
            batches = plan(rows, who, spec, 0, np.zeros(2, int))
            ends.append(trainers.train(theta, batches, spec, task.init(1).expand(2, -1)))
    assert len(made) == len(kinds) == KEPT
    for i in range(len(kinds)):
        for j in range(i):  # each of its own kind, in every round the same
            assert not np.allclose(ends[i], ends[j], atol=1e-4)
        assert np.array_equal(ends[i], ends[i + 2 * len(kinds)])
