"""Flower's mods and wrappers around the drop-in strategy and a deployment; an app's own metrics; apps without our half."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping as ClientSide
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as ServerSide

from feduca.errors import ConfigError, RunError
from feduca.flower import FedUCAStrategy, client_app, rational
from feduca.flower.server import Settings, serve
from feduca.flower.strategy import averaged
from feduca.recipes.schema import load
from feduca.types import ABSENT, DECLINED, JOINED, REFUSED
from local_grid import LocalGrid, Node
from numpy_task import NumpyApp

RECIPE = {"mechanism": {"name": "fedavg"}, "participation": {"rule": "accuracy"}}
START = np.array([[0.0, 2.0], [-1.0, 0.0]], np.float32)


def client(mods=(), recipe=RECIPE, seen=None, **more) -> ClientApp:
    """A client that moves towards a point of its own; the one at the node `node` 2 always finds its own model better."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        place = int(context.node_config["place"])
        goal = START + 1 + place

        def fit(arrays, config):
            if seen is not None:
                seen.append(dict(config))
            theta = arrays["w"].numpy()
            return ArrayRecord({"w": _array(theta + 0.5 * (goal - theta))}), {"train-loss": float(place)}

        def score(arrays):
            far = float(np.abs(arrays["w"].numpy() - goal).sum())
            return 1 / (1 + far), far

        where = str(context.node_config["folder"])
        return rational(message, context, fit=fit, score=score, examples=1 + place, recipe=recipe, folder=where, **more)

    return app


def _array(x):
    from flwr.app import Array

    return Array(np.asarray(x, np.float32))


def grid(app, tmp_path, silos=3):
    return LocalGrid({10 + k: Node(app, {"place": k, "folder": str(tmp_path / f"{k}")}) for k in range(silos)})


def start(strategy, nodes, rounds=3):
    return strategy.start(grid=nodes, initial_arrays=ArrayRecord({"w": _array(START)}), num_rounds=rounds, timeout=0.5)


def said(strategy):
    return [word for reports in strategy.history for word in reports.status]


def test_every_message_has_one_record_of_each_kind(tmp_path):
    nodes, strategy = grid(client(), tmp_path), FedUCAStrategy(RECIPE)
    kinds = []

    def look(asked, reply):
        kinds.extend(
            (len(c.array_records), len(c.config_records), len(c.metric_records)) for c in (asked.content, reply.content)
        )
        return reply

    for node in nodes.nodes.values():
        node.tamper = look
    start(strategy, nodes)
    assert DECLINED in said(strategy)
    assert set(kinds) == {(1, 1, 0), (1, 1, 1)}


def test_who_declines_gives_nothing_away(tmp_path):
    nodes, strategy = grid(client(), tmp_path), FedUCAStrategy(RECIPE)
    sent = []
    for node in nodes.nodes.values():
        node.tamper = lambda asked, reply: sent.append((asked, reply)) or reply
    start(strategy, nodes)
    declined = [(a, r) for a, r in sent if r.content["feduca"]["status"] == DECLINED]
    assert declined
    for asked, reply in declined:
        shared, given = (m.content["arrays"]["w"].numpy() for m in (asked, reply))
        assert np.array_equal(given, np.abs(shared) < 0.5)  # a function of what everybody knows
        assert np.linalg.norm(given - shared) >= 1  # Flower's clipping divides by it
    again = FedUCAStrategy(RECIPE)
    start(again, grid(client(bare_refusals=True), tmp_path / "bare"))
    assert np.array_equal(again.state.theta, strategy.state.theta)


def test_local_privacy_goes_on_where_silos_decline(tmp_path):
    plain, private = FedUCAStrategy(RECIPE), FedUCAStrategy(RECIPE)
    start(plain, grid(client(), tmp_path / "plain"))
    mod = LocalDpMod(clipping_norm=0.5, sensitivity=1e-9, epsilon=1.0, delta=0.1)
    start(private, grid(client([mod]), tmp_path / "private"))
    assert {DECLINED, JOINED} == set(said(private)) == set(said(plain))  # nobody is lost
    moved = np.linalg.norm(private.state.remembered, axis=1)
    assert (moved[moved > 0] <= 0.5 + 1e-4).all()
    assert np.linalg.norm(plain.state.remembered, axis=1).max() > 0.5


@pytest.mark.parametrize("side", ["server", "client"])
def test_fixed_clipping_around_the_strategy(side, tmp_path):
    inner = FedUCAStrategy(RECIPE)
    if side == "server":
        strategy, mods = ServerSide(inner, noise_multiplier=1e-3, clipping_norm=0.25, num_sampled_clients=3), []
    else:
        strategy = ClientSide(inner, noise_multiplier=1e-3, clipping_norm=0.25, num_sampled_clients=3)
        mods = [fixedclipping_mod]
    seen: list[dict] = []
    result = start(strategy, grid(client(mods, seen=seen), tmp_path), rounds=4)
    assert len(result.train_metrics_clientapp) == 4
    assert {DECLINED, JOINED} == set(said(inner))
    moved = np.linalg.norm(inner.state.remembered, axis=1)
    assert moved.max() > 0
    assert (moved <= 0.25 + 1e-4).all()  # updates are taken from the model that went out, noise and all
    assert all("feduca" not in config for config in seen)
    assert result.arrays is not None


def test_metrics_of_the_app_are_kept_and_averaged(tmp_path):
    strategy = FedUCAStrategy(RECIPE)
    result = start(strategy, grid(client(), tmp_path), rounds=1)
    told = result.train_metrics_clientapp[1]
    assert told["train-loss"] == pytest.approx((0 * 1 + 1 * 2 + 2 * 3) / 6)  # weighted by num-examples
    assert told["joined"] == 3
    assert {node: record["train-loss"] for node, record in strategy.metrics[0].items()} == {10: 0, 11: 1, 12: 2}


def test_metrics_that_do_not_fit_together():
    records = [
        MetricRecord({"num-examples": 1, "a": 1.0, "rows": [1.0, 3.0]}),
        MetricRecord({"num-examples": 3, "a": float("nan"), "rows": [5.0, 7.0]}),
        MetricRecord({"num-examples": 0, "a": 9.0}),
        MetricRecord({"a": 9.0}),
        MetricRecord({"num-examples": 2, "a": 4.0, "rows": [1.0]}),
    ]
    assert averaged(records, "num-examples") == {"a": pytest.approx(3.0), "rows": [4.0, 6.0]}
    assert averaged([], "num-examples") == {}


def test_what_it_says_is_seen_where_flowers_own_lines_are(tmp_path):
    lines = []

    class Listener(logging.Handler):
        def emit(self, record):
            lines.append((record.levelno, record.getMessage()))

    listener = Listener(logging.INFO)
    logging.getLogger("flwr").addHandler(listener)
    try:
        start(FedUCAStrategy(RECIPE), grid(client(), tmp_path), rounds=1)
    finally:
        logging.getLogger("flwr").removeHandler(listener)
    assert (logging.INFO, "feduca: mechanism fedavg, rule accuracy, offer global") in lines
    assert sum(text.startswith("round 1: node 1") for _, text in lines) == 3


def plain_client():
    app = ClientApp()

    @app.train()
    def train(message, context):
        content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    return app


def test_an_app_without_our_half_ends_with_what_to_do(tmp_path):
    with pytest.raises(RunError, match=r"round 1: no node answered .*; return `feduca.flower.rational\(...\)` from"):
        start(FedUCAStrategy(RECIPE), grid(plain_client(), tmp_path))
    nodes, strategy = grid(client(), tmp_path / "mixed"), FedUCAStrategy(RECIPE)
    nodes.nodes[11].app = plain_client()
    start(strategy, nodes, rounds=1)
    assert list(strategy.history[0].status) == [JOINED, REFUSED, JOINED]
    assert "rational" in strategy.history[0].reason[1]
    assert ABSENT not in said(strategy)


def test_fedprox_tells_fit_how_strong_its_term_is(tmp_path):
    recipe, seen = {"mechanism": {"name": "fedprox", "mu": 0.25}, "participation": {"rule": "always"}}, []
    start(FedUCAStrategy(recipe), grid(client(recipe=recipe, seen=seen), tmp_path), rounds=1)
    assert {config["proximal-mu"] for config in seen} == {0.25}


APP = NumpyApp(
    load({"name": "t", "rounds": 4, "local": {"epochs": 2, "batch_size": 5}, "task": {"clients": 3}, **RECIPE})
)


def test_local_privacy_in_a_deployment(tmp_path):
    seen = []

    def look(message, context, call_next):
        reply = call_next(message, context)
        seen.append(reply.metadata.message_type)
        return reply

    mods = [look, LocalDpMod(clipping_norm=0.01, sensitivity=1e-9, epsilon=1.0, delta=0.1)]
    flower = client_app(APP, mods=mods)
    nodes = {k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}) for k in range(3)}
    path = serve(APP, LocalGrid(nodes), Settings(silos=3, out=str(tmp_path / "runs")))
    clients = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert {word for record in clients for word in record["status"]} == {JOINED, DECLINED}
    lengths = [x for record in clients for x in record["update_norm"] if x is not None]
    assert max(lengths) == pytest.approx(0.01, rel=1e-3)
    assert len(seen) == sum(word == JOINED for record in clients for word in record["status"])


def test_mods_that_cannot_work_are_refused_by_name():
    from flwr.client.mod import adaptiveclipping_mod, secagg_mod, secaggplus_mod

    for mod in (secagg_mod, secaggplus_mod, fixedclipping_mod, adaptiveclipping_mod):
        with pytest.raises(ConfigError, match=f"mods: {mod.__name__} .*; (leave it out|use LocalDpMod)"):
            client_app(APP, mods=[mod])
