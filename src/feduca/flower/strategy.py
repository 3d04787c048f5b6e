"""For an existing Flower app: a drop-in strategy (its counterpart on the clients is `rational`).

    strategy = FedUCAStrategy(recipe={"mechanism": {"name": "feduca"}})        # in the ServerApp, instead of FedAvg
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=10)

Arrays and configuration stay where Flower's own strategies put them (`arrays`, `config`); what FedUCA has to say travels beside
them (`beside.py`). The recipe says which mechanism, rule, offer, utility, memory, aggregation and gate; both sides should use
the same one. Flower's wrappers for differential privacy with fixed clipping can be put around it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from feduca.core import roster
from feduca.core import rounds as loop
from feduca.core.messages import alone, silent, together
from feduca.core.share import share_of
from feduca.errors import InputError, RunError
from feduca.flower import codec
from feduca.flower.beside import APPS_OWN, SMALL, Source, recipe_of, tell
from feduca.flower.failures import DECIDED, heard
from feduca.flower.vectors import Vector
from feduca.recipes.build import make_server
from feduca.types import ABSENT, JOINED, REFUSED, Announcements, Reports, ServerState

log = logging.getLogger("flwr.feduca")  # below Flower's own, which has handlers wherever an app runs

NOT_OURS = "return `feduca.flower.rational(...)` from @app.train() of the ClientApp"


class FedUCAStrategy(Strategy):
    """Any of feduca's mechanisms as a Flower strategy.

    `min_available_nodes` are waited for before the first round; nodes that come later join then. `patience` is the number of
    silent rounds after which a node is left out until it answers again (0 = never). `evaluation` is a strategy of Flower's that
    takes care of federated evaluation, if you want it. Metrics in the nodes' replies are averaged, weighted by `weighted_by_key`.
    """

    def __init__(
        self,
        recipe: Source = "quickstart",
        *,
        min_available_nodes: int = 2,
        patience: int = 0,
        seed: int = 0,
        evaluation: Strategy | None = None,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        weighted_by_key: str = "num-examples",
    ) -> None:
        self.recipe = recipe_of(recipe)
        self.state: ServerState | None = None
        self.history: list[Reports] = []  # the last round's reports come last; models left out
        self.metrics: list[dict[int, MetricRecord]] = []  # what the app's nodes measured, round by round
        self._nodes: list[int] = []
        self._sent: list[Message] = []
        self._asked: Announcements | None = None
        self._vector: Vector | None = None
        self._min_nodes, self._seed = min_available_nodes, seed
        self._evaluation = evaluation
        self._arrays, self._config, self._weight = arrayrecord_key, configrecord_key, weighted_by_key
        self._server = replace(make_server(self.recipe, seed), patience=patience)

    def summary(self) -> None:
        words = self.recipe.mechanism["name"], self.recipe.participation.rule, self.recipe.offer.kind
        log.info("feduca: mechanism %s, rule %s, offer %s", *words)
        log.info("feduca: of the recipe, %s are not used: they are the app's own", ", ".join(APPS_OWN))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per node: the model, your configuration, and the weights it is asked to judge."""
        online = self._wait(grid)
        self._nodes += sorted(node for node in online if node not in self._nodes)
        n = len(self._nodes)
        if self.state is None:
            self._vector = Vector.of(arrays)
            self._server = replace(
                self._server,
                parameters=self._vector.parameters,
                share=share_of(self.recipe.share, self._vector),
                run=f"flower-{grid.run.run_id}",
            )
            self.state = loop.begin(self._server, self._vector.flat(arrays), np.ones(n, int))
        if self._vector is not None:  # a wrapper may have changed the model: clients train from what they are sent
            self.state = replace(self.state, theta=self._vector.flat(arrays))
        more = n - len(self.state.examples)
        examples = np.concatenate([self.state.examples, np.ones(more, int)])
        census = roster.Census(examples, np.zeros(n, bool))
        self.state = roster.grow(self.state, census, self._server.mechanism, self._seed)
        self._asked = loop.announce(self._server, self.state)
        config["server-round"] = server_round
        self._sent = []
        for place, client in enumerate(self._asked.clients):
            if (node := self._nodes[client]) in online:
                content = RecordDict({self._arrays: arrays, self._config: tell(config, self._asked, place)})
                self._sent.append(Message(content, node, MessageType.TRAIN, group_id=str(server_round)))
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model and who joined. A node that failed or sent nonsense counts as if it were away."""
        if self.state is None or self._asked is None or self._vector is None:
            raise RunError("aggregate_train was called before configure_train; let `start` call both")
        asked, curve = self._asked, self._server.family.size
        asker = {message.metadata.message_id: message.metadata.dst_node_id for message in self._sent}
        nodes = [self._nodes[client] for client in asked.clients]
        replies, parts, measured = list(replies), {}, {}
        if (heard := [r for r in replies if not r.has_error()]) and not any(SMALL in r.content for r in heard):
            raise RunError(f"round {server_round}: no node answered as FedUCA's clients do; {NOT_OURS}")
        for reply in replies:
            node = asker.get(reply.metadata.reply_to_message_id)
            if node is not None:
                place = nodes.index(node)
                parts[place] = self._read(asked, place, reply, self._vector)
                if parts[place].status[0] not in (ABSENT, REFUSED) and reply.content.metric_records:
                    measured[node] = next(iter(reply.content.metric_records.values()))
        for place in range(len(nodes)):
            parts.setdefault(place, silent(alone(asked, place), ABSENT, "no answer", curve))
        reports = together([parts[place] for place in sorted(parts)], asked.round, asked.theta, curve)
        told, examples = reports.measurements.examples, self.state.examples.copy()
        examples[asked.clients] = np.where(told > 0, told, examples[asked.clients])
        self.state = replace(self.state, examples=examples)
        self.state, admitted = loop.admit(self._server, self.state, asked, reports)
        reports = admitted.reports
        self.state, solved = loop.advance(self._server, self.state, reports, asked=asked.clients)
        self.history.append(replace(reports, theta=reports.theta[:, :0]))
        self.metrics.append(measured)
        for node, status, reason, advice in zip(nodes, reports.status, reports.reason, admitted.advice):
            log.info("round %d: node %s %s (%s)", server_round, node, status, "; ".join(filter(None, (reason, advice))))
        metrics: dict[str, Any] = averaged(list(measured.values()), self._weight) | {
            "participation": float(reports.joined.mean()),
            "joined": int(reports.joined.sum()),
            "nodes": len(self._nodes),
            "largest-weight": float(solved.alpha.max()),
        }
        return self._vector.record(self.state.theta), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self._evaluation is None:
            return []
        return self._evaluation.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None if self._evaluation is None else self._evaluation.aggregate_evaluate(server_round, replies)

    def _wait(self, grid: Grid) -> list[int]:
        """Nodes that are there; before the first round, at least as many as were asked for."""
        while len(online := sorted(grid.get_node_ids())) < (self._min_nodes if self.state is None else 1):
            log.info("waiting for nodes: %d of %d are connected", len(online), self._min_nodes)
            time.sleep(1)
        return online

    def _read(self, asked: Announcements, place: int, reply: Message, vector: Vector) -> Reports:
        one, curve = alone(asked, place), self._server.family.size
        if reply.has_error():
            why = heard(reply)
            if why in DECIDED:  # a silo's own word: it is there, and takes no part
                return silent(one, REFUSED, why, curve)
            return silent(one, ABSENT, f"failed: {why}", curve)
        if SMALL not in reply.content:
            return silent(one, REFUSED, f"answer refused: it is not from FedUCA's client; {NOT_OURS}", curve)
        content = RecordDict({"report": reply.content[SMALL]})
        try:
            report, record = reply.content[SMALL], reply.content.get(self._arrays)
            joins = isinstance(report, ConfigRecord) and report.get("status") == JOINED  # else the arrays say nothing
            if joins and isinstance(record, ArrayRecord):
                theta, share = vector.flat(record), self._server.share
                content["theta"] = codec.wrapped(theta if share is None else theta[share.mask])
            return codec.read_report(content, one, str(place), curve, self._server.share)[0]
        except (codec.ProtocolError, InputError) as error:
            return silent(one, REFUSED, f"answer refused: {error}", curve)


def averaged(measured: Sequence[MetricRecord], weight: str) -> dict[str, Any]:
    """Each metric's mean over the nodes that gave it as a finite number (or row of one length), weighted by another."""
    found: dict[tuple[str, tuple[int, ...]], list[tuple[float, np.ndarray]]] = {}
    for record in measured:
        by = record.get(weight, 0)
        if isinstance(by, list) or not 0 < by < np.inf:
            continue
        for name, value in record.items():
            row = np.asarray(value, float)
            if name != weight and np.isfinite(row).all():
                found.setdefault((name, row.shape), []).append((by, row))
    most = sorted(found.items(), key=lambda item: len(item[1]))  # of rows of other lengths, the commonest stay
    return {name: np.average([x for _, x in rows], 0, [w for w, _ in rows]).tolist() for (name, _), rows in most}
