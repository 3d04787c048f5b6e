"""Whatever arrives over Flower is a report that was asked for, or one clear refusal: nothing else comes out of the codec."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feduca.client.behaviour import Behaviour
from feduca.client.offers import Global
from feduca.client.participation import UtilityThreshold
from feduca.core.memory import memories
from feduca.core.rounds import Server, announce, begin
from feduca.core.utility import Quadratic
from feduca.errors import InputError
from feduca.federation import InProcess
from feduca.mechanisms import FedUCA
from feduca.types import LocalSpec
from numpy_task import NumpyTask

codec = pytest.importorskip("feduca.flower.codec", reason="the flower extra is not installed")
app = pytest.importorskip("flwr.app")
Vector = pytest.importorskip("feduca.flower.vectors").Vector


def _asked_and_answer():
    task = NumpyTask(1)
    server = Server(FedUCA(n_s=2), memories["update"], Quadratic(), LocalSpec(epochs=1), 1, seed=1, run="run")
    asked = announce(server, begin(server, task.init(1), task.examples))
    answer = InProcess(task, Behaviour(UtilityThreshold(), Global(), Quadratic(), 1)).exchange(asked)
    return asked, codec.report(answer, "run", "north")


ASKED, GOOD = _asked_and_answer()
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
words = st.booleans() | st.integers(-(2**62), 2**62) | st.floats() | st.text(max_size=30) | st.binary(max_size=30)
MANY = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


def refused_or_read(content) -> bool:
    """True if it was read; a ProtocolError is the only other way out."""
    try:
        reports, _ = codec.read_report(content, ASKED, "north", 3)
    except codec.ProtocolError:
        return False
    assert reports.round == 1
    assert reports.theta.shape == (1, len(ASKED.theta))
    return True


def damaged(head: dict) -> object:
    content = copy.deepcopy(GOOD)
    content["report"] = app.ConfigRecord(head)
    return content


def test_the_undamaged_one_is_read():
    assert refused_or_read(GOOD)


@MANY
@given(st.dictionaries(st.sampled_from([*dict(GOOD["report"]), "else"]), words, max_size=4))
def test_any_head(changes):
    refused_or_read(damaged({**dict(GOOD["report"]), **changes}))


@MANY
@given(st.sampled_from(["words", "numbers"]), st.integers(-1, 40), trees, st.booleans())
def test_any_body(part, place, tree, drop):
    head = dict(GOOD["report"])
    body = json.loads(head["body"])
    known = sorted(body[part])
    key = "unknown" if place < 0 else known[place % len(known)]
    if drop:
        body[part].pop(key, None)
    else:
        body[part][key] = tree
    refused_or_read(damaged({**head, "body": json.dumps(body)}))


@MANY
@given(st.text(max_size=200) | st.integers(1, 100_000).map(lambda n: "[" * n))
def test_any_text(text):
    assert not refused_or_read(damaged({**dict(GOOD["report"]), "body": text}))


HEADER = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (%s), }"


@MANY
@given(
    st.one_of(
        st.binary(max_size=200),
        st.sampled_from(
            [b"", b"PK\x03\x04", b"\x93NUMPY", HEADER % b"2**70,", HEADER % b"1" + b"0" * 30, HEADER % b"(((("]
        ),
        st.integers(0, 2**80).map(lambda n: (HEADER % f"{n},".encode()).ljust(128) + b"\n"),
    )
)
def test_any_bytes_of_a_model(data):
    """What a decoder makes of damaged bytes is its own affair; the server refuses the message and goes on."""
    content = copy.deepcopy(GOOD)
    content["theta"] = app.ArrayRecord({"theta": codec.Array("float64", (len(ASKED.theta),), "numpy.ndarray", data)})
    refused_or_read(content)
    with pytest.raises(InputError):
        Vector(("theta",), ("theta",), {"theta": (3,)}, {"theta": np.dtype(float)}, 3, np.dtype(float)).flat(
            content["theta"]
        )


@MANY
@given(
    st.sampled_from(["float64", "float32", "int64", "bool", "complex128"]),
    st.lists(st.integers(0, 6), max_size=3),
    st.floats(),
)
def test_any_model(dtype, shape, value):
    content = copy.deepcopy(GOOD)
    with np.errstate(all="ignore"):
        array = np.full(shape, value if dtype.startswith(("float", "complex")) else 1).astype(dtype)
    content["theta"] = app.ArrayRecord({"theta": codec.Array(array)})
    read = refused_or_read(content)
    assert read == (array.shape == (len(ASKED.theta),) and dtype == "float64" and bool(np.isfinite(value)))
