"""The words that comparators of claims have, the errors they go by, and the shapes of curves."""

from __future__ import annotations

import pytest

from paper.claims.compare import (
    DIRECTION,
    FAILS,
    HOLDS,
    UNDECIDED,
    Difference,
    Figure,
    correlation,
    difference,
    every,
    exact,
    level,
    no_more,
    positive,
    sized,
    spread_error,
    t95,
    within,
)
from paper.claims.look import shares
from paper.claims.mechanism import looks_convex, peaks_inside, rises_and_falls


def test_shapes_of_curves():
    grid = [i / 10 for i in range(11)]
    assert rises_and_falls([0.1, 0.3, 0.29, 0.5, 0.4])
    assert not rises_and_falls([0.1, 0.3, 0.2, 0.5, 0.4])
    assert not rises_and_falls([0.5, 0.3, 0.4])
    assert peaks_inside([0.1, 0.2, 0.1])
    assert not peaks_inside([0.2, 0.2, 0.1])
    assert looks_convex(grid, [(r - 0.3) ** 2 for r in grid])
    assert looks_convex(grid, grid)
    assert not looks_convex(grid, [r**0.5 for r in grid])
    assert not looks_convex(grid, [0.0, 0.2, *[0.1 * r for r in grid[2:]]])


def test_errors_are_students_and_seed_by_seed():
    assert t95(2) == pytest.approx(4.3027, abs=1e-4)
    assert t95(4) == pytest.approx(2.7764, abs=1e-4)
    first, second = Figure(0.5, 0.03, 3), Figure(0.4, 0.03, 3)
    assert spread_error(first, second) == pytest.approx(2.7764 * 0.03 * (2 / 3) ** 0.5, rel=1e-4)  # equal: four degrees
    assert spread_error(first, exact(0.4)) == pytest.approx(4.3027 * 0.03 / 3**0.5, rel=1e-4)
    assert difference(exact(0.5), exact(0.4)).error == 0.01  # never less
    assert difference(first, Figure(0.4, None, 1)).error == pytest.approx(4.3027 * 0.03 / 3**0.5, rel=1e-4)
    assert difference(Figure(0.5, None, 1), Figure(0.4, None, 3)).error == 0.05

    ours = Figure(0.5, 0.1, 3, {0: 0.4, 1: 0.5, 2: 0.6})
    paired = difference(ours, Figure(0.45, 0.11, 3, {2: 0.56, 0: 0.34, 1: 0.45}))  # by 6, 5 and 4 points
    assert paired.value == pytest.approx(0.05)
    assert paired.error == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    assert paired.clear
    others = Figure(0.45, 0.11, 3, {0: 0.34, 1: 0.45, 3: 0.56})  # not the same seeds
    assert not difference(ours, others).clear
    assert shares({"labels": {}, "seeds": [4, 5], "participation_mean": 0.3, "participations": [0.2, 0.4]}).by_seed == {
        4: 0.2,
        5: 0.4,
    }


def test_words_for_differences_and_levels():
    theirs = Difference(0.10, 0.03)
    cases = {(0.11, 0.02): HOLDS, (0.20, 0.02): DIRECTION, (-0.10, 0.02): FAILS, (0.01, 0.02): FAILS}
    cases |= {(0.06, 0.08): UNDECIDED, (-0.01, 0.12): UNDECIDED, (0.17, 0.08): DIRECTION}
    assert {key: sized(Difference(*key), theirs) for key in cases} == cases
    levels = {(0.03, 0.04): HOLDS, (0.03, 0.02): FAILS, (0.015, 0.01): HOLDS, (0.07, 0.08): UNDECIDED}
    levels |= {(0.01, 0.2): UNDECIDED, (0.3, 0.2): FAILS}
    assert {key: level(Difference(*key)) for key in levels} == levels
    assert [positive(Difference(v, 0.02)) for v in (0.03, -0.03, 0.01)] == [HOLDS, FAILS, UNDECIDED]
    over = [difference(Figure(v, 0.0, 3), exact(0.1)) for v in (0.1, 0.105, 0.2)]
    assert list(map(no_more, over)) == [HOLDS, UNDECIDED, FAILS]
    assert list(map(within(least=0.8, nearly_least=0.5), (0.8, 0.6, 0.4))) == [HOLDS, DIRECTION, FAILS]
    assert list(map(within(0.4, 0.6, 0, 0.9), (0.5, 0.3, 0.95))) == [HOLDS, DIRECTION, FAILS]
    assert every([HOLDS, DIRECTION]) == DIRECTION
    assert every([DIRECTION, UNDECIDED, FAILS]) == FAILS
    assert every([HOLDS, UNDECIDED]) == UNDECIDED
    assert every([HOLDS, HOLDS]) == HOLDS
    assert correlation([1, 2, 3], [5, 6, 9]) == pytest.approx(1)
    assert correlation([1, 2, 3], [1, 1, 1]) == 0
