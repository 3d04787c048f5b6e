"""`feduca audit`: does it pay to misreport? The paper lets everybody inflate at once; an economist asks about one.

    everybody      all silos inflate their thresholds by the same share
    alone          one silo inflates, or understates its curve, while all others tell the truth; under both readings of what an
                   inflating silo decides by (its reported or its true threshold)
    best response  silos take turns choosing their inflation from a grid, each the one best for itself given the others', until
                   nobody wants to move

All runs of a seed share data, initial model and mini-batches, so that differences are due to the reports. A silo's gain
is in the accuracy of the model it deploys: the offer where it joined, its own elsewhere, mean over the last ten rounds,
on its untouched test part where there is one (`task.test_share`, or a folder's own), else on its validation data.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from feduca import api
from feduca.core.wording import aligned, estimate, points
from feduca.errors import InputError
from feduca.recipes.build import has_test_parts, make_task
from feduca.recipes.schema import Recipe
from feduca.runs.directory import LAST, RunResult, deployed_accuracy
from feduca.types import Task

SHARES = (0.05, 0.10)  # the paper's inflations, beside 0
LEAST_GAIN = 0.005  # a silo moves for half a point of accuracy or more
FEW = 5  # silos tried as the lone deviator unless told otherwise
DECISIVE = 2.0  # standard errors from zero at which a mean is called a gain or a loss

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How much to try."""

    seeds: tuple[int, ...] = (0, 1, 2)
    deviators: int | None = None  # how many silos; None: FEW, or all where there are fewer
    grid: tuple[float, ...] = (0.0, 0.05, 0.10)
    sweeps: int = 3

    def __post_init__(self) -> None:
        if not self.seeds:
            raise InputError("--seeds is 0; an audit needs at least 1")
        if self.sweeps < 1:
            raise InputError(f"--sweeps is {self.sweeps}; it must be at least 1")
        if len(set(self.grid)) < 2 or 0.0 not in self.grid:
            raise InputError(f"--grid is {list(self.grid)}; give 0 (the truth) and at least one other inflation")


DEFAULT = Plan()


def lone(deviators: int | None, silos: int) -> range:
    """The silos that are tried as the lone deviator: the first so many."""
    if deviators is None:
        return range(min(FEW, silos))
    if not 1 <= deviators <= silos:
        raise InputError(f"--deviators is {deviators}; choose 1 to {silos}, the silos of this recipe")
    return range(deviators)


@dataclass(frozen=True)
class Outcome:
    """What one run was worth, silo by silo and to all."""

    deployed: list[float]
    weight: list[float]  # mean over rounds
    joined: list[float]  # share of rounds
    accuracy: float
    participation: float
    standing: list[list[float]] = field(
        default_factory=list
    )  # of every silo, round by round, where the server keeps it


@dataclass(frozen=True)
class Game:
    """One seed: the same silos, whatever they report."""

    recipe: Recipe
    seed: int
    task: Task
    known: dict[tuple, Outcome]

    def play(self, **reporting: Any) -> Outcome:
        """The outcome under these entries of `[reporting]`; each is run once."""
        key = tuple(sorted((name, str(value)) for name, value in reporting.items()))
        if key not in self.known:
            settings = {f"reporting.{name}": value for name, value in reporting.items()}
            self.known[key] = outcome(api.run(self.recipe, settings, seed=self.seed, task=self.task))
        return self.known[key]

    def profile(self, shares: Sequence[float]) -> Outcome:
        """Everybody inflates by a share of its own."""
        if not any(shares):
            return self.play()
        return self.play(kind="inflate", share=list(shares))


def outcome(result: RunResult) -> Outcome:
    """The figures of a run that a silo, or an economist, looks at."""
    silos = range(len(result.clients[0]["status"]))
    later = result.clients[1:] or result.clients  # in round 1 everybody joins
    weights = [record["alpha"] for record in later]  # None of whoever was not asked
    return Outcome(
        deployed=deployed_accuracy(result.clients[-LAST:]),
        weight=[statistics.fmean([a for w in weights if (a := w[k]) is not None] or [0.0]) for k in silos],
        joined=[statistics.fmean(record["status"][k] == "joined" for record in later) for k in silos],
        accuracy=result.accuracy if result.accuracy is not None else math.nan,
        participation=result.participation,
        standing=[record["standing"] for record in result.clients if record.get("standing") is not None],
    )


def audit(recipe: Recipe, plan: Plan = DEFAULT, tell: Tell = lambda line: None) -> dict[str, Any]:
    """The whole audit as a JSON-ready record; `text` shows it. The recipe's own `[reporting]` is set aside."""
    deviators = lone(plan.deviators, recipe.task.clients)
    honest = recipe.with_settings({"reporting.kind": "truthful", "reporting.share": 0.0, "reporting.clients": None})
    games = [Game(honest, seed, make_task(honest, seed), {}) for seed in plan.seeds]
    everybody = _everybody(games, tell)
    alone = _alone(games, deviators, tell)
    responses = [_best_responses(game, plan, tell) for game in games]
    found = {
        "recipe": recipe.name,
        "mechanism": recipe.mechanism["name"],
        "rule": recipe.participation.rule,
        "rounds": recipe.rounds,
        "silos": recipe.task.clients,
        "seeds": list(plan.seeds),
        "judged_on": "untouched test part" if has_test_parts(games[0].task) else "validation data",
        "least_gain": LEAST_GAIN,
        "everybody": everybody,
        "alone": alone,
        "best_response": responses,
    }
    return found | {"verdict": verdict(found)}


# ---------------------------------------------------------------------------------------------------------------------
# The three questions


def _everybody(games: Sequence[Game], tell: Tell) -> list[dict[str, Any]]:
    rows = []
    for share in (0.0, *SHARES):
        outcomes = [game.play() if share == 0 else game.play(kind="inflate", share=share) for game in games]
        tell(f"everybody inflates by {share:.0%}: done")
        rows.append(
            {
                "share": share,
                "accuracy": spread([o.accuracy for o in outcomes]),
                "participation": spread([o.participation for o in outcomes]),
                "deployed": spread([average(o.deployed) for o in outcomes]),
                "worst_client": spread([min(defined(o.deployed), default=math.nan) for o in outcomes]),
            }
        )
    return rows


def _alone(games: Sequence[Game], deviators: Sequence[int], tell: Tell) -> list[dict[str, Any]]:
    rows = []
    for kind in ("inflate", "understate"):
        for share in SHARES:
            for decide_by in ("reported", "true"):
                cases = []
                for game in games:
                    truth, n = game.play(), game.recipe.task.clients
                    for k in deviators:
                        lied = game.play(kind=kind, share=share, clients=[k], decide_by=decide_by)
                        others = [j for j in range(n) if j != k]
                        change = [lied.deployed[j] - truth.deployed[j] for j in others]
                        cases.append(
                            {
                                "own": lied.deployed[k] - truth.deployed[k],
                                "weight": lied.weight[k] - truth.weight[k],
                                "joined": lied.joined[k] - truth.joined[k],
                                "others": average(change),
                                "accuracy": lied.accuracy - truth.accuracy,
                            }
                        )
                tell(f"one silo alone, {kind} {share:.0%}, decides by its {decide_by} threshold: done")
                rows.append(
                    {
                        "kind": kind,
                        "share": share,
                        "decide_by": decide_by,
                        "cases": len(cases),
                        "gained": statistics.fmean(case["own"] > LEAST_GAIN for case in cases),
                        "lost": statistics.fmean(case["own"] < -LEAST_GAIN for case in cases),
                        **{name: spread([case[name] for case in cases]) for name in cases[0]},
                    }
                )
    return rows


def _best_responses(game: Game, plan: Plan, tell: Tell) -> dict[str, Any]:
    """Silos move in turn, each to its best inflation given the others', if that is worth LEAST_GAIN to it."""
    n = game.recipe.task.clients
    profile = [0.0] * n
    seen, moves, settled, sweep = [list(profile)], 0, False, 0
    for sweep in range(1, plan.sweeps + 1):
        moved = 0
        for k in range(n):
            worth = {g: game.profile([*profile[:k], g, *profile[k + 1 :]]).deployed[k] for g in plan.grid}
            best = max(plan.grid, key=lambda g: (worth[g], -g))  # among equals, the smaller lie
            if worth[best] > worth[profile[k]] + LEAST_GAIN:
                profile[k], moved = best, moved + 1
        moves += moved
        tell(f"seed {game.seed}, best responses, sweep {sweep}: {moved} of {n} silos moved")
        settled = moved == 0
        if settled or profile in seen:
            break
        seen.append(list(profile))
    truth, end = game.play(), game.profile(profile)
    return {
        "seed": game.seed,
        "decide_by": game.recipe.reporting.decide_by,
        "settled": settled,
        "cycle": not settled and profile in seen[:-1],
        "sweeps": sweep,
        "moves": moves,
        "profile": profile,
        "truthful": sum(g == 0 for g in profile),
        "accuracy": [truth.accuracy, end.accuracy],
        "participation": [truth.participation, end.participation],
        "deployed": [average(truth.deployed), average(end.deployed)],
        "runs": len(game.known),
    }


def defined(values: Sequence[float]) -> list[float]:
    """Those that are numbers: a silo that never answered, or has no data to be judged on, has none."""
    return [v for v in values if math.isfinite(v)]


def average(values: Sequence[float]) -> float:
    """Mean over what is defined; NaN where nothing is."""
    return statistics.fmean(defined(values) or [math.nan])


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and the standard error of the mean; None where undefined."""
    values = defined(values)
    if not values:
        return {"mean": None, "stderr": None}
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "stderr": error}


# ---------------------------------------------------------------------------------------------------------------------
# In words


def verdict(found: dict[str, Any]) -> list[str]:
    """What the numbers say, in plain sentences; negative findings included."""
    sentences = []
    truth, *inflated = found["everybody"]
    for row in inflated:
        drop = _change((truth["accuracy"]["mean"], row["accuracy"]["mean"]))
        out = _change((truth["participation"]["mean"], row["participation"]["mean"]))
        sentences.append(
            f"When everybody inflates by {row['share']:.0%}, accuracy changes by {drop} points and participation by {out}."
        )
    for row in found["alone"]:
        own, others = row["own"], row["others"]
        act = f"{'Inflating' if row['kind'] == 'inflate' else 'Understating its curve'} by {row['share']:.0%} alone"
        sentences.append(
            f"{act}, deciding by its {row['decide_by']} threshold, a silo {_word(own)} ({_gain(own)} points of its own"
            f" accuracy, better off in {row['gained']:.0%} and worse off in {row['lost']:.0%} of {row['cases']} cases);"
            f" its weight changes by {_gain(row['weight'])} and its presence by {_gain(row['joined'])} points;"
            f" the others {_word(others, plural=True)} ({_gain(others)})."
        )
    for one in found["best_response"]:
        n = len(one["profile"])
        if one["settled"]:
            how = f"nobody wants to move after {one['sweeps']} sweep(s) and {one['moves']} move(s)"
        elif one["cycle"]:
            how = f"silos go round in circles ({one['moves']} moves in {one['sweeps']} sweeps)"
        else:
            how = f"silos were still moving when the {one['sweeps']} sweeps were over ({one['moves']} moves)"
        sentences.append(
            f"Best responses, seed {one['seed']}: {how}; {one['truthful']} of {n} tell the truth at the end, where accuracy is"
            f" {_change(one['accuracy'])} and participation"
            f" {_change(one['participation'])} points from the truthful outcome."
        )
    tempted = sum(one["moves"] > 0 for one in found["best_response"])
    pays = [row for row in found["alone"] if _word(row["own"]) == "gains"]
    if pays:
        sentences.append(
            f"Verdict: misreporting alone pays on average in {len(pays)} of the {len(found['alone'])} ways tried."
        )
    elif tempted:
        sentences.append(
            f"Verdict: no way of misreporting alone pays on average, but who could foresee the outcome would sometimes profit: in"
            f" {tempted} of {len(found['best_response'])} seeds telling the truth is not everybody's best response."
        )
    else:
        sentences.append("Verdict: here, nobody has a reason to misreport.")
    return sentences


def text(found: dict[str, Any]) -> str:
    """The audit as plain text: three tables and the verdict."""
    everybody = [
        [
            f"{row['share']:.0%}",
            *(estimate(row[key]) for key in ("accuracy", "participation", "deployed", "worst_client")),
        ]
        for row in found["everybody"]
    ]
    alone = [
        [f"{row['kind']} {row['share']:.0%}, by {row['decide_by']}"]
        + [estimate(row[key], sign=True) for key in ("own", "weight", "joined", "others")]
        + [f"{row['gained']:.0%} / {row['lost']:.0%}"]
        for row in found["alone"]
    ]
    answers = [
        [
            f"seed {one['seed']}",
            "yes" if one["settled"] else "cycle" if one["cycle"] else "no",
            *(str(one[key]) for key in ("sweeps", "moves")),
            " ".join(f"{g:.0%}" for g in one["profile"]),
        ]
        for one in found["best_response"]
    ]
    return "\n".join(
        [
            f"{found['mechanism']}, rule {found['rule']}, {found['silos']} silos, {found['rounds']} rounds, seeds"
            f" {found['seeds']}; judged on {found['judged_on']}; mean +- standard error, in points",
            "",
            aligned(["everybody inflates", "accuracy", "participation", "deployed", "worst client"], everybody),
            "",
            aligned(["one silo alone", "own", "weight", "presence", "others", "better / worse off"], alone),
            "",
            aligned(["best responses", "settled", "sweeps", "moves", "inflations at the end"], answers),
            "",
            *found["verdict"],
        ]
    )


def parse_grid(words: str) -> tuple[float, ...]:
    """`--grid 0,0.05,0.1`."""
    try:
        return tuple(sorted({float(word) for word in words.split(",")}))
    except ValueError:
        raise InputError(f"--grid is {words!r}; give numbers separated by commas, such as 0,0.05,0.1") from None


def _change(pair: Sequence[float | None]) -> str:
    """From the first to the second, in points."""
    old, new = pair
    return points(None if new is None or old is None else new - old, nothing="?")


def _gain(value: Mapping[str, float | None]) -> str:
    return points(value["mean"], nothing="?")


def _word(value: dict[str, float | None], plural: bool = False) -> str:
    """gains, loses, or neither, at DECISIVE standard errors and at least a tenth of a point."""
    mean, error = value["mean"], value["stderr"]
    if mean is None or error is None or abs(mean) < max(DECISIVE * error, 0.001):
        return "neither gain nor lose on average" if plural else "neither gains nor loses on average"
    verb = "gain" if mean > 0 else "lose"
    return verb if plural else f"{verb}s"
