"""Any Chromium there is, for tests that want a real browser, and a page opened in it."""

from __future__ import annotations

import os
import shutil
import time
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


class Opened:
    """A page with a record of everything it complained about and asked for."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1200, "height": 800}} | context))
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        metrics = self.context.new_cdp_session(self.page)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        started = time.perf_counter()
        self.page.goto(address)
        self._wait("ready")
        self.seconds = time.perf_counter() - started
        found = {m["name"]: m["value"] for m in metrics.send("Performance.getMetrics")["metrics"]}
        self.processor_seconds = found["TaskDuration"]
        self._wait("complete")

    def _wait(self, flag: str) -> None:
        there = f"() => document.documentElement.dataset.{flag}"
        deadline = time.perf_counter() + 30
        while not self.page.evaluate(there) and time.perf_counter() < deadline:
            self.page.wait_for_timeout(20)
        assert self.page.evaluate(there), self.said

    def unfold(self) -> None:
        """Open the research figures, and wait until they are drawn."""
        self.page.locator("#research > summary").click()
        there = "() => [...document.querySelectorAll('#research figure:not([hidden])')].every((f) => f.querySelector('svg'))"
        self.page.wait_for_function(there)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *why: object) -> None:
        self.context.close()
