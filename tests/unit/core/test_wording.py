"""How numbers are worded, and how they stand in a table of plain text."""

from __future__ import annotations

import pytest

from feduca.core import wording


def test_fractions_are_percents_differences_points_and_what_is_not_known_a_dash():
    assert wording.percent(0.1234, 0.01) == "12.3 ± 1.0"
    assert wording.percent(None, 0.01) == "-"
    assert wording.points(-0.05, unit=" points") == "-5.0 points"
    assert wording.points(0.05, "auc") == "+0.050"
    assert wording.points(None, unit=" points", nothing="?") == "?"


@pytest.mark.parametrize(
    ("mean", "stderr", "sign", "said"),
    [
        (0.031, 0.002, True, "+3.1 +- 0.2"),
        (0.031, 0.002, False, "3.1 +- 0.2"),
        (-0.031, None, True, "-3.1"),
        (None, None, True, "-"),
    ],
)
def test_an_estimate_has_its_standard_error_where_there_is_one(mean, stderr, sign, said):
    assert wording.estimate({"mean": mean, "stderr": stderr}, sign) == said


def test_words_stand_to_the_left_and_figures_to_the_right():
    table = wording.aligned(["method", "rule", "figure"], [["fedavg", "é", "1"], ["漢字", "Eq. 1", "12.5"]], 2)
    assert table.splitlines() == [
        "method  rule   figure",
        "fedavg  é           1",
        "漢字    Eq. 1    12.5",  # two columns of a terminal per character
    ]


def test_a_wide_table_is_not_cut():
    label = 300 * "x" + " [/b] [red]"
    assert label in wording.aligned(["method", "figure"], [[label, "1"]])


def test_on_a_narrow_screen_labels_and_figures_go_on_below_and_no_number_is_broken():
    rows = [
        ["least concession, Eq. 1, ties by loss, trained from consensus", "90.7", "100.0", "+34.7"],
        ["alone", "1", "2", "3"],
    ]
    table = wording.aligned(["method", "accuracy\n%", "in\n%", "worst\nsilo"], rows, width=48)
    assert table.splitlines() == [
        "                          accuracy     in  worst",
        "method                           %      %   silo",
        "least concession, Eq. 1,      90.7  100.0  +34.7",
        "  ties by loss, trained",
        "  from consensus",
        "alone                            1      2      3",
    ]
    narrow = wording.aligned(
        ["method", "accuracy %", "in %", "worst silo"], [["a" * 10, "90.7", "100.0", "+34.7"]], width=26
    )
    assert all(len(line) <= 26 for line in narrow.splitlines())
    assert {"90.7", "100.0", "+34.7"} <= set(narrow.split())
    assert narrow.count("a" * 10) == 3  # in as many tables as it takes
    assert wording.folded("one two three", 8).splitlines() == ["one two", "  three"]
    assert wording.folded("one two three", None) == "one two three"
