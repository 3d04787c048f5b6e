"""What a silo's operator allows, whatever the server asks: SILO/policy.toml. Without that file the recipe decides, as ever.

    veto = false                    true: takes no part in anything
    hours = ["Mon-Fri 19:00-07:00", "Sat-Sun"]      works only then, by this machine's clock
    rounds = 100                    answers at most so many messages that may train, over all runs
    approve = true                  asks its operator before a run's first round, and before new settings
    epsilon = 3.0                   only recipes with differential privacy, of at most this epsilon in all runs together
    examples = 5000                 uses at most so many training examples
    rule = "loss"                   decides by this rule, whatever rule, warm start or tolerance the recipe has ...
    threshold = "local-baseline"    ... with this threshold of Eq. 2 ...
    confidence = 0.9                ... or this confidence of Eq. 1
    least_gain = 0.01               takes nothing that is not so much more accurate than its model alone

It is read anew with every message. A file that is wrong stops the silo: no part of it is ever guessed or left out.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from feduca.client.behaviour import Behaviour
from feduca.client.gain import LeastGain
from feduca.client.participation import Quits
from feduca.errors import ConfigError, printable
from feduca.recipes.build import behaviour_of
from feduca.recipes.complaints import sentence
from feduca.recipes.schema import Recipe
from feduca.recipes.tables import ParticipationTable, Table
from feduca.runs import files
from feduca.types import Task

FILE = "policy.toml"
LARGEST_DELTA = 1e-4
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = rf"(?:{'|'.join(DAYS)})"
_HOURS = re.compile(rf"(?P<days>{_DAY}(?:-{_DAY})?(?:,{_DAY}(?:-{_DAY})?)*)?\s*(?P<times>\d\d:\d\d-\d\d:\d\d)?")


@dataclass(frozen=True)
class Window:
    """Hours of some days; one that ends before it begins goes on into the next day."""

    days: tuple[int, ...]
    start: int  # minutes after midnight
    end: int

    @staticmethod
    def of(text: str) -> Window:
        found = _HOURS.fullmatch(text.strip().lower())
        if not text.strip() or found is None:
            raise ValueError(f"{text[:60]!r} is no time; write days, hours or both, such as 'Mon-Fri 19:00-07:00'")
        days: list[int] = []
        for part in (found["days"] or "mon-sun").split(","):
            first, _, last = part.partition("-")
            here, there = DAYS.index(first), DAYS.index(last or first)
            days += [(here + k) % 7 for k in range((there - here) % 7 + 1)]
        start, end = (_minutes(time) for time in (found["times"] or "00:00-24:00").split("-"))
        if start == end or start == 24 * 60:
            raise ValueError(f"{text[:60]!r} holds no time at all; write its end after its beginning")
        return Window(tuple(sorted(set(days))), start, end)

    def holds(self, now: dt.datetime) -> bool:
        minute, day = 60 * now.hour + now.minute, now.weekday()
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        return (day in self.days and minute >= self.start) or ((day - 1) % 7 in self.days and minute < self.end)


def _minutes(time: str) -> int:
    hour, minute = map(int, time.split(":"))
    if minute > 59 or 60 * hour + minute > 24 * 60:
        raise ValueError(f"{time} is no time of day; hours go from 00:00 to 24:00")
    return 60 * hour + minute


class Policy(Table):
    """A policy file, checked. What is not said is the server's to decide."""

    veto: bool = Field(default=False, strict=True)
    approve: bool = Field(default=False, strict=True)
    rounds: int | None = Field(default=None, ge=0, le=1_000_000, strict=True)
    hours: list[str] | None = Field(default=None, min_length=1, max_length=50)
    examples: int | None = Field(default=None, ge=1, strict=True)
    epsilon: float | None = Field(default=None, gt=0)
    rule: Literal["always", "accuracy", "loss", "utility", "never"] | None = None
    threshold: Literal["previous-weight", "local-baseline", "own-accuracy"] | None = None
    confidence: float | None = Field(default=None, ge=0, lt=1)
    least_gain: float | None = Field(default=None, ge=-1e6, le=1e6)

    @field_validator("hours")
    @classmethod
    def _times(cls, hours: list[str] | None) -> list[str] | None:
        for text in hours or []:
            Window.of(text)
        return hours

    @model_validator(mode="after")
    def _only_with_a_rule(self) -> Policy:
        for name, needs in (("threshold", ("utility",)), ("confidence", ("accuracy",))):
            if getattr(self, name) is not None and self.rule not in needs:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}, which is an option of rule = {needs[0]!r}: add that"
                )
        return self

    @property
    def looks(self) -> bool:
        """Whether it says anything of what a recipe promises, so that the app's is looked into before the app runs."""
        return self.epsilon is not None or self.least_gain is not None

    @property
    def judges(self) -> bool:
        """Whether it says by what a silo decides: then only what this policy has judged may leave with a model."""
        return self.rule is not None or self.least_gain is not None

    @property
    def mark(self) -> str:
        """A name for exactly these rules; answers are kept with that of the policy they were given under."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def open_at(self, now: dt.datetime) -> bool:
        return self.hours is None or any(Window.of(text).holds(now) for text in self.hours)

    def shut(self, now: dt.datetime, worked: int = 0) -> str | None:
        """Why no message at all may pass, for the operator's eyes; None where it may."""
        if self.veto:
            return f"{FILE} says veto = true"
        if not self.open_at(now):
            return f"{now:%a %H:%M} is outside hours = {self.hours}"
        if self.rounds is not None and worked >= self.rounds:
            return f"it has worked {worked} rounds, and {FILE} says rounds = {self.rounds}"
        return None

    def private(self, recipe: Mapping[str, Any], elsewhere: float = 0.0) -> str | None:
        """Why a recipe, as TOML has it, is not private enough, or more than `least_gain` goes with; None where nothing is wrong.

        `elsewhere` is what other runs may spend on the same examples: epsilons add up.
        """
        table = recipe.get("privacy")
        if self.least_gain is not None and isinstance(table, Mapping) and table.get("dp", "off") != "off":
            return (
                f"{FILE} says least_gain = {self.least_gain:g}, whose decisions no privacy budget pays for; with privacy.dp leave"
                " it out, or take no part (veto = true)"
            )
        if self.epsilon is None:
            return None
        bound, asked = f"{FILE} says epsilon = {self.epsilon:g}", epsilon_of(recipe)
        if asked is None:
            return f"the recipe has no differential privacy, and {bound}; leave, or take that out"
        table = recipe["privacy"]
        delta = table.get("delta")
        wants = f"ask for a recipe with privacy.delta = {LARGEST_DELTA:g} or less, or leave"
        if delta is None:  # it follows from the number of examples, which nobody knows before the app runs
            return f"the recipe leaves privacy.delta open, and {bound}, which says little without it; {wants}"
        if not 0 < delta <= LARGEST_DELTA:
            return f"the recipe's delta is {delta:g}, and at more than {LARGEST_DELTA:g} an epsilon promises little; {wants}"
        if table.get("decisions", "noisy") != "noisy":
            return f"the recipe's decisions are not private, and {bound}; leave, or ask for noisy ones"
        if not asked + elsewhere <= self.epsilon:
            more = f" beside {elsewhere:g} of other runs" if elsewhere else ""
            return f"the recipe may spend epsilon {asked:g}{more}, and {bound}; leave, or raise it"
        return None

    def in_words(self) -> list[str]:
        """What it says beyond the recipe, as lines of its file."""
        said = self.model_dump(exclude_defaults=True)
        return [f"{name} = {json.dumps(value)}" for name, value in said.items()]  # as TOML has them


def epsilon_of(recipe: Mapping[str, Any]) -> float | None:
    """What a recipe's `[privacy]` table may spend; None where there is no differential privacy, or it does not say."""
    table = recipe.get("privacy")
    if not isinstance(table, Mapping) or table.get("dp") != "records":
        return None
    value, delta = table.get("epsilon"), table.get("delta")
    if isinstance(delta, bool) or not isinstance(delta, int | float | None):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return float(value)


def read(silo: Path) -> Policy:
    """The policy of a silo's folder; one that allows everything where there is no file, and an error where it is wrong."""
    path = silo / FILE
    try:
        tree = tomllib.loads(files.read(path).decode("utf-8"))
    except FileNotFoundError:
        return Policy()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); mend it: without it this silo does nothing"
        ) from None
    except ValueError as error:  # not TOML, not UTF-8
        raise ConfigError(f"{path} is not TOML ({printable(str(error), 200)}); mend it, or remove it") from None
    try:
        return Policy(**tree)
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error, Policy)}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def behave(recipe: Recipe, seed: int, task: Task, policy: Policy) -> Behaviour:
    """How this silo behaves: as the recipe says, but for what its own policy says. Without a policy the recipe's, to the bit."""
    if (why := policy.private(recipe.model_dump())) is not None:
        raise ConfigError(why)
    how = behaviour_of(_ruled(recipe, policy), seed, task)
    if policy.least_gain is None:
        return how
    rule = how.rule
    if isinstance(rule, Quits):  # the step looks for it on the outside
        return replace(how, rule=replace(rule, rule=LeastGain(policy.least_gain, rule.rule)))
    return replace(how, rule=LeastGain(policy.least_gain, rule))


def _ruled(recipe: Recipe, policy: Policy) -> Recipe:
    """The recipe under the policy's rule. Nothing that could soften that rule is taken over from the server."""
    if policy.rule is None:
        return recipe
    blank = ParticipationTable(against=recipe.participation.against).model_dump()
    said = {name: value for name in ("rule", "threshold", "confidence") if (value := getattr(policy, name)) is not None}
    changes = {f"participation.{name}": value for name, value in {**blank, **said}.items()}
    return recipe.with_settings({**changes, "reporting.decide_by": "true"})


def limited(task: Task, most: int | None) -> Task:
    """The task with at most so many training examples, always the same ones."""
    if most is None or int(max(task.examples)) <= most:
        return task
    if (own := getattr(task, "limited", None)) is not None:
        less = own(most)
    elif type(task).__module__.startswith("feduca.tasks"):
        from feduca.tasks import quota

        less = quota.limited(task, most)  # type: ignore[arg-type]
    else:
        raise ConfigError(
            f"{FILE} says examples = {most}, and the app's {type(task).__name__} has no limited(most) that gives a task with"
            " fewer: ask for one, or take examples out"
        )
    if int(max(less.examples)) > most:
        raise ConfigError(f"{FILE} says examples = {most}, and the app's limited({most}) has {int(max(less.examples))}")
    return less
