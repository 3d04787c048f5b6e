"""One client at a time, fixed threads: the same run in process, through the codec, and over real SuperNodes, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feduca.core import rounds as loop
from feduca.core.records import plain
from feduca.federation import InProcess
from feduca.flower import client_app, deploy
from feduca.flower.server import Settings, serve
from feduca.recipes.build import behaviour_of, make_server
from feduca.recipes.schema import load
from feduca.types import DECLINED, JOINED, LEFT
from flower_world import BASE, World, statuses
from local_grid import LocalGrid, Node
from numpy_task import NumpyApp, NumpyTask
from same_run import without_clocks

METHODS = {
    "fedavg": {"mechanism.name": "fedavg", "participation.rule": "accuracy", "rounds": 6},
    "feduca": {"mechanism.name": "feduca", "participation.rule": "utility", "rounds": 6},
}
LEAST = {**METHODS["fedavg"], "offer.kind": "least-concession"}
OFFERS = {
    "least concession": LEAST,
    "from consensus, ties by loss": {**LEAST, "offer.train_from": "consensus", "participation.ties": "loss"},
    "best mixture": {**LEAST, "offer.kind": "best-mixture"},
    "guided, FedUCA's weights": {**LEAST, "mechanism.name": "feduca", "offer.search": "guided"},
    "alone": {**LEAST, "alone": True, "task.test_share": 0.5},
    "quits": {**LEAST, "participation.quits": 2, "task.test_share": 0.5, "rounds": 8},
    "against the outside option": {**LEAST, "participation.against": "outside"},
    "against the best kept": {**LEAST, "participation.against": "outside", "outside.kind": "best-kept"},
    "a stack against the outside option": {
        **METHODS["fedavg"],
        "offer.kind": "stack",
        "offer.folds": 3,
        "participation.against": "outside",
        "participation.rule": "loss",
        "participation.warm_start": 2,
    },
    "ditto": {**LEAST, "mechanism.name": "ditto"},
    "apfl": {**LEAST, "mechanism.name": "apfl"},
    "relative margin": {**LEAST, "offer.margin": 0.05, "offer.margin_kind": "relative"},
    "best mixture, Eq. 2": {**METHODS["feduca"], "offer.kind": "best-mixture"},
    "realised, own accuracy, means": {
        **METHODS["feduca"],
        "mechanism.schedule": "one-alpha",
        "mechanism.aggregation": "sampled-judged",
        "participation.check": "realised",
        "participation.threshold": "own-accuracy",
        "participation.average": 3,
    },
    "decliners tell curves": {**METHODS["feduca"], "reporting.decliners": "curve"},
    "silent decliners": {**METHODS["feduca"], "reporting.decliners": "silent"},
    "silent decliners, losses": {
        **METHODS["fedavg"],
        "mechanism.name": "incfl",
        "mechanism.warmup": 1,
        "reporting.decliners": "silent",
    },
    "confidence": {**LEAST, "participation.confidence": 0.5},
    "confidence, ties by loss": {**LEAST, "participation.confidence": 0.7, "participation.ties": "loss"},
}


def app_of(settings):
    return NumpyApp(load({**BASE, "name": "deployed"}, settings))


def in_process(settings):
    """Records without clocks, and the final model."""
    recipe, task = app_of(settings).recipe, NumpyTask(3)
    seen: dict[str, list] = {"rounds.jsonl": [], "clients.jsonl": []}

    def on_round(record, clients, state):
        said = {k: v for k, v in plain(record).items() if k != "seconds" and (k, v) != ("asked", None)}
        seen["rounds.jsonl"].append(said)  # how many were asked stands there where a cohort was
        seen["clients.jsonl"].append(plain(clients))

    server = make_server(recipe, 0, task)
    federation = InProcess(task, behaviour_of(recipe, 0, task), one_at_a_time=True)
    rounds = loop.rounds(server, task.init(0), task.examples, evaluate=task.test, on_round=on_round)
    return seen, loop.play(rounds, federation).theta


def deployed(path: Path):
    """The same of a run directory."""
    from safetensors.numpy import load_file

    said = without_clocks(path)
    last = sorted((path / "checkpoint").iterdir())[-1]
    return {name: said[name] for name in ("rounds.jsonl", "clients.jsonl")}, load_file(last / "arrays.safetensors")


def check_same(settings, path: Path) -> None:
    wanted, theta = in_process(settings)
    seen, arrays = deployed(path)
    assert seen == wanted
    assert np.array_equal(arrays["state.theta"], theta)
    words = {word for record in seen["clients.jsonl"] for word in record["status"]}
    assert words == {JOINED, LEFT if "participation.quits" in settings else DECLINED} | words & {DECLINED}
    silent = settings.get("reporting.decliners", "all") != "all"
    assert silent or all(
        record["test_deployed"] is not None for record in seen["clients.jsonl"]
    )  # their own test parts
    alone = "alone" in settings or "participation.quits" in settings or "against" in str(settings)
    alone &= "best-kept" not in settings.values()
    assert all((record["test_alone"] is not None) == alone for record in seen["clients.jsonl"])


@pytest.mark.parametrize("settings", [*METHODS.values(), *OFFERS.values()], ids=[*METHODS, *OFFERS])
def test_through_the_codec(settings, tmp_path):
    app = app_of(settings)
    flower = client_app(app)
    nodes = {
        10 + k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}, name=f"silo-{k}")
        for k in (2, 0, 1)
    }
    path = serve(app, LocalGrid(nodes), Settings(silos=3, out=str(tmp_path / "runs"), silos_timeout=5.0))
    check_same(settings, path)


@pytest.mark.slow
def test_over_real_supernodes(tmp_path):
    """SuperLink with TLS, three authenticated SuperNodes; both methods on the same ones."""
    world = World(tmp_path)
    try:
        world.start()
        for method, settings in METHODS.items():
            path = world.recipe(settings)
            result = deploy.run(world.server, seconds=900)
            assert result.summary["rounds"] == 6, method
            check_same(settings, path)
            # Every decision stands in the silo's own log, too.
            for k, name in enumerate(world.server.silos):
                mine = [entry["decision"] for entry in world.log(name)][-6:]
                assert mine == [status[k] for status in statuses(path)]
    finally:
        world.stop()
