"""Does it pay not to do one's part? One silo deviates, all others are honest (`feduca audit --conduct`).

The audit of reports (audit.py) asks about numbers; this one asks about deeds: refusing good offers, free-riding in all ways of
conduct.py, and lying about one's data, which is inflating the threshold where the mechanism reads it and claiming ten times
the examples where weights follow examples. All runs of a seed share data, initial model and mini-batches, so that differences
are due to the deviation. A gain is in the accuracy of the model the silo deploys on its untouched test part, mean over the last
ten rounds; of silos that copy from each other, the mean of both. Where the server keeps standing, both its rates are told: how
soon a deviator is found, and in what share of their rounds honest silos are taken for one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feduca import api
from feduca.analysis.audit import DECISIVE, Outcome, average, defined, lone, outcome, spread
from feduca.client.conduct import KINDS
from feduca.core.wording import aligned, estimate, number
from feduca.errors import ConfigError, InputError
from feduca.recipes.build import has_test_parts, make_task
from feduca.recipes.schema import Recipe
from feduca.studies.cells import one_of
from feduca.types import Ints, Task

CLAIM = 10  # how many times its examples a liar claims to have
INFLATION = 0.05  # by how much a liar inflates its threshold, the paper's smaller figure


def _method(mechanism: str, rule: str, ties: str, kind: str, train_from: str = "offer") -> dict[str, Any]:
    """Settings of a method, all that its label is about: a recipe that chooses otherwise must not make the label untrue."""
    return {
        "mechanism": {"name": mechanism},
        "participation.rule": rule,
        "participation.ties": ties,
        "participation.confidence": 0.0,
        "participation.warm_start": 0,
        "offer.kind": kind,
        "offer.train_from": train_from,
    }


METHODS: Mapping[str, Mapping[str, Any]] = {
    "least concession, Eq. 1, ties by loss": _method("fedavg", "accuracy", "loss", kind="least-concession"),
    "least concession from consensus, Eq. 1, ties by loss": _method(
        "fedavg", "accuracy", "loss", kind="least-concession", train_from="consensus"
    ),
    "best mixture from consensus, Eq. 1, ties by loss": _method(
        "fedavg", "accuracy", "loss", kind="best-mixture", train_from="consensus"
    ),
    "FedUCA fresh, Eq. 2": _method("feduca", "utility", "strict", kind="global"),
}
DEEDS = (*(kind for kind in KINDS if kind != "honest"), "inflate", "claim")
LIMITED = 0.5  # a standing that is none

Tell = Callable[[str], None]
Job = tuple[Recipe, int]  # with its seed


@dataclass(frozen=True)
class Claims:
    """A task in which one silo claims more training examples than it has; it trains on what it has."""

    task: Task
    liar: int
    times: int = CLAIM

    @property
    def examples(self) -> Ints:
        told = np.asarray(self.task.examples).copy()
        told[self.liar] *= self.times
        return told

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)


def lever(deed: str, mechanism: Mapping[str, Any]) -> bool:
    """Whether a mechanism gives a silo the means: only FedUCA reads thresholds, and not all can weigh silos by examples."""
    weighs = mechanism.get("beta") in ("uniform", "examples")  # one of a user's own may call something else beta
    return {"inflate": mechanism["name"] == "feduca", "claim": weighs}.get(deed, True)


def deviation(deed: str, silo: int) -> dict[str, Any]:
    """The settings under which `silo` does `deed`."""
    if deed == "inflate":
        return {"reporting.kind": "inflate", "reporting.share": INFLATION, "reporting.clients": [silo]}
    if deed == "claim":
        return {"mechanism.beta": "examples"}
    return {"conduct.kind": deed, "conduct.clients": [silo]}


def doers(deed: str, silo: int, silos: int) -> list[int]:
    """Whose deed it is: copying takes two."""
    return sorted({silo, (silo + 1) % silos}) if deed == "copy" else [silo]


def methods_for(recipe: Recipe, tell: Tell = lambda line: None) -> dict[str, Recipe]:
    """The recipe's own method, unless it is one of ours, and ours; what makes no sense beside its other entries is named."""
    found: dict[str, Recipe] = {}
    what = f"{recipe.mechanism['name']}, {recipe.participation.rule}, {recipe.offer.kind}"
    for label, settings in {f"this recipe ({what})": None, **METHODS}.items():
        try:
            found[label] = recipe.single() if settings is None else one_of(recipe, settings)
        except ConfigError as error:
            tell(f"{label}: left out, since {error}")
    # The recipe's own stands first, and is left out if it comes again.
    kinds = [(one.mechanism, one.participation, one.offer) for one in found.values()]
    return {label: one for k, (label, one) in enumerate(found.items()) if kinds[k] not in kinds[k + 1 :]}


def incentives(
    recipe: Recipe,
    seeds: Sequence[int] = (0, 1, 2),
    deviators: int | None = 2,
    methods: Mapping[str, Recipe] | None = None,
    deeds: Sequence[str] = DEEDS,
    tell: Tell = lambda line: None,
    lockstep: int = 1,
) -> dict[str, Any]:
    """Every deed by every deviator under every method, as a JSON-ready record with its verdict in words.

    Up to `lockstep` runs of a method go side by side in the same calls, which fills a GPU.
    """
    liars = lone(deviators, recipe.task.clients)
    rows, truths = [], []
    for label, chosen in (methods_for(recipe, tell) if methods is None else methods).items():
        cases, truthful = _cases(chosen, seeds, liars, deeds, lockstep, lambda line, of=label: tell(f"{of}: {line}"))
        rows += [{"method": label, "deed": deed, **_row(found)} for deed, found in cases.items()]
        truths.append({"method": label, **_honest(truthful)})
    found = {
        "recipe": recipe.name,
        "rounds": recipe.rounds,
        "silos": recipe.task.clients,
        "seeds": list(seeds),
        "deviators": len(liars),
        "judged_on": "untouched test part",
        "honest": truths,
        "rows": rows,
    }
    return found | {"verdict": [sentence(row) for row in rows]}


def _cases(
    chosen: Recipe, seeds: Sequence[int], liars: Sequence[int], deeds: Sequence[str], lockstep: int, tell: Tell
) -> tuple[dict[str, list[dict[str, Any]]], list[Outcome]]:
    """Every deed's cases under one method, each against the honest run that shares its data and its weights; and those runs."""
    cases: dict[str, list[dict[str, Any]]] = {deed: [] for deed in deeds if lever(deed, chosen.mechanism)}
    tasks = {seed: make_task(chosen, seed) for seed in seeds}
    if not all(map(has_test_parts, tasks.values())):
        raise InputError(
            "an audit of conduct needs data that no decision used; set task.test_share, for instance to 0.5, or give your"
            " folder's silos test parts"
        )
    pairs: list[tuple[str, int, list[int], Job, Job]] = []  # deed, silo, whose deed it is, the honest run and the other
    for deed, seed, k in ((deed, seed, k) for deed in cases for seed in seeds for k in liars):
        who = doers(deed, k, chosen.task.clients)
        changes = deviation(deed, k) | ({"conduct.clients": who} if deed == "copy" else {})
        lied = _job(chosen, changes, seed)
        # Who claims more examples is compared with the truth under the same weights.
        pairs.append((deed, k, who, lied if deed == "claim" else _job(chosen, {}, seed), lied))
    truthful = [_job(chosen, {}, seed) for seed in seeds]
    todo = {_key(job): job for job in (*truthful, *(job for *_, honest, lied in pairs for job in (honest, lied)))}
    known = dict(zip(todo, _play(list(todo.values()), tasks, lockstep, tell)))
    for deed, k, who, honest, lied in pairs:
        recipe, seed = lied
        theirs = known[_key(lied)]
        if deed == "claim":  # a task of its own, which goes side by side with no other
            liar: Any = Claims(tasks[seed], k)
            theirs = outcome(api.run(recipe, seed=seed, task=liar))
            tell(f"seed {seed}, claim: done")
        cases[deed].append(_compare(known[_key(honest)], theirs, who))
    return cases, [known[_key(job)] for job in truthful]


def _job(chosen: Recipe, changes: Mapping[str, Any], seed: int) -> Job:
    return api.recipe(chosen, changes, seed=seed).single(), seed


def _key(job: Job) -> tuple[str, int]:
    """What a run computes: one that several cases need is run once."""
    return job[0].hash(), job[1]


def _play(jobs: Sequence[Job], tasks: Mapping[int, Task], lockstep: int, tell: Tell) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for first in range(0, len(jobs), lockstep):
        batch = jobs[first : first + lockstep]
        if lockstep == 1:
            found = [api.run(recipe, seed=seed, task=tasks[seed]) for recipe, seed in batch]
        else:
            found = api.run_many(batch, out=None, lockstep=lockstep)
        outcomes += map(outcome, found)
        tell(f"{len(outcomes)} of {len(jobs)} runs done")
    return outcomes


def _compare(honest: Outcome, lied: Outcome, who: Sequence[int]) -> dict[str, Any]:
    def change(name: str, of: Iterable[int]) -> float:
        return average([getattr(lied, name)[k] - getattr(honest, name)[k] for k in of])

    others = [k for k in range(len(lied.deployed)) if k not in who]
    found = {
        **{name: change(of, who) for name, of in (("own", "deployed"), ("weight", "weight"), ("joined", "joined"))},
        "others": change("deployed", others),
        "accuracy": lied.accuracy - honest.accuracy,
    }
    if not lied.standing:
        return found
    theirs = np.array(lied.standing)[:, who].mean(1)
    return found | {"standing": theirs.tolist(), "limited": _limited(lied.standing, others)}


def _limited(standing: Sequence[Sequence[float]], silos: Sequence[int]) -> float:
    """The share of rounds in which some silos have no standing."""
    return float((np.array(standing)[:, silos] <= LIMITED).mean())


def _row(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    figures = ("own", "weight", "joined", "others", "accuracy")
    row = {
        "cases": len(cases),
        "gained": statistics.fmean(case["own"] > 0 for case in cases),
        "lost": statistics.fmean(case["own"] < 0 for case in cases),
        **{name: spread([case[name] for case in cases]) for name in figures},
        "interval": interval([case["own"] for case in cases]),
    }
    if "standing" not in cases[0]:
        return row
    paths = np.array([case["standing"] for case in cases])
    first = [int(np.argmax(path <= LIMITED)) + 1 for path in paths if (path <= LIMITED).any()]
    return row | {
        "standing": [round(float(mean), 3) for mean in paths.mean(0)],
        "found": len(first) / len(cases),  # the share of cases in which the deviator lost its standing ...
        "found_after": statistics.median(first) if first else None,  # ... and after how many rounds
        "honest_limited": statistics.fmean(case["limited"] for case in cases),
    }


def _honest(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The runs in which nobody deviates."""
    row = {
        "seeds": len(outcomes),
        "accuracy": spread([one.accuracy for one in outcomes]),
        "participation": spread([one.participation for one in outcomes]),
        "deployed": spread([average(one.deployed) for one in outcomes]),
    }
    if not outcomes[0].standing:
        return row
    everybody = range(len(outcomes[0].deployed))
    return row | {"honest_limited": statistics.fmean(_limited(one.standing, everybody) for one in outcomes)}


def interval(values: Sequence[float]) -> list[float] | None:
    """The 95 % interval of a mean, by Student's t; None where there are not two values."""
    from scipy.special import stdtrit

    value = spread(values)
    if value["mean"] is None or value["stderr"] is None:
        return None
    reach = float(stdtrit(len(defined(values)) - 1, 0.975)) * value["stderr"]
    return [value["mean"] - reach, value["mean"] + reach]


WORDS = {
    "refuse": "refuses every offer after the first round",
    "take": "says that it declines, and deploys the offer all the same",
    "withhold": "takes offers and sends back the shared model, an update of nothing",
    "echo": "takes offers and sends them back unchanged",
    "noise": "takes offers and sends noise as large as its real update",
    "fixed": "takes offers and sends a step in one direction drawn once, as long as its real update",
    "idle": "takes offers, does not train, and sends them back",
    "lapse": "works for ten rounds, then idles",
    "replay": "does not train, and sends the shared model's last step on as its own",
    "stale": "trains once, and sends that update again and again",
    "forge": "does the same, and takes off a part of the way the model has gone",
    "copy": "shares one silo's work with another, both sending the same",
    "inflate": f"inflates its threshold by {INFLATION:.0%}",
    "claim": f"claims {CLAIM} times its examples where weights follow examples",
}


def sentence(row: Mapping[str, Any]) -> str:
    """What one row says, in plain words."""
    mean, error = row["own"]["mean"], row["own"]["stderr"]
    if error is None:
        what = "may gain or lose, which one case does not tell"
    elif abs(mean) >= DECISIVE * error and abs(mean) >= 0.001:
        what = "gains" if mean > 0 else "loses"
    else:
        what = "neither clearly gains nor loses"
    mine, theirs, shared = (estimate(row[key], sign=True) for key in ("own", "others", "accuracy"))
    return (
        f"{row['method']}: a silo that {WORDS[row['deed']]} {what}: {mine} points of its own accuracy (better in"
        f" {row['gained']:.0%}, worse in {row['lost']:.0%} of {row['cases']} cases); the others {theirs}, the shared"
        f" model {shared}."
    )


def between(interval: Sequence[float] | None) -> str:
    """A 95 % interval in points."""
    return "-" if interval is None else " to ".join(number(end, 1, True, scale=100) for end in interval)


def when(row: Mapping[str, Any]) -> str:
    """How often, and when, a deviator lost its standing."""
    if "found" not in row:
        return "-"
    return f"{row['found']:.0%}, round {row['found_after']:g}" if row["found"] else "never"


def text(found: Mapping[str, Any]) -> str:
    """The audit as plain text: one table and the verdict."""
    head = ["method", "deed", "own", "95 %", "others", "shared model", "better / worse off", "found", "honest limited"]
    rows = [
        [
            row["method"],
            row["deed"],
            estimate(row["own"], sign=True),
            between(row["interval"]),
            *(estimate(row[key], sign=True) for key in ("others", "accuracy")),
            f"{row['gained']:.0%} / {row['lost']:.0%}",
            when(row),
            f"{row['honest_limited']:.1%}" if "honest_limited" in row else "-",
        ]
        for row in found["rows"]
    ]
    return "\n".join(
        [
            f"one silo deviates; {found['silos']} silos, {found['rounds']} rounds, seeds {found['seeds']}, judged on its"
            f" {found['judged_on']}; mean +- standard error, in points",
            "",
            aligned(head, rows, 2),
            "",
            *found["verdict"],
        ]
    )
