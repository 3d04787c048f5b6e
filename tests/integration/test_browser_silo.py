"""The page of a silo's operator in a real browser: what is on the disk is on it, as text, in both themes, on a telephone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chromium import Opened
from chromium import browser as launched
from feduca.flower import folder as folders
from feduca.flower.board import Board
from feduca.recipes.schema import load

pytestmark = pytest.mark.slow

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as running:
        yield running


def _deployed(tmp_path: Path, name: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "deployed.py").write_text("# where a silo's data are\n")
    folders.init(tmp_path / "d", load({}), [name], app=own)


@pytest.fixture
def silo(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A silo after nine rounds, with the address of its page."""
    _deployed(tmp_path, "north-hospital")
    place = tmp_path / "d" / "silos" / "north-hospital"
    lines, sent = [], []
    for t in range(1, 10):
        joins = t % 3 != 0
        scores = {"global": 0.8, "offered": 0.80 + 0.01 * t, "own": 0.79 + 0.008 * t}
        more = {"alone": 0.78 + 0.005 * t, "gain": 0.02 + 0.005 * t, "epsilon": 0.3 * t} | (
            {"norm": 1.25} if joins else {}
        )
        said = {"silo": "north-hospital", "run": "run-1", "round": t, "time": f"2026-11-19T10:0{t}:00Z"}
        reason = f"offered 0.8{t} beats own" if joins else f"gain over alone is below 0.05 {EVIL}"
        lines.append(
            {**said, "decision": "joined" if joins else "declined", "reason": reason, "accuracy": scores, **more}
        )
        sent.append({**said, "what": "model" if joins else "decision", "bytes": 41_000 if joins else 16})
        if not joins:
            sent[-1]["said"] = "declined: policy"
    (place / "state" / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (place / "state" / "sent.jsonl").write_text("".join(json.dumps(line) + "\n" for line in sent))
    (place / "state" / "ledger.json").write_text('{"worked": 9, "epsilon": {}}')
    (place / "policy.toml").write_text('least_gain = 0.05\nrule = "accuracy"\nrounds = 50\n')
    (place / "state" / "proposed.json").write_text(json.dumps({"texts": {"run-config": ""}, "run": "run-2"}))
    board = Board(place, 0)
    threading.Thread(target=board.serve, daemon=True).start()
    yield place, board.address
    board.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_what_is_on_the_disk(browser: Any, silo: tuple[Path, str], scheme: str) -> None:
    place, address = silo
    with Opened(browser, address, color_scheme=scheme) as opened:
        page = opened.page
        page.wait_for_selector("#rounds tbody tr")
        text = page.inner_text("main")
        words = (
            "north-hospital",
            "gain over alone",
            "epsilon spent",
            "2.70",
            "least_gain = 0.05",
            "run run-2",
            "41.0 kB",
            "0.8900",
        )
        assert [word for word in words if word not in text] == []
        assert page.locator("#rounds tbody tr").count() == 9
        assert page.locator("#sent tbody tr").count() == 9
        assert page.locator("#drawn path").count() == 3
        assert EVIL in text  # as text
        assert page.locator("main img").count() == 0
        assert opened.dialogs == []
        assert opened.said == []
        assert {url.split("?")[0] for url in opened.asked} <= {address, address + "silo.json"}
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"silo-{scheme}.png", full_page=True)
        # What the operator does is there at the next look, and a page that is wrong about its policy says so.
        (place / "state" / "veto").write_text("audit in progress")
        page.wait_for_function("() => document.querySelector('#said').textContent.includes('audit in progress')")
        assert "north-hospital: out" in page.inner_text("#title")
        (place / "policy.toml").write_text("vetoo = 1")
        page.wait_for_function("() => document.querySelector('#policy').textContent.includes('vetoo')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_telephone_nothing_scrolls_sideways(browser: Any, silo: tuple[Path, str], scheme: str) -> None:
    view = {"width": 390, "height": 844}
    with Opened(browser, silo[1], color_scheme=scheme, viewport=view) as opened:
        opened.page.wait_for_selector("#rounds tbody tr")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
        SHOTS.mkdir(parents=True, exist_ok=True)
        opened.page.screenshot(path=SHOTS / f"silo-{scheme}-phone.png", full_page=True)
        opened.page.keyboard.press("Tab")
        assert opened.page.evaluate("document.activeElement.className") == "skip"


def test_a_page_with_nothing_yet_says_so(browser: Any, tmp_path: Path) -> None:
    _deployed(tmp_path, "north")
    board = Board(tmp_path / "d" / "silos" / "north", 0)
    threading.Thread(target=board.serve, daemon=True).start()
    try:
        with Opened(browser, board.address) as opened:
            opened.page.wait_for_function("() => document.querySelector('#said').textContent !== ''")
            assert "No message has come yet" in opened.page.inner_text("main")
            assert "no model to deploy yet" in opened.page.inner_text("main")
            assert opened.said == []
    finally:
        board.close()
