"""Which parameters travel: the rest of a model never leaves its silo.

A silo completes the model it is sent with the private part of its own (before it has one, of the run's first model); the
completed model is what it evaluates, is offered and trains from. What it sends has the server's values in the private places, so
that there every update is 0 and the server keeps the initial values.

What is shared is chosen by name: a preset, or patterns as in a shell, of which the last that fits a name decides; one with `!` in
front keeps what it fits private.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from feduca.core.arrays import columns, repeat, select
from feduca.errors import ConfigError
from feduca.types import Array, Bools, Reports

PRESETS = {
    "all": "everything travels",
    "but-bias": "all but the biases of the last layer",
    "body": "all but the last layer",
    "head": "the last layer only",
    "but-norm": "all but the normalisation layers, their running statistics included",
}
_NORM = re.compile(r"(^|[._])(bn|gn|ln|norm|(batch|group|layer|instance)_?norm)\d*([._]|$)", re.I)


@dataclass(frozen=True, eq=False)
class Share:
    """What of a model travels."""

    mask: Bools  # [P]
    names: tuple[str, ...]  # of what travels

    def completed(self, theta: Array, own: Array, known: Bools) -> Array:
        """`theta[P]` for each client `[K, P]`, with the private part of its own model where it has one."""
        each = repeat(theta, len(known))
        return columns(self.mask, each, select(known, own, each))

    def sent(self, reports: Reports, theta: Array) -> Reports:
        """The reports as they leave the silos: what does not travel is as in `theta[P]`, which everybody has."""
        models = columns(self.mask, reports.theta, repeat(theta, len(reports.clients)))
        return replace(reports, theta=select(reports.joined, models, reports.theta))


def share_of(wanted: str | Sequence[str], task: object) -> Share | None:
    """What `wanted` means for the models of `task`; None where everything travels. What is frozen never does."""
    frozen = set(getattr(task, "frozen_names", ()))
    if wanted == "all" and not frozen:
        return None
    sizes: Mapping[str, int] | None = getattr(task, "parameter_names", None)
    if sizes is None:
        raise ConfigError(
            f"share is {_shown(wanted)}, but the task does not say what its parameters are called: give it `parameter_names`, or"
            " set share = 'all'"
        )
    names = list(sizes)
    if wanted == "all":
        travels = [True] * len(names)
    elif isinstance(wanted, str) and wanted in PRESETS:
        moving = [name for name in names if name not in frozen]  # theta ends with what is frozen, a model need not
        private = set(_private(wanted, moving, getattr(task, "norm_names", None)))
        travels = [name not in private for name in names]
        if all(travels):
            raise ConfigError(
                f"share is {wanted!r}, which leaves nothing private here: the model has {_some(names)}; use 'all'"
            )
    else:
        patterns = [wanted] if isinstance(wanted, str) else list(wanted)
        travels = [_fits(name, patterns) for name in names]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern.removeprefix("!")) for name in names):
                raise ConfigError(
                    f"share has the pattern {pattern!r}, which fits no parameter: the model has {_some(names)}; presets are"
                    f" {', '.join(PRESETS)}"
                )
    travels = [yes and name not in frozen for name, yes in zip(names, travels)]
    if not any(travels):
        raise ConfigError(
            f"share is {_shown(wanted)}, which shares nothing: the model has {_some(names)}; share some of them"
        )
    if all(travels):
        return None
    mask = np.repeat(travels, [sizes[name] for name in names])
    return Share(mask, tuple(name for name, yes in zip(names, travels) if yes))


def _private(preset: str, names: Sequence[str], norms: Sequence[str] | None) -> list[str]:
    """What a preset keeps in the silo. The last layer is what holds the last parameter that is no statistic."""
    if preset == "but-norm":
        stems = {name.rpartition(".")[0] for name in names if name.endswith(".running_mean")}
        guess = [name for name in names if _NORM.search(name) or name.rpartition(".")[0] in stems]
        return guess if norms is None else list(norms)
    trained = [
        name for name in names if name.rpartition(".")[2] not in ("running_mean", "running_var", "num_batches_tracked")
    ]
    stem = trained[-1].rpartition(".")[0]
    head = [name for name in names if name.rpartition(".")[0] == stem] if stem else trained[-1:]
    if preset == "but-bias":
        return [name for name in head if name.rpartition(".")[2] == "bias"]
    return head if preset == "body" else [name for name in names if name not in head]


def _fits(name: str, patterns: Sequence[str]) -> bool:
    travels = patterns[0].startswith("!")  # what no pattern fits
    for pattern in patterns:
        if fnmatchcase(name, pattern.removeprefix("!")):
            travels = not pattern.startswith("!")
    return travels


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _shown(wanted: str | Sequence[str]) -> str:
    return repr(wanted if isinstance(wanted, str) else list(wanted))
