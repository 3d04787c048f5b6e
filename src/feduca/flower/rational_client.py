"""The client's half of the drop-in strategy: an app's own training and scoring, and a client that decides.

    @app.train()
    def train(message, context):
        return rational(message, context, fit=fit, score=score, examples=len(data), recipe={...})

The client decides, trains either way, estimates its curve, and sends its model only if it joins. Mods of Flower's that work on
one client's model (`LocalDpMod`, `fixedclipping_mod`) can be put around it; `secaggplus_mod`, which needs a server workflow of
its own, cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from feduca.errors import InputError
from feduca.flower import codec
from feduca.flower.beside import METRICS, SMALL, Source, recipe_of, told
from feduca.flower.failures import discreet
from feduca.flower.policy import behave
from feduca.flower.policy import read as read_policy
from feduca.flower.silo import respond
from feduca.flower.store import SiloStore
from feduca.flower.vectors import Vector
from feduca.types import JOINED, Array, Floats, Ints, LocalSpec, Scores

Metrics = Mapping[str, float]
Fit = Callable[[ArrayRecord, ConfigRecord], ArrayRecord | tuple[ArrayRecord, Metrics]]
Score = Callable[
    [ArrayRecord], tuple[float, float]
]  # accuracy (higher is better) and loss on the silo's validation data

PULL = "proximal-mu"  # where Flower's FedProx tells clients how strong its term is


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
    bare_refusals: bool = False,
) -> Message:
    """The reply of a rational client to a training message of `FedUCAStrategy`.

    `fit(arrays, config)` is your local training; beside the trained arrays it may return metrics, which the strategy averages.
    Under `fedprox`, `config["proximal-mu"]` is the strength of the term that it has to add. `score(arrays)` gives accuracy and
    loss on this silo's own validation data. What the silo remembers, and its log, are in `folder` (or node configuration
    `folder`, or a place of its own below `~/.feduca`). `train_score(arrays)` is the same on its training data, for mechanisms
    that ask for that loss; `validation_examples`, on how many examples `score` rests, is for a recipe with a confidence. Who
    declines sends meaningless numbers in the model's place, because Flower's mods look for some; `bare_refusals` sends none.
    """
    arrays, config = message.content[arrayrecord_key], message.content.get(configrecord_key, ConfigRecord())
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise InputError("this message is not from FedUCAStrategy; use that strategy in the ServerApp")
    words, config = told(config)
    vector, chosen = Vector.of(arrays), recipe_of(recipe)
    theta = vector.flat(arrays)
    name = str(words["announcement"]["silo"])  # type: ignore[index]
    asked = codec.read_announcement(RecordDict({"theta": codec.wrapped(theta), **words}), name, vector.size)
    if asked.local.prox:
        config[PULL] = asked.local.prox
    task = _FunctionTask(vector, fit, score, config, examples, train_score, validation_examples)
    where = folder or context.node_config.get("folder") or Path.home() / ".feduca" / f"node-{context.node_id}"
    with discreet(str(where), silo=name, round=asked.round):
        policy = read_policy(Path(str(where)).parent)
        how = behave(chosen, seed, task, policy)
        answer = respond(name, SiloStore(Path(str(where))), task, how, asked, policy, chosen)
    report = codec.report(answer.report, asked.run, name)
    content = RecordDict({SMALL: report["report"]})
    if answer.report.status[0] == JOINED:
        content[arrayrecord_key] = vector.record(codec.host(answer.report.theta)[0])
    elif not bare_refusals:
        content[arrayrecord_key] = vector.record(_nothing(theta))
    content[METRICS] = MetricRecord({**task.metrics, "num-examples": examples})
    return Message(content, reply_to=message)


def _nothing(theta: np.ndarray) -> np.ndarray:
    """Arrays that say nothing of the silo. Clipping divides by their distance to the model sent, so they are far from it."""
    return (np.abs(theta) < 0.5).astype(theta.dtype)


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
        self.parameters, self.size, self.parameter_names = vector.parameters, vector.size, vector.parameter_names
        if validation_examples is not None:
            self.validation_examples = np.array([validation_examples])
        self.metrics: dict[str, float] = {}  # of the last training
        self._vector, self._fit, self._config = vector, fit, config
        self._scores = {"validation": score, "train": train_score}

    def init(self, seed: int) -> Array:
        return np.full(self.size, np.nan, self._vector.dtype)  # the server's own: this silo only knows its type

    def train(
        self, theta: Array, clients: Ints, spec: LocalSpec, round: int, seed: int | Ints, anchor: Array | None = None
    ) -> Array:
        return np.stack([self._fitted(row) for row in theta])

    def _fitted(self, theta: np.ndarray) -> np.ndarray:
        trained = self._fit(self._vector.record(theta), self._config)
        if isinstance(trained, tuple):
            trained, metrics = trained
            self.metrics = dict(metrics)
        return self._vector.flat(trained)

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
