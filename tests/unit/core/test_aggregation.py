"""Clipping, weighted median and trimmed mean, by hand and by what they promise; numpy and torch alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feduca.core.aggregation import Weighted
from feduca.errors import RunError

ROWS = np.array([[0.0, 4.0], [1.0, -1.0], [2.0, 0.0], [100.0, 1.0]])
EVEN = np.full(4, 0.25)


def moved(kind, weights, rows=ROWS, **options):
    """`-step` from a zero model, everybody fresh."""
    theta, nothing = np.zeros(rows.shape[1]), np.zeros(len(rows))
    everybody = np.ones(len(rows), bool)
    args = (weights, rows, nothing, np.zeros_like(rows), everybody, rows.shape[1])
    return -Weighted(kind=kind, **options).next(theta, *args)[0]


def test_by_hand():
    assert moved("mean", EVEN) == pytest.approx([103 / 4, 1])
    assert moved("median", EVEN) == pytest.approx([1.5, 0.5])  # between the two in the middle
    assert moved("trimmed", EVEN, trim=0.25) == pytest.approx([1.5, 0.5])  # one whole silo off either end
    # Weights .1 .2 .3 .4, first column sorted as it stands: the middle lies in the third silo's weight.
    alpha = np.array([0.1, 0.2, 0.3, 0.4])
    assert moved("median", alpha)[0] == pytest.approx(2)
    # trim .2: silo 0 goes, half of silo 1's weight goes, half of silo 3's: (.1 * 1 + .3 * 2 + .2 * 100) / .6
    assert moved("trimmed", alpha, trim=0.2)[0] == pytest.approx((0.1 + 0.6 + 20) / 0.6)


@pytest.mark.parametrize("kind", ["mean", "median", "trimmed"])
def test_agreement_is_kept_and_weights_are_not_renormalised(kind):
    same = np.tile([3.0, -2.0], (4, 1))
    alpha = np.array([0.1, 0.2, 0.3, 0.2])  # sums to .8
    assert moved(kind, alpha, same) == pytest.approx([0.8 * 3, 0.8 * -2])


@pytest.mark.parametrize("kind", ["median", "trimmed"])
def test_a_silo_of_weight_zero_does_not_count(kind):
    alpha = np.array([0.3, 0.3, 0.4, 0.0])
    assert moved(kind, alpha) == pytest.approx(moved(kind, alpha[:3], ROWS[:3]))


@pytest.mark.parametrize("kind", ["median", "trimmed"])
def test_a_minority_of_weight_cannot_drag_it_away(kind):
    alpha, rows = np.array([0.2, 0.2, 0.2, 0.2, 0.2]), np.array([[1.0], [1.1], [0.9], [1e6], [-1e6]])
    assert 0.9 <= moved(kind, alpha, rows, trim=0.3)[0] <= 1.1


def test_trimming_nothing_is_the_mean():
    rng = np.random.default_rng(0)
    rows, alpha = rng.normal(size=(7, 5)), rng.dirichlet(np.ones(7))
    assert moved("trimmed", alpha, rows, trim=0.0) == pytest.approx(moved("mean", alpha, rows))


@pytest.mark.parametrize("kind", ["mean", "median", "trimmed"])
def test_torch_and_numpy_agree_and_keep_their_dtype(kind):
    rng = np.random.default_rng(1)
    theta, delta, recalled = (rng.normal(size=shape).astype(np.float32) for shape in (6, (5, 6), (5, 6)))
    joined = np.array([True, False, True, True, False])
    alpha = rng.dirichlet(np.ones(5))
    fresh, stored = np.where(joined, alpha, 0), np.where(joined, 0, alpha)
    how = Weighted(kind=kind, clip_median=1.0)
    with_numpy = how.next(theta, fresh, how.clipped(delta, joined), stored, recalled, joined, 4)[0]
    tensors = [torch.from_numpy(x) for x in (theta, delta, recalled)]
    with_torch = how.next(tensors[0], fresh, how.clipped(tensors[1], joined), stored, tensors[2], joined, 4)[0]
    assert with_numpy.dtype == np.float32
    assert with_torch.dtype == torch.float32
    assert with_torch.numpy() == pytest.approx(with_numpy, abs=1e-6)


def test_clipping():
    delta, joined = np.array([[3.0, 4.0], [0.3, 0.4], [30.0, 40.0]]), np.array([True, True, True])
    assert np.linalg.norm(Weighted(clip=1.0).clipped(delta, joined), axis=1) == pytest.approx([1, 0.5, 1])
    assert np.linalg.norm(Weighted(clip_median=1.0).clipped(delta, joined), axis=1) == pytest.approx([5, 0.5, 5])
    assert Weighted().clipped(delta, joined) is delta
    assert np.array_equal(Weighted(clip=1.0).clipped(np.zeros((2, 2)), joined[:2]), np.zeros((2, 2)))


def test_negative_weights_are_refused_with_advice():
    with pytest.raises(RunError, match="use 'mean' with this mechanism"):
        moved("median", np.array([0.5, 0.5, 0.5, -0.5]))
