"""Colours of pages and figures: apart for every eye, and standing out from the paper, in both modes."""

from __future__ import annotations

import itertools
import re
from importlib import resources

import numpy as np
import pytest

from feduca.report import charts, palette

# Machado, Oliveira, Fernandes 2009, severity 1: how the three colour blindnesses see linear RGB.
BLINDNESS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1)
    f = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize(
    "colours", [palette.STATUS.values(), palette.STATUS_ON_DARK.values(), palette.ON_LIGHT, palette.ON_DARK]
)
def test_colours_survive_colour_blindness(kind: str, colours: list[str]) -> None:
    for one, two in itertools.combinations(colours, 2):
        seen = [lab(np.array(BLINDNESS[kind]) @ linear(c)) for c in (one, two)]
        assert np.linalg.norm(seen[0] - seen[1]) > 10, (one, two)


def test_no_two_methods_look_the_same() -> None:
    looks = [(s[0], tuple(s[1]), s[2]) for s in map(charts.style, range(32))]
    assert len(set(looks)) == 32


def contrast(one: str, two: str) -> float:
    """WCAG 2's ratio of two colours."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, two))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("mode", "colours"),
    [
        ("light", [*palette.ON_LIGHT, *palette.STATUS.values()]),
        ("dark", [*palette.ON_DARK, *palette.STATUS_ON_DARK.values()]),
    ],
)
def test_every_colour_stands_out_three_to_one(mode: str, colours: list[str]) -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    for colour, paper in itertools.product(colours, palette.PAPER[mode]):
        assert contrast(colour, paper) >= 3, (mode, colour, paper)


def test_the_style_sheet_has_the_same_colours() -> None:
    css = (resources.files("feduca.report") / "assets" / "page.css").read_text(encoding="utf-8").lower()
    light, auto, dark = (
        css[: css.index("@media")],
        css[css.index("@media") :],
        css[css.index('html[data-theme="dark"]') :],
    )
    for block, status, paper in (
        (light, palette.STATUS, palette.PAPER["light"]),
        (auto, palette.STATUS_ON_DARK, palette.PAPER["dark"]),
        (dark, palette.STATUS_ON_DARK, palette.PAPER["dark"]),
    ):
        said = dict(re.findall(r"--([a-z]+): ?(#[0-9a-f]+|[a-z]+)", block[: block.index("}")]))
        assert [said["paper"], said["card"]] == [colour.lower() for colour in paper]
        for name, colour in status.items():
            assert said["in" if name == "joined" else name] == colour.lower()
