"""Readers of the official files, and what they say of missing or damaged ones."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from feduca.errors import ConfigError, DataError
from feduca.recipes.folders import NATURAL
from feduca.tasks.data import LOADERS, available, digits, images, load, news
from feduca.tasks.data.base import folder


def one_line(caught) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_digits_are_always_there():
    data = digits()
    assert data.x_train.shape == (1438, 64)
    assert data.x_test.shape == (359, 64)
    assert data.x_train.dtype == np.float32
    assert 0 <= data.x_train.min() < data.x_train.max() == 1
    again = digits()
    assert (again.y_test == data.y_test).all()


def test_the_data_directory_is_argument_then_variable_then_data(monkeypatch):
    monkeypatch.setenv("FEDUCA_DATA", "/from/variable")
    assert folder("/given") == Path("/given")
    assert folder(None) == Path("/from/variable")
    monkeypatch.delenv("FEDUCA_DATA")
    assert folder(None) == Path("data")


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ConfigError, match="digits, fmnist, cifar10, cifar100, 20news") as caught:
        load("mnist")
    one_line(caught)


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (images.cifar10, "fetch cifar-10-binary.tar.gz from https://"),
        (images.cifar100, "fetch cifar-100-binary.tar.gz from https://"),
        (news.newsgroups, "fetch http://qwone.com/"),
    ],
)
def test_missing_sets_say_where_to_get_them(loader, says, tmp_path):
    with pytest.raises(DataError, match=says) as caught:
        loader(str(tmp_path))
    assert str(tmp_path) in one_line(caught)


def test_missing_fashion_mnist(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "FMNIST_PACKAGED", tmp_path / "nowhere")
    with pytest.raises(DataError, match="dataset-fashion-mnist") as caught:
        images.fmnist(str(tmp_path))
    one_line(caught)


def test_a_data_directory_that_is_named_is_not_replaced_by_the_packaged_one(tmp_path, monkeypatch):
    packaged = tmp_path / "packaged"
    packaged.mkdir()
    (packaged / "train-images-idx3-ubyte.gz").write_bytes(b"x")
    monkeypatch.setattr(images, "FMNIST_PACKAGED", packaged)
    monkeypatch.setenv("FEDUCA_DATA", str(tmp_path / "empty"))
    for named in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DataError, match=r"no Fashion-MNIST in task\.data_dir") as caught:
            images.fmnist(str(named))
        assert str(named) in one_line(caught)
        assert ("no folder" in str(caught.value)) == (not named.exists())
        assert available(str(named))["fmnist"] is None
    with pytest.raises(DataError, match="does not unpack"):  # unset: it goes on to the package
        images.fmnist()
    assert available()["fmnist"] == packaged


def test_an_archive_that_was_not_unpacked(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"")
    with pytest.raises(DataError, match="unpack it there"):
        images.cifar10(str(tmp_path))


def test_truncated_and_damaged_files(tmp_path):
    home = tmp_path / "cifar-10-batches-bin"
    home.mkdir()
    with pytest.raises(DataError, match=r"data_batch_1.bin is missing"):
        images.cifar10(str(tmp_path))
    (home / "data_batch_1.bin").write_bytes(b"\0" * 1000)
    with pytest.raises(DataError, match="1000 bytes where 30730000 belong"):
        images.cifar10(str(tmp_path))
    (home / "data_batch_1.bin").write_bytes(b"\0" * 30_730_000)
    with pytest.raises(DataError, match="damaged") as caught:
        images.cifar10(str(tmp_path))
    one_line(caught)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"not gzip", "does not unpack"), (gzip.compress(b"\0" * 99)[:-9], "does not unpack"), (None, "99 bytes where")],
    ids=["not gzip", "cut off", "too short"],  # gzip writes the time: workers would see tests of different names
)
def test_damaged_idx_files(content, says, tmp_path):
    home = tmp_path / "fashion-mnist"
    home.mkdir()
    path = home / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0" * 99) if content is None else content)
    with pytest.raises(DataError, match=says) as caught:
        images.fmnist(str(tmp_path))
    one_line(caught)


def test_idx_layout(tmp_path):
    pixels = np.arange(24, dtype=np.uint8)
    payload = bytes([0, 0, 8, 3]) + np.array([2, 3, 4], ">i4").tobytes() + pixels.tobytes()
    (tmp_path / "tiny").write_bytes(payload)
    import hashlib

    read = images._idx(tmp_path, "tiny", len(payload), hashlib.md5(payload).hexdigest())
    assert (read == pixels.reshape(2, 3, 4)).all()


def test_cifar_records_are_labels_then_planes():
    rows = np.zeros((2, 2 + 3072), np.uint8)
    rows[:, 0], rows[:, 1] = (7, 8), (41, 42)  # coarse, fine
    rows[0, 2 : 2 + 1024] = 9  # the red plane of the first image
    x, y = images._records(rows.tobytes(), 2)
    assert y.tolist() == [41, 42]
    data = images._cifar("tiny", [(x, y)], [(x, y)], ["a"] * 100, (0.5,) * 3, (0.5,) * 3)
    assert data.x_train.shape == (2, 32, 32, 3)
    assert (data.x_train[0, :, :, 0] == 9).all()
    assert not data.x_train[0, :, :, 1:].any()


def test_python_batches_are_unpickled_without_running_anything(tmp_path):
    pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    good = pickle.dumps({b"data": pixels, b"labels": [3, 4]}, protocol=4)
    x, y = images._unpickle(tmp_path / "batch", good, "labels")
    assert (x == pixels).all()
    assert y.tolist() == [3, 4]
    evil = pickle.dumps({b"data": os.getcwd, b"labels": []}, protocol=4)
    with pytest.raises(DataError, match="does not belong in a data set") as caught:
        images._unpickle(tmp_path / "batch", evil, "labels")
    one_line(caught)
    home = tmp_path / "cifar-10-batches-py"
    home.mkdir()
    (home / "data_batch_1").write_bytes(evil)
    with pytest.raises(DataError, match="has md5"):  # never even looked into
        images.cifar10(str(tmp_path))


MESSAGE = """From: somebody@somewhere
Subject: a subject

In article <1@b> other@place writes:
> what they said
My own words, here.
It's 1993.

-- 
A signature
"""


def test_news_are_stripped_and_numbered():
    assert news.body(MESSAGE) == "My own words, here.\nIt's 1993.\n"
    texts = [news.words(news.body(MESSAGE)), ["my", "own"], []]
    assert texts[0] == ["my", "own", "words", "here", "it's", "1993"]
    known = news.vocabulary(texts, 3)
    assert known == {"my": 2, "own": 3, "1993": 4}
    assert news.encode(texts, known, 4).tolist() == [[2, 3, 1, 1], [2, 3, 0, 0], [1, 0, 0, 0]]


def test_news_with_a_message_too_few(tmp_path):
    group = tmp_path / "20news-bydate-train" / "sci.space"
    group.mkdir(parents=True)
    (group / "1").write_text(MESSAGE)
    with pytest.raises(DataError, match="1 messages of 1 groups where 11314 of 20 belong") as caught:
        news.newsgroups(str(tmp_path))
    one_line(caught)


@pytest.mark.skipif(not images.FMNIST_PACKAGED.is_dir(), reason="Fashion-MNIST is not installed")
def test_the_real_fashion_mnist():
    data = load("fmnist")
    assert data.x_train.shape == (60_000, 28, 28, 1)
    assert np.bincount(data.y_train).tolist() == [6000] * 10
    assert data.mean is not None
    assert data.x_train.mean() / 255 == pytest.approx(data.mean[0], abs=1e-3)
    assert data.std is not None
    assert data.x_train.std() / 255 == pytest.approx(data.std[0], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "test", "classes"),
    [
        ("cifar10", (50_000, 32, 32, 3), (10_000, 32, 32, 3), 10),
        ("cifar100", (50_000, 32, 32, 3), (10_000, 32, 32, 3), 100),
        ("20news", (11_314, 200), (7_532, 200), 20),
    ],
)
def test_the_real_sets(name, train, test, classes):
    try:
        data = load(name)
    except DataError as error:
        pytest.skip(str(error))
    assert data.x_train.shape == train
    assert data.x_test.shape == test
    assert data.classes == classes
    assert set(data.y_train) == set(data.y_test) == set(range(classes))
    if data.mean is not None:
        np.testing.assert_allclose(data.x_train.mean((0, 1, 2)) / 255, data.mean, atol=1e-3)


def test_available_looks_without_reading(tmp_path):
    found = available(str(tmp_path))
    assert found["digits"] is not None
    assert found["cifar10"] is None
    (tmp_path / "cifar-10-batches-bin").mkdir()
    assert available(str(tmp_path))["cifar10"] is None  # an empty folder is no data set
    (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").write_bytes(b"")
    assert available(str(tmp_path))["cifar10"] == tmp_path / "cifar-10-batches-bin"
    assert set(found) == set(LOADERS) | set(NATURAL)


def test_another_folder_is_read_anew(tmp_path, monkeypatch):
    read = []
    monkeypatch.setitem(LOADERS, "digits", lambda data_dir: read.append(folder(data_dir)) or digits())
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("FEDUCA_DATA", str(tmp_path / "one"))
    first = load("digits")
    assert load("digits") is first
    monkeypatch.setenv("FEDUCA_DATA", str(tmp_path / "two"))
    assert load("digits") is not first
    monkeypatch.delenv("FEDUCA_DATA")
    for name in ("one", "two"):  # ./data of two working directories
        monkeypatch.chdir(tmp_path / name)
        load("digits")
    assert read == [tmp_path / "one", tmp_path / "two", Path("data"), Path("data")]


NEWS = {  # a corpus of two groups, a message each in both parts
    "train": {"sci.space": "moon moon rocket", "sci.med": "moon nurse"},
    "test": {"sci.space": "telescope telescope telescope moon", "sci.med": "nurse telescope"},
}


def corpus(home: Path, monkeypatch, places=NEWS) -> None:
    """Write `places` as the official folders, and expect NEWS there."""
    for split, groups in places.items():
        for group, text in groups.items():
            path = home / f"20news-bydate-{split}" / group / "1"
            path.parent.mkdir(parents=True)
            path.write_text(f"From: me\n\n{text}\n")
    expected = {
        split: (2, news.checksum(list(groups), [f"From: me\n\n{text}\n".encode() for text in groups.values()]))
        for split, groups in NEWS.items()
    }
    monkeypatch.setattr(news, "GROUPS", 2)
    monkeypatch.setattr(news, "EXPECTED", expected)


def test_the_vocabulary_is_that_of_the_training_messages(tmp_path, monkeypatch):
    corpus(tmp_path, monkeypatch)
    data = news.newsgroups(str(tmp_path))
    assert data.labels == ("sci.med", "sci.space")
    moon, nurse, rocket = 2, 3, 4  # by how often they are in the training part; "telescope" is not
    assert data.vocabulary == 5
    assert [row[row > 0].tolist() for row in data.x_train] == [[moon, nurse], [moon, moon, rocket]]
    assert [row[row > 0].tolist() for row in data.x_test] == [[nurse, 1], [1, 1, 1, moon]]
    whole = load("20news-whole", str(tmp_path))  # with "From: me", which both training messages have
    assert (data.name, whole.name) == ("20news", "20news-whole")
    start, moon, nurse = [3, 4], 2, 5
    firsts = [x[0][x[0] > 0].tolist() for x in (whole.x_train, whole.x_test)]
    assert firsts == [[*start, moon, nurse], [*start, nurse, 1]]


def test_messages_in_each_others_groups_are_refused(tmp_path, monkeypatch):
    swapped = {**NEWS, "train": dict(zip(NEWS["train"], reversed(NEWS["train"].values())))}
    corpus(tmp_path, monkeypatch, swapped)
    with pytest.raises(DataError, match="damaged or in a wrong group") as caught:
        news.newsgroups(str(tmp_path))
    one_line(caught)
