"""docs/explore.md in a real browser: a slider moves a clinic in or out, the shared model follows, and the sums are Python's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from chromium import browser

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "docs" / "_static"


@pytest.fixture(scope="module")
def explore():
    spec = importlib.util.spec_from_file_location("explore", ROOT / "docs" / "explore.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def clinics():
    text = (STATIC / "explore-data.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("window.FEDUCA_CLINICS = ").rstrip().removesuffix(";"))


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """The page's own block of HTML and scripts, without the documentation around it."""
    block = (ROOT / "docs" / "explore.md").read_text(encoding="utf-8").split("```{raw} html\n")[1].split("```")[0]
    block = block.replace('src="_static/', f'src="{STATIC.as_uri()}/')
    file = tmp_path_factory.mktemp("explore") / "explore.html"
    head = '<!doctype html><meta name="viewport" content="width=device-width"><link rel="stylesheet" href='
    file.write_text(f'{head}"{STATIC.as_uri()}/site.css"><body data-theme="auto">{block}', encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def chromium():
    with browser() as running:
        yield running


@pytest.fixture
def view(chromium, page_file):
    page = chromium.new_page(viewport={"width": 1000, "height": 900})
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith("file:") else wrong.append(asked.url))
    page.goto(page_file.as_uri())
    yield page
    page.close()
    assert wrong == []


def found(view):
    return json.loads(view.evaluate("document.getElementById('explore').dataset.found"))


def test_the_data_are_what_the_recipe_deals(explore, clinics):
    assert json.loads(json.dumps(explore.data())) == clinics
    assert [silo["train"][-1]["n"] for silo in clinics["silos"]][:2] == [2234, 2025]


def test_the_model_of_all_rows_is_least_squares(explore, clinics):
    """The sums give the model that numpy gives for the rows themselves."""
    import numpy as np

    from feduca.recipes import build, schema

    task = build.make_task(schema.load("clinics"), 0)
    rows = task.members[0].rows
    x = np.column_stack([np.ones(len(task.pool.x)), np.asarray(task.pool.x, float)])
    y = np.asarray(task.pool.y, float)
    penalty = np.sqrt(clinics["ridge"]) * np.eye(clinics["size"])[1:]
    wide = np.vstack([x[rows["train"]], penalty])
    model, *_ = np.linalg.lstsq(wide, np.r_[y[rows["train"]], np.zeros(len(penalty))], rcond=None)
    judged = y[rows["validation"]]
    error = ((judged - x[rows["validation"]] @ model) ** 2).sum() / ((judged - judged.mean()) ** 2).sum()
    played = explore.play(clinics, [0] * 6, [0] * 6, [5] * 6, best=False)
    assert played["alone"][0] == pytest.approx(1 - error, abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"concession": [0] * 6, "asks": [0] * 6, "share": [5] * 6, "best": False},
        {"concession": [0] * 6, "asks": [0] * 6, "share": [5] * 6, "best": True},
        {
            "concession": [0.5, 0, 0.9, 0.3, 0.2, 0.7],
            "asks": [0, -0.02, 0.01, 0, 0.005, 0],
            "share": [0, 1, 2, 3, 4, 5],
            "best": False,
        },
        {"concession": [0] * 6, "asks": [0.01] * 6, "share": [5, 0, 5, 1, 5, 2], "best": True},
    ],
)  # fmt: skip
def test_the_page_computes_what_python_computes(explore, clinics, view, settings):
    theirs = view.evaluate("settings => FeducaExplore.play(FEDUCA_CLINICS, settings)", settings)
    ours = explore.play(clinics, **settings)
    assert theirs["rounds"] == ours["rounds"]
    assert theirs["concession"] == pytest.approx(ours["concession"])
    for key in ("alone", "offered", "shared", "deployed", "outside"):
        assert theirs[key] == pytest.approx(ours[key], abs=1e-9), key


def test_what_the_page_says_to_try_is_so(explore, clinics):
    def inside(**changed):
        told = {"concession": [0] * 6, "asks": [0] * 6, "share": [5] * 6, "best": False} | changed
        return explore.play(clinics, **told)

    alone_for_all, own = inside(), inside(best=True)
    assert not any(alone_for_all["rounds"][1])  # after two rounds nobody is left
    assert sum(own["rounds"][-1]) >= 5
    assert own["shared"] > alone_for_all["shared"]
    little = inside(share=[1] * 6)["rounds"][-1]
    assert sum(little) >= 4
    stays = little.index(True)
    more = [5 if k == stays else 1 for k in range(6)]
    assert not inside(share=more)["rounds"][-1][stays]  # more data of its own, and it leaves
    asking = inside(best=True, asks=[0.01] + [0] * 5)["rounds"][-1]
    assert not asking[0]


def test_a_dragged_concession_brings_a_clinic_in_and_the_shared_model_follows(view):
    before = found(view)["found"]
    assert view.inner_text("#xp-in") == "0 of 6"
    handle = view.locator("#xp-c5")
    box = handle.bounding_box()
    view.mouse.move(box["x"] + 6, box["y"] + box["height"] / 2)
    view.mouse.down()
    view.mouse.move(box["x"] + box["width"] - 4, box["y"] + box["height"] / 2, steps=5)
    view.mouse.up()
    after = found(view)
    assert after["settings"]["concession"] == [0, 0, 0, 0, 0, 0.9]
    assert [k + 1 for k, there in enumerate(after["found"]["rounds"][-1]) if there] == [3, 6]  # as the page says
    assert view.inner_text("#xp-in") == "2 of 6"
    assert after["found"]["shared"] > before["shared"]
    assert view.inner_text("#xp-shared") == f"{100 * after['found']['shared']:.1f} %"
    assert view.locator(".xp-card").nth(5).get_attribute("class") == "xp-card xp-joined"
    assert "beats own" in view.locator(".xp-why").nth(5).inner_text()
    assert "does not beat own" in view.locator(".xp-why").nth(0).inner_text()


def test_it_works_by_keyboard_alone(view):
    view.locator("button", has_text="little data").focus()
    view.keyboard.press("Enter")
    many = found(view)["found"]["rounds"][-1]
    stays = many.index(True)
    view.locator(f"#xp-s{stays}").focus()
    view.keyboard.press("End")
    assert found(view)["settings"]["share"][stays] == 5
    assert not found(view)["found"]["rounds"][-1][stays]
    view.locator(f"#xp-a{stays}").focus()
    view.keyboard.press("Home")  # asks for less than it has
    assert found(view)["settings"]["asks"][stays] == -0.02
    view.locator("#xp-best").focus()
    view.keyboard.press("Space")
    assert found(view)["settings"]["best"]
    assert view.locator("#xp-c0").is_disabled()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_on_a_telephone(chromium, page_file, scheme):
    page = chromium.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    narrow = page.evaluate(
        "[...document.querySelectorAll('.xp-slider input')].map(one => one.getBoundingClientRect().width)"
    )
    assert len(narrow) == 18
    assert min(narrow) > 60
    colour = page.evaluate("getComputedStyle(document.querySelector('.xp-in')).backgroundColor")
    assert colour == ("rgb(86, 180, 233)" if scheme == "dark" else "rgb(0, 114, 178)")
    page.close()
