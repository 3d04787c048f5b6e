"""Tables of runs: every combination once, later axes win, nothing runs before all of it is valid."""

from __future__ import annotations

import pytest

from feduca.errors import ConfigError
from feduca.recipes import schema as config
from feduca.recipes.folders import NATURAL
from feduca.studies.cells import cells
from feduca.studies.execute import STUDIES, parse_only, plan

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


@pytest.mark.parametrize(
    ("name", "only", "says"),
    [
        ("table1", "metod=fedavg", "table1 has no axis 'metod'; it has data, split, method"),
        ("table1", "method=fedavg,feduca", "--only method=fedavg,feduca: the axis has fedavg | fedprox | .*;"
         " several labels are separated by |"),
        ("delta", "delta=7", "--only delta=7: the axis has 0.01 | 0.5 | 1 | 10 | 100 | 1000$"),
    ],
)  # fmt: skip
def test_a_wrong_only_is_told_what_there_is(name, only, says):
    with pytest.raises(ConfigError, match=says.replace("|", r"\|").replace("[", r"\[")):
        plan(name, keep=parse_only([only]))


@pytest.mark.parametrize(
    ("only", "says"),
    [
        (["study=quitting", "silos=50"], "--only silos=50: no such cell with study=quitting, which has no axis 'silos'$"),
        (["study=ablation", "data=fmnist", "method=ditto"], "--only method=ditto: .* with study=ablation and data=fmnist,"
         " which has only method strict | ties by loss | "),
    ],
)  # fmt: skip
def test_labels_that_never_meet_are_refused(only, says):
    with pytest.raises(ConfigError, match=says.replace("|", r"\|")):
        plan("offers", keep=parse_only(only))


def test_options_of_a_search_are_for_the_cells_that_search():
    found = {c.labels["method"]: c for c in plan("offers-quickstart", settings={"offer.points": 5})}
    assert (found["best-mixture"].recipe.offer.points, found["best-mixture"].changed) == (5, {"offer.points": 5})
    plain = {c.labels["method"]: c for c in plan("offers-quickstart")}
    assert (found["forced"].recipe, found["forced"].changed) == (plain["forced"].recipe, {})
    with pytest.raises(ConfigError, match=r"offer\.points is 5 with offer\.kind 'global'"):
        plan("table1", settings={"offer.points": 5})  # nobody searches there


def test_a_small_version_keeps_what_the_part_is_about():
    def tried(study):
        return [c.recipe for c in plan("offers", smoke=True, keep={"study": [study], "method": ["fedavg"]})]

    assert {r.task.clients for r in tried("silos")} == {5, 10, 20, 50}
    assert {r.task.classes_per_client for r in tried("heterogeneity")} == {2, 5, 10}
    assert all(r.participation.quits < r.rounds for r in tried("quitting"))


@pytest.mark.parametrize(
    ("name", "use"),
    [("quickstart", "compare quickstart"), ("offers-ablation", "reproduce offers --only study=ablation")],
)
def test_a_recipe_that_is_no_study_is_sent_where_it_belongs(name, use):
    with pytest.raises(ConfigError, match=f"{name} is a recipe, not a study; use `feduca {use}`"):
        plan(name)


@pytest.mark.parametrize(
    ("name", "key", "axis"),
    [
        ("table1", "mechanism.name", "'method' of table1 sets mechanism.name"),
        ("table1", "mechanism", "'method' of table1 sets mechanism.name"),  # the table above it
        ("misreporting", "reporting.share.deep", "'inflation' of misreporting sets reporting.share"),  # below it
        ("table1", "mechanism.schedule", "'method' of table1 sets mechanism.schedule"),
        ("offers", "offer.points", "'method' of offers-ablation sets offer.points"),
    ],
)
def test_what_an_axis_sets_cannot_be_set_beside_it(name, key, axis):
    with pytest.raises(ConfigError, match=f"--set {key}: the axis {axis}; choose its labels with --only, or"):
        plan(name, settings={key: "fedprox"})


def test_what_no_axis_sets_can_be_set():
    kept = {"data": ["fmnist"], "split": ["0.5,1.0"], "method": ["feduca"]}
    (cell,) = plan("table1", settings={"mechanism.delta": 2.0, "local.lr": 0.05}, keep=kept)  # beside mechanism.name
    assert (cell.recipe.mechanism["delta"], cell.recipe.local.lr) == (2.0, 0.05)
    main = {"study": ["main"], "method": ["least-concession"]}
    assert {c.recipe.offer.points for c in plan("offers", settings={"offer.points": 6}, keep=main)} == {6}


@pytest.mark.parametrize("name", STUDIES)
def test_how_long_and_where_is_always_free(name):
    free = {"seeds": [4], "rounds": 7, "engine.chunk": 3, "checkpoint.keep": False}
    for cell in plan(name, settings=free):
        recipe = cell.recipe
        assert (recipe.seeds, recipe.rounds, recipe.engine.chunk, recipe.checkpoint.keep) == ([4], 7, 3, False)


def test_a_row_beside_axes_keeps_what_it_sets(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[compare]]\nlabel = "ceiling"\nset = { "participation.rule" = "always" }\n'
        '[[axes]]\nname = "lr"\nvalues = [{ label = "0.1", set = { "local.lr" = 0.1 } }]\n'
    )
    for key, who in (("participation.rule", "the row 'ceiling'"), ("local.lr", "the axis 'lr'")):
        with pytest.raises(ConfigError, match=f"--set {key}: {who} of {file} sets {key}"):
            plan(str(file), settings={key: 1})


def test_an_option_that_only_some_mechanisms_have_is_told_where(tmp_path):
    says = (
        r"--set mechanism.delta: the mechanism fedavg \(of cifar10, 0.5,1.0, fedavg\) has no 'delta';"
        r" use --only 'method=feduca\|feduca-fresh\|feduca-maximum'$"
    )
    with pytest.raises(ConfigError, match=says):
        plan("table1", settings={"mechanism.delta": 3})
    kept = {"method": ["feduca", "feduca-fresh"], "data": ["fmnist"]}
    assert {cell.recipe.mechanism["delta"] for cell in plan("table1", settings={"mechanism.delta": 3}, keep=kept)} == {
        3
    }
    with pytest.raises(ConfigError, match=r"the mechanism fedavg \(of .*\) has no 'delta'; did you mean 'beta'\?$"):
        plan("table1", settings={"mechanism.delta": 3}, keep={"method": ["fedavg"]})


def test_an_axis_named_twice_keeps_both():
    assert parse_only(["data=fmnist", "data=cifar10|fmnist", "split=a"]) == {
        "data": ["fmnist", "cifar10"],
        "split": ["a"],
    }


@pytest.mark.parametrize("table", ["axes", "compare"])
def test_an_entry_that_is_none_is_shown_one(table):
    given = {"axes": [{"name": "lr", "values": [0.5, 1.0]}]} if table == "axes" else {"compare": [0.5]}
    where = r"axes\.0\.values\.0" if table == "axes" else r"compare\.0"
    says = rf'{where} is 0\.5: an entry looks like {{ label = "slow", set = {{ "local\.lr" = 0\.05 }} }}'
    with pytest.raises(ConfigError, match=says):
        config.load(given)


def test_the_study_of_natural_silos_has_one_setting_a_set_for_all_methods():
    found = plan("real")
    parts: dict[tuple[str, str], list] = {}
    for cell in found:
        parts.setdefault((cell.recipe.study, cell.labels["data"]), []).append(cell.recipe)
    dealt = {("digits", f"digits, {k} classes") for k in (2, 5)}  # the paper's split beside them
    assert set(parts) == {(study, name) for study in ("main", "networks") for name in NATURAL} | dealt
    for rows in parts.values():
        chosen = {
            (r.local.lr, r.local.epochs, r.local.batch_size, r.task.model, r.rounds, tuple(r.seeds)) for r in rows
        }
        assert len(chosen) == 1
        assert {r.alone for r in rows if not r.task.pooled} == {True}
        assert len({r.task.clients for r in rows}) == 1
    for name in NATURAL:  # what was searched for the one part serves the other, too
        assert len({(rows[0].local.lr, rows[0].local.epochs) for (_, n), rows in parts.items() if n == name}) == 1
    assert {cell.labels["data"] for cell in plan("real-search")} == set(NATURAL)
