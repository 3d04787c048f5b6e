"""Data in memory: what is taken, what is refused in one line, and that a run on it is a run on the same files."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import feduca
from feduca.errors import ConfigError, DataError
from feduca.tasks import build_own_task

RNG = np.random.default_rng(0)


def part(n, classes=3, tilt=0.0):
    x = RNG.normal(size=(n, 4)).astype(np.float32)
    return x, ((x[:, 0] + tilt * x[:, 1] > 0).astype(int) + (x[:, 2] > 0.5) * (classes > 2)).astype(np.int64)


SILOS = {
    name: (*part(40, tilt=k), *part(20, tilt=k), *part(20, tilt=k)) for k, name in enumerate(("north", "south", "east"))
}
FAST = {"local.epochs": 1}


def test_silos_in_memory_are_silos_in_files(tmp_path):
    for name, (x, y, xv, yv, xt, yt) in SILOS.items():
        archive = {"x_train": x, "y_train": y, "x_validation": xv, "y_validation": yv, "x_test": xt, "y_test": yt}
        np.savez(tmp_path / f"{name}.npz", **archive)
    tensors = {name: tuple(torch.from_numpy(a) for a in SILOS[name]) for name in sorted(SILOS)}
    tasks = [
        build_own_task(str(tmp_path)),
        feduca.own_task({name: SILOS[name] for name in sorted(SILOS)}),
        feduca.own_task(tensors),
    ]
    results = [feduca.run("tailored", FAST, rounds=2, task=task) for task in tasks]
    assert results[0].silos == ("east", "north", "south")
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].theta, other.theta)
        assert other.summary["better_off"] == results[0].summary["better_off"]
    assert feduca.own_task(SILOS).silos == ("north", "south", "east")  # as they are given
    assert len({task.fingerprint() for task in tasks}) == 1


def test_without_a_test_part_a_run_goes_on_and_says_what_is_lacking(caplog):
    four = {name: arrays[:4] for name, arrays in SILOS.items()}
    result = feduca.run("tailored", FAST, rounds=2, task=feduca.own_task(four))
    assert "better_off" not in result.summary
    assert "no silo has test data" in caplog.text
    assert feduca.own_task(four, test=part(10)).test(feduca.own_task(four).init(0)) is not None


def test_what_will_surprise_is_said_in_a_line(caplog):
    def one_class(n):
        x, y = part(n)
        return x, np.ones_like(y)

    silos = {"a": (*part(30), *part(12), *part(9)), "b": (*one_class(20), *one_class(9))}
    task = feduca.own_task(silos, classes=3)
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("silo b has class 1 alone, to train on and to decide by: ")
    assert len(said) == 2
    assert said[1].startswith("no untouched test part: b, unlike 1 other silo;")
    assert repr(task) == f"TorchTask(2 silos, 3 classes, mlp, {task.parameters} parameters)"
    caplog.clear()
    alone = feduca.own_task({"a": silos["a"]})
    assert not caplog.records
    feduca.run("quickstart", rounds=1, task=alone)
    assert "there is one silo, a: it federates with nobody" in caplog.text


def relabelled(change):
    return {name: tuple(change(a) if i % 2 else a for i, a in enumerate(arrays)) for name, arrays in SILOS.items()}


def test_labels_from_one_words_and_a_declared_number():
    plain = feduca.own_task(SILOS)
    assert plain.describe()["classes"] == 3
    from_one = feduca.own_task(relabelled(lambda y: y + 1), classes=3)
    assert from_one.fingerprint() == plain.fingerprint()
    assert from_one.describe()["labels"] == ["1", "2", "3"]
    words = np.array(["high", "low", "middle"])
    worded = feduca.own_task(relabelled(lambda y: words[y]))
    assert worded.fingerprint() == plain.fingerprint()
    assert worded.describe()["labels"] == ["high", "low", "middle"]
    assert feduca.own_task(relabelled(lambda y: words[y].astype(object))).fingerprint() == plain.fingerprint()
    assert feduca.own_task(SILOS, classes=10).describe()["classes"] == 10
    spelt = feduca.own_task(relabelled(lambda y: words[y].astype(bytes)))
    assert (spelt.fingerprint(), spelt.describe()["labels"]) == (plain.fingerprint(), ["high", "low", "middle"])


def test_tensors_of_half_precision_are_taken_as_they_are():
    def halved(dtype):
        silos = {n: tuple(torch.from_numpy(a) for a in arrays) for n, arrays in SILOS.items()}
        return {n: tuple(a.to(dtype) if i % 2 == 0 else a for i, a in enumerate(s)) for n, s in silos.items()}

    whole = {
        n: tuple(a.float() if i % 2 == 0 else a for i, a in enumerate(s)) for n, s in halved(torch.bfloat16).items()
    }
    assert feduca.own_task(halved(torch.bfloat16)).fingerprint() == feduca.own_task(whole).fingerprint()
    assert feduca.own_task(halved(torch.float16)).fingerprint() != feduca.own_task(whole).fingerprint()


@pytest.mark.parametrize(
    ("silos", "options", "says"),
    [
        (np.zeros((3, 2)), {}, r"the silos are an array of shape \(3, 2\): give a mapping from silos' names"),
        ([1, 2], {}, "the silos are list"),
        (relabelled(lambda y: np.where(y > 1, np.inf, y + 1.0)), {}, "a missing or infinite value in its targets"),
        ({}, {}, "there are no silos"),
        ({3: SILOS["north"]}, {}, "a silo is called 3"),
        ({"a": SILOS["north"][:3]}, {}, "silo a is given 3 entries"),
        ({"a": np.zeros(4)}, {}, "silo a is given an array of shape"),
        ({"a": (*part(3)[:1], np.zeros(2), *part(3))}, {}, r"silo a has inputs of shape \(3, 4\) and targets of shape \(2,\)"),
        ({"a": (*part(3), *part(0))}, {}, "silo a has no validation data"),
        ({"a": ([[1.0, 2.0], [3.0]], [0, 1], *part(3))}, {}, "is no array"),
        (relabelled(lambda y: y + 1), {}, r"labels run from 1 to 3, and none is 0: say classes=3 if .*, or classes=4"),
        (relabelled(lambda y: y + 2), {"classes": 3}, r"has label 4, and classes is 3"),
        (SILOS, {"classes": 2}, r"has label 2, and classes is 2"),
        (SILOS, {"classes": "3"}, r"classes is '3'"),
        (SILOS, {"model": nn.Linear}, r"model is Linear, which makes no model .* lambda: nn\.Linear\(inputs, classes\)"),
        (SILOS, {"model": lambda: nn.LSTM(4, 3)}, r"returns a tuple: it must return one tensor, \[examples, 3\]"),
        ({**SILOS, "west": relabelled(lambda y: y.astype(str))["north"]}, {}, "labels are words in west and numbers elsewhere"),
        (SILOS, {"test": part(3)[0]}, "the global test set is given an array"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(silos, options, says):
    with pytest.raises((DataError, ConfigError), match=says) as caught:
        feduca.own_task(silos, **options)
    assert "\n" not in str(caught.value)


def test_values_in_memory():
    silos = relabelled(lambda y: y * 1.5 + 1)
    task = feduca.own_task(silos, metric="r2")
    assert task.describe()["classes"] == 1
    assert feduca.run("quickstart", FAST, rounds=1, task=task).summary["metric"] == "r2"


class Worded(nn.Module):
    """As language models answer."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return SimpleNamespace(logits=self.head(self.body(x).tanh()), loss=None)


class Tied(nn.Module):
    """One matrix in two places."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 3)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.head(self.two(self.one(x).tanh()).tanh())


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (Worded, 8 * 4 + 8 + 3 * 8 + 3),
        (Tied, 16 + 15),
        (lambda: nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3)), 8 * 4 + 8 + 3 * 8 + 3),
    ],
    ids=["logits", "tied", "lazy"],
)
def test_models_of_all_kinds_train_alike_in_both_engines(model, parameters, tmp_path):
    thetas = []
    for kind in ("stacked", "sequential"):
        task = feduca.own_task(SILOS, model=model, engine=kind)
        assert task.settings.kind == kind
        assert task.parameters == parameters
        result = feduca.run("tailored", rounds=2, task=task, out=tmp_path / kind)
        thetas.append(np.asarray(result.theta))
    np.testing.assert_allclose(thetas[0], thetas[1], atol=1e-4)
    assert not np.allclose(thetas[0], np.asarray(task.init(0)))
    again = feduca.own_task(SILOS, model=model, engine="stacked")
    np.testing.assert_array_equal(again.init(3), again.init(3))
