"""What tests of a silo's guard share."""

from __future__ import annotations

import pytest

from supernode import SuperNode


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A SuperNode without processes, behind our guard."""
    return SuperNode(tmp_path, monkeypatch)
