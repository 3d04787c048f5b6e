"""Whatever a stranger sends in a session of secure aggregation, nothing but ValueError comes of reading it."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feduca.flower.secure_silo import unhexed
from feduca.privacy.keys import VERSION
from feduca.privacy.protocol import statement_of, unpacked
from feduca.privacy.sharing import put_together

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["ab", "0x1p0", ""]),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(JSON)
def test_words_of_strangers(tree):
    with contextlib.suppress(ValueError):
        statement_of(tree)
    with contextlib.suppress(ValueError):
        statement_of([VERSION, *(tree if isinstance(tree, list) else [tree] * 7)])
    with contextlib.suppress(ValueError):
        unpacked(json.dumps(tree))
    with contextlib.suppress(ValueError, TypeError):
        unhexed(json.dumps(tree))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_texts_of_strangers(text):
    for read in (unpacked, unhexed):
        with contextlib.suppress(ValueError):
            read(text)


def test_texts_that_are_nested_too_deeply():
    for read in (unpacked, unhexed):
        with pytest.raises(ValueError):  # noqa: PT011
            read("[" * 100_000)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.integers(0, 50), st.binary(max_size=80), min_size=1, max_size=6))
def test_shares_of_strangers(shares):
    with contextlib.suppress(ValueError):
        put_together(shares, 32)
