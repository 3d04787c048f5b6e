"""For an existing Flower app: a drop-in strategy, and its counterpart on the clients.

    strategy = FedUCAStrategy(recipe={"mechanism": {"name": "feduca"}})        # in the ServerApp, instead of FedAvg
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=10)

    @app.train()                                                               # in the ClientApp
    def train(message, context):
        return rational(message, context, fit=fit, score=score, examples=len(data), recipe={...})

Arrays and configuration stay where Flower's own strategies put them (`arrays`, `config`); what FedUCA has to say travels beside
them. The client decides, trains either way, estimates its curve, and sends its model only if it joins. The recipe says which
mechanism, rule, offer and utility; both sides should use the same one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from feduca import roster
from feduca import rounds as loop
from feduca.aggregation import Weighted
from feduca.config import Recipe
from feduca.config import load as load_recipe
from feduca.errors import InputError, RunError
from feduca.experiment import behaviour_of, make_mechanism
from feduca.flower import codec
from feduca.flower.silo import respond
from feduca.flower.store import SiloStore
from feduca.flower.vectors import Vector
from feduca.memory import memories
from feduca.messages import alone, silent, together
from feduca.types import (
    ABSENT,
    JOINED,
    REFUSED,
    Announcements,
    Array,
    Floats,
    Ints,
    LocalSpec,
    Reports,
    Scores,
    ServerState,
)
from feduca.utility import family

log = logging.getLogger("feduca")

Source = Recipe | str | Path | Mapping[str, Any]
Fit = Callable[[ArrayRecord, ConfigRecord], ArrayRecord]
Score = Callable[
    [ArrayRecord], tuple[float, float]
]  # accuracy (higher is better) and loss on the silo's validation data

SMALL = "feduca"  # the record that carries what FedUCA has to say


def _recipe(source: Source) -> Recipe:
    return source if isinstance(source, Recipe) else load_recipe(source if isinstance(source, Mapping) else str(source))


class FedUCAStrategy(Strategy):
    """Any of feduca's mechanisms as a Flower strategy.

    `min_available_nodes` are waited for before the first round; nodes that come later join then. `patience` is the number of
    silent rounds after which a node is left out until it answers again (0 = never). `evaluation` is a strategy of Flower's that
    takes care of federated evaluation, if you want it.
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
    ) -> None:
        self.recipe = _recipe(recipe)
        self.state: ServerState | None = None
        self.history: list[Reports] = []  # the last round's reports come last; models left out
        self._nodes: list[int] = []
        self._sent: list[Message] = []
        self._asked: Announcements | None = None
        self._vector: Vector | None = None
        self._min_nodes, self._patience, self._seed = min_available_nodes, patience, seed
        self._evaluation = evaluation
        self._arrays, self._config = arrayrecord_key, configrecord_key
        chosen = self.recipe
        self._server = loop.Server(
            mechanism=make_mechanism(chosen),
            memory=memories[chosen.memory.kind],
            family=family(chosen.utility.family),
            local=LocalSpec(),
            rounds=0,  # Flower counts
            seed=seed,
            aggregation=Weighted(chosen.aggregation.eta_s),
            metric=chosen.utility.metric,
            patience=patience,
        )

    def summary(self) -> None:
        words = self.recipe.mechanism["name"], self.recipe.participation.rule, self.recipe.offer.kind
        log.info("feduca: mechanism %s, rule %s, offer %s", *words)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per node: the model, your configuration, and the weights it is asked to judge."""
        online = self._wait(grid)
        self._nodes += sorted(node for node in online if node not in self._nodes)
        n = len(self._nodes)
        if self.state is None:
            self._vector = Vector.of(arrays)
            self._server = replace(self._server, parameters=self._vector.parameters, run=f"flower-{grid.run.run_id}")
            self.state = loop.begin(self._server, self._vector.flat(arrays), np.ones(n, int))
        more = n - len(self.state.examples)
        examples = np.concatenate([self.state.examples, np.ones(more, int)])
        census = roster.Census(examples, np.zeros(n, bool))
        self.state = roster.grow(self.state, census, self._server.mechanism, self._seed)
        self._asked = loop.announce(self._server, self.state)
        config["server-round"] = server_round
        self._sent = []
        for place, node in enumerate(self._nodes):
            if node in online:
                beside = codec.announcement(alone(self._asked, place), str(place))["announcement"]
                content = RecordDict({self._arrays: arrays, self._config: config, SMALL: beside})
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
        parts = {}
        for reply in replies:
            node = asker.get(reply.metadata.reply_to_message_id)
            if node is not None:
                place = self._nodes.index(node)
                parts[place] = self._read(asked, place, reply, self._vector)
        for place in range(len(self._nodes)):
            parts.setdefault(place, silent(alone(asked, place), ABSENT, "no answer", curve))
        reports = together([parts[place] for place in sorted(parts)], asked.round, asked.theta, curve)
        told = reports.measurements.examples
        self.state = replace(self.state, examples=np.where(told > 0, told, self.state.examples))
        self.state, admitted = loop.admit(self._server, self.state, asked, reports)
        reports = admitted.reports
        self.state, solved = loop.advance(self._server, self.state, reports)
        self.history.append(replace(reports, theta=reports.theta[:, :0]))
        for node, status, reason in zip(self._nodes, reports.status, reports.reason):
            log.info("round %d: node %s %s (%s)", server_round, node, status, reason)
        metrics: dict[str, Any] = {
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
            why = " ".join((reply.error.reason or "error").split())[:300]
            return silent(one, ABSENT, f"failed: {why}", curve)
        content = RecordDict({"report": reply.content[SMALL]}) if SMALL in reply.content else RecordDict()
        try:
            record = reply.content.get(self._arrays)
            if isinstance(record, ArrayRecord):
                content["theta"] = codec.wrapped(vector.flat(record))
            return codec.read_report(content, one, str(place), curve)[0]
        except (codec.ProtocolError, InputError) as error:
            return silent(one, REFUSED, f"answer refused: {error}", curve)


# ---------------------------------------------------------------------------------------------------------------------


def rational(
    message: Message,
    context: Context,
    *,
    fit: Fit,
    score: Score,
    examples: int,
    recipe: Source = "quickstart",
    folder: Path | str | None = None,
    seed: int = 0,
    arrayrecord_key: str = "arrays",
    configrecord_key: str = "config",
    train_score: Score | None = None,
    validation_examples: int | None = None,
) -> Message:
    """The reply of a rational client to a training message of `FedUCAStrategy`.

    `fit(arrays, config)` is your local training, `score(arrays)` gives accuracy and loss on this silo's own validation data. What
    the silo remembers, and its log, are in `folder` (or node configuration `folder`, or a place of its own below `~/.feduca`).
    `train_score(arrays)` is the same on its training data, for mechanisms that ask for that loss; `validation_examples`, on how
    many examples `score` rests, is for a recipe with a confidence.
    """
    arrays, config = message.content[arrayrecord_key], message.content.get(configrecord_key, ConfigRecord())
    if SMALL not in message.content or not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise InputError("this message is not from FedUCAStrategy; use that strategy in the ServerApp")
    vector = Vector.of(arrays)
    task = _FunctionTask(vector, fit, score, config, examples, train_score, validation_examples)
    theta = codec.wrapped(vector.flat(arrays))
    words = message.content[SMALL]
    name = str(words["silo"])  # type: ignore[index]
    asked = codec.read_announcement(RecordDict({"theta": theta, "announcement": words}), name, vector.size)
    where = folder or context.node_config.get("folder") or Path.home() / ".feduca" / f"node-{context.node_id}"
    answer = respond(name, SiloStore(Path(str(where))), task, behaviour_of(_recipe(recipe), seed, task), asked)
    report = codec.report(answer.report, asked.run, name)
    content = RecordDict({SMALL: report["report"]})
    if answer.report.status[0] == JOINED:
        content[arrayrecord_key] = vector.record(codec.host(answer.report.theta)[0])
    return Message(content, reply_to=message)


class _FunctionTask:
    """One silo whose training and scoring are the user's functions: of validation data, and of training data where given.

    It has no test part, so nothing is called a score on untouched data.
    """

    validation_examples: Ints  # where the user counts them

    def __init__(
        self,
        vector: Vector,
        fit: Fit,
        score: Score,
        config: ConfigRecord,
        examples: int,
        train_score: Score | None = None,
        validation_examples: int | None = None,
    ) -> None:
        self.silos = ("this",)
        self.examples = np.array([examples])
        self.parameters, self.size = vector.parameters, vector.size
        if validation_examples is not None:
            self.validation_examples = np.array([validation_examples])
        self._vector, self._fit, self._config = vector, fit, config
        self._scores = {"validation": score, "train": train_score}

    def init(self, seed: int) -> Array:
        return np.full(self.size, np.nan, self._vector.dtype)  # the server's own: this silo only knows its type

    def train(
        self, theta: Array, clients: Ints, spec: LocalSpec, round: int, seed: int | Ints, anchor: Array | None = None
    ) -> Array:
        return np.stack([self._vector.flat(self._fit(self._vector.record(row), self._config)) for row in theta])

    def evaluate(self, theta: Array, clients: Ints, split: str) -> Scores:
        score = self._scores.get(split)
        if score is None:
            way = "give `rational` a train_score" if split == "train" else "choose one that does not"
            raise InputError(
                f"the recipe asks for scores on the silo's {split} data, which `score` is not about: {way}"
            )
        pairs = np.array([score(self._vector.record(row)) for row in theta], dtype=float)
        return Scores(pairs[:, 0], pairs[:, 1])

    def along(self, start: Array, end: Array, places: Floats, clients: Ints, split: str) -> Scores:
        columns = []
        for m in range(places.shape[1]):
            r = places[:, m : m + 1].astype(start.dtype)
            columns.append(self.evaluate((1 - r) * start + r * end, clients, split))
        return Scores(np.stack([c.accuracy for c in columns], 1), np.stack([c.loss for c in columns], 1))

    def test(self, theta: Array) -> Scores | None:
        return None
