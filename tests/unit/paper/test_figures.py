"""The figures of the reproduction page: one for everything there is to show, well-formed, small, and the same every time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from feduca.errors import InputError
from feduca.report.palette import FRAME, GRID
from feduca.studies.execute import STUDIES, plan
from paper.figures import dark, drawing, drawings, svg, write
from paper.figures.accuracy import running
from paper.figures.style import STYLES
from paper.page import read, shown

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs/images/reproduction"
SUMMARIES = read(ROOT / "results")
DRAWN = [one for name in STUDIES for one in drawings(name, shown(name, SUMMARIES))]


def texts(drawn: str) -> list[str]:
    """The words in a figure."""
    return [element.text or "" for element in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]


def cell(labels, **known):
    blank = {
        "data": labels.get("data", "cifar10"), "split": "0.5,1.0", "method": "feduca", "labels": labels, "study": "main",
        "rule": "utility", "rounds": 2, "seeds": [0], "accuracy_mean": 0.5, "accuracy_std": None,
        "participation_mean": 0.4, "paper_accuracy": None, "paper_participation": None, "jensen": None, "clients": 10,
        "n_s": 5, "discrepancy": None, "discrepancy_bound_expected": None, "seconds": 10.0, "peak_mb": None, "r2": None,
    }  # fmt: skip
    return blank | known


def test_the_committed_figures_are_those_of_the_summaries_and_of_the_page():
    """Else: python -m paper.figures."""
    names = [f"{one.name}.svg" for one in DRAWN]
    assert len(set(names)) == len(names) > 5
    assert {path.name for path in FOLDER.iterdir()} == set(names)
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"images/reproduction/(\S+\.svg)", pages)) == set(names)


@pytest.mark.parametrize("one", DRAWN, ids=lambda one: one.name)
def test_a_committed_figure_is_small_well_formed_and_says_what_the_code_draws(one):
    committed = (FOLDER / f"{one.name}.svg").read_text()
    assert len(committed) < 80_000
    assert texts(committed) == texts(svg(one))  # coordinates may differ between versions of matplotlib


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/images").rglob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_can_be_read_on_a_dark_page(path):
    """Every colour but grid and frame has a contrast of three to one on the page; nothing stays white."""
    drawn = path.read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme" in drawn.replace("scheme: dark", "scheme")
    if path.stem == "who-is-in":  # has a style sheet of its own
        return
    assert drawn.count(f"<style>{dark.STYLE}</style>") == 1
    marks = drawn.replace(dark.STYLE, "").lower()
    quiet = {FRAME, GRID, "#ffffff"}
    for colour in set(re.findall(r"(?:fill|stroke)(?:: |=\")(#[0-9a-f]{6})", marks)) - quiet:
        assert contrast(dark.DARK.get(colour, colour), dark.PAGE) >= 3, colour
    assert dark.DARK["#ffffff"] == dark.PAGE


def test_the_same_figure_is_the_same_file():
    assert svg(DRAWN[0]) == svg(DRAWN[0])


def test_numbers_in_words_are_not_rounded_with_the_coordinates():
    (one,) = [one for one in DRAWN if one.name == "discrepancy"]
    assert "0.05" in texts(svg(one))
    assert not re.search(r'[ "]\d+\.\d{2}', " ".join(re.findall(r' d="[^"]*"', svg(one))))


def test_a_path_keeps_its_strokes_in_fewer_letters():
    assert drawing._terse("M 1.5 2 L 1.5 5 M 3 4 L 6 4 z") == "M1.5 2V5M3 4L6 4z"
    assert drawing._terse("M 1 2 L 1 5 L 3 6 ") == "M1 2L1 5L3 6"  # no stroke of its own
    assert drawing._terse("M 1.5 2 L 1.5 5 M 3 2 L 3 5 M 2.4 2 L 2.4 5") == "M1.5 2v3m1.5 -3v3m-0.6 -3v3"


def test_figures_of_no_summary_go_and_a_bad_folder_is_told(tmp_path):
    for name in ("table1-old.svg", "mine.svg"):
        (tmp_path / name).write_text("")
    written = write({"delta": SUMMARIES["delta"]}, tmp_path)
    assert [path.name for path in written] == ["delta.svg", "jensen.svg"]
    assert {path.name for path in tmp_path.iterdir()} == {"delta.svg", "jensen.svg", "mine.svg"}  # not ours to remove
    with pytest.raises(InputError, match="cannot write figures to"):
        write({"delta": SUMMARIES["delta"]}, tmp_path / "delta.svg" / "below")


def test_every_method_of_the_papers_tables_has_its_colour():
    for name in ("table1", "text", "cost", "offers"):
        methods = {c.labels["method"] for c in plan(name) if c.labels.get("study", "main") == "main"}
        assert {method.split(",")[0] for method in methods} <= STYLES.keys()
    assert len(set(STYLES.values())) == len(STYLES) - 1  # feduca-lagged is feduca


def test_a_running_mean_looks_back():
    np.testing.assert_allclose(running(np.array([1.0, 3.0, 5.0]), 2), [1.0, 2.0, 4.0])


CURVE = {
    "round": 1, "silo": 0, "which": "best", "r2": 0.91, "zeta": [0.5, 0.4, 0.3], "utility": [0.3, 0.4, 0.2],
    "loss": [1.0, 0.9, 1.2], "loss_zeta": [0.5, 0.4, -1.0], "loss_r2": 0.99,
}  # fmt: skip
CELLS = {
    "strategies": [
        cell({"data": data, "n_s": n, "schedule": "lagged"})
        for data in ("cifar10", "cifar100")
        for n in ("1", "5", "10")
    ],
    "misreporting": [cell({"inflation": level}) for level in ("0", "5", "10")],
    "cost": [cell({"method": method}, peak_mb=500.0) for method in ("fedavg", "feduca")],
    "text": [cell({"method": method}, data="20news", method=method) for method in ("fedavg", "feduca")],
    "concavity": [
        cell(
            {"data": "cifar10"},
            curves={"seed": 0, "family": "quadratic", "metric": "accuracy", "grid": [0, 0.5, 1], "shown": [CURVE]},
        )
    ],
    "offers": [
        cell(
            {"study": "main", "data": "cifar10", "method": "local"},
            rule="never",
            offer="global",
            mechanism="fedavg",
            start="a",
            deployed_test=[[0.5, 0.6]],
        ),
        cell({"study": "main", "data": "cifar10", "method": "least-concession"}, start="a", deployed_test=[[0.7, 0.5]]),
    ],
}


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("strategies", ["strategies"], ["CIFAR-100", "paper (lagged)", "n_s"]),
        ("misreporting", ["misreporting"], ["paper", "threshold inflated by, %"]),
        ("cost", ["cost"], ["time of a run, FedAvg = 1", "peak memory on the GPU, MB"]),
        ("text", ["text"], ["20 Newsgroups (0.5, 1.0)", "paper"]),
        ("concavity", ["concavity-cifar10"], ["R² 0.91", "utility: accuracy, %", "loss"]),
        ("offers", ["offers", "offers-gain"], ["least concession", "participation, %"]),
    ],
)
def test_figures_of_studies_without_a_committed_summary(name, files, words):
    found = drawings(name, CELLS[name])
    assert [one.name for one in found] == files
    assert set(words) <= set(texts(svg(found[0])))


def test_what_cannot_be_drawn_is_left_out():
    assert drawings("cost", [cell({"method": "feduca"})]) == []  # relative to FedAvg, which is missing
    assert drawings("concavity", [cell({"data": "cifar10"})]) == []
    assert drawings("discrepancy", [cell({"data": "cifar10"})]) == []
    assert drawings("rules", [cell({"data": "cifar10"})]) == []
    assert drawings("delta", []) == []
