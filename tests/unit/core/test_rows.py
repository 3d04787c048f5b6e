"""Rows of which few are touched at a time: they read like an array, and what somebody keeps of them never changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feduca.core.rows import Rows, Store, rows_in
from feduca.runs.store import ENDING, OnDisk

N, P = 40, 6


def stores(folder):
    return {"memory": Store(), "file": OnDisk(folder), "nameless": OnDisk(None)}


@pytest.mark.parametrize("kind", ["memory", "file", "nameless"])
@pytest.mark.parametrize("like", [np.zeros(P), np.zeros((2, 3), np.float32), torch.zeros(P, dtype=torch.bfloat16)])
def test_they_read_like_an_array_and_earlier_ones_stay(tmp_path, kind, like):
    rng = np.random.default_rng(0)
    rows = stores(tmp_path)[kind].rows("own", like, N)
    array = np.zeros((N, *like.shape), np.float32)
    kept = []
    for t in range(60):
        index = rng.choice(N, 5, replace=False)
        new = rng.integers(-100, 100, (5, *like.shape)).astype(np.float32)
        rows = rows.put(index, torch.tensor(new).to(like.dtype) if hasattr(like, "to") else new.astype(like.dtype))
        array[index] = new
        if t % 7 == 0:
            kept.append((rows, array.copy()))
        some = rng.integers(0, N, 9)  # one may be there twice
        taken = rows.take(some)
        assert type(taken) is type(like)
        assert taken.dtype == like.dtype
        assert np.array_equal(np.asarray(taken.float() if hasattr(taken, "float") else taken), array[some])
    for earlier, then in kept:
        whole = earlier[:]
        assert np.array_equal(np.asarray(whole.float() if hasattr(whole, "float") else whole), then)


def test_room_grows_with_who_was_asked_and_is_used_again(tmp_path):
    rows = OnDisk(tmp_path).rows("own", np.zeros(P), 10_000)
    path = tmp_path / f"own{ENDING}"
    assert not path.exists()
    for t in range(200):
        rows = rows.put(np.arange(20), np.full((20, P), float(t)))
    assert path.stat().st_size <= 3 * 20 * P * 8
    assert (rows.take(np.arange(20)) == 199).all()
    assert not rows.take(np.arange(20, 40)).any()
    earlier = rows  # which somebody keeps
    for t in range(50):
        rows = rows.put(np.arange(20), np.full((20, P), float(-t)))
    assert (earlier.take(np.arange(20)) == 199).all()
    assert path.stat().st_size <= 5 * 20 * P * 8


def test_newcomers_have_blank_rows():
    rows = Store().rows("own", np.zeros(P), 3).put(np.arange(3), np.ones((3, P))).grown(5)
    assert np.array_equal(np.asarray(rows), np.concatenate([np.ones((3, P)), np.zeros((2, P))]))


def test_they_are_found_wherever_they_are_in_a_tree():
    one, other = (Store().rows(name, np.zeros(P), 3) for name in "ab")
    assert rows_in({"a": [1, one], "b": {"c": other}, "d": torch.zeros(2)}) == [one, other]
    assert isinstance(one, Rows)
