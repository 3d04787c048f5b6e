"""Runs of a task of one's own: their names, what they record, and the same from the command line."""

import functools
import json
import shutil
import sys
import tomllib

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import feduca
from feduca.cli.main import app
from feduca.errors import ConfigError, FeducaError, InputError
from feduca.flower.app import OneSilo
from feduca.flower.client import introduce
from feduca.recipes.build import behaviour_of, build, make_server
from feduca.report import write as write_report
from feduca.tasks import build_own_task
from numpy_task import NumpyTask

FAST = {"local.epochs": 1, "local.lr": 0.05, "utility.check": 4}


def write_silos(folder, *, values=False, seed=0, test=False, common=True):
    """Three archives in a folder, and a test set for everybody."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)

    def examples(part, n):
        x = rng.normal(size=(n, 2)).astype(np.float32)
        return {f"x_{part}": x, f"y_{part}": x.sum(1) if values else (x[:, 0] > 0).astype(np.int64)}

    for name, n in (("a", 30), ("b", 20), ("c", 12)):
        parts = examples("train", n) | examples("validation", 10) | (examples("test", 8) if test else {})
        np.savez(folder / f"{name}.npz", **parts)
    if common:
        np.savez(folder / "global-test.npz", **examples("test", 40))
    return str(folder)


def run_dir(task, out, **settings):
    return feduca.run({"name": "mine"}, FAST | settings, rounds=2, task=task, out=out).run_dir


def test_a_run_is_named_after_what_its_task_computes(tmp_path):
    silos, values = write_silos(tmp_path / "silos"), write_silos(tmp_path / "values", values=True)
    other = write_silos(tmp_path / "other", seed=1)
    moved = str(shutil.copytree(silos, tmp_path / "moved"))

    def first(outputs, targets):
        return float((outputs.argmax(1) == targets).mean())

    def second(outputs, targets):
        return float((outputs.argmax(1) == targets).mean()) / 2

    second.__name__ = "first"

    def small():
        return nn.Linear(2, 2)

    tasks = {
        "mlp": build_own_task(silos),
        "logistic": build_own_task(silos, model="logistic"),
        "other data": build_own_task(other),
        "auc": build_own_task(silos, metric="auc"),
        "values": build_own_task(values, metric="r2"),
        "sequential": build_own_task(silos, engine="sequential"),
        "a metric": build_own_task(silos, metric=first),
        "another of that name": build_own_task(silos, metric=second),
        "a module": build_own_task(silos, model=small),
        "numpy": NumpyTask(3),
        "more silos": NumpyTask(4),
    }
    names = {what: run_dir(task, tmp_path / "runs") for what, task in tasks.items()}
    assert len(set(names.values())) == len(tasks)
    assert run_dir(build_own_task(moved), tmp_path / "runs") == names["mlp"]
    assert run_dir(build_own_task(silos, model=small), tmp_path / "runs") == names["a module"]
    assert run_dir(NumpyTask(3), tmp_path / "runs") == names["numpy"]


SCALE = 1.0


def scaled(k, weights=None):
    def score(outputs, targets):
        return float((outputs.argmax(1) == targets).mean()) * k * SCALE * (1 if weights is None else weights.sum())

    return score


class Scaled(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.layer, self.k = nn.Linear(2, 2), k

    def before(self, x):
        return x * self.k

    def forward(self, x):
        return self.layer(self.before(x))


class Other(Scaled):
    def before(self, x):
        return x / self.k


Other.__name__ = "Scaled"


def test_a_task_that_refers_to_something_else_is_another(tmp_path, monkeypatch):
    """Or a run of the one would be read back as the other's."""
    silos = write_silos(tmp_path / "silos")

    def name(**own):
        return build_own_task(silos, **own).fingerprint()

    assert name(metric=scaled(1)) == name(metric=scaled(1))
    assert name(model=lambda: Scaled(1)) == name(model=lambda: Scaled(1))
    told = [
        name(metric=scaled(1)),
        name(metric=scaled(2)),
        name(metric=scaled(1, np.ones(2))),
        name(metric=scaled(1, np.zeros(2))),
        name(metric=functools.partial(score_of, 1)),
        name(metric=functools.partial(score_of, 2)),
        name(model=lambda: Scaled(1)),
        name(model=lambda: Scaled(2)),
        name(model=lambda: Other(1)),
        name(loss=nn.CrossEntropyLoss(reduction="none")),
        name(loss=nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)),
    ]
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    assert len({*told, name(metric=scaled(1))}) == len(told) + 1


def score_of(k, outputs, targets):
    return float((outputs.argmax(1) == targets).mean()) * k


def test_what_is_recorded_is_what_was_used(tmp_path):
    task = build_own_task(write_silos(tmp_path / "silos", test=True), model="logistic", engine="sequential")
    folder = run_dir(task, tmp_path / "runs")
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["own"] == task.fingerprint()
    assert config["task"] == {"clients": 3}
    assert "engine" not in config
    told = json.loads((folder / "env.json").read_text())["task"]
    assert (told["model"], told["metric"], told["loss"]) == ("logistic", "accuracy", "cross-entropy")
    assert told["engine"]["kind"] == "sequential"
    record = feduca.load(folder).clients[-1]
    assert all(value is not None for value in record["test_deployed"])  # the silos' test parts are looked at


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"task.data": "cifar10"}, "task.data is 'cifar10' beside a task of your own"),
        ({"task.test_share": 0.5}, "task.test_share is 0.5 beside"),
        ({"engine.device": "cuda"}, "engine.device is 'cuda' beside"),
        ({"task.clients": 4}, "task.clients is 4, but the task given has 3 silos"),
    ],
)
def test_settings_that_do_not_reach_the_task_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        feduca.run({}, settings, rounds=1, task=NumpyTask(3))
    with pytest.raises(ConfigError, match=r"engine\.device is 'cuda' beside"):
        next(feduca.iterate({}, device="cuda", task=NumpyTask(3)))
    feduca.run({}, {"task.clients": 3}, rounds=1, task=NumpyTask(3))


def test_settings_of_silos_go_by_the_tasks_number():
    result = feduca.run({}, {"reporting.kind": "inflate", "reporting.share": [0.1] * 12}, rounds=1, task=NumpyTask(12))
    assert len(result.clients[0]["status"]) == 12


def test_the_recipes_own_task_is_no_other(tmp_path):
    from feduca.recipes.build import make_task

    chosen = feduca.recipe({}, {"task.max_examples": 200, "engine.threads": 1, **FAST}, rounds=1)
    direct = feduca.run(chosen, out=tmp_path)
    given = feduca.run(chosen, out=tmp_path, task=make_task(chosen, 0))
    assert given.run_dir == direct.run_dir
    assert feduca.run(chosen, out=tmp_path, seed=1, task=make_task(chosen, 0)).config["own"]


def test_another_task_or_none_is_refused_afterwards(tmp_path):
    silos = write_silos(tmp_path / "silos")
    folder = run_dir(build_own_task(silos), tmp_path / "runs")
    with pytest.raises(InputError, match=r"a task of its own .*from Python with task="):
        feduca.export_models(folder, tmp_path / "out")
    with pytest.raises(InputError, match="not the one this run was made with"):
        feduca.export_models(folder, tmp_path / "out", task=build_own_task(silos, model="logistic"))
    assert len(feduca.export_models(folder, tmp_path / "out", task=build_own_task(silos)).models) == 4
    with pytest.raises(InputError, match="which no recipe describes"):
        feduca.run(folder / "config.toml", out=tmp_path / "again")


def test_a_module_of_ones_own_comes_back(tmp_path):
    def network():
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    task = build_own_task(write_silos(tmp_path / "silos"), model=network)
    exported = feduca.export_models(run_dir(task, tmp_path / "runs"), tmp_path / "out", task=task)
    with pytest.raises(InputError, match="into="):
        exported.module("global")
    module = exported.module("global", into=network())
    assert not module.training
    np.testing.assert_array_equal(module[0].weight.detach().numpy(), exported.models["global"]["0.weight"])
    with pytest.raises(InputError, match="another model"):
        exported.module("global", into=nn.Linear(2, 2))


def test_confidence_is_about_counts(tmp_path):
    task = build_own_task(write_silos(tmp_path / "silos", values=True), metric="r2")
    with pytest.raises(ConfigError, match=r"participation\.confidence is 0\.9 with the metric 'r2'"):
        feduca.run({}, {"participation.confidence": 0.9}, rounds=1, task=task)


def test_a_deployed_silo_is_asked_and_judged_as_a_simulated_one(tmp_path):
    """Its own counts and its own test part; a confidence in other scores than accuracy is refused before a round begins."""
    folder = write_silos(tmp_path / "silos", test=True)
    with np.load(f"{folder}/c.npz") as parts:
        kept = {name: values for name, values in parts.items() if not name.endswith("_test")}
    np.savez(f"{folder}/c.npz", **kept)  # no test part of its own
    recipe = feduca.recipe({}, {"task.data": folder})
    whole = build(recipe, 0).task
    each = [OneSilo(whole, name) for name in whole.silos]
    assert [int(one.validation_examples[0]) for one in each] == whole.validation_examples.tolist() == [10, 10, 10]
    assert [int(one.test_examples[0]) for one in each] == whole.test_examples.tolist() == [8, 8, 0]
    assert [behaviour_of(recipe, 0, one).untouched for one in each] == [True, True, False]
    assert behaviour_of(recipe, 0, whole).untouched

    class Values:
        recipe = feduca.recipe({}, {"participation.confidence": 0.9, "task.clients": 3})
        task = build_own_task(write_silos(tmp_path / "values", values=True), metric="r2")

        def server(self, config):
            return self.task

        def silo(self, name, index, config):
            return self.task

    for refused in (
        lambda: introduce(Values(), "a", {"silo": "a", "folder": str(tmp_path / "a")}),
        lambda: behaviour_of(Values.recipe, 0, OneSilo(Values.task, "a")),
        lambda: make_server(Values.recipe, 0, Values.task),
    ):
        with pytest.raises(ConfigError, match=r"participation\.confidence is 0\.9 with the metric 'r2'"):
            refused()


def test_other_scores_go_by_their_own_name(tmp_path):
    task = build_own_task(write_silos(tmp_path / "silos", values=True), metric="r2", model="logistic")
    result = feduca.run({"name": "mine"}, FAST, rounds=3, task=task, out=tmp_path / "runs")
    assert result.summary["metric"] == "r2"
    assert feduca.load(result.run_dir).summary["metric"] == "r2"
    feduca.export_models(result.run_dir, tmp_path / "out", task=task)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"common test set, r2: {result.accuracy:.3f} (mean" in card
    pytest.importorskip("altair")
    write_report([result.run_dir], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"reaches r2 {result.accuracy:.3f} (mean" in page
    assert "R2 of the shared model" in page
    assert "accuracy of the shared model" not in page.lower()


# The command line -----------------------------------------------------------------------------------------------------


def feduca_(*words, ok=True):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if ok:
        assert done.exit_code == 0, (done.output, done.exception)
        return done
    assert isinstance(done.exception, FeducaError), (done.output, done.exception)
    assert "\n" not in str(done.exception)
    return str(done.exception)


def settings(**more):
    pairs = FAST | {key.replace("__", "."): value for key, value in more.items()}
    return [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]


def test_a_folder_is_data_on_the_command_line(tmp_path):
    silos, out = write_silos(tmp_path / "silos"), tmp_path / "runs"
    words = ["run", *settings(task__data=silos, task__model="logistic"), "--rounds", 2, "--out", out]
    row = json.loads(feduca_(*words, "--json").stdout)
    config = tomllib.loads((out / "quickstart" / row["run_dir"].rpartition("/")[2] / "config.toml").read_text())
    assert config["task"] == {
        "data": silos,
        "clients": 3,
        "model": "logistic",
        "target": "label",
        "metric": "accuracy",
    }
    same = feduca.run("quickstart", FAST, rounds=2, task=build_own_task(silos, model="logistic"))
    assert row["accuracy"] == same.accuracy
    assert "already finished" in feduca_(*words).stderr
    feduca_("export", row["run_dir"], "-o", tmp_path / "models")
    shown = feduca_("partition", "--set", f"task.data={silos}").stdout
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["class", "a", "b", "c"]
    assert json.loads(feduca_("compare", *words[1:], "--json").stdout)[0]["accuracy"] is not None


def test_data_that_changed_are_noticed(tmp_path):
    silos, out = write_silos(tmp_path / "silos"), tmp_path / "runs"
    words = ["run", *settings(task__data=silos), "--rounds", 1, "--out", out]
    folder = json.loads(feduca_(*words, "--json").stdout)["run_dir"]
    write_silos(tmp_path / "silos", seed=1)
    assert "has changed since" in feduca_(*words, ok=False)
    assert "--again" in feduca_("compare", "quickstart", *words[1:], ok=False)
    assert "has changed since" in feduca_("export", folder, "-o", tmp_path / "models", ok=False)
    feduca_(*words, "--again")
    assert "already finished" in feduca_(*words).stderr


def test_values_on_the_command_line(tmp_path):
    silos = write_silos(tmp_path / "silos", values=True, common=False)
    base = settings(task__data=silos, task__metric="r2")
    said = feduca_("run", *base, "--rounds", 1, "--out", tmp_path / "runs").stdout
    assert said.startswith("r2 of silos' own ")
    assert "there is no common test set" in said
    assert "offer.space = 'parameters'" in feduca_("compare", "quickstart", *base, ok=False)
    base += settings(offer__space="parameters")
    table = feduca_("compare", "quickstart", *base, "--rounds", 1, "--out", tmp_path / "runs").stdout
    assert "silos' own" in table.splitlines()[0]
    assert "r2" in table.splitlines()[1]
    shown = feduca_("partition", "--set", f"task.data={silos}", "--set", "task.metric=r2").stdout
    assert shown.splitlines()[1].split() == ["a", "30/10"]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("task.clients", 7, "holds 3 silos: leave it out"),
        ("task.classes_per_client", 2, "silos have their data already"),
        ("task.max_examples", 20, "silos have their data already"),
        ("task.metric", "f1", "task.metric is 'f1'"),
        ("task.target", "price", None),
    ],
)
def test_what_does_not_fit_a_folder(key, value, says, tmp_path):
    words = ["run", *settings(task__data=write_silos(tmp_path / "silos")), "--set", f"{key}={value}", "--rounds", 1]
    if says is None:  # archives have no columns: nothing to refuse
        feduca_(*words, "--out", tmp_path / "runs")
    else:
        assert says in feduca_(*words, "--out", tmp_path / "runs", ok=False)


def test_what_fits_a_folder_alone():
    with pytest.raises(ConfigError, match="for a folder of your own"):
        feduca.recipe({"task": {"data": "digits", "metric": "auc"}})
    assert "for a folder of your own" in feduca_("run", "--set", "task.metric=auc", ok=False)
    assert "choose one of digits" in feduca_("run", "--set", "task.data=nowhere", ok=False)
    words = ["run", "--set", "task.model=logistic", "--set", "task.hidden=[3]"]
    assert "whose layers are fixed" in feduca_(*words, ok=False)


def test_a_folder_in_lockstep(tmp_path):
    from feduca import api

    silos = write_silos(tmp_path / "silos")
    recipe = feduca.recipe({"name": "mine", "task": {"data": silos}}, FAST, rounds=2)
    jobs = [(recipe, 0), (recipe, 1)]
    beside = api.run_many(jobs, out=tmp_path / "beside", lockstep=2)
    alone = api.run_many(jobs, out=tmp_path / "alone")
    assert [r.accuracy for r in beside] == pytest.approx([r.accuracy for r in alone])
