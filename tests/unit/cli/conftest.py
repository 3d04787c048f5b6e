"""What tests of commands share."""

from __future__ import annotations

import pytest


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Commands run in a folder of their own, and print as on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
