"""What runs are called on a page: as in the terminal, and never two methods by one name."""

from __future__ import annotations

from pathlib import Path

import pytest

import feduca
from feduca.api import recipe
from feduca.report import names, reading
from feduca.report.payload import payload
from feduca.runs.directory import RunDirectory
from feduca.studies.cells import cells, relabelled
from run_directories import written


def begun(root: Path, chosen: feduca.recipes.schema.Recipe) -> reading.Run:
    """A run of a recipe that has only begun."""
    directory = RunDirectory(root, chosen.name, chosen.hash(), 0)
    directory.begin(chosen.plain(), 0, ["a", "b"], {"data": "synthetic"})
    directory.__exit__(None, None, None)
    return reading.RunReader(directory.path).run


@pytest.mark.parametrize("name", ["clinics", "quickstart", "offers-quickstart"])
def test_rows_of_a_comparison_have_the_labels_of_the_terminal(name: str, tmp_path: Path) -> None:
    rows = cells(recipe(name))
    assert len(rows) > 5
    assert names.labels([begun(tmp_path, row.recipe) for row in rows]) == [row.label for row in rows]


def test_what_set_changes_of_a_row_is_said_as_the_terminal_says_it(tmp_path: Path) -> None:
    change = "participation.ties=loss"
    key, _, value = change.partition("=")
    rows = relabelled(recipe("clinics"), recipe("clinics", {key: value}), {key: change})
    row = next(row for row in rows if row.label.startswith("FedAvg, Eq. 1"))
    theirs = begun(tmp_path, row.recipe)
    assert names.labels([theirs]) == [row.label] == [f"FedAvg, Eq. 1, {change}"]


def test_a_run_that_is_no_row_is_called_by_its_method(tmp_path: Path) -> None:
    other = recipe(
        "clinics", {"participation.rule": "always", "participation.against": "outside", "offer.kind": "stack"}
    )
    assert names.labels([begun(tmp_path, other)]) == ["FedUCA, everybody trains along, stack of models"]


def test_seeds_share_a_name_and_settings_tell_methods_apart(tmp_path: Path) -> None:
    paths = [written(tmp_path, 3, 4, seed=seed).path for seed in (0, 1)]
    runs = [reading.read(path) for path in paths]
    assert len(set(names.labels(runs))) == 1
    (paths[1] / "config.toml").write_text((paths[1] / "config.toml").read_text().replace("delta = 0.5", "delta = 2.0"))
    first, second = names.labels([reading.read(path) for path in paths])
    assert "delta = 0.5" in first
    assert "delta = 2.0" in second


def test_what_is_configured_otherwise_is_no_seed_however_many_settings_differ(tmp_path: Path) -> None:
    paths = [written(tmp_path, 3, 4, seed=seed).path for seed in range(4)]

    def change(path: Path, *lines: str) -> None:
        (path / "config.toml").write_text("\n".join([*lines, (path / "config.toml").read_text()]))

    change(paths[0], "a1 = 1", "a2 = 1", "a3 = 1", "z = 1")
    change(paths[1], "a1 = 1", "a2 = 1", "a3 = 1", "z = 1")
    change(paths[2], "a1 = 1", "a2 = 1", "a3 = 1", "z = 2")  # the first three settings that differ are another run's
    change(paths[3], "a1 = 2", "a2 = 2", "a3 = 2", "z = 3")
    runs = [reading.read(path) for path in paths]
    first, again, other, far = names.labels(runs)
    assert first == again
    assert len({first, other, far}) == 3
    assert first.endswith("z = 1, a1 = 1, a2 = 1, and more")  # what tells namesakes apart comes first
    assert far.endswith("a3 = 2, and more")
    assert [row["seeds"] for row in payload(runs)["table"]] == [2, 1, 1]
    change(paths[0], f'long = "{70 * "x"}1"')
    change(paths[1], f'long = "{70 * "x"}2"')  # alike in what fits a label
    first, again = names.labels([reading.read(path) for path in paths[:2]])
    assert (first[:3], again[:3]) == ("1: ", "2: ")
    assert first[3:] == again[3:]


def test_settings_of_one_last_word_are_named_with_their_table_and_own_data_are_called_so(tmp_path: Path) -> None:
    paths = [written(tmp_path, 3, 4, seed=seed).path for seed in range(3)]
    first, second, third = [reading.read(path) for path in paths]
    second.config = {**second.config, "conduct": {"kind": "copy", "clients": [2]}}
    third.config = {**third.config, "task": {**third.config["task"], "clients": 7}}
    one, two, three = names.labels([first, second, third])
    assert "conduct.clients = [2]" in two
    assert "task.clients = 7" in three
    assert "kind = copy" in two
    assert ", clients = " not in one + two + three
    third.config = {key: value for key, value in first.config.items() if key != "task"} | {"own": "df6b579f03328322"}
    one, three = names.labels([first, third])
    assert three.endswith(", own data")
    assert "own" not in one
    second.config = {**third.config, "own": "aaaaaaa000000000"}
    two, three = names.labels([second, third])
    assert (two.rpartition(", ")[2], three.rpartition(", ")[2]) == ("own data aaaaaa", "own data df6b57")
