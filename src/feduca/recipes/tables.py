"""A recipe's tables: every option with its default, its bounds and what it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from feduca.client import registry
from feduca.errors import printable
from feduca.recipes.folders import NATURAL, is_folder


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


Label = Annotated[
    str, Field(max_length=200), AfterValidator(printable)
]  # for terminals and pages: no control characters
Chance = Annotated[float, Field(gt=0, le=1)]
Layer = Annotated[int, Field(ge=1, le=1_000_000)]


def _or_one_of(theirs: registry.Own) -> Callable[[Any, ValidatorFunctionWrapHandler], Any]:
    """A validator: the library's names, and those of classes of one's own."""

    def valid(name: Any, known: ValidatorFunctionWrapHandler) -> Any:
        return name if isinstance(name, str) and name in theirs else known(name)

    return valid


def _as_it_is(name: str) -> str:
    """A serializer: pydantic warns of a name that its Literal does not have."""
    return name


FIXED_MODELS = ("logistic", "resnet18", "bilstm")  # whose hidden layers are not a recipe's to choose (tasks/models.py)


class TaskTable(Table):
    """Which data, how they are spread over silos, and the model."""

    data: str = "digits"  # the name of a data set, or a folder of silos' files (docs/your-data.md)
    clients: int = Field(default=10, ge=1, le=1_000_000)
    classes_per_client: int = Field(default=5, ge=1)
    train_concentration: float = Field(default=0.5, gt=0, le=1e9)
    validation_concentration: float = Field(default=1.0, gt=0, le=1e9)
    validation_share: float = Field(default=0.2, gt=0, lt=1)
    test_share: float = Field(default=0.0, ge=0, lt=1)  # part of a silo's validation data that no decision ever sees
    split_seed: int | None = Field(default=None, ge=0, description="the run's seed")
    model: str = "mlp"
    hidden: list[Layer] | None = Field(default=None, max_length=64, description="the model's own layers")
    weights: str | None = Field(default=None, description="of a resnet18: ImageNet's, where they are found")
    max_examples: int | None = Field(default=None, ge=1, description="all examples there are")
    pooled: bool = False  # of data with silos of their own: each learns from everybody's training data (a reference)
    data_dir: str | None = Field(default=None, description="the folder that FEDUCA_DATA names, else ./data")
    target: str = "label"  # of a folder: the column of its tables to predict ...
    metric: Literal["accuracy", "auc", "r2"] = "accuracy"  # ... how models are judged ...
    loss: Literal["cross-entropy", "squared-error"] | None = Field(
        default=None, description="what goes with the metric"
    )

    @model_serializer(mode="wrap")
    def _what_applies(self, everything: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Silos with files of their own are not dealt a data set, and the other way round: neither is written down.

        Nor is a split that follows the run's seed, data that are not pooled, or weights that nobody chose: earlier runs keep
        their names.
        """
        unused = (*DEALT, "pooled") if is_folder(self.data) else FOLDERS
        unused += CLASSWISE if self.data in NATURAL else ()
        unused += tuple(
            key
            for key, default in (("split_seed", None), ("pooled", False), ("weights", None))
            if getattr(self, key) == default
        )
        return {key: value for key, value in everything(self).items() if key not in unused}


DEALT = (  # entries of [task] that say how a data set is dealt to silos
    "classes_per_client", "train_concentration", "validation_concentration", "validation_share", "test_share", "max_examples",
    "split_seed",
)  # fmt: skip
# Those of them that data with silos of their own (docs/natural-data.md) do without, and the defaults of others: 50 / 25 / 25.
CLASSWISE = ("classes_per_client", "train_concentration", "validation_concentration", "max_examples")
NATURAL_SHARES = {"validation_share": 0.5, "test_share": 0.5}
FOLDERS = ("target", "metric", "loss")  # those for a folder of silos' files alone


class LocalTable(Table):
    """One round of local training."""

    epochs: int = Field(default=5, ge=1, le=1_000_000)
    batch_size: int = Field(default=50, ge=1, le=1_000_000_000)
    lr: float = Field(default=0.1, gt=0, le=1e6)
    lr_decay: float = Field(default=1.0, gt=0, le=1)  # per round
    weight_decay: float = Field(default=0.0, ge=0, le=1e6)
    clip: float = Field(default=0.0, ge=0)  # bound on the gradient's norm after weight decay; 0 = none
    augment: bool = False
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)


class UtilityTable(Table):
    """How a client estimates and reports its curve."""

    family: str = "quadratic"
    metric: Literal["accuracy", "loss"] = "accuracy"  # what utility measures (docs/readings.md)
    nodes: int = Field(default=8, ge=3, le=64)  # Gauss-Legendre nodes of the fit
    check: int = Field(default=21, ge=4, le=10_001)  # points of the grid R^2 is computed on
    check_every: int = Field(default=1, ge=0)  # rounds between two checks; 0 = never
    leave_out: Literal["local", "contributed"] = "local"  # which own model is taken out of theta (Eq. 3)
    record_points: bool = False  # keep the measured points beside each fit (diagnostics keeps them too)
    keep_curves: bool = False  # in rounds with a check keep the points and their losses: whole measured curves


class ParticipationTable(Table):
    """When a client joins."""

    rule: Literal["always", "accuracy", "loss", "utility", "never"] = (
        "utility"  # everybody; Eq. 1 (by loss); Eq. 2; nobody
    )
    against: Literal["current", "outside"] = "current"  # an offer has to beat the model a silo has now, or [outside]
    ties: Literal["strict", "loss"] = "strict"  # Eq. 1, equal accuracy: no; or decided by lower loss
    warm_start: int = Field(default=0, ge=0, le=1_000_000)  # rounds in which everybody joins first
    check: Literal["fitted", "realised"] = "fitted"  # what Eq. 2 judges: the last curve, or the model that came
    threshold: Literal["previous-weight", "local-baseline", "own-accuracy"] = (
        "previous-weight"  # the curve at the last weight or at 1, or what the own model measures
    )
    average: int = Field(default=1, ge=1, le=1000)  # so many last thresholds whose mean is the threshold
    tolerance: float = Field(default=1e-6, gt=0, le=1e6)  # for Eq. 2, so that solver noise does not decide
    confidence: float = Field(default=0.0, ge=0, lt=1)  # below it a difference in accuracy is a tie; 0: any counts
    quits: int = Field(default=0, ge=0)  # rounds without beating its model alone after which a silo leaves; 0 = never

    _of_ones_own = field_validator("rule", mode="wrap")(_or_one_of(registry.rules))
    _by_name = field_serializer("rule")(_as_it_is)


class OutsideTable(Table):
    """What a silo has without the federation, where `participation.against` is "outside" (client/outside.py)."""

    kind: Literal["private", "best-kept"] = "private"  # a model that trains alone; or the best of its own so far
    every: int = Field(default=1, ge=1)  # rounds between two trainings of a private model


class OfferTable(Table):
    """What a client is asked to accept."""

    kind: Literal["global", "least-concession", "best-mixture", "stack"] = "global"
    margin: float = Field(default=0.0, ge=0, le=1e6)
    margin_kind: Literal["absolute", "relative"] = "absolute"  # relative: a share of the own model's score
    points: int = Field(default=10, ge=2, le=1000)
    budget: int = Field(default=0, ge=0)  # forward passes per silo and round to find an offer; 0 = no bound
    search: Literal["upwards", "guided"] = "upwards"  # from consensus on; or halving, first where the last curve says
    train_from: Literal["offer", "consensus"] = "offer"  # where acceptors start to train; they deploy the offer
    space: Literal["outputs", "parameters"] = "outputs"  # of a stack: what of its models is mixed
    folds: int = Field(
        default=0, ge=0, le=20
    )  # of a stack: judge weights on examples they were not found on; 0 = on all
    errors: float = Field(default=0.0, ge=0, le=10)  # of a stack: standard errors by which it must be better

    _of_ones_own = field_validator("kind", mode="wrap")(_or_one_of(registry.offers))
    _by_name = field_serializer("kind")(_as_it_is)

    def used_by(self, kind: str) -> OfferTable:
        """This table without the options that an offer of that kind has no use for: what a row of that kind takes from it."""
        return OfferTable(kind=self.kind, **{key: getattr(self, key) for key in OFFER_OPTIONS.get(str(kind), ())})


OFFER_OPTIONS = {  # that each kind of offer has a use for
    "global": (),  # the shared model as it is
    "least-concession": ("margin", "margin_kind", "points", "budget", "search", "train_from"),
    "best-mixture": ("points", "budget", "train_from"),  # the best of its points
    "stack": ("space", "points", "folds", "errors"),  # trains from the shared model
}


class ReportingTable(Table):
    """Whether clients tell the truth."""

    kind: Literal["truthful", "inflate", "understate"] = "truthful"
    share: float | list[float] = 0.0  # a list has one share per silo
    clients: list[int] | None = Field(default=None, description="all silos")  # who misreports
    decide_by: Literal["reported", "true"] = "reported"  # an inflating silo decides by
    round: float = Field(default=0.0, ge=0, le=1e6)  # report curve and threshold in multiples of this; 0 = exactly
    noise: float = Field(default=0.0, ge=0, le=1e6)  # ... with Gaussian noise of this deviation
    decliners: Literal["all", "curve", "silent"] = "all"  # what they tell: everything; curve and threshold; nothing


class ConductTable(Table):
    """Whether clients do their part (conduct.py)."""

    kind: Literal[
        "honest",
        "refuse",
        "take",
        "withhold",
        "echo",
        "noise",
        "fixed",
        "idle",
        "lapse",
        "replay",
        "stale",
        "forge",
        "copy",
    ] = "honest"
    clients: list[int] | None = Field(default=None, description="all silos")
    after: int = Field(default=10, ge=1)  # rounds of work before a lapse
    noise: float = Field(default=0.1, ge=0, le=10)  # replay, stale, forge: on what is sent again, as a share of it


class MemoryTable(Table):
    """What the server remembers of a client that sits a round out."""

    kind: Literal["update", "model", "none"] = "update"


class AggregationTable(Table):
    """How updates become the next model."""

    eta_s: float = Field(default=1.0, gt=0, le=1e6)  # the server's step
    optimiser: Literal["sgd", "momentum", "adagrad", "yogi", "adam"] = "sgd"  # what makes a step of the combined update
    beta1: float = Field(default=0.9, ge=0, lt=1)  # how much of the last step's direction stays; all but sgd
    beta2: float = Field(default=0.99, ge=0, lt=1)  # how much of the squares remembered stays; yogi and adam
    tau: float = Field(default=1e-3, gt=0)  # the least a coordinate's scale can be; adagrad, yogi and adam
    kind: Literal["mean", "median", "trimmed"] = "mean"  # the paper's weighted sum; the others respect alpha, too
    trim: float = Field(default=0.2, ge=0, lt=0.5)  # share of the weight left out at either end of every coordinate
    clip: float = Field(default=0.0, ge=0)  # shorten updates to this norm; 0 = never
    clip_median: float = Field(default=0.0, ge=0)  # ... to this multiple of the participants' median norm; 0 = never


OPTIMISER_OPTIONS = {  # that each of the server's optimisers has a use for
    "sgd": (),
    "momentum": ("beta1",),
    "adagrad": ("beta1", "tau"),
    "yogi": ("beta1", "beta2", "tau"),
    "adam": ("beta1", "beta2", "tau"),
}


class GateTable(Table):
    """What the server checks before it believes a report."""

    on: bool = True
    norm: float = Field(default=0.0, ge=0)  # refuse updates longer than this; 0 = no bound (the norms are recorded)
    outlier: float | None = Field(  # shorten updates so many times as long as the others'; 0 = never
        default=None, ge=0, description="5; 0 with privacy.secure_aggregation, under which no update is seen"
    )
    plausible: Literal["ignore", "advise", "refuse"] = "advise"  # curves and thresholds that do not fit what follows
    plausible_tolerance: float = Field(default=0.05, gt=0)  # of a curve's mean error
    plausible_demand: float = Field(default=0.01, gt=0)  # of a threshold above its own curve
    plausible_window: int = Field(default=10, ge=1, le=1_000_000)

    @field_validator("outlier")
    @classmethod
    def _longer_than_usual(cls, outlier: float | None) -> float | None:
        if outlier is not None and 0 < outlier < 1:
            raise ValueError("updates as long as the others' would be shortened; give 1 or more, or 0 for never")
        return outlier


class CohortTable(Table):
    """How many silos are asked in a round, and which (core/cohort.py)."""

    size: int | None = Field(default=None, ge=1, le=1_000_000, description="everybody is asked in every round")
    draw: Literal["uniform", "availability", "round-robin"] = "uniform"
    availability: Chance | list[Chance] = (
        1.0  # that a silo is there in a round: one for all, or one for each in their order
    )
    store: Literal["auto", "memory", "disk"] = (
        "auto"  # where what is kept of silos lies; auto: on disk where it is large
    )

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.size is None and (self.draw, self.availability) != ("uniform", 1.0):
            raise ValueError("draw and availability need a cohort, and cohort.size is not set: give cohort.size, too")
        if self.size is None and self.store != "auto":
            raise ValueError(
                f"store is {self.store!r}, and cohort.size is not set: without a cohort all is in memory; give cohort.size,"
                " or leave store out"
            )
        if self.draw != "availability" and self.availability != 1.0:
            raise ValueError(
                f"availability needs draw = 'availability', and draw is {self.draw!r}: set draw, or leave availability out"
            )
        return self


class StandingTable(Table):
    """What honest work is worth: who sends nothing that comes from work is sent no new model (trust/work.py)."""

    kind: Literal["off", "work"] = "off"
    patience: int = Field(default=3, ge=1, le=1000)  # rounds without work that cost a silo its standing
    window: int = Field(default=10, ge=2, le=1000)  # rounds in which updates have to answer to the model
    answer: float = Field(default=0.02, ge=0, lt=1)  # ... by this much: a mean cosine


class PrivacyTable(Table):
    """What of a silo the server sees (docs/secure-aggregation.md), and what of single examples leaves it (docs/privacy.md)."""

    secure_aggregation: bool = False  # sums of updates alone; memory is kept at the silos
    least: int = Field(default=3, ge=3, le=4095)  # fresh updates in a sum that is released
    bound: float = Field(default=0.0, ge=0, le=1e6)  # the norm to which a silo shortens its own update first; 0 = none
    dp: Literal["off", "records"] = "off"  # differential privacy of every training example, in the silo itself
    epsilon: float = Field(default=8.0, ge=1e-3, le=1e6)  # the budget of every silo; who has spent it trains no more
    delta: float | None = Field(default=None, ge=1e-30, lt=1, description="1 / (10 n) of a silo with n examples")
    clip: float = Field(default=1.0, ge=1e-6, le=1e6)  # the norm of one example's gradient
    noise: float | None = Field(
        default=None, ge=0.2, le=1e6, description="the least with which all rounds fit the budget"
    )
    decisions: Literal["noisy", "exact"] = "noisy"  # whether what silos decide hides single validation examples
    decision_share: float = Field(default=1.0, gt=0, le=1)  # of the budget that noisy decisions may spend


class EngineTable(Table):
    """Where and how the simulator computes."""

    kind: Literal["stacked", "sequential"] = "stacked"
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    chunk: int | None = Field(default=None, ge=1, le=1_000_000_000, description="10000 examples at a time")
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="as many as PyTorch takes, usually one per core"
    )


class CheckpointTable(Table):
    """How often a run is made safe. Changes nothing of what it computes."""

    every_s: float | None = Field(default=None, ge=0, description="every round while it is small, else every 300 s")
    keep: bool = True  # false: none at all; an interrupted run starts anew, a finished one keeps its records only
    history: int | None = Field(default=None, ge=2, description="the last 2; of a deployed run the last 10")


class CompareRow(Table):
    label: Label
    set: dict[str, Any] = {}


class AxisValue(Table):
    label: Label
    set: dict[str, Any] = {}


class Axis(Table):
    """One dimension of a table: every value is combined with every value of the other axes."""

    name: Label
    values: list[AxisValue] = Field(min_length=1)
