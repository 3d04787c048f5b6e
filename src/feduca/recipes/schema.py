"""Recipes: the validated boundary between a TOML file and the library. Past this file there are no config dictionaries.

A recipe is one TOML file; `--set key=value` changes single entries; whatever is not set has the default given here, which is the
library default of the readings table (docs/readings.md). Unknown keys are refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)

from feduca.errors import ConfigError
from feduca.folders import entries, is_folder
from feduca.mechanisms import registry

SCHEMA = 1
_LATER = {  # options that came after the first runs, with the values that leave those runs' names as they were
    "alone": False,
    "conduct": {"kind": "honest", "clients": None},
    "own": None,
    "offer.margin_kind": "absolute",
    "offer.budget": 0,
    "offer.search": "upwards",
    "offer.train_from": "offer",
    "participation.confidence": 0.0,
    "participation.quits": 0,
    "utility.keep_curves": False,
}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


FIXED_MODELS = ("logistic", "resnet18", "bilstm")  # whose hidden layers are not a recipe's to choose (tasks/models.py)


class TaskTable(_Table):
    """Which data, how they are spread over silos, and the model (SPEC section 7)."""

    data: str = "digits"  # the name of a data set, or a folder of silos' files (docs/your-data.md)
    clients: int = Field(default=10, ge=1)
    classes_per_client: int = Field(default=5, ge=1)
    train_concentration: float = Field(default=0.5, gt=0)
    validation_concentration: float = Field(default=1.0, gt=0)
    validation_share: float = Field(default=0.2, gt=0, lt=1)
    test_share: float = Field(default=0.0, ge=0, lt=1)  # part of a silo's validation data that no decision ever sees
    split_seed: int | None = Field(default=None, ge=0, description="the run's seed")
    model: str = "mlp"
    hidden: list[int] | None = Field(default=None, description="the model's own layers")
    max_examples: int | None = Field(default=None, ge=1, description="all examples there are")
    data_dir: str | None = Field(default=None, description="the folder that FEDUCA_DATA names, else ./data")
    target: str = "label"  # of a folder: the column of its tables to predict ...
    metric: Literal["accuracy", "auc", "r2"] = "accuracy"  # ... how models are judged ...
    loss: Literal["cross-entropy", "squared-error"] | None = Field(
        default=None, description="what goes with the metric"
    )

    @model_serializer(mode="wrap")
    def _what_applies(self, everything: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Silos with files of their own are not dealt a data set, and the other way round: neither is written down.

        Nor is a split that follows the run's seed: earlier runs keep their names.
        """
        unused = DEALT if is_folder(self.data) else (*FOLDERS, *(("split_seed",) if self.split_seed is None else ()))
        return {key: value for key, value in everything(self).items() if key not in unused}


DEALT = (  # entries of [task] that say how a data set is dealt to silos
    "classes_per_client", "train_concentration", "validation_concentration", "validation_share", "test_share", "max_examples",
    "split_seed",
)  # fmt: skip
FOLDERS = ("target", "metric", "loss")  # those for a folder of silos' files alone


class LocalTable(_Table):
    """One round of local training."""

    epochs: int = Field(default=5, ge=1)
    batch_size: int = Field(default=50, ge=1)
    lr: float = Field(default=0.1, gt=0)
    lr_decay: float = Field(default=1.0, gt=0, le=1)  # per round
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=0.0, ge=0)  # bound on the gradient's norm after weight decay; 0 = none
    augment: bool = False
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)


class UtilityTable(_Table):
    """How a client estimates and reports its curve."""

    family: str = "quadratic"
    metric: Literal["accuracy", "loss"] = "accuracy"  # reading 9
    nodes: int = Field(default=8, ge=3, le=64)  # Gauss-Legendre nodes of the fit
    check: int = Field(default=21, ge=4)  # points of the grid R^2 is computed on
    check_every: int = Field(default=1, ge=0)  # rounds between two checks; 0 = never
    leave_out: Literal["local", "contributed"] = "local"  # reading 5
    record_points: bool = False  # keep the measured points beside each fit (diagnostics keeps them too)
    keep_curves: bool = False  # in rounds with a check keep the points and their losses: whole measured curves


class ParticipationTable(_Table):
    """When a client joins."""

    rule: Literal["always", "accuracy", "utility", "never"] = "utility"  # everybody; Eq. 1; Eq. 2; nobody
    ties: Literal["strict", "loss"] = "strict"  # Eq. 1, equal accuracy: no; or decided by lower loss
    warm_start: int = Field(default=0, ge=0)  # rounds in which everybody joins first
    threshold: Literal["previous-weight", "local-baseline"] = "previous-weight"  # reading 3
    tolerance: float = Field(default=1e-6, gt=0)  # reading 8
    confidence: float = Field(default=0.0, ge=0, lt=1)  # below it a difference in accuracy is a tie; 0: any counts
    quits: int = Field(default=0, ge=0)  # rounds without beating its model alone after which a silo leaves; 0 = never


class OfferTable(_Table):
    """What a client is asked to accept (SPEC section 10)."""

    kind: Literal["global", "least-concession", "best-mixture"] = "global"
    margin: float = Field(default=0.0, ge=0)
    margin_kind: Literal["absolute", "relative"] = "absolute"  # relative: a share of the own model's score
    points: int = Field(default=10, ge=2, le=1000)
    budget: int = Field(default=0, ge=0)  # forward passes per silo and round to find an offer; 0 = no bound
    search: Literal["upwards", "guided"] = "upwards"  # from consensus on; or halving, first where the last curve says
    train_from: Literal["offer", "consensus"] = "offer"  # where acceptors start to train; they deploy the offer

    def used_by(self, kind: str) -> OfferTable:
        """This table without the options that an offer of that kind has no use for: what a row of that kind takes from it."""
        return OfferTable(kind=self.kind, **{key: getattr(self, key) for key in OFFER_OPTIONS.get(kind, ())})


OFFER_OPTIONS = {  # that each kind of offer has a use for
    "global": (),  # the shared model as it is
    "least-concession": ("margin", "margin_kind", "points", "budget", "search", "train_from"),
    "best-mixture": ("points", "budget", "train_from"),  # the best of its points
}


class ReportingTable(_Table):
    """Whether clients tell the truth."""

    kind: Literal["truthful", "inflate", "understate"] = "truthful"
    share: float | list[float] = 0.0  # a list has one share per silo
    clients: list[int] | None = Field(default=None, description="all silos")  # who misreports
    decide_by: Literal["reported", "true"] = "reported"  # reading 13
    round: float = Field(default=0.0, ge=0)  # report curve and threshold in multiples of this; 0 = exactly
    noise: float = Field(default=0.0, ge=0)  # ... with Gaussian noise of this deviation


class ConductTable(_Table):
    """Whether clients do their part (conduct.py)."""

    kind: Literal["honest", "refuse", "withhold", "echo", "noise", "idle"] = "honest"
    clients: list[int] | None = Field(default=None, description="all silos")


class MemoryTable(_Table):
    """What the server remembers of a client that sits a round out (reading 4)."""

    kind: Literal["update", "model", "none"] = "update"


class AggregationTable(_Table):
    """How updates become the next model."""

    eta_s: float = Field(default=1.0, gt=0)
    kind: Literal["mean", "median", "trimmed"] = "mean"  # the paper's weighted sum; the others respect alpha, too
    trim: float = Field(default=0.2, ge=0, lt=0.5)  # share of the weight left out at either end of every coordinate
    clip: float = Field(default=0.0, ge=0)  # shorten updates to this norm; 0 = never
    clip_median: float = Field(default=0.0, ge=0)  # ... to this multiple of the participants' median norm; 0 = never


class GateTable(_Table):
    """What the server checks before it believes a report."""

    on: bool = True
    norm: float = Field(default=0.0, ge=0)  # refuse updates longer than this; 0 = no bound (the norms are recorded)
    plausible: Literal["ignore", "advise", "refuse"] = "advise"  # curves and thresholds that do not fit what follows
    plausible_tolerance: float = Field(default=0.05, gt=0)  # of a curve's mean error
    plausible_demand: float = Field(default=0.01, gt=0)  # of a threshold above its own curve
    plausible_window: int = Field(default=10, ge=1)


class EngineTable(_Table):
    """Where and how the simulator computes."""

    kind: Literal["stacked", "sequential"] = "stacked"
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    chunk: int | None = Field(default=None, ge=1, description="10000 examples at a time")
    threads: int | None = Field(default=None, ge=1, description="as many as PyTorch takes, usually one per core")


class CheckpointTable(_Table):
    """How often a run is made safe. Changes nothing of what it computes."""

    every_s: float | None = Field(default=None, ge=0, description="every round while it is small, else every 300 s")
    keep: bool = True  # false: none at all; an interrupted run starts anew, a finished one keeps its records only


class CompareRow(_Table):
    label: str
    set: dict[str, Any] = {}


class AxisValue(_Table):
    label: str
    set: dict[str, Any] = {}


class Axis(_Table):
    """One dimension of a table: every value is combined with every value of the other axes."""

    name: str
    values: list[AxisValue] = Field(min_length=1)


class Recipe(_Table):
    """A validated recipe. `mechanism` holds the name and every option of the chosen mechanism."""

    name: str = "run"
    rounds: int = Field(default=30, ge=1)
    seeds: list[int] = Field(default=[0], min_length=1)
    diagnostics: bool = False  # compute Eq. 2 and its curve for everybody, whether needed or not
    alone: bool = False  # train beside each silo's model the one it would have had alone, and record its test score
    own: str | None = None  # the fingerprint of a task of the user's own that stands in for [task] and [engine]
    study: str = "main"  # which part of a larger study its cells belong to
    also: list[str] = []  # recipes whose cells are further parts of this study
    task: TaskTable = TaskTable()
    local: LocalTable = LocalTable()
    mechanism: dict[str, Any] = {"name": "feduca"}
    utility: UtilityTable = UtilityTable()
    participation: ParticipationTable = ParticipationTable()
    offer: OfferTable = OfferTable()
    reporting: ReportingTable = ReportingTable()
    conduct: ConductTable = ConductTable()
    memory: MemoryTable = MemoryTable()
    aggregation: AggregationTable = AggregationTable()
    gate: GateTable = GateTable()
    engine: EngineTable = EngineTable()
    checkpoint: CheckpointTable = CheckpointTable()
    compare: list[CompareRow] = []  # a table with one row each ...
    axes: list[Axis] = []  # ... or with one for every combination (see study.py)
    smoke: dict[str, Any] = {}  # settings of the small version that `reproduce --smoke` runs

    @field_validator("name")
    @classmethod
    def _a_folder_name(cls, name: str) -> str:
        if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
            raise ValueError("must be a plain folder name of letters, digits, '-', '_' and '.'")
        return name

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if any(seed < 0 for seed in seeds):
            raise ValueError("seeds must be 0 or more")
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed stands there twice, and one run is no second opinion; name each once")
        return seeds

    @field_validator("mechanism")
    @classmethod
    def _complete(cls, given: dict[str, Any]) -> dict[str, Any]:
        name = given.get("name", "feduca")
        if name not in registry:
            yours = "(one of your own: --import FILE.py on the command line, feduca.mechanisms.register in Python)"
            raise ConfigError(f"mechanism.name is {name!r}; {_nearest(str(name), registry)} {yours}")
        options = {key: value for key, value in given.items() if key != "name"}
        try:
            complete = _options_model(name)(**options).model_dump()
        except ValidationError as error:
            raise ConfigError(_sentence(error)) from None
        registry[name](**complete)  # its own checks
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
    def _confidence_is_about_accuracy(self) -> Recipe:
        p = self.participation
        if p.confidence > 0 and p.rule != "accuracy" and self.utility.metric != "accuracy":
            raise ConfigError(
                f"participation.confidence is {p.confidence} with utility.metric {self.utility.metric!r}:"
                " correct answers can be counted, losses cannot; use utility.metric = 'accuracy' or confidence 0"
            )
        return self

    @model_validator(mode="after")
    def _makes_sense_as_one_run(self) -> Recipe:
        """What a table's base leaves open its rows may settle: they are looked at one by one."""
        if self.compare or self.axes:
            return self
        p, o, t = self.participation, self.offer, self.task
        if p.quits and p.rule == "never":
            raise ConfigError(
                f"participation.quits is {p.quits} with participation.rule 'never', under which nobody is in to quit; use"
                " another rule, or quits 0"
            )
        accuracy = self.own is None and t.metric == "accuracy" and "accuracy" in (p.rule, self.utility.metric)
        if accuracy and o.margin_kind == "absolute" and o.margin >= 1:
            raise ConfigError(
                f"offer.margin is {o.margin:g}: accuracies lie between 0 and 1, so no offer wins by more than that; give, say,"
                " 0.01 for one point"
            )
        return self

    @model_validator(mode="after")
    def _only_a_search_has_options(self) -> Recipe:
        rows = [*self.compare, *(value for axis in self.axes for value in axis.values)]
        kinds = [self.offer.kind, *(row.set.get("offer.kind", "global") for row in rows)]
        used = {
            key for kind in kinds for key in OFFER_OPTIONS.get(kind, ())
        }  # a base's options are for some of its rows
        for key in OFFER_OPTIONS["least-concession"]:
            value = getattr(self.offer, key)
            if key not in used and value != OfferTable.model_fields[key].default:
                mixes = self.offer.kind == "best-mixture"
                what = "takes the best of its points" if mixes else "offers the shared model as it is"
                can = " or ".join(repr(kind) for kind, options in OFFER_OPTIONS.items() if key in options)
                raise ConfigError(
                    f"offer.{key} is {value!r} with offer.kind {self.offer.kind!r}, which {what}; use offer.kind = {can}"
                )
        return self

    def single(self) -> Recipe:
        """This recipe as one run, without its table of rows: what it sets must mean something by itself."""
        return self.with_settings({"compare": [], "axes": []})

    def plain(self) -> dict[str, Any]:
        """The resolved recipe without its tables of rows: what a run is. A task of the user's own is not described here."""
        return self._of_the_run({"compare", "axes", "smoke", "study", "also"})

    def _of_the_run(self, exclude: set[str]) -> dict[str, Any]:
        what = self.model_dump(exclude=exclude)
        if self.own is not None:
            del what["engine"]
            what["task"] = {"clients": self.task.clients}
        return what

    def hash(self) -> str:
        """A name for what this recipe computes: everything but its name, seeds, tables of rows and checkpoints."""
        what = self._of_the_run({"name", "seeds", "compare", "axes", "smoke", "checkpoint", "study", "also"})
        what["schema"] = SCHEMA
        for dotted, unused in _LATER.items():
            *path, last = dotted.split(".")
            table = what[path[0]] if path else what
            if table[last] == unused:
                del table[last]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """This recipe with some entries changed, validated again."""
        return _validate(_settled(_updated(self.model_dump(), settings), settings), self.name)


# ---------------------------------------------------------------------------------------------------------------------


def recipes() -> dict[str, str]:
    """The embedded recipes and what each is for (the comment on a file's first line)."""
    found = {}
    for file in sorted(resources.files("feduca.recipes").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            first = file.read_text().splitlines()[0]
            found[file.name.removesuffix(".toml")] = first.removeprefix("#").strip()
    return found


def load(source: str | Path | Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from an embedded name, a TOML file or a mapping, with `settings` (dotted keys) on top."""
    if isinstance(source, Mapping):
        tree, name = dict(source), "recipe"
    else:
        tree, name = _read(str(source))
    tree.setdefault("name", name)
    settings = settings or {}
    return _validate(_settled(_updated(tree, settings), settings), name if isinstance(source, Mapping) else str(source))


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` of `--set`; the value is TOML, and a bare word is a string."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set wants key=value, got {text!r}; for instance --set mechanism.delta=1.0")
    try:
        return key.strip(), tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _read(source: str) -> tuple[dict[str, Any], str]:
    embedded = recipes()
    if source in embedded:
        text, name = resources.files("feduca.recipes").joinpath(f"{source}.toml").read_text(), source
    else:
        path = Path(source)
        if not path.is_file():
            near = _nearest(source, embedded, "`feduca list` names the recipes")
            raise ConfigError(f"there is no recipe or TOML file {source!r}; {near}")
        try:
            text, name = path.read_text(encoding="utf-8"), path.stem
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror}; give a file you may read") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{source} cannot be read: {error}; write it in UTF-8") from None
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None
    parent = tree.pop("extends", None)
    if parent is None:
        return tree, name
    if parent not in embedded:
        raise ConfigError(
            f"{source} extends {parent!r}, which is no embedded recipe; {_nearest(str(parent), embedded)}"
        )
    below = _read(parent)[0]
    if source not in embedded:
        below.pop("name", None)  # a file of the user's is called after itself; its runs are not its parent's
    return _over(below, tree), name


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, table by table; lists and the mechanism of another name are replaced whole."""
    out = dict(below)
    for key, value in above.items():
        another = isinstance(value, Mapping) and value.get("name") not in (None, below.get(key, {}).get("name"))
        if key == "mechanism" and another:
            out[key] = value
        elif key == "task" and isinstance(value, Mapping) and isinstance(below.get(key), Mapping):
            out[key] = {**_kept(below[key], value.get("model")), **value}
        elif isinstance(value, Mapping) and isinstance(below.get(key), Mapping):
            out[key] = _over(below[key], value)
        else:
            out[key] = value
    return out


def _kept(task: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """What of `[task]` holds for this model (None: the same), too: another one has layers of its own."""
    another = model not in (None, task.get("model", TaskTable.model_fields["model"].default))
    return {key: value for key, value in task.items() if not (another and key == "hidden")}


def _updated(tree: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `tree` with dotted keys set; another mechanism or model starts from its own defaults."""
    try:
        out = json.loads(json.dumps(tree))
    except (TypeError, ValueError, RecursionError):  # TOML has dates and times
        raise ConfigError("a recipe holds a date or a time; use numbers, words, lists and tables") from None
    mechanism, task = out.get("mechanism", {}), out.get("task", {})
    if isinstance(mechanism, dict) and settings.get("mechanism.name") not in (None, mechanism.get("name", "feduca")):
        out["mechanism"] = {}
    if isinstance(task, dict):
        out["task"] = _kept(task, settings.get("task.model"))
    for dotted, value in settings.items():
        *path, last = dotted.split(".")
        here = out
        for part in path:
            here = here.setdefault(part, {})
            if not isinstance(here, dict):
                raise ConfigError(f"unknown key {dotted!r}; {part!r} is a value, not a table")
        here[last] = value
    return out


def _settled(tree: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`tree` without what does not apply to it; where `settings` ask for such a thing, that is refused."""
    task = tree.get("task", {})
    if not isinstance(task, dict) or not isinstance(data := task.get("data", "digits"), str):
        return tree  # which the schema refuses
    if tree.get("own") is not None:
        clients = {"clients": task["clients"]} if "clients" in task else {}
        return {**{key: value for key, value in tree.items() if key != "engine"}, "task": clients}
    if not is_folder(data):
        for key in FOLDERS:
            if task.get(key, TaskTable.model_fields[key].default) != TaskTable.model_fields[key].default:
                raise ConfigError(
                    f"task.{key} is {task[key]!r} with task.data {data!r}: it is for a folder of your own; leave it out"
                )
        return tree
    for key in DEALT:
        if f"task.{key}" in settings:
            raise ConfigError(
                f"task.{key} is {task[key]!r} with task.data {data!r}: a folder's silos have their data already; leave it out"
            )
    task = {key: value for key, value in task.items() if key not in DEALT}
    if Path(data).is_dir():
        there = len(entries(data)[0])
        if settings.get("task.clients", there) != there:
            raise ConfigError(f"task.clients is {task['clients']}, but {data} holds {there} silos: leave it out")
        task["clients"] = there
    return {**tree, "task": task}


def _validate(tree: Mapping[str, Any], source: str) -> Recipe:
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_sentence(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _options_model(name: str) -> type[BaseModel]:
    """A pydantic model of a mechanism's options; those wired to other tables are not the user's to set there."""
    cls = registry[name]
    hints = get_type_hints(cls)
    options: dict[str, Any] = {
        f.name: (hints[f.name], ... if f.default is MISSING else f.default)
        for f in fields(cls)
        if "wired" not in f.metadata
    }
    return create_model(f"{name}_options", __base__=_Table, **options)


def _sentence(error: ValidationError) -> str:
    """The first complaint in one line: what was wrong, the value seen, what to do."""
    errors = error.errors()
    first, title = errors[0], error.title
    prefix = "mechanism." if title.endswith("_options") else ""
    key = prefix + ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _known_keys(title, first["loc"])
        text = f"unknown key {key!r}; {_nearest(str(first['loc'][-1]), known)}"
    elif first["type"] == "value_error":
        text = f"{key} is {first['input']!r}: {first['msg'].removeprefix('Value error, ')}"
    elif first["type"] == "model_type" and first.get("ctx", {}).get("class_name") in ("AxisValue", "CompareRow"):
        text = f'{key} is {first["input"]!r}: an entry looks like {{ label = "slow", set = {{ "local.lr" = 0.05 }} }}'
    elif first["type"].startswith("bool_"):
        text = f"{key} is {first['input']!r}: it should be true or false"
    else:
        advice = first["msg"][0].lower() + first["msg"][1:]
        text = f"{key} is {first['input']!r}: {advice.replace('input should', 'it should')}"
    return text if len(errors) == 1 else f"{text} (and {len(errors) - 1} more)"


def _known_keys(title: str, loc: Sequence[Any]) -> Sequence[str]:
    model: Any = _options_model(title.removesuffix("_options")) if title.endswith("_options") else Recipe
    for part in loc[:-1]:
        if isinstance(part, str) and model is not None:  # a number is a place in a list
            field = model.model_fields.get(part)
            model = None if field is None else _table_in(field.annotation)
    return [] if model is None else list(model.model_fields)


def _table_in(annotation: Any) -> Any:
    """The table that an annotation such as `list[Row]` or `Table | None` holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _table_in(inner)) is not None), None)


def _nearest(word: str, known: Any, otherwise: str | None = None) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else otherwise or f"known: {', '.join(known)}"
