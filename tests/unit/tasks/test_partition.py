"""The split of one data set over silos."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feduca.errors import ConfigError
from feduca.recipes import schema as config
from feduca.recipes.build import make_task
from feduca.tasks.data.partition import split, table, wishes

LABELS = np.random.default_rng(5).permutation(np.repeat(np.arange(10), 5000))


def paper(seed=0, **changes):
    return split(LABELS, **{"classes": 10, "clients": 10, "classes_per_client": 5, "seed": seed, **changes})


def test_paper_split_is_what_section_7_says():
    p = paper()
    assert [len(r) for r in p.train] == [4000] * 10
    assert [len(r) for r in p.validation] == [1000] * 10
    assert [len(r) for r in p.test] == [0] * 10
    everything = np.concatenate(p.train + p.validation)
    assert len(np.unique(everything)) == len(everything) == 50_000
    assert sorted(np.concatenate(p.groups).tolist()) == list(range(10))
    for k in range(10):
        assert set(LABELS[p.train[k]]) | set(LABELS[p.validation[k]]) <= set(p.groups[k % 2])


def test_it_is_a_function_of_the_seed():
    assert paper(3).checksum == paper(3).checksum
    assert paper(3).checksum != paper(4).checksum


def test_fifty_thousand_examples_take_well_under_a_second():
    paper()
    started = time.perf_counter()
    paper(1)
    assert time.perf_counter() - started < 0.5


def test_concentration_does_what_it_says():
    def spread(concentration):
        counts = table(paper(2, train_concentration=concentration).train, LABELS, 10)
        return (counts / counts.sum(1, keepdims=True)).std()

    assert spread(0.1) > spread(1000.0)
    counts = table(paper(2, train_concentration=1e6, validation_concentration=1e6).train, LABELS, 10)
    assert np.abs(counts[counts > 0] - 800).max() < 120  # 4000 / 5, give or take a multinomial


def test_train_and_validation_priors_are_separate():
    p = paper(1)
    train, validation = (table(part, LABELS, 10) for part in (p.train, p.validation))
    assert np.abs(train[0] / train[0].sum() - validation[0] / validation[0].sum()).sum() > 0.1


def test_the_validation_prior_has_its_own_concentration():
    """Of ten silos in two groups, the first two find all classes: nothing but the prior says what they get."""

    def largest(part):
        counts = table(part[:2], LABELS, 10)
        return (counts / counts.sum(1, keepdims=True)).max(1)

    even, uneven = (paper(2, validation_concentration=c) for c in (1e6, 0.02))
    assert (largest(even.validation) < 0.25).all()  # of five classes
    assert (largest(uneven.validation) > 0.6).all()
    assert all((a == b).all() for a, b in zip(even.train, uneven.train))  # which has the other


def test_test_share_is_taken_from_validation_and_disjoint():
    p = paper(test_share=0.3)
    assert [len(r) for r in p.test] == [300] * 10
    assert [len(r) for r in p.validation] == [700] * 10
    assert not set(p.test[0]) & set(p.validation[0])
    without = paper()
    assert set(p.test[0]) | set(p.validation[0]) == set(without.validation[0])
    assert all((a == b).all() for a, b in zip(p.train, without.train))
    even = paper(test_share=0.3, validation_concentration=1e6)
    counts = table(even.test, LABELS, 10)  # a part drawn at random has all classes of the whole, a first third has not
    assert ((counts > 0).sum(1) == 5).all()
    assert counts.max() < 100  # of 300, give or take: 60


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 12),
    per=st.sampled_from([1, 2, 3, 6]),
    n=st.integers(240, 700),
    concentration=st.sampled_from([1e-3, 0.5, 50.0]),
    seed=st.integers(0, 99),
)
def test_any_split_is_disjoint_equal_and_within_its_group(clients, per, n, concentration, seed):
    labels = np.random.default_rng(seed).integers(6, size=n)
    p = split(
        labels,
        classes=6,
        clients=clients,
        classes_per_client=per,
        train_concentration=concentration,
        validation_share=0.4,
        seed=seed,
    )
    used = np.concatenate(p.train + p.validation + p.test)
    assert len(np.unique(used)) == len(used)
    assert len({len(r) for r in p.train}) == 1
    assert len({len(r) for r in p.validation}) == 1
    for k, rows in enumerate(p.train):
        assert np.isin(labels[rows], p.groups[k % len(p.groups)]).all()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clients": 0}, "task.clients is 0"),
        ({"classes_per_client": 11}, "task.classes_per_client is 11: choose 1 to 10"),
        ({"classes_per_client": 3}, "choose one of 1, 2, 5, 10"),
        ({"validation_share": 1.0}, "task.validation_share is 1.0"),
        ({"test_share": 1.0}, "task.test_share is 1.0"),
        ({"train_concentration": 0.0}, "task.train_concentration is 0.0"),
        ({"validation_share": 1e-5}, "without validation data"),
        ({"classes": 9, "classes_per_client": 3}, "labels run from 0 to 9"),
        ({"clients": 60_000}, "no training data"),
    ],
)
def test_what_cannot_be_split_is_said_in_one_line(changes, says):
    with pytest.raises(ConfigError, match=says) as caught:
        paper(**changes)
    assert "\n" not in str(caught.value)


def test_wishes_are_measured():
    train, validation = np.array([[8, 2], [5, 5]]), np.array([[5, 5], [5, 5]])
    w = wishes(train, validation, np.array([0.8, 0.6]), np.array([0.9, 0.5]), np.array([0.4, 0.4]), 0.7)
    assert w.solo == pytest.approx(0.7)
    assert w.chance == pytest.approx(0.5)
    assert w.shift == pytest.approx(0.15)
    assert w.leaving == 0.5
    assert w.union_gain == pytest.approx(0.3)
    assert all(w.met.values())
    none = wishes(validation, validation, np.array([0.5, 0.4]), np.array([0.9, 0.9]), np.array([0.7, 0.7]), 0.7)
    assert not any(none.met.values())


def test_one_split_for_every_start():
    """`task.split_seed` fixes the split alone; without it a recipe is written and named as before there was one."""
    quickstart = config.load("quickstart")
    assert "split_seed" not in quickstart.plain()["task"]
    fixed = quickstart.with_settings({"task.split_seed": 1})
    assert fixed.hash() != quickstart.hash()
    assert fixed.with_settings({"task.split_seed": None}).hash() == quickstart.hash()
    one, other, drawn = make_task(fixed, 0), make_task(fixed, 1), make_task(quickstart, 0)
    assert one.about["partition"] == other.about["partition"] == make_task(quickstart, 1).about["partition"]
    assert one.about["partition"] != drawn.about["partition"]
    assert not torch.equal(one.init(0), other.init(1))
    with pytest.raises(ConfigError, match="split_seed"):
        config.load("quickstart", {"task.split_seed": -1})
