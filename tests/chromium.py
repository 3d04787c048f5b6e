"""Any Chromium there is, for tests that want a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
HOW = "no Chromium found: `apt-get install chromium`, or point FEDUCA_CHROMIUM at one"


def executable() -> str | None:
    """FEDUCA_CHROMIUM, then whatever is on the path, then playwright's own."""
    named = os.environ.get("FEDUCA_CHROMIUM")
    if named:
        return named
    for name in NAMES:
        if found := shutil.which(name):
            return found
    cached = sorted((Path.home() / ".cache" / "ms-playwright").glob("chromium-*/chrome-linux*/chrome"))
    return str(cached[-1]) if cached else None


@contextmanager
def browser() -> Iterator[Any]:
    """A running Chromium; skips the test, saying how to get one, where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")
    found = executable()
    if found is None:
        pytest.skip(HOW)
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        try:
            yield running
        finally:
            running.close()
