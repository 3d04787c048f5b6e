"""Tables of runs: every combination once, later axes win, nothing runs before all of it is valid."""

from __future__ import annotations

import pytest

from feduca import config
from feduca.errors import ConfigError
from feduca.study import cells

AXES = {
    "axes": [
        {"name": "data", "values": [{"label": "small", "set": {"task.clients": 4}}, {"label": "large"}]},
        {
            "name": "method",
            "values": [
                {"label": "fedavg", "set": {"mechanism.name": "fedavg"}},
                {"label": "feduca", "set": {"task.clients": 6, "mechanism.n_s": 3}},
            ],
        },
    ]
}


def test_cells_are_all_combinations():
    found = {tuple(cell.labels.values()): cell.recipe for cell in cells(config.load(AXES))}
    assert list(found) == [("small", "fedavg"), ("small", "feduca"), ("large", "fedavg"), ("large", "feduca")]
    assert found["small", "fedavg"].task.clients == 4
    assert found["small", "feduca"].task.clients == 6  # the later axis wins
    assert found["large", "feduca"].mechanism["n_s"] == 3
    assert found["large", "fedavg"].mechanism == {"name": "fedavg", "beta": "uniform"}


def test_keep_restricts_an_axis():
    found = cells(config.load(AXES), {"data": ["large"]})
    assert [cell.label for cell in found] == ["large, fedavg", "large, feduca"]


def test_the_hash_does_not_depend_on_the_table_around_it():
    alone = config.load({}, {"mechanism.n_s": 3, "task.clients": 6})
    assert cells(config.load(AXES))[1].recipe.hash() == alone.hash()


def test_a_bad_cell_is_found_before_anything_runs():
    broken = {"axes": [{"name": "x", "values": [{"label": "bad", "set": {"mechanism.delta": -1}}]}]}
    with pytest.raises(ConfigError, match="above 0, got -1"):
        cells(config.load(broken))


def test_compare_rows_are_one_axis():
    quick = config.load("quickstart")
    assert [cell.label for cell in cells(quick)] == [row.label for row in quick.compare]
