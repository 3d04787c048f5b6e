"""The pages in a real browser: they open cleanly, alone and quickly, react, and are safe, legible and reachable by keyboard."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chromium import Opened
from chromium import browser as launched
from feduca.errors import InputError
from feduca.report import write
from feduca.report.dashboard import Dashboard
from feduca.report.palette import STATUS, STATUS_ON_DARK
from run_directories import Written, stretched, written

pytestmark = pytest.mark.slow

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"


def busy() -> bool:
    """More work on this machine than it has processors for: a wall clock says little then."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


CURVE = "figure[data-chart=curve] .mark-line path"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as running:
        yield running


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    root = tmp_path_factory.mktemp("runs")
    return [written(root, 8, 40, seed=seed, points=True) for seed in range(3)]


@pytest.fixture(scope="module")
def report(runs: list[Written], tmp_path_factory: pytest.TempPathFactory) -> str:
    (target,) = write([runs[0].path], tmp_path_factory.mktemp("page") / "report.html")
    return target.as_uri()


@pytest.fixture(scope="module")
def seeds(runs: list[Written], tmp_path_factory: pytest.TempPathFactory) -> str:
    (target,) = write([run.path for run in runs], tmp_path_factory.mktemp("page") / "seeds.html")
    return target.as_uri()


def test_opens_without_complaints_and_without_asking_for_anything(browser: Any, report: str) -> None:
    with Opened(browser, report) as opened:
        opened.page.wait_for_timeout(300)
        assert opened.said == []
        assert opened.asked == [report]
        drawn = opened.page.eval_on_selector_all("figure[data-chart]:not([hidden]) svg", "all => all.length")
        assert drawn == 4  # accuracy, participation, what silos compared, the curve
        opened.unfold()
        assert opened.page.locator("figure[data-chart]:not([hidden]) svg").count() == 8
        assert "Left out, because they do not change" in opened.page.locator("#program-hint").inner_text()
        assert opened.said == []
        SHOTS.mkdir(parents=True, exist_ok=True)
        opened.page.screenshot(path=SHOTS / "report.png", full_page=True)


def test_the_policy_forbids_connections_and_foreign_scripts(browser: Any, report: str) -> None:
    with Opened(browser, report) as opened:
        tried = "() => fetch('https://example.org').then(() => 'went out', () => 'held back')"
        assert opened.page.evaluate(tried) == "held back"
        opened.page.evaluate("""() => {
            const script = document.createElement('script');
            script.textContent = 'window.broken = true'; document.body.append(script);
        }""")
        assert opened.page.evaluate("window.broken") is None


def test_the_slider_and_the_silo_change_the_curve(browser: Any, report: str) -> None:
    with Opened(browser, report) as opened:
        page, seen = opened.page, set()
        for value in (0, 5, 39):
            page.locator("#round").fill(str(value))
            page.wait_for_function(
                "value => document.getElementById('round-shown').textContent.startsWith(value)", arg=f"{value + 1} "
            )
            page.wait_for_timeout(100)
            seen.add(page.locator(CURVE).first.get_attribute("d"))
            assert f"round {value + 1}" in page.locator("#silo-sentence").inner_text()
        assert len(seen) == 3
        page.locator("#silo-choice").select_option("5")
        page.wait_for_timeout(100)
        assert page.locator(CURVE).first.get_attribute("d") not in seen
        assert "silo-5, round 40" in page.locator("#silo-sentence").inner_text()
        points = page.locator("figure[data-chart=curve] .mark-symbol path").count()
        assert points >= 29  # every measured utility, and the diamond at the weight


CELLS = """() => {
    const canvas = document.getElementById('strip'), g = JSON.parse(canvas.dataset.geometry);
    const context = canvas.getContext('2d'), out = [];
    for (let k = 0; k < g.silos; k++) {
        const row = [];
        for (let t = 0; t < g.columns; t++) {
            const [r, gr, b] = context.getImageData(t * g.cell + 1, g.header + k * g.tall + 1, 1, 1).data;
            row.push('#' + [r, gr, b].map((x) => x.toString(16).padStart(2, '0')).join(''));
        }
        out.push(row);
    }
    return out;
}"""


def test_the_strip_shows_every_client_in_every_round(browser: Any, report: str, runs: list[Written]) -> None:
    colours = {word[0]: colour.lower() for word, colour in STATUS.items()}
    with Opened(browser, report, color_scheme="light") as opened:
        cells = opened.page.evaluate(CELLS)
    expected = [[colours[letters[k]] for letters in runs[0].status] for k in range(8)]
    assert cells == expected  # 8 silos x 40 rounds


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_who_is_better_off_than_alone_and_who_left_is_shown(browser: Any, scheme: str, tmp_path: Path) -> None:
    run = written(tmp_path, 8, 20, points=True, alone=True)
    (target,) = write([run.path], tmp_path / "better.html")
    with Opened(browser, target.as_uri(), color_scheme=scheme) as opened:
        page = opened.page
        page.locator("#better > summary").click()
        assert "6 of 8 silos better off, mean +6.2 points, worst silo-1 -5.0" in page.locator("#better").inner_text()
        rows = page.locator("#standing tr")
        assert rows.count() == 9
        assert rows.nth(2).locator("td").all_inner_texts()[:5] == [
            "silo-1",
            "42.9 % (4.7 of 11)",
            "37.9 % (4.2 of 11)",
            "\u22125.0",
            "11",
        ]
        assert rows.nth(8).locator("td").all_inner_texts() == [
            "silo-7",
            "60.0 % (10.2 of 17)",
            "70.0 % (11.9 of 17)",
            "+10.0",
            "17",
            "quit in round 3",
        ]
        assert "left for good" in page.locator("#strip-key").inner_text()
        assert opened.said == []  # before the test looks at pixels, which Chromium comments on
        left = {"light": STATUS, "dark": STATUS_ON_DARK}[scheme]["left"].lower()
        assert [cell == left for cell in page.evaluate(CELLS)[7]] == [letters[7] == "l" for letters in run.status]
        page.locator("#silo-choice").select_option("7")
        page.wait_for_timeout(100)
        assert page.locator("#silo-sentence").inner_text().startswith("silo-7, round 20: left for good (because of l).")
        assert "offered" not in page.locator("#silo-sentence").inner_text()
        assert [value.replace("\u00a0", " ") for value in page.locator("#tiles .value").all_inner_texts()][1:] == [
            "56 %",
            "6 of 8",
            "\u22125.0",
        ]
        bells = page.locator("#bells .bell:not(.axis)")
        assert [bells.nth(k).locator(".gain").inner_text() for k in (0, 7)] == ["+10.0", "\u22125.0"]
        assert bells.nth(7).get_attribute("class") == "bell worse"
        assert page.locator("#cards .card").count() == 6
        page.locator("#all-cards").click()
        assert page.locator("#cards .card").count() == 8
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.locator("#gains").screenshot(path=SHOTS / f"better-{scheme}.png")
        page.locator("#strip-section").screenshot(path=SHOTS / f"left-{scheme}.png")


def test_who_is_surely_better_off_and_why_others_stay_out_is_shown(browser: Any, tmp_path: Path) -> None:
    run = written(tmp_path, 8, 20, alone=True, judged=True)
    (target,) = write([run.path], tmp_path / "judged.html")
    with Opened(browser, target.as_uri()) as opened:
        page = opened.page
        page.locator("#better > summary").click()
        assert "of 8 silos 2 better off (25.0 %)" in page.locator("#better-sentence").inner_text()
        assert "tested: 2 surely better, 2 surely worse" in page.locator("#tiles").inner_text()
        rows = page.locator("#standing tr")
        assert rows.nth(1).locator("td").all_inner_texts()[5:8] == [
            "better off (p < 0.001)",
            "60 : 10",
            "better off (+0.300, p < 0.001)",
        ]
        assert rows.nth(4).locator("td").all_inner_texts()[5:8] == [
            "undecided (p = 1.000)",
            "1 : 2",
            "undecided (0.000, p = 1.000)",
        ]
        out = [k for k, letter in enumerate(run.status[-1]) if letter == "d"]
        assert out
        for k in out:
            end = rows.nth(k + 1).locator("td").last.inner_text()
            assert end.startswith("out: its private model is better (")
            assert end.endswith("+3.0 points)")
        assert opened.said == []


def test_a_run_that_knows_no_models_alone_has_no_such_table(browser: Any, report: str) -> None:
    with Opened(browser, report) as opened:
        assert not opened.page.locator("#better").is_visible()
        assert not opened.page.locator("#bells-figure").is_visible()
        assert opened.page.locator("#cards .card").count() == 8
        assert "--set alone=true --set task.test_share=0.5" in opened.page.locator("#caveats").inner_text()


def test_everything_is_reachable_by_keyboard_and_has_words(browser: Any, report: str) -> None:
    with Opened(browser, report) as opened:
        page, reached = opened.page, set()
        opened.unfold()
        page.evaluate("document.activeElement.blur()")
        for _ in range(140):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate("""() => {
                    const at = document.activeElement;
                    return at.id || at.getAttribute('aria-label') || at.className;
                }""")
            )
        assert {"theme", "strip", "round", "silo-choice"} <= reached
        labels = page.eval_on_selector_all(
            "figure:not([hidden]) [role=img]", "all => all.map((e) => [e.getAttribute('aria-label'), e.tabIndex])"
        )
        assert len(labels) == 9  # eight charts and the strip
        assert all(label and len(label) > 40 and index == 0 for label, index in labels)
        assert {label for label, _ in labels} <= reached | {label for label, _ in labels if "Arrow keys" in label}
        unnamed = page.eval_on_selector_all(
            "button, select, input",
            "all => all.filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length",
        )
        assert unnamed == 0
        page.locator("#strip").focus()
        before = page.locator("#strip-readout").inner_text()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        after = page.locator("#strip-readout").inner_text()
        assert before != after
        assert after.startswith("silo-1, round 2:")
        page.locator("#round").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#round-shown").inner_text() == "3 of 40"


def test_every_chart_saves_as_svg_and_png(browser: Any, report: str) -> None:
    for kind, opening in (
        ("SVG", b"<svg"),
        ("PNG", b"\x89PNG"),
    ):  # a page each: Chromium holds back after ten downloads
        with Opened(browser, report) as opened:
            opened.unfold()
            figures = opened.page.locator("figure:not([hidden]):has(button)")
            assert figures.count() == 9
            for i in range(9):
                with opened.page.expect_download() as download:
                    figures.nth(i).get_by_role("button", name=kind).click()
                assert Path(download.value.path()).read_bytes().startswith(opening)
            assert opened.said == []


def test_seeds_form_bands_and_runs_can_be_chosen(browser: Any, seeds: str) -> None:
    with Opened(browser, seeds) as opened:
        page = opened.page
        assert opened.said == []
        assert page.locator("figure[data-chart=accuracy] .mark-area path").count() == 1
        assert page.locator("#multiples button").count() == 3
        before = page.evaluate(CELLS)
        page.locator("#multiples button").nth(2).click()
        page.wait_for_timeout(300)
        assert page.evaluate(CELLS) != before
        assert page.locator("#run").input_value() == "2"


def test_a_phone_shows_it_without_scrolling_sideways_and_paper_in_light(browser: Any, seeds: str) -> None:
    with Opened(browser, seeds, viewport={"width": 380, "height": 760}, color_scheme="dark") as opened:
        page = opened.page
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
        page.screenshot(path=SHOTS / "phone.png")
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("#theme").is_visible()
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_a_thousand_rounds_of_a_hundred_silos_open_quickly_and_stay_responsive(browser: Any, tmp_path: Path) -> None:
    (target,) = write([stretched(tmp_path, 100, 1000)], tmp_path / "big.html")
    assert target.stat().st_size < 2_000_000
    with Opened(browser, target.as_uri()) as opened:
        assert 0.05 < opened.processor_seconds < 3
        assert busy() or opened.seconds < 3
        assert opened.page.locator("#strip").get_attribute("data-cells") == "100000"
        took = opened.page.evaluate("""async () => {
            const slider = document.getElementById('round'), times = [];
            for (const value of [0, 5, 10, 15]) {
                const started = performance.now();
                slider.value = value; slider.dispatchEvent(new Event('input'));
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
                times.push(performance.now() - started);
            }
            return times.sort((a, b) => a - b)[1];
        }""")
        assert took < 500, took
        assert opened.said == []


def test_markup_in_names_is_shown_as_text(browser: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    run = written(tmp_path, [evil, "</script><script>alert(2)</script>", "{{constructor}}", "a"], 6)
    lines = (run.path / "clients.jsonl").read_text().splitlines()
    lines[2] = lines[2][:100]  # and a damaged line
    (run.path / "clients.jsonl").write_text("\n".join(lines) + "\n")
    (target,) = write([run.path], tmp_path / "evil.html")
    with Opened(browser, target.as_uri()) as opened:
        page = opened.page
        page.locator("#silo-choice").select_option("0")
        page.wait_for_timeout(200)
        assert opened.dialogs == []
        assert opened.asked == [target.as_uri()]
        assert page.locator("img").count() == 0
        assert evil in page.locator("#silo-sentence").inner_text()
        assert "1 lines" in page.locator("#notes").inner_text()
        assert evil in page.locator("#cards").inner_text()


# feduca watch ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve() -> Iterator[Any]:
    started: list[Dashboard] = []

    def start(path: Path, host: str = "127.0.0.1") -> Dashboard:
        dashboard = Dashboard(path, host, port=0)
        threading.Thread(target=dashboard.serve, daemon=True).start()
        started.append(dashboard)
        return dashboard

    yield start
    for dashboard in started:
        dashboard.close()


def test_a_watched_run_shows_a_new_round_within_two_seconds(browser: Any, serve: Any, tmp_path: Path) -> None:
    run = Written(tmp_path, ["a", "b", "c"], 12, points=True, alone=True)
    dashboard = serve(run.path)
    with Opened(browser, dashboard.address) as opened:
        page = opened.page
        assert page.locator("#title").inner_text() == "No round has finished yet"
        delays = []
        for round in range(1, 6):
            run.round()
            written_at = time.perf_counter()
            page.wait_for_function(
                "wanted => document.documentElement.dataset.round === wanted", arg=str(round), timeout=5000
            )
            delays.append(time.perf_counter() - written_at)
        assert (sorted(delays)[2] if busy() else max(delays)) < 2, delays
        assert page.locator("#strip").get_attribute("data-cells") == "15"
        assert page.locator("#title").inner_text().startswith("Round 5\u00a0of\u00a012: ")
        assert page.locator("#tiles .value").nth(2).inner_text() == "2\u00a0of\u00a03"
        assert "c left in round 3" in page.locator("#cards").inner_text()
        assert page.locator("#live").inner_text() == "live"
        assert not page.locator("#back").is_visible()
        assert {url.split("?")[0] for url in opened.asked} == {dashboard.address, dashboard.address + "data.json"}
        assert opened.said == []
        page.screenshot(path=SHOTS / "watch.png")


def get(address: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_only_this_machine_may_look_unless_there_is_a_token(serve: Any, runs: list[Written]) -> None:
    local = serve(runs[0].path)
    assert local.token is None
    assert get(local.address)[0] == 200
    assert get(local.address, Host="evil.example")[0] == 403  # a name that was made to point here
    everywhere = serve(runs[0].path, "0.0.0.0")
    bare, _, query = everywhere.address.replace("0.0.0.0", "127.0.0.1").partition("?")
    assert get(bare)[0] == 403
    assert get(f"{bare}data.json?token=wrong")[0] == 403
    assert get(f"{bare}?{query}")[0] == 200
    status, body = get(f"{bare}data.json?{query}")
    assert (status, len(json.loads(body)["runs"])) == (200, 1)


def test_nothing_outside_the_folder_is_served(serve: Any, runs: list[Written]) -> None:
    dashboard = serve(runs[0].path.parent.parent)
    (runs[0].path.parent.parent.parent / "status.json").write_text("{}")
    for path in ("run/..%2F/data.json", "run/../../etc/passwd", "run/%2Fetc/", "..%2Fstatus.json", "run//data.json"):
        assert get(dashboard.address + path)[0] == 404
    (runs[0].path.parent.parent.parent / "status.json").unlink()


def test_unchanged_data_are_not_sent_twice_and_damage_is_said(serve: Any, tmp_path: Path) -> None:
    run = written(tmp_path, 2, 3)
    dashboard = serve(run.path)
    with urllib.request.urlopen(dashboard.address + "data.json", timeout=10) as answer:
        version = answer.headers["X-Version"]
    assert get(f"{dashboard.address}data.json?version={version}") == (204, b"")
    (run.path / "config.toml").write_text("not = [toml")
    status, body = get(f"{dashboard.address}data.json?version={version}")
    assert status == 200
    assert "is not TOML" in json.loads(body)["error"]


def test_a_port_in_use_is_one_line(serve: Any, runs: list[Written]) -> None:
    dashboard = serve(runs[0].path)
    with pytest.raises(InputError, match="choose another --port"):
        Dashboard(runs[0].path, "127.0.0.1", dashboard.port)
    with pytest.raises(InputError, match="no folder"):
        Dashboard(runs[0].path / "nowhere")
