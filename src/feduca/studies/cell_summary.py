"""What a study keeps of one cell: the entries of `RESULTS/NAME.json`, with names and types.

Scores and shares are fractions of 1. A list has one entry per seed, a list of lists one per seed and silo. None means that a
quantity does not exist for this cell (no curves, no weights to solve for) or that an older run did not record it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

Number = float | None
PerSilo = Sequence[Sequence[Number]]


@dataclass(frozen=True, kw_only=True)
class CellSummary:
    """One cell of a study over its seeds."""

    # Where it stands, and what the paper prints there.
    labels: Mapping[str, str]
    data: str
    split: str
    method: str
    study: str
    set: Mapping[str, Any] = field(default_factory=dict)  # what the command line changed
    paper_accuracy: Number = None
    paper_participation: Number = None

    # What ran.
    start: str  # a name for all that models trained alone depend on, but for the seed
    train: str  # the same without how silos are judged
    mechanism: str
    clients: int
    model: str | None = None
    weights: str | None = None
    n_s: int | None = None
    schedule: str | None = None
    rule: str
    ties: str
    offer: str
    memory: str
    rounds: int
    seeds: Sequence[int]
    split_seed: int | None = None  # of the one split that all seeds share; None: each draws its own

    # The shared model and who was in.
    accuracies: Sequence[Number]
    accuracy_mean: Number
    accuracy_std: Number = None
    participations: Sequence[float] | None = None
    participation_mean: Number
    eq1_share: Number = None
    members_share: Number = None
    joined_least: int | None = None
    accuracy_by_round: Sequence[Number] | None = None
    participation_by_round: Sequence[Number] | None = None

    # The program: what was promised, and how far weights are from uniform.
    promise_kept: Number = None
    promise_error: Number = None
    concession: Number = None
    r2: Number = None
    fits: Mapping[str, Any] | None = None
    curves: Mapping[str, Any] | None = None
    fallbacks: Number = None
    short_share: Number = None
    jensen: Mapping[str, float] | None = None  # mean, top50, top25
    jensen_short: Mapping[str, Number] | None = None  # top25, rest
    discrepancy: Sequence[Number] | None = None
    discrepancy_bound_expected: Sequence[Number] | None = None

    # On the data that silos decide by: what settings may be chosen by.
    own_validation_mean: Number = None
    global_validation_mean: Number = None

    # On data that no decision saw.
    deployed_test: PerSilo | None = None
    alone_test: PerSilo | None = None
    deployed_test_mean: Number = None
    own_test_mean: Number = None
    global_test_mean: Number = None
    # What only neighbours know: the ceiling, and who is better off than alone.
    ceiling_accuracy_mean: Number = None
    alone_test_mean: Number = None
    better_off_share: Number = None
    not_worse_share: Number = None
    gain_mean: Number = None
    gain_worst: Number = None
    gain_worst_mean: Number = None

    # Better off than alone, silo by silo with an error (analysis/judging.py): by accuracy and by log-loss.
    paired: Mapping[str, Sequence[Number]] | None = None  # pooled over seeds
    better_share: Number = None
    worse_share: Number = None
    same_share: Number = None
    undecided_share: Number = None
    loss_better_share: Number = None
    loss_worse_share: Number = None
    loss_same_share: Number = None
    loss_undecided_share: Number = None
    loss_gain_mean: Number = None
    loss_gain_worst: Number = None

    # How it ran.
    seconds: Number = None
    seconds_allocate: Number = None
    peak_mb: Number = None
    device: str = "cpu"
    precision: str = "fp32"
    config_hash: str
    experiment: str | None = None
    commit: str | None = None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """From an entry of a summary file; entries of other versions may have more than these fields, what they lack is None."""
        lacking: dict[str, Any] = {
            f.name: None for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING
        }
        return cls(**lacking | {f.name: entry[f.name] for f in fields(cls) if f.name in entry})

    def to_json(self) -> dict[str, Any]:
        """As an entry of a summary file."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
