"""Where only a part of the model is shared, no message of a silo holds anything else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flwr.app import ArrayRecord

from feduca.core.share import share_of
from feduca.federation import InProcess
from feduca.flower import FedUCAStrategy, client_app, codec
from feduca.flower.server import Settings, serve
from feduca.recipes.build import behaviour_of, build
from feduca.recipes.schema import load
from feduca.types import JOINED
from local_grid import LocalGrid, Node
from numpy_task import NumpyApp, NumpyTask

BASE = {"name": "t", "rounds": 4, "local": {"epochs": 2, "batch_size": 5}, "task": {"clients": 3}, "share": ["body.*"]}


def app_of(**settings):
    return NumpyApp(load(BASE, settings))


def floats(content):
    """Every number of a message that is part of an array."""
    return [array.numpy().ravel() for record in content.array_records.values() for array in record.values()]


@pytest.mark.parametrize("settings", [{}, {"mechanism.name": "ditto", "offer.kind": "best-mixture"}])
def test_a_deployment_sends_what_is_shared_and_equals_the_simulation(tmp_path, settings):
    app = app_of(**{"mechanism.name": "fedavg", "participation.rule": "accuracy", **settings})
    flower, sent = client_app(app), []

    def tamper(message, reply):
        if "announcement" in message.content:
            sent.append(reply.content)
        return reply

    nodes = {
        10 + k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}, name=f"silo-{k}", tamper=tamper)
        for k in range(3)
    }
    path = serve(app, LocalGrid(nodes), Settings(silos=3, out=str(tmp_path / "runs")))
    models = [floats(content) for content in sent]
    assert len(models) == 12
    assert {tuple(len(x) for x in model) for model in models} <= {(), (3,)}  # 3 of 4 entries, or nothing
    assert [tuple(len(x) for x in model) for model in models[:3]] == [(3,)] * 3

    task = NumpyTask(3)
    one = build(app.recipe, 0, task)
    federation = InProcess(task, behaviour_of(app.recipe, 0, task), one_at_a_time=True)
    from feduca.core import rounds as loop

    rows = []
    final = loop.play(
        loop.rounds(one.server, one.theta, task.examples, on_round=lambda r, each, _: rows.append((r, each))),
        federation,
    )
    kept = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    assert [line["participation"] for line in kept] == [record.participation for record, _ in rows]
    assert [line["bytes_up"] for line in kept] == [record.bytes_up for record, _ in rows]
    clients = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert [line["global_accuracy"] for line in clients] == [each.global_accuracy.tolist() for _, each in rows]
    from feduca.runs import checkpoint

    newest = checkpoint.existing(path / "checkpoint")[0]
    assert np.array_equal(checkpoint.read(newest).state.theta, final.theta)


def test_a_report_of_another_length_is_refused():
    app, task = app_of(**{"participation.rule": "always"}), NumpyTask(3)
    share = share_of(["body.*"], task)
    one = build(app.recipe, 0, task)
    from feduca.core import rounds as loop
    from feduca.core.messages import alone

    asked = loop.announce(one.server, loop.begin(one.server, one.theta, task.examples))
    told = alone(asked, 1)
    answer = InProcess(task, behaviour_of(app.recipe, 0, task)).exchange(told)
    content = codec.report(answer, asked.run, "silo-1", share=share)
    back, _ = codec.read_report(content, told, "silo-1", 3, share)
    assert np.array_equal(back.theta, answer.theta)
    assert back.theta[0, -1] == told.theta[-1]
    with pytest.raises(codec.ProtocolError, match=r"the model is float64\[4\], asked was one of 3 floats"):
        codec.read_report(codec.report(answer, asked.run, "silo-1"), told, "silo-1", 3, share)


def test_the_drop_in_strategy_shares_by_name(tmp_path):
    from flwr.app import Array
    from flwr.clientapp import ClientApp

    from feduca.flower import rational

    initial = ArrayRecord({"body": Array(np.zeros(2, np.float32)), "head": Array(np.ones(1, np.float32))})
    recipe = {"mechanism": {"name": "fedavg"}, "participation": {"rule": "always"}, "share": ["body"]}
    app, seen = ClientApp(), []

    @app.train()
    def train(message, context):
        k = float(context.node_config["k"])

        def fit(arrays, config):
            seen.append((k, arrays["head"].numpy().tolist()))
            return ArrayRecord({name: Array(arrays[name].numpy() + np.float32(k)) for name in ("body", "head")})

        return rational(message, context, recipe=recipe, examples=1, fit=fit, score=lambda arrays: (0.5, 1.0))

    heads = []

    def tamper(asked, reply):
        heads.append(reply.content["arrays"]["head"].numpy().tolist())
        reply.content["arrays"]["head"] = Array(np.full(1, 7, np.float32))  # a mod's noise: nobody reads it
        return reply

    nodes = {k: Node(app, {"k": k, "folder": str(tmp_path / f"{k}")}, tamper=tamper) for k in (1, 2)}
    strategy = FedUCAStrategy(recipe, min_available_nodes=2)
    result = strategy.start(grid=LocalGrid(nodes), initial_arrays=initial, num_rounds=2)
    assert all(word == JOINED for reports in strategy.history for word in reports.status)
    assert heads == [[1.0]] * 4  # the server's own: mods want every array, and nothing of the silo is in it
    assert seen == [(1.0, [1.0]), (2.0, [1.0]), (1.0, [2.0]), (2.0, [3.0])]  # each goes on with its own head
    assert result.arrays["head"].numpy().tolist() == [1.0]
    assert result.arrays["body"].numpy().tolist() == [3.0, 3.0]
