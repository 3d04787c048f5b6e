"""The pages as a designer sees them: nothing cut off at two widths, legible in both modes, legends whole, lists in order."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chromium import Opened
from chromium import browser as launched
from feduca.report import write
from feduca.report.dashboard import Dashboard, server
from run_directories import Written, written

pytestmark = pytest.mark.slow

WIDTHS, MODES = (1400, 390), ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as running:
        yield running


def offering(path: Path, **replaced: str) -> Path:
    """A run as it would be under other settings, as far as a page looks at them."""
    config = (path / "config.toml").read_text()
    for old, new in replaced.items():
        table, _, key = old.partition("_")
        config = re.sub(rf"(\[{table}\][^\[]*?\n{key} = )\S+", rf"\g<1>{json.dumps(new)}", config, flags=re.S)
    (path / "config.toml").write_text(config)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of several methods, with long names of silos and of methods; one interrupted, one running, one killed."""
    root = tmp_path_factory.mktemp("folder")
    names = [
        "St. Bartholomew's Hospital, department of paediatrics",
        "b",
        "clinic-with-a-long-name-without-any-space",
        "d",
    ]
    for k, (mechanism, offer, judged) in enumerate(
        [("feduca", "global", False), ("fedavg", "best-mixture", True), ("ditto", "least-concession", False)]
    ):
        run = written(root / f"m{k}", names, 25, seed=k, points=True, alone=True, judged=judged)
        offering(run.path, mechanism_name=mechanism, offer_kind=offer, participation_rule="accuracy")
    return root


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, str]:
    """Addresses of the pages that are files."""
    runs = sorted(path.parent for path in folder.glob("*/*/*/status.json"))
    (one,) = write([runs[1]], folder / "one.html")
    (several,) = write(runs, folder / "several.html")
    return {"report": one.as_uri(), "comparison": several.as_uri()}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dashboard, Written]]:
    """A folder that is watched: a finished run, an interrupted one and one that goes on."""
    root = tmp_path_factory.mktemp("live")
    written(root / "done", 4, 12, alone=True)
    stopped = Written(root / "stopped", ["a", "b"], 12, seed=1)
    stopped.round()
    stopped.directory.fail("pressed ctrl-c", "interrupted")
    stopped.directory.__exit__(None, None, None)
    going = Written(root / "going", ["a", "b", "c"], 12, seed=2, points=True, alone=True)
    for _ in range(5):
        going.round()
    dashboard = Dashboard(root, port=0)
    threading.Thread(target=dashboard.serve, daemon=True).start()
    yield dashboard, going
    dashboard.close()
    going.directory.__exit__(None, None, None)


# Text whose box leaves the window or the box that clips it, and boxes that hide part of what they hold.
CUT = """() => {
    const found = [], wide = document.documentElement.clientWidth;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const at = node.parentElement;
        if (!node.data.trim() || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION'].includes(at.tagName)) continue;
        if (at.closest('.skip, [hidden], .strip-names') || !at.checkVisibility()) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const box of range.getClientRects()) {
            if (box.width < 1) continue;
            if (box.left < -1 || box.right > wide + 1) found.push(['window', node.data.slice(0, 60), box.left, box.right]);
            for (let outer = at; outer && outer !== document.body; outer = outer.parentElement) {
                const style = getComputedStyle(outer), frame = outer.getBoundingClientRect();
                const clips = outer.tagName === 'svg' || style.overflowX !== 'visible';
                const scrolls = style.overflowY === 'auto'; // up and down, on purpose
                const out = box.left < frame.left - 1.5 || box.right > frame.right + 1.5
                    || (!scrolls && (box.top < frame.top - 1.5 || box.bottom > frame.bottom + 1.5));
                if (clips && out) found.push([outer.tagName, String(outer.className), node.data.slice(0, 60)]);
            }
        }
    }
    return found;
}"""
SPREAD = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
OVERLAPS = """() => {
    const boxes = [...document.querySelectorAll('.bell .who, .bell .gain, .tiles span, .legend span, .runs .name, h1, nav a')]
        .filter((e) => e.checkVisibility() && e.textContent.trim()).map((e) => [e.textContent, e.getBoundingClientRect()]);
    return boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([, b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
        .map(([other]) => [one, other]));
}"""

# Contrast ratios as WCAG 2 defines them: text against what is painted behind it, marks of charts against their card.
CONTRAST = """() => {
    const parse = (colour) => { const c = colour.match(/[\\d.]+/g).map(Number); return [c[0], c[1], c[2], c[3] ?? 1]; };
    const straight = (x) => { x /= 255; return x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; };
    const luminance = ([r, g, b]) => .2126 * straight(r) + .7152 * straight(g) + .0722 * straight(b);
    const ratio = (a, b) => {
        const [high, low] = [luminance(a), luminance(b)].sort((p, q) => q - p);
        return (high + .05) / (low + .05);
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour[3] > 0.99) return colour;
        }
        return [255, 255, 255, 1];
    };
    const texts = [], marks = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const at = node.parentElement;
        if (!node.data.trim() || !at.checkVisibility() || at.closest('.skip')) continue;
        if (['SCRIPT', 'STYLE', 'OPTION'].includes(at.tagName)) continue;
        const style = getComputedStyle(at), svg = at.closest('svg');
        texts.push([ratio(parse(svg ? style.fill : style.color), behind(svg ?? at)), node.data.trim().slice(0, 40)]);
    }
    const add = (selector, property) => document.querySelectorAll(selector).forEach((e) => {
        const colour = getComputedStyle(e)[property];
        const drawn = e.checkVisibility() && colour !== 'none' && parse(colour)[3] > 0.99;
        if (drawn) marks.push([ratio(parse(colour), behind(e.parentElement)), selector]);
    });
    add('.mark-line path', 'stroke'); add('.mark-symbol path', 'fill'); add('.legend svg path[fill]:not([fill=none])', 'fill');
    add('.legend svg path[stroke]', 'stroke'); add('.track .bar', 'backgroundColor'); add('.track .dot', 'borderTopColor');
    add('.card', 'borderLeftColor'); add('.spark', 'stroke'); add('.key .mark', 'borderTopColor');
    for (const canvas of document.querySelectorAll('.strip canvas')) {
        if (!canvas.checkVisibility()) continue;
        const pixels = canvas.getContext('2d').getImageData(1, 12, 1, 1).data;
        marks.push([ratio([...pixels], behind(canvas)), 'strip']);
    }
    return { texts, marks, paper: luminance(parse(getComputedStyle(document.body).backgroundColor)) };
}"""


def judge(opened: Opened, scheme: str) -> None:
    """Nothing cut off, everything legible."""
    page = opened.page
    wide, there = page.evaluate(SPREAD)
    assert wide <= there
    assert page.evaluate(CUT) == []
    assert page.evaluate(OVERLAPS) == []
    seen = page.evaluate(CONTRAST)
    assert (seen["paper"] < 0.05) == (scheme == "dark")
    assert len(seen["texts"]) > 20
    assert [found for found in seen["texts"] if found[0] < 4.5] == []
    assert [found for found in seen["marks"] if found[0] < 3] == []


@pytest.mark.parametrize(("width", "scheme"), list(itertools.product(WIDTHS, MODES)))
@pytest.mark.parametrize("name", ["report", "comparison"])
def test_nothing_is_cut_off_and_all_is_legible(
    browser: Any, pages: dict[str, str], name: str, width: int, scheme: str
) -> None:
    with Opened(browser, pages[name], viewport={"width": width, "height": 900}, color_scheme=scheme) as opened:
        judge(opened, scheme)
        opened.unfold()
        opened.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        opened.page.wait_for_timeout(100)
        judge(opened, scheme)
        assert opened.said == [] or all("willReadFrequently" in said for said in opened.said)


@pytest.mark.parametrize(("width", "scheme"), list(itertools.product(WIDTHS, MODES)))
def test_live_pages_are_whole_and_legible(
    browser: Any, live: tuple[Dashboard, Written], width: int, scheme: str
) -> None:
    dashboard, going = live
    with Opened(browser, dashboard.address, viewport={"width": width, "height": 900}, color_scheme=scheme) as opened:
        opened.page.wait_for_selector("#runs a")
        judge(opened, scheme)
        opened.page.locator("#runs a").first.click()
        opened.page.wait_for_selector(f"html[data-complete][data-round='{len(going.status)}']")
        judge(opened, scheme)


def test_the_theme_can_be_turned_by_hand(browser: Any, pages: dict[str, str]) -> None:
    with Opened(browser, pages["comparison"], color_scheme="dark") as opened:
        opened.page.locator("#theme").click()
        opened.page.wait_for_timeout(800)
        judge(opened, "light")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_shows_score_against_participation_first_with_a_whole_legend(
    browser: Any, pages: dict[str, str], width: int
) -> None:
    with Opened(browser, pages["comparison"], viewport={"width": width, "height": 900}) as opened:
        page = opened.page
        wraps = "all => all.filter((e) => getComputedStyle(e, '::before').whiteSpace !== 'normal').length"
        assert (
            width > 700 or page.eval_on_selector_all("#methods td", wraps) == 0
        )  # a long name leaves room for its figure
        first = page.locator("figure:visible").first
        assert first.get_attribute("data-chart") == "trade"
        methods = [
            "FedUCA fresh, Eq. 1",
            "best mixture, Eq. 1, participation.against=outside",
            "ditto, Eq. 1, least concession",
        ]
        for legend in page.locator("[data-legend]").all():
            assert sorted(legend.locator("span").all_inner_texts()) == methods
        assert page.locator("figure[data-chart=trade] svg text", has_text=re.compile("^[123]$")).count() == 3
        assert first.locator(".chart").get_attribute("aria-label").count("% in, ") == 3
        with page.expect_download() as download:
            first.get_by_role("button", name="SVG").click()
        saved = Path(download.value.path()).read_text()
        assert all(method in saved for method in methods)  # a file has its legend inside


def test_a_comparison_sorts_and_brings_forward(browser: Any, pages: dict[str, str]) -> None:
    with Opened(browser, pages["comparison"]) as opened:
        page = opened.page
        column = "#methods tbody td[data-name='in']"

        def shares() -> list[float]:
            return [float(text.split()[0]) for text in page.locator(column).all_inner_texts()]

        page.locator("[data-sort=participation]").focus()
        page.keyboard.press("Enter")
        assert shares() == sorted(shares(), reverse=True)
        assert page.locator("th[aria-sort=descending] button").get_attribute("data-sort") == "participation"
        page.keyboard.press("Enter")  # the focus is still on the heading
        assert shares() == sorted(shares())
        wanted = page.locator("#compare [data-legend] button").nth(2)
        wanted.click()
        page.wait_for_timeout(500)
        assert wanted.get_attribute("aria-pressed") == "true"
        name = wanted.locator("span").inner_text()
        assert name in page.locator("#subtitle").inner_text()
        opacities = page.locator("figure[data-chart=accuracy] .mark-line path").evaluate_all(
            "all => all.map((e) => Number(getComputedStyle(e).opacity))"
        )
        assert sorted(opacities) == [0.12, 0.12, 1]
        assert opened.said == []


def test_the_list_names_runs_puts_running_ones_first_and_leads_back(
    browser: Any, live: tuple[Dashboard, Written]
) -> None:
    dashboard, going = live
    with Opened(browser, dashboard.address) as opened:
        page = opened.page
        page.wait_for_selector("#runs a")
        rows = page.locator("#runs li")
        assert [row.get_attribute("data-state") for row in rows.all()] == ["running", "interrupted", "finished"]
        assert page.locator("#runs a").all_inner_texts()[0] == "quickstart: FedUCA fresh, Eq. 2, seed 2"
        assert rows.nth(0).locator("progress").get_attribute("aria-label") == f"round {len(going.status)} of 12"
        assert rows.nth(0).locator(".spark").count() == 2
        assert "interrupted" in rows.nth(1).locator(".badge").inner_text()
        assert "feduca resume goes on" in rows.nth(1).inner_text()
        assert "3 runs: 1 running, 1 interrupted, 1 finished." in page.locator("#said").inner_text()
        page.locator("#runs a").nth(1).click()
        page.wait_for_selector("html[data-complete]")
        assert page.locator("#live").inner_text() == "interrupted"
        page.locator("#back").click()
        page.wait_for_selector("#runs a")
        page.locator("#together").click()
        page.wait_for_selector("html[data-complete]")
        assert page.locator("#multiples button").count() == 3
        page.locator("#back").click()
        page.wait_for_selector("#runs li")
        done = len(going.status)
        going.round()
        page.wait_for_function(
            f"() => document.querySelector('#runs li').textContent.includes('round {done + 1} of 12')"
        )
        assert opened.said == []


def test_a_list_is_read_again_only_where_files_have_changed(
    live: tuple[Dashboard, Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard, _ = live
    read: list[Path] = []
    glance = server.glance
    monkeypatch.setattr(server, "glance", lambda path: (read.append(path), glance(path))[1])
    for _ in range(3):
        dashboard.answer("/list.json", "")
    assert len({path for path in read if "going" not in path.parts}) == len([p for p in read if "going" not in p.parts])
