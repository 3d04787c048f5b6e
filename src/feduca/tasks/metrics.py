"""What outputs are worth: losses for training, scores for deciding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from feduca.errors import ConfigError, DataError
from feduca.types import LocalSpec

Score = Callable[[np.ndarray, np.ndarray], float]  # outputs[n, outputs], targets[n] -> higher is better

PROPFAIR_GUARD = 0.2


@dataclass(frozen=True)
class Criterion:
    """A loss per example, and the headline score; `score` None means accuracy."""

    loss: Callable[[Tensor, Tensor], Tensor]  # outputs[n, outputs], targets[n] -> [n]
    score: Score | None = None
    name: str = "accuracy"
    loss_name: str = "cross-entropy"

    @property
    def targets(self) -> str | None:
        """What it judges: classes, values, or None where only the user's own functions know."""
        if self.loss is cross_entropy or self.score in (None, auc):
            return "classes"
        return "values" if self.loss is squared_error or self.score is r2 else None


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of classification, per example."""
    return F.cross_entropy(outputs.float(), targets, reduction="none")


def each(criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of every example, `[K, n]` of `outputs[K, n, C]`, as a silo compares it.

    Cross-entropy is computed in double precision and rounded: in single precision the last digits depend on who else is in the
    call.
    """
    if criterion.loss is not cross_entropy:
        return criterion.loss(outputs.flatten(0, 1), targets.flatten()).view(targets.shape).double()
    exact = outputs.double()
    losses = exact.logsumexp(-1) - exact.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return losses.float().double()


def is_plain(criterion: Criterion, spec: LocalSpec) -> bool:
    """Mean cross-entropy by SGD without momentum: what the trainers without autograd can do."""
    simple = spec.optimiser == "sgd" and not spec.momentum and spec.objective == "mean"
    return simple and criterion.loss is cross_entropy


def mixable(criterion: Criterion) -> bool:
    """Whether outputs of several models can be averaged as class probabilities and judged."""
    return criterion.loss is cross_entropy and criterion.score is None


def why_not_mixable(criterion: Criterion) -> str:
    """The refusal of an offer that mixes outputs."""
    return (
        f"offer.space is 'outputs' with the metric {criterion.name!r} and the loss {criterion.loss_name!r}: outputs are mixed as"
        " class probabilities, judged by accuracy and cross-entropy; use those, or offer.space = 'parameters'"
    )


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of regression, per example; a model with one output predicts the target."""
    return (outputs.float().reshape(len(targets), -1) - targets.reshape(len(targets), -1)).square().mean(1)


def auc(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Area under the ROC curve for two classes (second output minus first, or the only output); ties count half.

    The value of sklearn's `roc_auc_score`, without its checks of what it is given: side by side that took more than seventy times
    as long on 50 and 500 examples, what a silo has, and about twenty times on 5,000. Every decision of a silo needs several.
    """
    margin = outputs[:, 1] - outputs[:, 0] if outputs.shape[1] > 1 else outputs[:, 0]
    positive = targets > 0.5
    if positive.all() or not positive.any():
        return float("nan")  # undefined with one class only
    _, inverse, counts = np.unique(margin, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n = int(positive.sum())
    return float((rank[positive].sum() - n * (n + 1) / 2) / (n * (len(targets) - n)))


def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Share of the targets' variance that the outputs explain."""
    spread = ((targets - targets.mean()) ** 2).sum()
    return float(1 - ((targets - outputs.reshape(targets.shape)) ** 2).sum() / spread) if spread > 0 else float("nan")


def criterion(
    metric: str | Score = "accuracy", loss: str | Callable[[Tensor, Tensor], Tensor] | None = None
) -> Criterion:
    """The criterion called `metric` (accuracy, auc, r2, or a function of outputs and targets) with its usual loss."""
    named: dict[str, Score | None] = {"accuracy": None, "auc": auc, "r2": r2}
    if isinstance(metric, str) and metric not in named:
        raise ConfigError(f"task.metric is {metric!r}: choose accuracy, auc or r2, or pass a function")
    if loss is None:
        loss = "squared-error" if metric == "r2" else "cross-entropy"
    losses = {"cross-entropy": cross_entropy, "squared-error": squared_error}
    if isinstance(loss, str) and loss not in losses:
        raise ConfigError(f"task.loss is {loss!r}: choose cross-entropy or squared-error, or pass a function")
    if (metric, loss) in (("accuracy", "squared-error"), ("auc", "squared-error"), ("r2", "cross-entropy")):
        other = "cross-entropy" if loss == "squared-error" else "squared-error"
        raise ConfigError(
            f"task.metric {metric!r} judges {'values' if metric == 'r2' else 'classes'}, which task.loss {loss!r} does not "
            f"train for: leave task.loss out ({other}), or choose another metric"
        )
    return Criterion(
        losses[loss] if isinstance(loss, str) else loss,
        named[metric] if isinstance(metric, str) else metric,
        metric if isinstance(metric, str) else getattr(metric, "__name__", "score"),
        loss if isinstance(loss, str) else getattr(loss, "__name__", "loss"),
    )


def score(judge: Criterion, outputs: np.ndarray, targets: np.ndarray) -> float:
    """The score of `outputs[n, outputs]`, a number; NaN where the outputs are none themselves (a model that diverged)."""
    assert judge.score is not None
    if not np.isfinite(outputs).all():
        return float("nan")
    shapes = f"numpy arrays, outputs {list(outputs.shape)} and targets {list(targets.shape)}"
    try:
        value = judge.score(outputs, targets)
    except Exception as error:
        why = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"metric {judge.name!r} fails with {type(error).__name__}: {why}; it is given {shapes}"
        ) from error
    number = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    if number.shape != () or number.dtype.kind not in "fiub" or not np.isfinite(number):
        seen = f"an array of shape {number.shape}" if number.shape else repr(value)
        raise ConfigError(
            f"metric {judge.name!r} returns {seen}: it must be one finite number for any {shapes}; higher is better"
        )
    return float(number)


def undefined(judge: Criterion, targets: np.ndarray) -> str | None:
    """Why the score has no value on these targets, whatever the outputs; None where it has one."""
    if judge.score is auc and len(np.unique(targets > 0.5)) < 2:
        return f"auc needs both classes there, and all {len(targets)} examples are of class {int(targets[0])}"
    if judge.score is r2 and len(np.unique(targets)) < 2:
        return f"r2 needs targets that differ, and there {'is one' if len(targets) == 1 else 'are equal ones'} only"
    return None


def check(judge: Criterion, outputs: int, parts: Mapping[str, np.ndarray]) -> None:
    """Refuse what has no value on some of the parts (by what to call them: targets) or does not do what it must."""
    for where, targets in parts.items():
        if why := undefined(judge, targets):
            raise DataError(f"{where}: {why}; give it more examples, leave it out, or choose another metric")
        if judge.score is not None:
            some = np.random.default_rng(0).normal(size=(len(targets), outputs))
            try:
                score(judge, some, targets)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from error
    if judge.loss not in (cross_entropy, squared_error):
        _check_loss(judge, outputs, next(iter(parts.values())))


def _check_loss(judge: Criterion, outputs: int, targets: np.ndarray) -> None:
    n = 3
    some = torch.zeros(n, outputs, requires_grad=True)
    takes = (
        f"it is given torch tensors, outputs [n, {outputs}] and targets [n], and must return a loss per example, [n]"
    )
    try:
        losses = judge.loss(some, torch.as_tensor(np.resize(targets, n)))
    except Exception as error:
        why = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"loss {judge.loss_name!r} fails with {type(error).__name__}: {why}; {takes}") from error
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (n,):
        seen = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ConfigError(f"loss {judge.loss_name!r} returns {seen} for {n} examples: {takes}")
    if not losses.requires_grad:
        raise ConfigError(f"loss {judge.loss_name!r} has no gradient: compute it from the outputs with torch; {takes}")


def objective(batch_loss: Tensor, spec: LocalSpec) -> Tensor:
    """What local training minimises, of mini-batch mean losses `F[K]`.

    PropFair minimises -log(1 - F/bound), which ends at F = bound. Where 1 - F/bound falls below 0.2 we go on along the
    tangent, so that a loss beyond the bound still has a (large, finite) gradient.
    """
    if spec.objective == "mean":
        return batch_loss
    if spec.objective != "propfair":
        raise ConfigError(f"local.objective is {spec.objective!r}: choose mean or propfair")
    if not spec.bound > 0:
        raise ConfigError(f"local.bound is {spec.bound}: propfair needs an upper bound of the loss above 0, such as 5")
    room = 1 - batch_loss / spec.bound
    inside = -torch.log(room.clamp(min=PROPFAIR_GUARD))
    beyond = (PROPFAIR_GUARD - room) / PROPFAIR_GUARD - float(np.log(PROPFAIR_GUARD))
    return torch.where(room > PROPFAIR_GUARD, inside, beyond)
