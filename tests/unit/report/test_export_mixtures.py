"""Exported mixtures: the models and weights of what a silo deploys, and one network trained to answer like them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import feduca
from feduca.api import recorded
from feduca.cli.main import app
from feduca.errors import InputError
from feduca.recipes.build import build
from numpy_task import NumpyTask

ROUNDS = 3
STACK = {
    "task.clients": 4, "task.test_share": 0.3, "mechanism.name": "fedavg", "participation.rule": "loss", "compare": [],
    "participation.against": "outside", "participation.warm_start": 2, "offer.kind": "stack", "task.hidden": [16],
    "task.model": "mlp",
}  # fmt: skip
OWN = {key: value for key, value in STACK.items() if not key.startswith("task.")} | {"task.clients": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = feduca.run("quickstart", STACK, rounds=ROUNDS, out=tmp_path_factory.mktemp("runs")).run_dir
    assert directory
    return Path(directory)


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> feduca.Exported:
    return feduca.export_models(run, tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def distilled(run: Path, tmp_path_factory: pytest.TempPathFactory) -> feduca.Exported:
    return feduca.export_models(run, tmp_path_factory.mktemp("out"), distil=True)


def test_the_next_round_records_exactly_the_figures_of_the_export(exported: feduca.Exported) -> None:
    """A run that is one round longer deploys there, and scores on untouched data, what was exported."""
    later = feduca.run("quickstart", STACK, rounds=ROUNDS + 1).clients[-1]
    assert exported.card["mixtures"]  # some silos mix
    assert exported.card["scores"]["test"]["accuracy"] == later["test_deployed"]
    for k, silo in enumerate(exported.card["silos"]):
        weights = {name: later["noted"][f"weight_{name}"][k] for name in ("shared", "tuned", "private")}
        used = {name: w for name, w in weights.items() if w > 0}
        assert exported.card["mixtures"].get(silo, used) == used
        assert (silo in exported.card["mixtures"]) == (len(used) > 1)


def test_a_loaded_mixture_scores_on_the_silos_test_data_what_its_card_says(
    run: Path, exported: feduca.Exported
) -> None:
    chosen, _ = recorded(str(run))
    task = build(chosen, 0).task
    again = feduca.load(exported.path)
    for k, silo in enumerate(again.card["silos"]):  # type: ignore[union-attr]
        rows = torch.as_tensor(task.members[k].rows["test"])
        with torch.no_grad():
            said = again.module(silo)(task.pool.examples(rows))  # type: ignore[union-attr]
        right = (said.argmax(-1) == task.pool.targets(rows)).double().mean().item()
        loss = torch.nn.functional.cross_entropy(said.double(), task.pool.targets(rows)).item()
        assert right == pytest.approx(exported.card["scores"]["test"]["accuracy"][k], abs=1e-12)
        assert loss == pytest.approx(exported.card["scores"]["test"]["loss"][k], rel=1e-5)
        if silo in exported.card["mixtures"]:
            assert said.double().exp().sum(-1) == pytest.approx(np.ones(len(rows)))


def test_into_a_module_of_ones_own_goes_a_mixture_too(exported: feduca.Exported) -> None:
    silo = next(iter(exported.card["mixtures"]))
    inputs = torch.rand(5, 64)
    blank = torch.nn.Sequential(torch.nn.Linear(64, 3))
    with pytest.raises(InputError, match="holds another model than the one given"):
        exported.module(silo, into=blank)
    shape = exported.module("global")
    assert torch.equal(exported.module(silo, into=shape)(inputs), exported.module(silo)(inputs))


def test_the_card_says_who_mixes_what(exported: feduca.Exported) -> None:
    card = (exported.path / "README.md").read_text()
    for silo, weights in exported.card["mixtures"].items():
        assert f"a mixture: {', '.join(f'{name} {w:.3f}' for name, w in weights.items())}" in card
        assert set(exported.models[silo]) == {f"{m}/{key}" for m in weights for key in exported.models["global"]}
    assert "--distil" in card


def test_one_network_answers_much_like_its_mixture(
    exported: feduca.Exported, distilled: feduca.Exported, run: Path
) -> None:
    mixtures, scores = exported.card["mixtures"], distilled.card["scores"]
    assert distilled.card["distilled"] == mixtures
    assert set(scores["distilled"]["test"]) == set(mixtures)
    assert scores["test"] == exported.card["scores"]["test"]  # the mixtures', beside it
    task = build(recorded(str(run))[0], 0).task
    for k, silo in enumerate(distilled.card["silos"]):
        assert set(distilled.models[silo]) == set(distilled.models["global"])
        if silo not in mixtures:
            assert all(np.array_equal(distilled.models[silo][key], a) for key, a in exported.models[silo].items())
            continue
        inputs = task.pool.examples(torch.as_tensor(task.members[k].rows["train"]))
        with torch.no_grad():
            one = distilled.module(silo)(inputs).double().softmax(-1)
            mixture = exported.module(silo)(inputs).softmax(-1)
            closest = min(
                (part(inputs).double().softmax(-1) - mixture).abs().mean()
                for part in exported.module(silo).parts.values()
            )  # type: ignore[union-attr]
        assert (one - mixture).abs().mean() < closest
        assert scores["distilled"]["test"][silo]["accuracy"] == pytest.approx(scores["test"]["accuracy"][k], abs=0.1)
    text = (distilled.path / "README.md").read_text()
    assert "| one network |" in text
    assert "*one network* each" in text


@pytest.mark.parametrize("options", [[], ["--distil"]])
def test_the_command_writes_the_same_bytes_each_time(
    exported: feduca.Exported, distilled: feduca.Exported, run: Path, tmp_path: Path, options: list[str]
) -> None:
    earlier = distilled if options else exported
    done = CliRunner().invoke(app, ["export", str(run), "-o", str(tmp_path / "out"), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for file in (path for path in earlier.path.rglob("*") if path.is_file()):
        assert (tmp_path / "out" / file.relative_to(earlier.path)).read_bytes() == file.read_bytes()


def test_a_task_of_ones_own_is_exported_as_a_mixture_and_cannot_be_distilled(tmp_path: Path) -> None:
    fits_too_well = {"local.epochs": 20, "local.lr": 2.0, "local.batch_size": 5}
    directory = feduca.run({}, {**OWN, **fits_too_well}, rounds=5, out=tmp_path / "runs", task=NumpyTask()).run_dir
    assert directory
    exported = feduca.export_models(directory, tmp_path / "out", task=NumpyTask())
    silo, weights = next(iter(exported.card["mixtures"].items()))
    assert set(exported.models[silo]) == {f"{name}/theta" for name in weights}
    with pytest.raises(
        InputError, match="distil trains a PyTorch model, and the task is a NumpyTask; leave out distil"
    ):
        feduca.export_models(directory, tmp_path / "out", task=NumpyTask(), distil=True)


def test_there_must_be_something_to_distil(tmp_path: Path) -> None:
    directory = feduca.run({}, {"task.clients": 4}, rounds=1, out=tmp_path / "runs", task=NumpyTask()).run_dir
    assert directory
    with pytest.raises(
        InputError, match="no silo of this run deploys a mixture of outputs, so there is nothing to distil"
    ):
        feduca.export_models(directory, tmp_path / "out", task=NumpyTask(), distil=True)


def test_a_private_model_that_is_deployed_again_is_called_the_silos_own(tmp_path: Path) -> None:
    """After a round in the shared training, who declines deploys its outside option, which is not what it trained last."""
    settings = {**OWN, "offer.kind": "global", "participation.rule": "accuracy"}
    task = NumpyTask(validation=12)
    later = feduca.run({}, settings, rounds=7, task=task)
    directory = feduca.run({}, settings, rounds=6, out=tmp_path / "runs", task=task).run_dir
    assert directory
    exported = feduca.export_models(directory, tmp_path / "out", task=task)
    assert exported.card["scores"]["own_model"] == [word == "declined" for word in later.clients[-1]["status"]]
    assert any(exported.card["scores"]["own_model"])
