"""What travels between the parts: frozen dataclasses and the protocols they meet at.

Struct of arrays: one object describes all K clients of a message along a leading axis. Models are flat vectors
`theta[P]`, or `[K, P]` for K clients, in any array namespace (numpy, or torch tensors that stay on the GPU). Everything the
mechanism reasons about (`alpha, R, s, zeta, gamma`) is numpy float64. State is passed and returned, never held.

Names follow the paper in ASCII; see docs/notation.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

Array = Any  # numpy.ndarray or torch.Tensor; the core never asks which (see arrays.py)
Floats = np.ndarray  # float64
Ints = np.ndarray
Bools = np.ndarray

JOINED, DECLINED, ABSENT, REFUSED = "joined", "declined", "absent", "refused"
NOT_ASKED = "not asked"  # this round: the server's word for whoever its cohort leaves out (core/cohort.py)
LEFT = "left"  # for good, by its own decision (participation.Quits)

SPLITS = ("train", "validation", "test")  # a silo's own data: to learn from, to decide by, to judge a claim by


# ---------------------------------------------------------------------------------------------------------------------
# Local work


@dataclass(frozen=True)
class LocalSpec:
    """What one round of local training is. `lr` is this round's (decay already applied)."""

    epochs: int = 5
    batch_size: int = 50
    lr: float = 0.1
    weight_decay: float = 0.0
    clip: float = 0.0  # bound on the gradient's norm after weight decay; 0 = none
    augment: bool = False
    optimiser: str = "sgd"
    momentum: float = 0.0
    prox: float = 0.0  # mu of (mu/2)||theta_k - anchor||^2
    objective: str = "mean"  # or "propfair": -log(1 - F/bound)
    bound: float = 0.0

    def steps(self, examples: Ints) -> Ints:
        """Mini-batches of a round, where a client has so many examples."""
        return self.epochs * -(-np.asarray(examples) // self.batch_size)

    def rates(self, examples: Ints) -> Floats:
        """With which chance an example is in a mini-batch, where batches are drawn by lot (differential privacy)."""
        return np.minimum(1.0, self.batch_size / np.asarray(examples))


@dataclass(frozen=True)
class Private:
    """How training hides single examples: each one's gradient is clipped, and noise is added to their sum."""

    clip: float  # the norm of one example's gradient
    noise: Floats  # [K], the noise's deviation in multiples of the clip
    secret: bool = False  # lots and noise from the system's randomness, which nobody can repeat; else from the seed


@dataclass(frozen=True)
class Scores:
    """How well models do on some data. `accuracy` is the task's headline score, higher is better."""

    accuracy: Floats
    loss: Floats

    def metric(self, name: str) -> Floats:
        """The utility the paper speaks of: accuracy, or negative loss."""
        return self.accuracy if name == "accuracy" else -self.loss


@dataclass(frozen=True)
class Answered:
    """How models answered single examples: what stays in a silo, and is compared there (client/paired.py)."""

    right: Floats  # [K, n]: 1 or 0; NaN where answers are not right or wrong, and beyond a client's own examples
    loss: Floats  # [K, n]
    counts: Ints  # [K]: how many of the n are the client's


@dataclass(frozen=True)
class Predictions:
    """What classifiers say of some data, example by example."""

    probabilities: Floats  # [K, n, classes]
    targets: Ints  # [K, n]; -1 where there is no such example: silos differ in how many they have


class Task(Protocol):
    """A model, an optimiser and the data of every silo; the only thing that touches examples."""

    @property
    def silos(self) -> Sequence[str]: ...

    @property
    def examples(self) -> Ints:
        """Training examples per silo.

        A task may also have `validation_examples`, how many examples each silo's scores rest on; only a confidence asks for it.
        `test_examples`, how many no decision sees: where some silo has them, models are scored on these, too.
        `answers(theta, clients, split) -> Answered`, example by example: for judging who is better off. `predict(theta, clients,
        split) -> Predictions`, of `theta[K, size]`, client by client: only offers that mix outputs ask for them. And
        `fingerprint()`, a name for everything it computes, which goes into the name of a run.
        """
        ...

    @property
    def parameters(self) -> int:
        """How many leading entries of theta are trained; the rest are frozen or buffers, averaged plainly."""
        ...

    @property
    def size(self) -> int:
        """All entries of theta.

        A task may also have `parameter_names`, a mapping from the names of theta's parts, in order, to their sizes; a recipe that
        shares only a part of the model asks for it. `norm_names` are those of normalisation layers, `frozen_names` those of
        parameters that are not trained and do not travel.
        """
        ...

    def init(self, seed: int) -> Array:
        """The initial model, `theta[size]`."""
        ...

    def train(
        self, theta: Array, clients: Ints, spec: LocalSpec, round: int, seed: int | Ints, anchor: Array | None = None
    ) -> Array:
        """Local training of `theta[K, size]` by `clients[K]`; `anchor[size]` or `[K, size]` is what `spec.prox` pulls to.

        A task may take more arguments. `rates[K]`: a learning rate for each client, in place of the spec's (APFL has such); one
        that does not is called once for every rate. `drift[K, size]`, added to every gradient (SCAFFOLD), and `free[K, size]`, 1
        where training may move a model and 0 where not (FedRep); one that does not take them cannot run such a method.

        A task that can hide single examples (privacy.dp) also has `train_private`, with the same arguments and, before the
        anchor, a `Private`.
        """
        ...

    def evaluate(self, theta: Array, clients: Ints, split: str) -> Scores:
        """Scores `[K]` of `theta[K, size]`, client by client, on the client's own `split` (NaN where it has none)."""
        ...

    def along(self, start: Array, end: Array, places: Floats, clients: Ints, split: str) -> Scores:
        """Scores `[K, M]` at `(1 - r) * start + r * end` for `r` in `places[K, M]`."""
        ...

    def test(self, theta: Array) -> Scores | None:
        """Scores (shape `[1]`) of one model on the global test set, where there is one."""
        ...


# ---------------------------------------------------------------------------------------------------------------------
# The seam


@dataclass(frozen=True)
class Announcements:
    """What the server tells each client of a round."""

    run: str
    round: int
    clients: Ints  # [K]
    theta: Array  # [P], the same for all; inside a client's step [K, P] where a part of it is its own (share.py)
    alpha_formed: Floats  # [K]: the weight with which the client went into this theta
    alpha_announced: Floats  # [K]: the weight it is asked to judge
    s: Floats
    local: LocalSpec
    control: Array | None = None  # [P], what the method tells every client beside the model (SCAFFOLD)
    older: Mapping[int, Array] = field(
        default_factory=dict
    )  # what clients without standing get for theta (trust/work.py)
    weights: Floats | None = None  # [K], with which updates count under secure aggregation: silos apply them


@dataclass(frozen=True)
class Measurements:
    """What clients measured on the way; NaN where nothing was measured. All `[K]`."""

    global_: Scores  # the announced model, validation data
    own: Scores  # the client's own model before training
    offered: Scores  # the model it was offered
    train_loss: Floats  # training loss at theta before training, where the mechanism needs it
    concession: Floats  # c in [0, 1] of the offer
    evaluations: Ints  # forward passes over the validation data to find the offer
    examples: Ints
    promised: Floats  # u_k(alpha_announced; zeta) of the last curve
    eq2: Floats  # 1 where Eq. 2 holds for that curve and threshold, 0 where not, NaN where there is no curve
    r2: Floats  # of the new fit
    capped: Bools  # alpha_formed was too close to 1 for a leave-one-out model
    test: Mapping[str, Floats] = field(default_factory=dict)  # untouched data: deployed, own, global, alone
    told: Mapping[str, Floats] = field(
        default_factory=dict
    )  # a method's own numbers (IncFL: the solo loss); personal.py
    points: Mapping[str, Floats] = field(default_factory=dict)  # where asked for: places, values, losses [K, M]
    noted: Mapping[str, Floats] = field(
        default_factory=dict
    )  # where there is an outside option: trainings; offers' weights

    @property
    def eq1(self) -> Bools:
        """Eq. 1 on realised accuracy, whichever rule is in force (False in a client's first round: no own model)."""
        return self.global_.accuracy > self.own.accuracy


@dataclass(frozen=True)
class Released:
    """A round's sum of the changes of those who counted (core/secure.py); of nobody's where nothing was released, and why."""

    total: Array  # [P] modulo 2^64
    counted: Bools  # [K]
    weights: Floats  # [K]
    why: str = ""


@dataclass(frozen=True)
class Reports:
    """What came back. Rows of `theta` matter only where `status` is joined."""

    round: int
    clients: Ints  # [K]
    status: Sequence[str]  # [K]
    reason: Sequence[str]  # [K], one short sentence each
    theta: Array  # [K, P]
    gamma: Floats  # [K], NaN where there is no curve
    zeta: Floats  # [K, size of the family]
    measurements: Measurements
    released: Released | None = None  # under secure aggregation, all that is known of the updates

    @property
    def joined(self) -> Bools:
        return np.array([status == JOINED for status in self.status], dtype=bool)


class Federation(Protocol):
    """The only seam: in process, over Flower, or replayed. Nothing above it knows which."""

    @property
    def silos(self) -> Sequence[str]: ...

    def exchange(self, announcements: Announcements) -> Reports: ...

    def snapshot(self) -> dict[str, Array]:
        """All client-side state as named arrays, for a checkpoint."""
        ...

    def restore(self, arrays: Mapping[str, Array]) -> None: ...


@dataclass(frozen=True)
class ClientMemory:
    """What clients keep between rounds, K of them along the leading axis. Nobody else sees it."""

    trained: Bools  # has a model of its own
    contributes: Bools  # has ever sent one
    own: Array  # [K, P]
    contributed: Array  # [K, P], the last model sent
    zeta: Floats  # [K, size], true
    gamma: Floats  # [K], true
    zeta_reported: Floats
    gamma_reported: Floats
    extra: Mapping[str, Array] = field(default_factory=dict)  # a method's own, [K, ...] each


# ---------------------------------------------------------------------------------------------------------------------
# Mechanisms


class UtilityFamily(Protocol):
    """A concave parametric curve `u(r; zeta)` on [0, 1]. `r` broadcasts against the clients: `[K]` or `[..., K]`."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """How many numbers are in zeta."""
        ...

    def fit(self, r: Floats, u: Floats, weights: Floats) -> Floats:
        """Weighted least squares of `u[K, M]` at the common nodes `r[M]`: `zeta[K, size]`."""
        ...

    def value(self, zeta: Floats, r: Floats) -> Floats: ...

    def slope(self, zeta: Floats, r: Floats) -> Floats: ...

    def curvature(self, zeta: Floats, r: Floats) -> Floats: ...

    def interval(self, zeta: Floats, gamma: Floats) -> tuple[Floats, Floats]:
        """`{r in [0, 1] : u(r) >= gamma}` as `(lo[K], hi[K])`; NaN where empty."""
        ...

    def problem(self, zeta: Floats) -> str | None:
        """What is wrong with these parameters, naming the client and the value; None when all is well."""
        ...


@dataclass(frozen=True)
class Certificate:
    """What a solver can prove about its answer. `gap` is rigorous: primal minus a feasible dual's objective."""

    primal: float
    dual: float
    gap: float
    slack_error: float  # ||t - t*|| <= sqrt(2 gap) for the squared objective
    iterations: int


@dataclass(frozen=True)
class Allocation:
    """Aggregation weights, where they came from, and how far to trust them."""

    alpha: Floats  # [N], what silos are told: expected weights R^T s, or a sampled row that they judge
    status: str  # "optimal", or what went wrong in one word; see program/
    reason: str = ""  # cause and remedy, a full sentence, when something is off
    R: Floats | None = None  # [n_s, N]
    s: Floats | None = None  # [n_s]
    slack: Floats | None = None  # [N]
    satisfied: Bools | None = None  # [N]: u_k(alpha_k) >= gamma_k - tolerance
    certificate: Certificate | None = None
    fallback: str | None = None  # which way out was taken where nobody can be satisfied (program/fallback.py)
    applied: Floats | None = None  # [N], where what is aggregated differs from alpha (a sampled row)
    fresh: Floats | None = None  # [N], explicit weights on this round's updates (FedVARP) ...
    stored: Floats | None = None  # [N], ... and on the remembered ones

    @property
    def gap(self) -> float | None:
        return None if self.certificate is None else self.certificate.gap


@dataclass(frozen=True)
class Needs:
    """What has to be computed for a mechanism, a rule or an offer; a run computes the union."""

    curve: bool = False
    train_loss: bool = False
    alone: bool = False  # the model a silo would have had alone

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.curve or other.curve, self.train_loss or other.train_loss, self.alone or other.alone)


@dataclass(frozen=True)
class Round:
    """What a mechanism sees when it allocates: the round's reports plus what the server knows of everybody.

    All arrays cover all N silos in the server's order; `gamma` and `zeta` are the last ones known.
    """

    round: int
    joined: Bools
    active: Bools
    gamma: Floats
    zeta: Floats
    examples: Ints
    train_loss: Floats
    # [N, P], theta - theta_k where joined, 0 elsewhere. Given as a function, it is made for who looks at it.
    delta: Array
    previous: Allocation
    told: Mapping[str, Floats] = field(default_factory=dict)  # what the method's client part told, NaN where it did not
    local: LocalSpec = LocalSpec()  # the local training that clients were asked for
    validation_loss: Floats | None = None  # of the announced model on silos' validation data, NaN where it was not told

    def __post_init__(self) -> None:
        if callable(self.delta):
            vars(self)["_make_delta"] = vars(self).pop("delta")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "delta" or "_make_delta" not in vars(self):
                raise AttributeError(name)
            vars(self)["delta"] = vars(self)["_make_delta"]()
            return vars(self)["delta"]


class Mechanism(Protocol):
    """How weights are chosen. A frozen value; its state is passed in and returned.

    The state goes into checkpoints: None, or a tree of dicts with string keys, lists, strings, numbers and arrays.
    A method with a part on the client (IncFL, Ditto) also has `personal`; see personal.py. One whose weights need not sum to 1
    says so with `scaled = True`; see weights.py. One whose state has rows per silo says which with `per_silo`; see roster.py.
    Two more hooks see the state: `control(state)` is a vector that every client is told beside the model, `shift(state, joined)`
    one that is added to the combined update; None is neither.
    """

    @property
    def needs(self) -> Needs: ...

    @property
    def schedule(self) -> str:
        """fresh, lagged, announce-next or one-alpha."""
        ...

    def local(self, spec: LocalSpec) -> LocalSpec:
        """The method's own local term (FedProx's mu, say)."""
        ...

    def init(self, examples: Ints, seed: int) -> tuple[Any, Allocation]:
        """Initial state and the weights announced in round 1."""
        ...

    def allocate(self, state: Any, round: Round, seed: int) -> tuple[Any, Allocation]: ...


@dataclass(frozen=True)
class ServerState:
    """Everything the server knows between two rounds; with the federation's snapshot, all that a checkpoint needs."""

    round: int  # the round that comes next, from 1
    theta: Array  # [P]
    remembered: Array  # [N, P], see memory.py; Rows where few of many silos are asked (rows.py)
    last_joined: Ints  # [N], 0 = never
    smallest_cohort: int  # fewest participants of any round so far (N before the first)
    formed: Allocation  # the weights that went into theta
    announced: Allocation  # the weights clients are asked to judge
    pending: Allocation  # lagged schedules: the weights to aggregate with next
    mechanism: Any
    gamma: Floats  # [N], last reported
    zeta: Floats  # [N, size], last reported
    examples: Ints  # [N]
    absences: Ints  # [N], rounds in a row without an answer (roster.py)
    history: Mapping[str, Array] = field(
        default_factory=dict
    )  # what outliers.py, plausibility.py and work.py remember, [N, ...] each
    left: Bools | None = None  # [N], for good (roster.py); None: nobody so far
    moments: Mapping[str, Array] = field(default_factory=dict)  # of the server's optimiser, [P] each; none for sgd
    past: Mapping[str, Array] = field(default_factory=dict)  # by round, models that silos without standing may be sent
    contributed: Array | None = None  # [P] modulo 2^64: under secure aggregation, the sum of all last contributions
    recalled: Mapping[str, Array] = field(default_factory=dict)  # where few are asked: memory.Sum
