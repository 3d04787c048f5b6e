"""From a validated recipe to the objects of a run. The only place where names become parts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from feduca import mechanisms, utility
from feduca.aggregation import Weighted
from feduca.client import Behaviour
from feduca.config import Recipe
from feduca.federation import InProcess
from feduca.gate import Gate
from feduca.memory import memories
from feduca.offers import BestMixture, Global, LeastConcession, Offer
from feduca.participation import AccuracyImproves, Always, ParticipationRule, UtilityThreshold, WarmStart
from feduca.personal import Nothing
from feduca.plausibility import Plausibility
from feduca.reporting import Inflate, ReportingPolicy, Truthful, Understate
from feduca.rounds import Server
from feduca.types import Array, LocalSpec, Mechanism, Needs, Task


@dataclass(frozen=True)
class Experiment:
    """One run, ready to go."""

    task: Task
    server: Server
    federation: InProcess
    theta: Array


def build(recipe: Recipe, seed: int, task: Task | None = None) -> Experiment:
    """Everything a run needs. A `task` of the user's own replaces the recipe's `[task]` and `[engine]`."""
    task = task or make_task(recipe, seed)
    server = make_server(recipe, seed, task)
    return Experiment(task, server, InProcess(task, make_behaviour(recipe, seed)), task.init(seed))


def make_task(recipe: Recipe, seed: int) -> Task:
    from feduca.tasks import build_task  # torch from here on

    t, e = recipe.task, recipe.engine
    options: dict[str, Any] = {} if e.chunk is None else {"chunk": e.chunk}
    return build_task(
        data=t.data,
        clients=t.clients,
        classes_per_client=t.classes_per_client,
        train_concentration=t.train_concentration,
        validation_concentration=t.validation_concentration,
        validation_share=t.validation_share,
        test_share=t.test_share,
        model=t.model,
        hidden=t.hidden,
        max_examples=t.max_examples,
        data_dir=t.data_dir,
        seed=seed,
        engine=e.kind,
        device=e.device,
        precision=e.precision,
        threads=e.threads,
        **options,
    )


def make_mechanism(recipe: Recipe) -> Mechanism:
    cls = mechanisms.registry[recipe.mechanism["name"]]
    options = {key: value for key, value in recipe.mechanism.items() if key != "name"}
    for field in fields(cls):
        if wired := field.metadata.get("wired"):
            table, key = wired.split(".")
            options[field.name] = getattr(getattr(recipe, table), key)
    return cls(**options)


def make_server(recipe: Recipe, seed: int, task: Task) -> Server:
    local = recipe.local.model_dump(exclude={"lr_decay"})
    g = recipe.gate
    plausibility = Plausibility(g.plausible_tolerance, window=g.plausible_window, exclude=g.plausible == "refuse")
    return Server(
        mechanism=make_mechanism(recipe),
        memory=memories[recipe.memory.kind],
        family=utility.family(recipe.utility.family),
        local=LocalSpec(**local),
        rounds=recipe.rounds,
        seed=seed,
        aggregation=Weighted(**recipe.aggregation.model_dump()),
        lr_decay=recipe.local.lr_decay,
        parameters=task.parameters,
        metric=recipe.utility.metric,
        run=f"{recipe.hash()}-s{seed}",
        gate=Gate(g.norm) if g.on else None,
        plausibility=plausibility if g.plausible != "ignore" else None,
    )


def make_behaviour(recipe: Recipe, seed: int) -> Behaviour:
    p, u, r = recipe.participation, recipe.utility, recipe.reporting
    mechanism = make_mechanism(recipe)
    needs = mechanism.needs | Needs(curve=recipe.diagnostics)
    return Behaviour(
        rule=_rule(recipe),
        offer=_offer(recipe),
        family=utility.family(u.family),
        seed=seed,
        reporting=_reporting(recipe),
        decide_by=r.decide_by,
        threshold=p.threshold,
        metric=u.metric,
        nodes=u.nodes,
        check=u.check,
        check_every=u.check_every,
        leave_out=u.leave_out,
        tolerance=p.tolerance,
        needs=needs,
        untouched=recipe.task.test_share > 0,
        personal=getattr(mechanism, "personal", Nothing()),
        record_points=u.record_points or recipe.diagnostics,
    )


def _rule(recipe: Recipe) -> ParticipationRule:
    p = recipe.participation
    rules: dict[str, ParticipationRule] = {
        "always": Always(),
        "accuracy": AccuracyImproves(p.ties),
        "utility": UtilityThreshold(p.tolerance),
    }
    rule = rules[p.rule]
    return WarmStart(p.warm_start, rule) if p.warm_start else rule


def _offer(recipe: Recipe) -> Offer:
    o, ties, metric = recipe.offer, recipe.participation.ties, recipe.utility.metric
    offers: dict[str, Offer] = {
        "global": Global(),
        "least-concession": LeastConcession(o.margin, o.points, ties, metric),
        "best-mixture": BestMixture(o.points, ties, metric),
    }
    return offers[o.kind]


def _reporting(recipe: Recipe) -> ReportingPolicy:
    r = recipe.reporting
    if r.kind == "truthful":
        return Truthful()
    share = tuple(r.share) if isinstance(r.share, list) else r.share
    policy = Inflate if r.kind == "inflate" else Understate
    return policy(share, None if r.clients is None else tuple(r.clients))
