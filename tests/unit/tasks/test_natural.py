"""Data whose silos nature dealt: what the readers make of their files, and how silos are split and standardised."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from feduca import api
from feduca.errors import ConfigError, DataError
from feduca.recipes.folders import DATA_SETS, NATURAL
from feduca.recipes.schema import load
from feduca.tasks import build_natural_task, merge
from feduca.tasks.data import natural
from feduca.tasks.data.natural import SETS, deal, load_natural, place, readers
from feduca.tasks.data.natural.records import numbered, records

RAND = "site,zper,mdvis,xage,female,black,linc,educdec,lnum,disea,physlm,hlthg,hlthf,hlthp,mhi,child,fchild,logc,idp,fmde,lpi"
FARS = [
    "CASE_STATE",
    "AGE",
    "SEX",
    "ALCOHOL_TEST_RESULT",
    "TAKEN_TO_HOSPITAL",
    "HISPANIC_ORIGIN",
    "RACE",
    "INJURY_SEVERITY",
]


def keel(names, rows):
    return "\n".join([*(f"@attribute {name} real" for name in names), "@data", *rows])


def test_heart_keeps_complete_patients_without_the_three_sparse_columns():
    one = "63,1,4,145,233,1,2,150,0,2.3,3,0,6,0"
    gap = "63,1,1,145,?,1,2,150,0,2.3,3,0,6,0"
    sick = "41,0,2,130,204,0,0,172,0,1.4,?,?,?,3"
    found = readers.heart([f"{one}\n{gap}\n", f"{sick}\n", "", f"{one}\n"])
    assert found.silo.tolist() == ["cleveland", "hungarian", "va"]
    assert found.y.tolist() == [0, 1, 0]
    values = dict(zip(found.features, found.x.T.tolist()))
    assert len(values) == 13
    assert values["age"] == [63, 41, 63]
    assert values["pain=4"] == [1, 0, 1]
    assert values["pain=2"] == [0, 1, 0]
    assert values["ecg=2"] == [1, 0, 1]
    assert "pain" not in values


def test_randhie_keeps_persons_together_and_drops_what_is_unknown():
    ones = ",".join("1" * 18)
    rows = [f"2,7,2,{ones}", f"2,7,1,{ones}", f"1,8,0,{ones}", f"1,9,0,{ones[:-1]}"]
    found = readers.randhie(["\n".join([RAND, *rows])])
    assert found.silo.tolist() == ["site-2", "site-2", "site-1"]
    assert found.y.tolist() == [1, 0, 0]
    assert found.group[0] == found.group[1] != found.group[2]
    assert not {"mdvis", "site", "zper"} & set(found.features)


def test_fars_drops_what_gives_the_label_away_and_knows_codes_from_numbers():
    rows = ["New_York,34,Male,97,No,Unknown,White,Fatal", "New_York,99,Female,12,Yes,None,None,Minor"]
    found = readers.fars([keel(FARS, [*rows, rows[1]])])
    assert found.silo.tolist() == ["New-York"] * 3  # as a deployed silo may be called
    assert found.labels == ("Fatal", "Minor")
    assert not any(word in name for name in found.features for word in ("RACE", "HISPANIC", "HOSPITAL", "INJURY"))
    values = dict(zip(found.features, found.x.T.tolist()))
    assert values["AGE"] == [34, 0, 0]
    assert values["AGE=unknown"] == [0, 1, 1]
    assert values["ALCOHOL_TEST_RESULT"] == [0, 12, 12]
    assert values["ALCOHOL_TEST_RESULT=97"] == [1, 0, 0]
    assert found.group[1] == found.group[2] != found.group[0]  # alike in everything


def test_vowel_counts_each_speakers_repetitions():
    names = ["TT", "SpeakerNumber", "Sex", *(f"F{k}" for k in range(10)), "Class"]
    features = ",".join(str(k) for k in range(10))
    found = readers.vowel([keel(names, [f"0,3,1,{features},{c}" for c in (0, 1, 0, 1)])])
    assert found.silo.tolist() == ["speaker-03"] * 4
    assert found.features == tuple(f"F{k}" for k in range(10))
    assert found.group[0] == found.group[1] != found.group[2] == found.group[3]


def test_star_judges_by_the_median_of_the_grade():
    header = ",id,sch,gr,cltype,hdeg,exp,trace,read,math,ses,sx,eth,birthy,yrs"
    rows = [f"x,{pupil},9,{grade},reg,MS,3,W,500,{math},F,M,W,1980,1"
            for pupil, grade, math in ((1, "K", 400), (2, "K", 410), (1, "2", 600), (2, "2", 590))]  # fmt: skip
    found = readers.star(["\n".join([header, *rows, "x,3,9,K,reg,MS,,W,500,500,F,M,W,1980,1"])])
    assert found.y.tolist() == [0, 1, 1, 0]
    assert found.group[0] == found.group[2]
    assert "math" not in found.features
    assert "read" not in found.features


def test_exam_azpro_and_insteval_by_hand():
    table = "school,normexam,schgend,schavg,vr,intake,standLRT,sex,type,student\n"
    table += "7,-0.1,m,0,mid,top,0.5,F,M,3\n12,0.1,m,0,top,top,1,M,M,3"
    found = readers.exam([table])
    assert found.silo.tolist() == ["school-07", "school-12"]
    assert found.y.tolist() == [0, 1]
    assert found.group[0] != found.group[1]  # the same number in another school is another pupil
    assert set(found.features) == {"standLRT", "vr=mid", "vr=top", "intake=top", "sex=F", "sex=M"}
    found = readers.azpro(
        ['"","los","procedure","sex","age75","admit","hospital"\n"1",9,1,0,0,1,3.60000014305115\n"2",8,0,0,0,1,12']
    )
    assert found.silo.tolist() == ["hospital-03.6", "hospital-12"]
    assert found.y.tolist() == [1, 0]
    found = readers.insteval(
        [
            '"","s","d","studage","lectage","service","dept","y"\n"1","5","1","2","2","0","2",4\n"2","5","9","2","1","1","6",3'
        ]
    )
    assert found.y.tolist() == [1, 0]
    assert found.group[0] == found.group[1]
    assert numbered(np.array(["2", "10"]), "d") == ["d-02", "d-10"]


def some(n=(40, 120), groups=None, seed=0):
    rng = np.random.default_rng(seed)
    silo = np.repeat(["a", "b"], n)
    x = rng.normal(size=(len(silo), 2)) + (silo == "b")[:, None] * 7
    group = np.arange(len(silo)) if groups is None else groups
    return records(
        {"u": x[:, 0], "v": x[:, 1], "one": np.ones(len(silo))}, rng.integers(0, 2, len(silo)), silo, group, ("n", "y")
    )


def test_silos_are_split_in_half_a_quarter_and_a_quarter_by_seed():
    found = some()
    dealt = deal(found, 0, 0.5, 0.5)
    assert [[len(own) for own in rows.values()] for rows in dealt.rows.values()] == [[20, 10, 10], [60, 30, 30]]
    everything = np.concatenate([own for rows in dealt.rows.values() for own in rows.values()])
    assert sorted(everything.tolist()) == list(range(160))
    again, other = deal(found, 0, 0.5, 0.5), deal(found, 1, 0.5, 0.5)
    np.testing.assert_array_equal(again.rows["a"]["test"], dealt.rows["a"]["test"])
    assert set(other.rows["a"]["test"].tolist()) != set(dealt.rows["a"]["test"].tolist())
    without = deal(found, 0, 0.2, 0.0)
    assert [len(own) for own in without.rows["b"].values()] == [96, 24, 0]


def test_a_silo_is_standardised_by_its_own_training_part_alone():
    found = some()
    dealt = deal(found, 3, 0.5, 0.5)
    for rows in dealt.rows.values():
        own = dealt.x[rows["train"]]
        np.testing.assert_allclose(own[:, :2].mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(own[:, :2].std(0), 1, atol=1e-5)
    assert not dealt.x[:, 2].any()  # constant: tells nothing
    others = np.setdiff1d(np.arange(160), dealt.rows["a"]["train"])
    x = found.x.copy()
    x[others] += 100
    moved = deal(dataclasses.replace(found, x=x), 3, 0.5, 0.5)
    np.testing.assert_array_equal(moved.x[dealt.rows["a"]["train"]], dealt.x[dealt.rows["a"]["train"]])
    assert np.abs(moved.x).max() <= natural.CLIP


@pytest.mark.parametrize("seed", range(5))
def test_a_group_is_on_one_side_even_where_silos_share_it(seed):
    groups = np.random.default_rng(seed).integers(0, 40, 160)
    dealt = deal(some(groups=groups), seed, 0.5, 0.5)
    sides = [
        {g for rows in dealt.rows.values() for g in groups[rows[part]].tolist()}
        for part in ("train", "validation", "test")
    ]
    assert not sides[0] & sides[1]
    assert not sides[0] & sides[2]
    assert not sides[1] & sides[2]


def test_pooled_silos_learn_from_everybody_and_keep_what_they_judge_by():
    dealt, pooled = deal(some(), 0, 0.5, 0.5), deal(some(), 0, 0.5, 0.5, pooled=True)
    union = sorted(row for rows in dealt.rows.values() for row in rows["train"].tolist())
    for name, rows in pooled.rows.items():
        assert rows["train"].tolist() == union
        for part in ("validation", "test"):
            np.testing.assert_array_equal(rows[part], dealt.rows[name][part])
    np.testing.assert_array_equal(dealt.x, pooled.x)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The heart data in small: two hospitals of 40 and 24 patients, the other two left out for want of patients."""
    rng = np.random.default_rng(0)
    (tmp_path / "heart-disease").mkdir()
    for centre, n in zip(readers.CENTRES, (40, 24, 3, 0)):
        lines = []
        for _ in range(n):
            age = int(rng.integers(30, 80))
            rest = [
                int(rng.integers(0, 2)),
                int(rng.integers(1, 5)),
                *rng.integers(100, 200, 2).tolist(),
                0,
                1,
                150,
                0,
                1.5,
            ]
            lines.append(",".join(map(str, [age, *rest, "?", "?", "?", int(age + rng.normal(0, 5) > 55)])))
        (tmp_path / "heart-disease" / f"processed.{centre}.data").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("FEDUCA_DATA", str(tmp_path))
    monkeypatch.setitem(SETS, "heart", dataclasses.replace(SETS["heart"], rows=67))
    monkeypatch.setitem(NATURAL, "heart", 2)
    return tmp_path


def test_a_recipe_names_the_data_and_the_data_say_who_takes_part(toy):
    chosen = load("quickstart", {"task.data": "heart"})
    assert (chosen.task.clients, chosen.task.validation_share, chosen.task.test_share) == (2, 0.5, 0.5)
    assert load({"task": {"data": "heart", "validation_share": 0.4}}).task.validation_share == 0.4
    back = chosen.with_settings({"task.data": "digits"})
    assert (back.task.clients, back.task.test_share) == (10, 0.0)
    written = chosen.plain()["task"]
    assert not {"classes_per_client", "train_concentration", "max_examples", "pooled", "target"} & set(written)
    for settings, words in (
        ({"task.clients": 3}, "task.clients is 3, but heart has 2 silos: leave it out"),
        ({"task.max_examples": 9}, "task.max_examples is 9 with task.data 'heart': its silos have their data already"),
    ):
        with pytest.raises(ConfigError, match=words):
            load("quickstart", {"task.data": "heart", **settings})
    with pytest.raises(ConfigError, match="it is for data with silos of their own"):
        load("quickstart", {"task.pooled": True})


def test_a_run_on_natural_silos_and_its_lockstep_over_seeds(toy, tmp_path):
    recipe = {"name": "toy", "rounds": 3, "alone": True, "seeds": [0, 1], "mechanism": {"name": "fedavg"},
              "task": {"data": "heart", "model": "logistic"}, "participation": {"rule": "accuracy"}}  # fmt: skip
    chosen = load(recipe)
    together = api.run_many([(chosen, 0), (chosen, 1)], out=tmp_path / "runs", lockstep=2)
    for seed, found in enumerate(together):
        single = api.run(recipe, seed=seed, out=None)
        assert list(single.silos) == ["cleveland", "hungarian"]
        for one, other in zip(single.clients, found.clients):
            assert one == other
        assert [r["accuracy"] for r in single.rounds] == [r["accuracy"] for r in found.rounds]
    tasks = [build_natural_task("heart", seed=seed) for seed in (0, 1)]
    assert len(merge(tasks).pool.y) == 2 * len(tasks[0].pool.y)
    assert tasks[0].test_pool is not None
    assert len(tasks[0].test_pool.y) == int(tasks[0].test_examples.sum())


def test_the_deployed_silos_are_called_as_they_are(toy):
    from feduca.flower.folder import silo_names

    assert silo_names(load({"task": {"data": "heart"}}), 2) == ["cleveland", "hungarian"]


def test_the_partition_is_shown(toy):
    from feduca.analysis.partition_report import describe, text

    shown = text(describe(load({"task": {"data": "heart", "model": "logistic"}}), 0))
    assert "cleveland" in shown
    assert "hungarian" in shown


def test_what_is_missing_or_cut_off_is_said_in_one_line(toy, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert place("heart", str(empty)) is None
    with pytest.raises(DataError, match=r"file is not here: put processed.\{cleveland,.*DIR/heart-disease, from https"):
        load_natural("heart", str(empty))
    file = toy / "heart-disease" / "processed.cleveland.data"
    file.write_text("\n".join(file.read_text().splitlines()[:-1]))
    natural._loaded.cache_clear()
    with pytest.raises(DataError, match="gives 66 examples in 2 silos where 67 in 2 belong"):
        load_natural("heart", str(toy))
    file.write_text("1,2\n")
    with pytest.raises(DataError, match=r"is not heart's file as it should be .*: put processed"):
        load_natural("heart", str(toy))
    with pytest.raises(ConfigError, match="the data sets with silos of their own are heart, randhie"):
        load_natural("digits")


def test_names_and_counts_are_those_there_are():
    assert list(NATURAL) == list(SETS)
    assert set(NATURAL) < set(DATA_SETS)


SIZES = {"randhie": (6, 20186), "vowel": (15, 990), "azpro": (17, 3589), "insteval": (14, 73421), "fars": (51, 100968)}
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["randhie", "vowel", "azpro", *(pytest.param(n, marks=SLOW) for n in ("insteval", "fars"))]
)
def test_the_packages_files_are_what_they_should_be(name, tmp_path):
    """Read from where pip put them; the package itself is not imported."""
    if place(name, str(tmp_path)) is None:
        pytest.skip(f"{name}: {SETS[name].source.remedy}")
    found = load_natural(name, str(tmp_path))
    silos, counts = np.unique(found.silo, return_counts=True)
    assert (len(silos), len(found.y)) == SIZES[name]
    assert counts.min() >= natural.LEAST
    assert np.isfinite(found.x).all()
    assert set(np.unique(found.y)) == set(range(len(found.labels)))


def test_the_page_has_the_figures_of_the_data_that_are_here():
    page = (Path(__file__).parents[3] / "docs" / "natural-data.md").read_text(encoding="utf-8")
    rows = {cells[1].strip("` "): cells for line in page.splitlines() if len(cells := line.split("|")) == 9}
    assert set(rows) - {"`task.data`", "task.data", "---"} == set(SETS)
    for name, wanted in SETS.items():
        examples, silos, ends, features, classes = (rows[name][k].split() for k in range(2, 7))
        assert int(silos[0]) == NATURAL[name]
        assert wanted.source.distribution or wanted.source.remedy.split("from ")[-1] in page
        if name in ("fars", "insteval") or place(name) is None:  # large, or not here
            continue
        found = load_natural(name)
        counts = np.unique(found.silo, return_counts=True)[1]
        assert int(examples[0]) == len(found.y)
        assert [int(end.strip(",")) for end in ends] == [counts.min(), counts.max()]
        assert (int(features[0]), int(classes[0])) == (found.x.shape[1], len(found.labels))


@pytest.mark.skipif(place("randhie") is None, reason="statsmodels is not installed: pip install statsmodels")
def test_the_second_embedded_example_runs():
    found = api.run("clinics", rounds=2, out=None)
    assert list(found.silos) == [f"site-{k}" for k in range(1, 7)]
    assert found.summary["better_off"] is not None
    assert load("clinics").task.clients == 6
