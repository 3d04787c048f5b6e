"""What differential privacy in the silo goes with: what would send more than it accounts for is refused, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feduca import mechanisms
from feduca.errors import ConfigError
from feduca.recipes.tables import PrivacyTable
from feduca.types import LocalSpec

if TYPE_CHECKING:
    from feduca.recipes.schema import Recipe

OFF = "or privacy.dp = 'off'"


def check_privacy(recipe: Recipe) -> None:
    """Refuse a recipe whose epsilon would not be what it says."""
    p = recipe.privacy
    if p.dp == "off":
        for key in ("epsilon", "delta", "clip", "noise", "decisions", "decision_share"):
            if (value := getattr(p, key)) != PrivacyTable.model_fields[key].default:
                raise ConfigError(
                    f"privacy.{key} is {value!r} with privacy.dp 'off', under which nothing is hidden; use privacy.dp ="
                    " 'records'"
                )
        return
    _check_method(recipe)
    _check_training(recipe)
    if p.decisions == "noisy":
        _check_decisions(recipe)


def _check_method(recipe: Recipe) -> None:
    """Methods that send more than an update, or train more than one model."""
    name, options = recipe.mechanism["name"], {k: v for k, v in recipe.mechanism.items() if k != "name"}
    mechanism = mechanisms.registry[name](**options)
    sends = None
    if hasattr(mechanism, "control"):
        sends = "adds control variates to every step, which tell of earlier gradients"
    elif mechanism.needs.train_loss:
        sends = "asks for losses on training examples, which are sent without noise"
    elif hasattr(mechanism, "personal"):
        sends = "works inside the silo without noise"
    elif mechanism.local(LocalSpec()).objective != "mean":
        sends = "has an objective that is no sum over examples"
    if sends:
        raise ConfigError(
            f"privacy.dp is 'records' with mechanism.name {name!r}, which {sends}; use mechanism.name = 'fedavg', {OFF}"
        )


def _check_training(recipe: Recipe) -> None:
    """Training that starts from, or holds, what was trained without noise; and what cannot be clipped."""
    if recipe.engine.precision != "fp32":
        raise ConfigError(
            f"engine.precision is {recipe.engine.precision!r} with privacy.dp, whose clipping is exact; use 'fp32'"
        )
    if recipe.participation.against != "outside":
        return
    o = recipe.offer
    if o.kind not in ("global", "stack") and o.train_from == "offer":
        raise ConfigError(
            f"offer.train_from is 'offer' with offer.kind {o.kind!r} and privacy.dp: training would start from a mixture with a"
            f" model trained without noise; use offer.train_from = 'consensus', {OFF}"
        )
    if recipe.share != "all":
        raise ConfigError(
            f"share is {recipe.share!r} with participation.against 'outside' and privacy.dp: what a silo keeps is trained"
            f" without noise, and what it sends depends on that; use share = 'all', {OFF}"
        )


def _check_decisions(recipe: Recipe) -> None:
    """Decisions whose noise is accounted for: Eq. 1 on counts of right answers, and rules that look at no data."""
    p, exact = recipe.participation, "or privacy.decisions = 'exact', which leaves decisions out of the epsilon"
    name, options = recipe.mechanism["name"], {k: v for k, v in recipe.mechanism.items() if k != "name"}
    if p.rule == "utility" or mechanisms.registry[name](**options).needs.curve or recipe.diagnostics:
        what = "participation.rule 'utility'" if p.rule == "utility" else f"mechanism.name {name!r}"
        what = "diagnostics" if recipe.diagnostics else what
        raise ConfigError(
            f"privacy.decisions is 'noisy' with {what}, whose curves rest on many scores a round and are worth little with the"
            f" noise they would need; use mechanism.name = 'fedavg' with participation.rule 'accuracy' or 'always', {exact}"
        )
    if p.rule in ("always", "never"):
        blocking = ("participation.quits", p.quits) if p.quits else None
    else:
        settings = (
            ("participation.rule", p.rule, "accuracy"),
            ("participation.against", p.against, "current"),
            ("offer.kind", recipe.offer.kind, "global"),
            ("task.metric", recipe.task.metric if recipe.own is None else "accuracy", "accuracy"),
            ("participation.ties", p.ties, "strict"),
            ("participation.confidence", p.confidence, 0.0),
            ("participation.quits", p.quits, 0),
        )
        blocking = next(((key, value) for key, value, needed in settings if value != needed), None)
    o = recipe.offer
    if o.kind not in ("global", "stack") and o.train_from == "offer":
        blocking = blocking or ("offer.train_from", "offer")
    if blocking:
        raise ConfigError(
            f"privacy.decisions is 'noisy' with {blocking[0]} {blocking[1]!r}: what is sent then tells more of single examples"
            " than a noisy count of right answers; use participation.rule 'always' or 'accuracy' with the shared model as the"
            f" offer, {exact}"
        )
