"""What the paper's recipes say: a changed figure in a recipe is a changed experiment, and must be meant."""

from __future__ import annotations

import pytest

from feduca.studies.execute import plan

PAPER = {  # the paper's settings, and those it leaves open (docs/readings.md)
    "rounds": 100, "seeds": [0, 1, 2], "task.classes_per_client": 5, "task.clients": 10, "task.train_concentration": 0.5,
    "task.validation_concentration": 1.0, "task.validation_share": 0.2, "local.epochs": 5, "local.batch_size": 50,
    "local.lr": 0.1, "local.lr_decay": 0.998, "local.weight_decay": 1e-3, "local.augment": True, "mechanism.n_s": 5,
    "mechanism.delta": 0.5, "mechanism.schedule": "lagged", "participation.rule": "utility", "memory.kind": "update",
}  # fmt: skip
FMNIST = {"local.weight_decay": 0.0, "local.augment": False, "task.hidden": [200, 100]}


def at(recipe, dotted):
    value = recipe.plain()
    for key in dotted.split("."):
        value = value[key]
    return value


def one(name, **labels):
    (cell,) = plan(name, keep={axis: [label] for axis, label in labels.items()})
    return cell.recipe


@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [
        (one("table1", data="cifar10", split="0.5,1.0", method="feduca"), PAPER),
        (one("table1", data="cifar10", split="1.0,1.0", method="feduca"), {**PAPER, "task.train_concentration": 1.0}),
        (one("table1", data="fmnist", split="0.5,1.0", method="feduca"), {**PAPER, **FMNIST}),
        (
            one("table1", data="cifar100", split="0.5,1.0", method="feduca"),
            {**PAPER, "task.clients": 20, "task.classes_per_client": 20, "task.model": "resnet18"},
        ),
        (
            one("text", method="feduca"),
            {**PAPER, "rounds": 50, "task.classes_per_client": 10, "local.weight_decay": 0.0, "local.augment": False},
        ),
    ],
    ids=["cifar10", "cifar10, 1.0", "fmnist", "cifar100", "20news"],
)
def test_the_papers_settings(recipe, wanted):
    assert {key: at(recipe, key) for key in wanted} == wanted


@pytest.mark.parametrize("data", ["cifar10", "fmnist", "cifar100"])
def test_baselines_differ_in_what_they_are_alone(data):
    """Nothing is tuned for one method: training and data are the same for all."""
    cells = plan("table1", keep={"data": [data], "split": ["0.5,1.0"]})
    told = {c.labels["method"]: c.recipe for c in cells}
    assert len({str((r.plain()["task"], r.plain()["local"], r.rounds, r.seeds)) for r in told.values()}) == 1
    baselines = ("fedavg", "fedprox", "incfl", "aaggff", "fedavg-ws")
    assert {(told[m].participation.rule, told[m].memory.kind) for m in baselines} == {("accuracy", "model")}
    assert told["fedavg-ws"].participation.warm_start == 5
    assert {told[m].participation.warm_start for m in told if m != "fedavg-ws"} == {0}
    assert told["fedprox"].mechanism["mu"] == 1e-4


def test_labels_say_what_is_set():
    for cell in plan("delta"):
        assert float(cell.labels["delta"]) == at(cell.recipe, "mechanism.delta")
    for cell in plan("strategies"):
        assert int(cell.labels["n_s"]) == at(cell.recipe, "mechanism.n_s")
        assert cell.labels["schedule"] == at(cell.recipe, "mechanism.schedule")
    told = {c.labels["inflation"]: c.recipe.plain()["reporting"] for c in plan("misreporting")}
    assert {label: (r["kind"], r["share"]) for label, r in told.items() if label != "0"} == {
        "5": ("inflate", 0.05),
        "10": ("inflate", 0.1),
    }
    assert told["0"]["kind"] == "truthful"
