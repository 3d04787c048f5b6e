"""A silo whose disk is full: no message gets in uncounted, no answer leaves unnoted, and the SuperNode lives on."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from feduca.flower.store import SiloStore
from supernode import SuperNode, announcement

SECRET = np.array([3.14159, 2.71828, 1.41421, 1.73205])
SAID = b"OSError, line "


def answers(message, context):
    return Message(RecordDict({"theta": ArrayRecord({"theta": Array(SECRET)})}), reply_to=message)


def failing(number: int):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number), "/srv/patients/ledger.json")

    return fail


@pytest.fixture
def node(tmp_path, monkeypatch):
    return SuperNode(tmp_path, monkeypatch)


def test_what_cannot_be_counted_is_not_let_in(node, monkeypatch):
    monkeypatch.setattr(SiloStore, "count", failing(errno.ENOSPC))
    left = node.ask(announcement(1, np.zeros(4)), answers)
    assert SAID in left
    assert b"patients" not in left
    assert node.reached == []
    assert "patients" in node.log  # where its operator reads it
    monkeypatch.undo()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_cannot_be_noted_does_not_leave(node, monkeypatch, number):
    monkeypatch.setattr(SiloStore, "note_sent", failing(number))
    left = node.ask(announcement(1, np.zeros(4)), answers)
    assert len(node.reached) == 1
    assert SAID in left
    assert SECRET.tobytes() not in left
    assert b"patients" not in left


def test_a_disk_that_fails_otherwise_stops_the_silo(node, monkeypatch):
    stopped = []
    monkeypatch.setattr(os, "kill", lambda pid, number: stopped.append((pid, number)))
    monkeypatch.setattr(SiloStore, "count", failing(errno.EIO))
    with pytest.raises(SystemExit):
        node.ask(announcement(1, np.zeros(4)), answers)
    assert stopped
