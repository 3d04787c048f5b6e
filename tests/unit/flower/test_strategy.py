"""The drop-in strategy: the example app as it is, Flower's own loop, and clients that fail."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from feduca.errors import InputError
from feduca.flower import FedUCAStrategy
from feduca.flower.vectors import Vector
from feduca.recipes.schema import load
from feduca.types import ABSENT, DECLINED, JOINED, REFUSED
from local_grid import LocalGrid, Node

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower_app"
RUN_CONFIG = {"strategy": "feduca", "epochs": 3, "lr": 0.1}


@pytest.fixture
def digits_app(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from digits_app import client, model

    yield client, model
    for name in [name for name in sys.modules if name.startswith("digits_app")]:
        del sys.modules[name]


def grid(client, tmp_path, partitions=3):
    return LocalGrid(
        {
            7 + k: Node(
                client.app,
                {"partition-id": k, "num-partitions": partitions, "folder": str(tmp_path / f"{k}")},
                run_config=RUN_CONFIG,
            )
            for k in range(partitions)
        }
    )


def test_the_example_app_learns_and_clients_decide(digits_app, tmp_path):
    client, model = digits_app
    strategy = FedUCAStrategy(client.RECIPE, min_available_nodes=3)
    result = strategy.start(grid=grid(client, tmp_path), initial_arrays=model.initial(), num_rounds=5)
    said = [word for reports in strategy.history for word in reports.status]
    assert set(said) <= {JOINED, DECLINED}
    assert DECLINED in said  # somebody refused the shared model, and training went on
    assert [metrics["nodes"] for metrics in result.train_metrics_clientapp.values()] == [3] * 5
    shares = [metrics["participation"] for metrics in result.train_metrics_clientapp.values()]
    assert shares[0] == 1
    assert np.isclose(np.mean(shares), said.count(JOINED) / len(said))
    x, y = (np.concatenate([model.data(k, 3)[i] for k in range(3)]) for i in (2, 3))
    assert model.test(result.arrays.to_numpy_ndarrays(), x, y)[0] > 0.7
    assert strategy.state.examples.tolist() == [len(model.data(k, 3)[1]) for k in range(3)]
    assert (tmp_path / "0" / "log.jsonl").read_text().count("\n") == 5  # the silo's own record


def test_clients_that_fail_or_lie_do_not_stop_it(digits_app, tmp_path):
    client, model = digits_app
    nodes = grid(client, tmp_path)

    def other_shape(asked, reply):
        if asked.content["config"]["server-round"] == 2:
            reply.content["arrays"] = ArrayRecord([np.zeros((3, 3)), np.zeros(10)])
        return reply

    nodes.nodes[8].tamper = other_shape
    nodes.nodes[9].tamper = lambda asked, reply: reply if asked.content["config"]["server-round"] != 3 else None
    strategy = FedUCAStrategy({"mechanism": {"name": "fedavg"}, "participation": {"rule": "always"}}, patience=1)
    strategy.start(grid=nodes, initial_arrays=model.initial(), num_rounds=4, timeout=0.5)
    said = [list(reports.status) for reports in strategy.history]
    assert said[1][1] == REFUSED
    assert said[2][2] == ABSENT
    assert ABSENT not in said[3]
    assert np.isfinite(strategy.state.theta).all()


def test_the_clients_need_the_strategy(digits_app, tmp_path):
    from flwr.app import ConfigRecord, Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from feduca.flower import rational

    _, model = digits_app
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    message = Message(RecordDict({"arrays": model.initial(), "config": ConfigRecord()}), 1, "train")
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(InputError, match="not from FedUCAStrategy"):
        rational(message, context, fit=lambda a, c: a, score=lambda a: (0.0, 0.0), examples=1)


def asked_by_the_strategy(digits_app, recipe, **more):
    """A client that answers with `rational` and these arguments, the model, and the strategy."""
    from flwr.clientapp import ClientApp

    from feduca.flower import rational

    _, model = digits_app
    app = ClientApp()

    @app.train()
    def train(message, context):
        x, y, x_val, y_val = model.data(int(context.node_config["partition-id"]), 3)
        return rational(
            message, context, recipe=recipe, examples=len(y), **{"validation_examples": len(y_val), **more},
            fit=lambda arrays, config: ArrayRecord(model.train(arrays.to_numpy_ndarrays(), x, y, 2, 0.1)),
            score=lambda arrays: model.test(arrays.to_numpy_ndarrays(), x_val, y_val),
        )  # fmt: skip

    return app, model, FedUCAStrategy(recipe, min_available_nodes=1)


def test_scores_are_called_what_they_are(digits_app, tmp_path):
    base = {"mechanism": {"name": "fedavg"}, "participation": {"rule": "accuracy", "confidence": 0.9999}}
    split = load({**base, "task": {"test_share": 0.5}})  # which is not the app's data
    app, model, strategy = asked_by_the_strategy(digits_app, split)
    nodes = LocalGrid({7 + k: Node(app, {"partition-id": k, "folder": str(tmp_path / f"{k}")}) for k in range(3)})
    strategy.start(grid=nodes, initial_arrays=model.initial(), num_rounds=3)
    assert {word for reports in strategy.history for word in reports.status} == {JOINED, DECLINED}
    assert all(not reports.measurements.test for reports in strategy.history)  # no function scores untouched data

    app, model, strategy = asked_by_the_strategy(digits_app, base, validation_examples=None)
    nodes = LocalGrid({9: Node(app, {"partition-id": 0, "folder": str(tmp_path / "uncounted")})})
    strategy.start(grid=nodes, initial_arrays=model.initial(), num_rounds=2, timeout=0.5)
    assert "RunError, line 2 of its log" in strategy.history[-1].reason[0]  # the text stays at the silo
    assert "give it `validation_examples`" in (tmp_path / "uncounted" / "log.jsonl").read_text()

    losses = {"mechanism": {"name": "qfedavg"}, "participation": {"rule": "always"}}
    app, model, strategy = asked_by_the_strategy(digits_app, losses)
    nodes = LocalGrid({9: Node(app, {"partition-id": 0, "folder": str(tmp_path / "unknown")})})
    strategy.start(grid=nodes, initial_arrays=model.initial(), num_rounds=1, timeout=0.5)
    assert "line 1 of its log" in strategy.history[0].reason[0]
    log = (tmp_path / "unknown" / "log.jsonl").read_text()
    assert "scores on the silo's train data" in log
    assert "give `rational` a train_score" in log

    app, model, strategy = asked_by_the_strategy(digits_app, losses, train_score=lambda arrays: (0.5, 1.25))
    nodes = LocalGrid({9: Node(app, {"partition-id": 0, "folder": str(tmp_path / "known")})})
    strategy.start(grid=nodes, initial_arrays=model.initial(), num_rounds=1)
    assert strategy.history[0].measurements.train_loss.tolist() == [1.25]


def test_who_quits_under_the_strategy_is_gone_for_good(digits_app, tmp_path):
    sure = {
        "rule": "accuracy",
        "confidence": 1 - 1e-15,
        "quits": 1,
    }  # so sure nobody ever is: all decline after round 1
    recipe = {"mechanism": {"name": "fedavg"}, "participation": sure}
    app, model, strategy = asked_by_the_strategy(digits_app, recipe)
    every = {7 + k: Node(app, {"partition-id": k, "folder": str(tmp_path / f"{k}")}) for k in range(3)}
    nodes = LocalGrid({7: every[7], 8: every[8]})

    def tamper(asked, reply):
        t = asked.content["config"]["server-round"]
        if t == 2:
            nodes.nodes[9] = every[9]  # comes in round 3, and cannot know where the run began
        return None if t >= 3 and asked.metadata.dst_node_id == 7 else reply

    every[7].tamper = tamper
    strategy.start(grid=nodes, initial_arrays=model.initial(), num_rounds=5, timeout=0.5)
    said = [list(reports.status) for reports in strategy.history]
    assert said[:2] == [[JOINED] * 2, ["left"] * 2]  # alone they did as well
    assert said[2:] == [[ABSENT, "left", JOINED], [ABSENT, "left", DECLINED], [ABSENT, "left", DECLINED]]
    assert strategy.state.left.tolist() == [True, True, False]


def test_records_become_vectors_and_back():
    record = ArrayRecord(
        {
            "norm.running_mean": Array(np.array([5.0, 6.0], np.float32)),
            "layer.weight": Array(np.arange(6, dtype=np.float32).reshape(2, 3)),
            "norm.num_batches_tracked": Array(np.array(7)),
            "layer.bias": Array(np.array([8.0], np.float32)),
        }
    )
    vector = Vector.of(record)
    theta = vector.flat(record)
    assert theta.tolist() == [0, 1, 2, 3, 4, 5, 8, 5, 6, 7]  # parameters first, statistics last
    assert (vector.parameters, vector.size) == (7, 10)
    again = vector.record(theta)
    assert list(again) == list(record)
    for name in record:
        assert np.array_equal(again[name].numpy(), record[name].numpy())
        assert again[name].numpy().dtype == record[name].numpy().dtype
    with pytest.raises(InputError, match=r"'layer\.bias' is new or missing"):
        vector.flat(ArrayRecord({name: record[name] for name in record if name != "layer.bias"}))
