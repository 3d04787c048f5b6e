"""Silos' files: what is read from them, and what is refused in one line."""

import numpy as np
import pytest

from feduca.errors import DataError
from feduca.recipes import folders
from feduca.tasks.data import LOADERS
from feduca.tasks.data.silos import read_folder

X, Y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 0])


def archive(path, **other):
    """A silo of four examples in each part, with some arrays replaced (None: left out)."""
    arrays = {"x_train": X, "y_train": Y, "x_validation": X, "y_validation": Y} | other
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


def table(path, header, *rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")


def refused(folder, **how):
    with pytest.raises(DataError) as caught:
        read_folder(folder, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_columns_are_matched_by_name(tmp_path):
    table(tmp_path / "a.csv", "split,label,u,v", "train,0,1,2", "validation,1,3,4")
    table(tmp_path / "b.csv", "v,split,u,label", "2,train,1,0", "4,validation,3,1")
    table(tmp_path / "c" / "train.csv", "v,u,label", "2,1,0")
    table(tmp_path / "c" / "validation.csv", "label,u,v", "1,3,4")
    table(tmp_path / "global-test.csv", "v,label,u", "2,0,1")
    files = read_folder(tmp_path)
    for silo in "abc":
        assert files.silos[silo]["train"][0].tolist() == [[1, 2]]
        assert files.silos[silo]["validation"][0].tolist() == [[3, 4]]
    assert files.test is not None
    assert files.test[0].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("split,label,u", r"silo b (train) has no column 'v', which silo a (train) has"),
        ("split,label,u,v,w", r"silo b (train) has a column 'w', which silo a (train) has not"),
    ],
)
def test_missing_and_extra_columns_are_named(header, says, tmp_path):
    table(tmp_path / "a.csv", "split,label,u,v", "train,0,1,2", "validation,1,3,4")
    numbers = ",1" * (header.count(",") - 1)
    table(tmp_path / "b.csv", header, f"train,0{numbers}", f"validation,1{numbers}")
    assert says in refused(tmp_path)


def test_classes_with_names_are_to_be_numbered(tmp_path):
    table(tmp_path / "a.csv", "split,label,u", "train,cat,1")
    assert "'cat' in column label: number the classes" in refused(tmp_path)


def test_a_byte_order_mark_and_blanks_around_names_do_no_harm(tmp_path):
    (tmp_path / "a.csv").write_text("split, label , u\ntrain,0,1\nvalidation ,1,2\n", encoding="utf-8-sig")
    assert read_folder(tmp_path).silos["a"]["validation"][0].tolist() == [[2]]


def test_a_table_that_is_not_split_at_commas_shows_its_columns(tmp_path):
    table(tmp_path / "a.csv", "split;label;u", "train;0;1")
    assert "it has 'split;label;u'; split columns by commas" in refused(tmp_path)
    table(tmp_path / "a.csv", "part,label,u", "train,0,1")
    assert "no column split (it has 'part', 'label', 'u')" in refused(tmp_path)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"x_train": np.where(X == 3, np.nan, X)}, "silo a (train) has a missing or infinite value in its inputs"),
        ({"x_validation": np.where(X == 3, np.inf, X)}, "silo a (validation) has a missing or infinite"),
        ({"y_train": np.array([0, 1, np.nan, 0])}, "missing or infinite value in its targets"),
        ({"y_train": np.array(["cat", "dog", "cat", "dog"])}, "targets such as 'cat'"),
        ({"y_train": np.zeros((4, 2))}, "targets of shape (4, 2)"),
        ({"x_train": X * 1e300}, "the most float32 can hold"),
        ({"x_train": X[:, 0]}, "inputs of type float64 and shape (4,)"),
        ({"y_train": Y[:3]}, "x_train has shape (4, 2) but y_train (3,)"),
        ({"y_train": None}, "has x_train but not the other"),
        ({"x_validation": None, "y_validation": None}, "no validation data (it holds x_train, y_train)"),
        ({"x_train": X.astype(np.uint8)}, "all or none must be uint8"),
        ({"x_train": np.zeros((4, 3, 8, 8)), "x_validation": np.zeros((4, 3, 8, 8))}, "x.transpose(0, 2, 3, 1)"),
    ],
)
def test_arrays_that_cannot_be_used(other, says, tmp_path):
    archive(tmp_path / "a.npz", **other)
    assert says in refused(tmp_path)


def test_targets_of_other_shapes_and_types_are_taken(tmp_path):
    archive(tmp_path / "a.npz", y_train=Y[:, None], y_validation=Y.astype(float))
    archive(tmp_path / "b.npz", y_train=Y > 0)
    archive(tmp_path / "c.npz", y_train=Y + 0.5)
    silos = read_folder(tmp_path).silos
    for part in (silos["a"]["train"], silos["a"]["validation"], silos["b"]["train"]):
        assert part[1].tolist() == Y.tolist()
        assert part[1].dtype == np.int64
    assert silos["c"]["train"][1].tolist() == (Y + 0.5).tolist()


def test_damaged_files(tmp_path):
    archive(tmp_path / "a.npz")
    whole = (tmp_path / "a.npz").read_bytes()
    for damaged in (whole[:300], b"", whole[:100] + bytes(50) + whole[150:]):
        (tmp_path / "a.npz").write_bytes(damaged)
        assert "cannot be read" in refused(tmp_path)
    (tmp_path / "a.npz").unlink()
    (tmp_path / "a.csv").write_bytes(b"split,label,u\ntrain,0,\xff\n")
    assert "cannot be read as CSV" in refused(tmp_path)
    table(tmp_path / "a.csv", "split,label,u,u", "train,0,1,1")
    assert "two columns 'u'" in refused(tmp_path)


def test_garbage_instead_of_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_text("garbage that is long enough to have a footer")
    assert "cannot be read as Parquet" in refused(tmp_path)


def test_strangers_in_the_folder_are_named(tmp_path):
    archive(tmp_path / "a.npz")
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / ".hidden").write_text("hello")
    assert list(read_folder(tmp_path).silos) == ["a"]
    (tmp_path / "b.xlsx").write_text("hello")
    assert "holds b.xlsx, which no silo's data can be read from" in refused(tmp_path)
    (tmp_path / "b.xlsx").unlink()
    table(tmp_path / "c" / "train.csv", "u,v,label", "1,2,0")
    table(tmp_path / "c" / "val.csv", "u,v,label", "1,2,0")
    assert "holds val.csv" in refused(tmp_path)


def test_a_global_test_set_may_say_that_it_is_one(tmp_path):
    archive(tmp_path / "a.npz")
    table(tmp_path / "global-test.csv", "u,v,label,split", "1,2,1,test")
    test = read_folder(tmp_path).test
    assert test is not None
    assert test[0].tolist() == [[1, 2]]
    table(tmp_path / "global-test.csv", "u,v,label,split", "1,2,1,test", "1,2,1,train")
    assert "its column split says 'train'" in refused(tmp_path)


def test_the_checksum_follows_every_file(tmp_path):
    archive(tmp_path / "a.npz")
    table(tmp_path / "b" / "train.csv", "u,v,label", "1,2,0")
    table(tmp_path / "b" / "validation.csv", "u,v,label", "1,2,0")
    before = folders.checksum(tmp_path)
    assert folders.checksum(tmp_path) == before
    (tmp_path / "README").write_text("not data")
    assert folders.checksum(tmp_path) == before
    table(tmp_path / "b" / "validation.csv", "u,v,label", "1,2,1")
    assert folders.checksum(tmp_path) != before


def test_the_names_of_data_sets_are_those_there_are():
    assert set(folders.DATA_SETS) == set(LOADERS) | set(folders.NATURAL)


def test_silos_on_machines_of_their_own_know_their_test_parts_too(tmp_path, caplog):
    from feduca import api
    from feduca.flower.app import OneSilo
    from feduca.recipes import build as experiment

    archive(tmp_path / "a.npz", x_test=X, y_test=Y)
    archive(tmp_path / "b.npz")
    recipe = api.recipe({"task": {"data": str(tmp_path)}, "alone": True})
    task = experiment.make_task(recipe, 0)
    assert experiment.behaviour_of(recipe, 0, task).untouched
    for silo, known in (("a", 4), ("b", 0)):
        one = OneSilo(task, silo)
        assert (one.validation_examples.tolist(), one.test_examples.tolist()) == ([4], [known])
        assert experiment.behaviour_of(recipe, 0, one).untouched == (known > 0)
    archive(tmp_path / "a.npz")
    experiment.make_task(recipe, 0)
    assert "no silo has test data: who is better off than alone is not judged; give silos test rows" in caplog.text
