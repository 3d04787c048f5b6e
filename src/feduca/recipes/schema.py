"""Recipes: the validated boundary between a TOML file and the library. Past this file there are no config dictionaries.

A recipe is one TOML file; `--set key=value` changes single entries; whatever is not set has the default given in tables.py,
which is the library default of the readings table (docs/readings.md). Unknown keys are refused with the nearest known one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from feduca import mechanisms
from feduca.core.share import PRESETS
from feduca.errors import ConfigError, shown
from feduca.recipes.complaints import nearest, options_model, sentence
from feduca.recipes.privacy import check_privacy
from feduca.recipes.secure import check_secure
from feduca.recipes.settings import parse_setting, settled, updated
from feduca.recipes.source import read, recipes
from feduca.recipes.tables import (
    FIXED_MODELS,
    OFFER_OPTIONS,
    OPTIMISER_OPTIONS,
    AggregationTable,
    Axis,
    CheckpointTable,
    CohortTable,
    CompareRow,
    ConductTable,
    EngineTable,
    GateTable,
    LocalTable,
    MemoryTable,
    OfferTable,
    OutsideTable,
    ParticipationTable,
    PrivacyTable,
    ReportingTable,
    StandingTable,
    Table,
    TaskTable,
    UtilityTable,
)

__all__ = ["Recipe", "load", "nearest", "parse_setting", "recipes"]

SCHEMA = 1
OUTLIER = 5.0  # gate.outlier, where the server sees updates
_LATER = {  # options that came after the first runs, with the values that leave those runs' names as they were
    "aggregation.optimiser": "sgd",
    "aggregation.beta1": 0.9,
    "aggregation.beta2": 0.99,
    "aggregation.tau": 1e-3,
    "alone": False,
    "share": "all",
    "conduct.after": 10,
    "conduct.noise": 0.1,
    "conduct": {"kind": "honest", "clients": None},
    "gate.outlier": OUTLIER,
    "own": None,
    "outside": {"kind": "private", "every": 1},
    "participation.against": "current",
    "offer.margin_kind": "absolute",
    "offer.budget": 0,
    "offer.search": "upwards",
    "offer.train_from": "offer",
    "offer.space": "outputs",
    "offer.folds": 0,
    "offer.errors": 0.0,
    "participation.average": 1,
    "participation.check": "fitted",
    "participation.confidence": 0.0,
    "participation.quits": 0,
    "reporting.decliners": "all",
    "privacy": PrivacyTable().model_dump(),
    "cohort": {"size": None, "draw": "uniform", "availability": 1.0},
    "standing": {"kind": "off", "patience": 3, "window": 10, "answer": 0.02},
    "utility.keep_curves": False,
}


class Recipe(Table):
    """A validated recipe. `mechanism` holds the name and every option of the chosen mechanism."""

    name: str = "run"
    rounds: int = Field(default=30, ge=1, le=1_000_000)
    seeds: list[int] = Field(default=[0], min_length=1)
    diagnostics: bool = False  # compute Eq. 2 and its curve for everybody, whether needed or not
    alone: bool = False  # train beside each silo's model the one it would have had alone, and record its test score
    own: str | None = None  # the fingerprint of a task of the user's own that stands in for [task] and [engine]
    share: str | list[str] = (
        "all"  # which parameters travel: a preset (all, but-bias, body, head, but-norm) or patterns of names
    )
    study: str = "main"  # which part of a larger study its cells belong to
    also: list[str] = Field(default=[])  # recipes whose cells are further parts of this study
    task: TaskTable = TaskTable()
    local: LocalTable = LocalTable()
    mechanism: dict[str, Any] = Field(default={"name": "feduca"})
    utility: UtilityTable = UtilityTable()
    participation: ParticipationTable = ParticipationTable()
    outside: OutsideTable = OutsideTable()
    offer: OfferTable = OfferTable()
    reporting: ReportingTable = ReportingTable()
    conduct: ConductTable = ConductTable()
    memory: MemoryTable = MemoryTable()
    aggregation: AggregationTable = AggregationTable()
    gate: GateTable = GateTable()
    standing: StandingTable = StandingTable()
    privacy: PrivacyTable = PrivacyTable()
    cohort: CohortTable = CohortTable()
    engine: EngineTable = EngineTable()
    checkpoint: CheckpointTable = CheckpointTable()
    compare: list[CompareRow] = Field(default=[])  # a table with one row each ...
    axes: list[Axis] = Field(default=[])  # ... or with one for every combination (studies/cells.py)
    smoke: dict[str, Any] = Field(default={})  # settings of the small version that `reproduce --smoke` runs

    @field_validator("name")
    @classmethod
    def _a_folder_name(cls, name: str) -> str:
        if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
            raise ValueError("must be a plain folder name of letters, digits, '-', '_' and '.'")
        if len(name.encode()) > 200:
            raise ValueError("too long for the name of a folder; use at most 200 letters")
        return name

    @field_validator("share")
    @classmethod
    def _says_something(cls, share: str | list[str]) -> str | list[str]:
        if not share or not all(share):
            raise ValueError(f"name what travels: {', '.join(PRESETS)}, or patterns of parameters' names")
        return share

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if any(seed < 0 for seed in seeds):
            raise ValueError("seeds must be 0 or more")
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is listed twice; list each once")
        return seeds

    @field_validator("mechanism")
    @classmethod
    def _complete(cls, given: dict[str, Any]) -> dict[str, Any]:
        name = given.get("name", "feduca")
        if not isinstance(name, str) or name not in mechanisms.registry:
            yours = "(one of your own: --import FILE.py on the command line, feduca.mechanisms.register in Python)"
            raise ConfigError(f"mechanism.name is {shown(name)}; {nearest(str(name), mechanisms.registry)} {yours}")
        options = {key: value for key, value in given.items() if key != "name"}
        try:
            complete = options_model(name)(**options).model_dump()
        except ValidationError as error:
            raise ConfigError(sentence(error, Recipe)) from None
        mechanisms.registry[name](**complete)  # its own checks
        return {"name": name, **complete}

    @model_validator(mode="after")
    def _known_clients(self) -> Recipe:
        for name, named in (("reporting", self.reporting.clients), ("conduct", self.conduct.clients)):
            strangers = [k for k in named or [] if not 0 <= k < self.task.clients]
            if strangers:
                last = self.task.clients - 1
                raise ConfigError(f"{name}.clients names silo {strangers[0]}; this federation has silos 0 to {last}")
        given = self.reporting.share
        shares = given if isinstance(given, list) else [given] * self.task.clients
        if len(shares) != self.task.clients:
            raise ConfigError(
                f"reporting.share lists {len(shares)} silos; give one share for each of the {self.task.clients}"
            )
        if self.reporting.kind == "understate" and not all(0 <= share < 1 for share in shares):
            raise ConfigError(f"reporting.share is {given}; understating takes shares of at least 0 and below 1")
        return self

    @model_validator(mode="after")
    def _only_some_models_have_layers_to_choose(self) -> Recipe:
        if self.task.hidden is not None and self.task.model in FIXED_MODELS:
            raise ConfigError(
                f"task.hidden is {self.task.hidden} with task.model {self.task.model!r}, whose layers are fixed; leave"
                " task.hidden out, or use task.model = 'mlp' or 'cnn'"
            )
        return self

    @model_validator(mode="after")
    def _only_a_resnet_starts_from_a_file(self) -> Recipe:
        if self.task.weights is not None and self.task.model != "resnet18":
            raise ConfigError(
                f"task.weights is {shown(self.task.weights)} with task.model {self.task.model!r}, which takes none; leave"
                " task.weights out, or use task.model = 'resnet18'"
            )
        return self

    @model_validator(mode="after")
    def _confidence_is_about_accuracy(self) -> Recipe:
        p = self.participation
        if p.confidence > 0 and p.rule == "loss":
            raise ConfigError(
                f"participation.confidence is {p.confidence} with participation.rule 'loss': correct answers can be counted,"
                " losses cannot; use rule = 'accuracy' or confidence 0"
            )
        if p.confidence > 0 and p.rule != "accuracy" and self.utility.metric != "accuracy":
            raise ConfigError(
                f"participation.confidence is {p.confidence} with utility.metric {self.utility.metric!r}:"
                " correct answers can be counted, losses cannot; use utility.metric = 'accuracy' or confidence 0"
            )
        return self

    @model_validator(mode="after")
    def _rows_may_settle(self) -> Recipe:
        self._settled()
        return self

    def _settled(self) -> None:
        self._makes_sense_as_one_run()
        self._only_a_search_has_options()
        self._only_some_optimisers_have_options()

    def _makes_sense_as_one_run(self) -> None:
        """What a table's base leaves open its rows may settle: they are looked at one by one."""
        if self.compare or self.axes:
            return
        p, o, t = self.participation, self.offer, self.task
        if p.quits and p.rule == "never":
            raise ConfigError(
                f"participation.quits is {p.quits} with participation.rule 'never', under which nobody is in to quit; use"
                " another rule, or quits 0"
            )
        self._standing_makes_sense()
        self._store_makes_sense()
        self._outside_makes_sense()
        self._stack_makes_sense()
        check_secure(self)
        check_privacy(self)
        accuracy = self.own is None and t.metric == "accuracy" and "accuracy" in (p.rule, self.utility.metric)
        if accuracy and o.margin_kind == "absolute" and o.margin >= 1:
            raise ConfigError(
                f"offer.margin is {o.margin:g}: accuracies lie between 0 and 1, so no offer wins by more than that; give, say,"
                " 0.01 for one point"
            )

    def _standing_makes_sense(self) -> None:
        c = self.conduct
        if c.kind == "copy" and c.clients is not None and len(set(c.clients)) < 2:
            raise ConfigError(f"conduct.clients is {c.clients} with conduct.kind 'copy': name two silos or more")
        for key, kinds in (("after", ("lapse",)), ("noise", ("replay", "stale", "forge"))):
            if c.kind not in kinds and (value := getattr(c, key)) != ConductTable.model_fields[key].default:
                can = " or ".join(map(repr, kinds))
                raise ConfigError(
                    f"conduct.{key} is {value!r} with conduct.kind {c.kind!r}, which has no use for it; use conduct.kind = {can}"
                )
        name = self.mechanism["name"]
        if self.standing.kind == "work" and hasattr(mechanisms.registry[name], "control"):
            raise ConfigError(
                f"standing.kind is 'work' with mechanism.name {name!r}, whose control variates take out of updates what"
                " answers to the model: honest silos would lose their standing; use standing.kind = 'off', or another mechanism"
            )
        if self.standing.kind == "work" and self.cohort.size is not None:
            raise ConfigError(
                f"standing.kind is 'work' with cohort.size {self.cohort.size}: work is judged round after round, and of a cohort"
                " most silos are not asked; use standing.kind = 'off', or ask everybody"
            )
        if self.standing.kind == "off":
            for key, value in self.standing.model_dump(exclude={"kind"}).items():
                if value != StandingTable.model_fields[key].default:
                    raise ConfigError(
                        f"standing.{key} is {value!r} with standing.kind 'off', under which nobody asks for work; use"
                        " standing.kind = 'work'"
                    )

    def _store_makes_sense(self) -> None:
        if self.cohort.store == "disk" and self.aggregation.kind != "mean" and self.memory.kind != "none":
            raise ConfigError(
                f"cohort.store is 'disk' with aggregation.kind {self.aggregation.kind!r} and memory.kind {self.memory.kind!r},"
                " which looks at what is remembered of all silos at once; use memory.kind = 'none', or cohort.store = 'memory'"
            )
        if self.cohort.store == "disk" and self.privacy.secure_aggregation:
            raise ConfigError(
                "cohort.store is 'disk' with privacy.secure_aggregation, whose silos keep what they contributed in memory; use"
                " cohort.store = 'memory'"
            )

    def _outside_makes_sense(self) -> None:
        p, o = self.participation, self.outside
        if p.against == "current" and o != OutsideTable():
            key = "kind" if o.kind != "private" else "every"
            raise ConfigError(
                f"outside.{key} is {getattr(o, key)!r} with participation.against 'current', under which no silo keeps an"
                " outside option; use participation.against = 'outside'"
            )
        if o.kind == "best-kept" and o.every != 1:
            raise ConfigError(
                f"outside.every is {o.every} with outside.kind 'best-kept', which never trains; use outside.kind = 'private'"
            )
        for key, unused in (("threshold", "previous-weight"), ("average", 1)):
            if p.against == "outside" and (value := getattr(p, key)) != unused:
                raise ConfigError(
                    f"participation.{key} is {value!r} with participation.against 'outside', where the outside option's"
                    f" utility is the threshold; leave {key} out"
                )

    def _stack_makes_sense(self) -> None:
        p, o = self.participation, self.offer
        if o.kind != "stack":
            return
        if p.against != "outside":
            raise ConfigError(
                f"offer.kind is 'stack' with participation.against {p.against!r}: it mixes with the outside option; set"
                " participation.against = 'outside'"
            )
        if p.rule == "utility":
            raise ConfigError(
                "offer.kind is 'stack' with participation.rule 'utility', whose curves know nothing of mixtures; use rule ="
                " 'loss' or 'accuracy'"
            )
        name, options = self.mechanism["name"], {k: v for k, v in self.mechanism.items() if k != "name"}
        if getattr(getattr(mechanisms.registry[name](**options), "personal", None), "deploys", False):
            raise ConfigError(
                f"offer.kind is 'stack' with mechanism.name {name!r}, which keeps a personal model that silos deploy instead;"
                " use another offer.kind, or mechanism.name = 'fedavg'"
            )
        if o.space == "parameters" and (o.folds or o.errors):
            key = "folds" if o.folds else "errors"
            raise ConfigError(
                f"offer.{key} is {getattr(o, key):g} with offer.space 'parameters', where examples are not compared one by one;"
                " use offer.space = 'outputs'"
            )
        if o.folds == 1:
            raise ConfigError(
                "offer.folds is 1: use at least 2, so that there are others to find weights on, or 0 for none"
            )
        if o.space == "outputs" and self.own is None and self.task.metric != "accuracy":
            raise ConfigError(
                f"offer.space is 'outputs' with task.metric {self.task.metric!r}: outputs are mixed as class probabilities,"
                " judged by accuracy and cross-entropy; use offer.space = 'parameters'"
            )

    def _only_a_search_has_options(self) -> None:
        rows = [*self.compare, *(value for axis in self.axes for value in axis.values)]
        kinds = [self.offer.kind, *(str(row.set.get("offer.kind", "global")) for row in rows)]
        used = {
            key for kind in kinds for key in OFFER_OPTIONS.get(kind, ())
        }  # a base's options are for some of its rows
        for key in (*OFFER_OPTIONS["least-concession"], "space", "folds", "errors"):
            value = getattr(self.offer, key)
            if key not in used and value != OfferTable.model_fields[key].default:
                what = {
                    "best-mixture": "takes the best of its points",
                    "global": "offers the shared model as it is",
                }.get(self.offer.kind, "has no use for it")
                can = " or ".join(repr(kind) for kind, options in OFFER_OPTIONS.items() if key in options)
                raise ConfigError(
                    f"offer.{key} is {value!r} with offer.kind {self.offer.kind!r}, which {what}; use offer.kind = {can}"
                )

    def _only_some_optimisers_have_options(self) -> None:
        rows = [*self.compare, *(value for axis in self.axes for value in axis.values)]
        kinds = [self.aggregation.optimiser, *(row.set.get("aggregation.optimiser", "sgd") for row in rows)]
        used = {key for kind in kinds for key in OPTIMISER_OPTIONS.get(kind, ())}
        for key in OPTIMISER_OPTIONS["adam"]:
            value = getattr(self.aggregation, key)
            if key not in used and value != AggregationTable.model_fields[key].default:
                can = " or ".join(repr(kind) for kind, options in OPTIMISER_OPTIONS.items() if key in options)
                raise ConfigError(
                    f"aggregation.{key} is {value!r} with aggregation.optimiser {self.aggregation.optimiser!r}, which has no use"
                    f" for it; use aggregation.optimiser = {can}"
                )

    def single(self) -> Recipe:
        """This recipe as one run, without its table of rows: what it sets must mean something by itself.

        All else was validated with the table; only what rows may settle is looked at again.
        """
        if not (self.compare or self.axes):
            return self
        one = self.model_copy(update={"compare": [], "axes": []})
        try:
            one._settled()
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        return one

    def plain(self) -> dict[str, Any]:
        """The resolved recipe without its tables of rows: what a run is. A task of the user's own is not described here."""
        return self._of_the_run({"compare", "axes", "smoke", "study", "also"})

    def _of_the_run(self, exclude: set[str]) -> dict[str, Any]:
        what = self.model_dump(exclude=exclude)
        if self.own is not None:
            del what["engine"]
            what["task"] = {"clients": self.task.clients}
        return what

    @property
    def outlier(self) -> float:
        """`gate.outlier`, or what it is where nobody has set it."""
        unset = 0.0 if self.privacy.secure_aggregation else OUTLIER
        return unset if self.gate.outlier is None else self.gate.outlier

    def hash(self) -> str:
        """A name for what this recipe computes: everything but its name, seeds, tables of rows, checkpoints and their kin."""
        what = self._of_the_run({"name", "seeds", "compare", "axes", "smoke", "checkpoint", "study", "also"})
        what["schema"] = SCHEMA
        what["gate"]["outlier"] = self.outlier  # unset or set to what unset means: the same run
        del what["cohort"]["store"]
        for dotted, unused in _LATER.items():
            *path, last = dotted.split(".")
            table = what[path[0]] if path else what
            if table[last] == unused:
                del table[last]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """This recipe with some entries changed, validated again; itself where there is nothing to change."""
        if not settings:
            return self
        return _validate(settled(updated(self.model_dump(), settings), settings), self.name)


def load(source: str | Path | Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from an embedded name, a TOML file or a mapping, with `settings` (dotted keys) on top."""
    if isinstance(source, Mapping):
        tree, name = dict(source), "recipe"
    else:
        tree, name = read(str(source))
    tree.setdefault("name", name)
    settings = settings or {}
    return _validate(settled(updated(tree, settings), settings), name if isinstance(source, Mapping) else str(source))


def _validate(tree: Mapping[str, Any], source: str) -> Recipe:
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{source}: {sentence(error, Recipe)}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
