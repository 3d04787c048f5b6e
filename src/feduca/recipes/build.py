"""From a validated recipe to the objects of a run. The only place where names become parts."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from feduca import mechanisms
from feduca.client import registry
from feduca.client.behaviour import Behaviour
from feduca.client.conduct import Conduct
from feduca.client.offers import BestMixture, Global, LeastConcession, Offer
from feduca.client.outside import Outside
from feduca.client.participation import (
    AccuracyImproves,
    Always,
    Comparison,
    Never,
    ParticipationRule,
    Quits,
    UtilityThreshold,
    WarmStart,
)
from feduca.client.personal import Nothing
from feduca.client.privacy import Privacy, check_first_round
from feduca.client.reporting import Blurred, Inflate, ReportingPolicy, Truthful, Understate
from feduca.client.stack import FEWEST, Stack
from feduca.core import utility
from feduca.core.aggregation import Weighted
from feduca.core.cohort import Cohort
from feduca.core.machine import memory
from feduca.core.memory import memories
from feduca.core.records import plain
from feduca.core.rounds import Server
from feduca.core.rows import Store
from feduca.core.share import share_of
from feduca.errors import ConfigError, DataError, InputError, shown
from feduca.federation import InProcess
from feduca.recipes.folders import DATA_SETS, NATURAL, entries, folder_there, is_folder
from feduca.recipes.footprint import LARGE, check_memory, stored
from feduca.recipes.schema import Recipe
from feduca.runs.store import OnDisk
from feduca.trust.gate import Gate
from feduca.trust.outliers import Outliers
from feduca.trust.plausibility import Plausibility
from feduca.trust.work import Work
from feduca.types import Array, Federation, LocalSpec, Mechanism, Needs, Task

if TYPE_CHECKING:
    from feduca.federation.masked import MaskedSilos
    from feduca.tasks import TorchTask


log = logging.getLogger("feduca")


@dataclass(frozen=True)
class Experiment:
    """One run, ready to go."""

    task: Task
    server: Server
    federation: InProcess | MaskedSilos
    theta: Array
    store: Store | None = None  # where what is kept of silos lies, if few of many are asked


def build(recipe: Recipe, seed: int, task: Task | None = None, files: OnDisk | None = None) -> Experiment:
    """Everything a run needs. A `task` of the user's own replaces the recipe's `[task]` and `[engine]`.

    `files` is where silos' models lie if they lie on the disk; None: in files that go with the run.
    """
    if task is not None and recipe.own not in (None, fingerprint(task)):
        raise InputError(
            "the task is not the one this run was made with (other data, model, metric, loss or engine): pass that one, or "
            "start a new run"
        )
    if task is None:
        task = make_task(recipe, seed)
    else:
        _check_alone(recipe, task)
    check_cohort(recipe, len(task.silos))
    server, behaviour = make_server(recipe, seed, task), behaviour_of(recipe, seed, task)
    store = store_of(recipe, server, task, files)
    federation = InProcess(task, behaviour, store=store)
    if recipe.privacy.secure_aggregation:
        federation = masked(recipe, federation, task.parameters)
    return Experiment(task, server, federation, task.init(seed), store)


def store_of(recipe: Recipe, server: Server, task: Task, files: OnDisk | None) -> Store | None:
    """Where silos' models lie, if few of many are asked: in memory; on the disk if that is asked for, or if they are large."""
    silos, kind = len(task.silos), recipe.cohort.store
    if not server.few(silos):
        return None
    needed = stored(recipe, silos, task.size)
    if kind == "auto":
        needs_all = recipe.aggregation.kind != "mean" and recipe.memory.kind != "none"
        large = needed > memory() * LARGE and not (needs_all or recipe.privacy.secure_aggregation)
        kind = "disk" if large else "memory"
    return Store() if kind == "memory" else files or OnDisk(None)


def masked(recipe: Recipe, federation: Federation, parameters: int, **more: Any) -> MaskedSilos:
    """Secure aggregation around silos of this process."""
    try:
        from feduca.federation.masked import MaskedSilos
    except ImportError as error:
        raise ConfigError(
            f"privacy.secure_aggregation needs a package that is not there ({error.name}); pip install 'feduca[privacy]'"
        ) from None
    p, memory = recipe.privacy, recipe.memory.kind != "none"
    return MaskedSilos(federation, least=p.least, bound=p.bound, parameters=parameters, memory=memory, **more)


def behaviour_of(recipe: Recipe, seed: int, task: Task) -> Behaviour:
    """How the silos that hold these data behave, all of a simulation or the one of a deployed silo.

    Whether models are judged on untouched data, the data say: silos with files, or a task, of their own bring them or do not.
    """
    check_confidence(recipe, task)
    check_stack(recipe, task)
    how, share = make_behaviour(recipe, seed), share_of(recipe.share, task)
    if how.privacy is not None:
        check_first_round(how.privacy, local_of(recipe), task)
    sharing = getattr(how.personal, "sharing", None)
    personal = how.personal if sharing is None else sharing(share)
    return replace(how, untouched=has_test_parts(task), share=share, personal=personal)


def has_test_parts(task: Task) -> bool:
    """Whether silos hold examples that no decision sees."""
    return bool(np.any(getattr(task, "test_examples", 0)))


def check_confidence(recipe: Recipe, task: object) -> None:
    """Refuse a confidence in scores that are no shares of correct answers; `task` may be a server's model, too."""
    judge, level = getattr(task, "criterion", None), recipe.participation.confidence
    if level > 0 and getattr(judge, "score", None) is not None:
        raise ConfigError(
            f"participation.confidence is {level} with the metric {getattr(judge, 'name', '')!r}: correct answers can be "
            "counted, other scores cannot; use confidence 0"
        )


def check_stack(recipe: Recipe, task: Task) -> None:
    """Refuse to choose a mixture's weights where too few examples, or scores of the wrong kind, would choose them."""
    if recipe.offer.kind != "stack":
        return
    for name, n in zip(task.silos, getattr(task, "validation_examples", ())):
        if n < FEWEST:
            raise DataError(
                f"silo {name} has {n} validation example{'' if n == 1 else 's'}, and offer.kind 'stack' needs {FEWEST} to choose"
                " weights by; give it more, leave it out, or use offer.kind = 'global'"
            )
    judge = getattr(task, "criterion", None)
    if recipe.offer.space == "outputs" and judge is not None:
        from feduca.tasks.metrics import mixable, why_not_mixable

        if not mixable(judge):
            raise ConfigError(why_not_mixable(judge))


def _check_alone(recipe: Recipe, task: Task) -> None:
    """Models alone are for comparing on untouched data: somebody must have some, and where they are dealt, everybody."""
    if not recipe.alone:
        return
    dealt, share = recipe.own is None and not is_folder(recipe.task.data), recipe.task.test_share
    if not has_test_parts(task) and not dealt:
        log.warning(
            "alone is true, but no silo has test data: who is better off than alone is not judged; give silos test rows"
        )
    if not has_test_parts(task) and dealt:
        what = f"raise task.test_share, which is {share:g}" if share else "set task.test_share, such as 0.5"
        raise ConfigError(
            f"alone is true, but no silo has test data, on which models alone are compared: {what}, or leave alone out"
        )
    if dealt:
        without = [name for name, n in zip(task.silos, getattr(task, "test_examples", ())) if n == 0]
        if without:
            raise ConfigError(
                f"alone is true, but task.test_share {share:g} leaves {without[0]} no test data"
                f"{f' (and {len(without) - 1} more)' if len(without) > 1 else ''}; raise task.test_share"
            )


def fingerprint(task: Task) -> str:
    """A name for what a task of the user's own computes: its `fingerprint()`, else what can be seen of it from outside."""
    if (told := getattr(task, "fingerprint", None)) is not None:
        return str(told() if callable(told) else told)
    seen = {
        "type": type(task).__qualname__,
        "silos": list(task.silos),
        "examples": plain(task.examples),
        "size": int(task.size),
        "about": plain(getattr(task, "describe", dict)()),
    }
    return hashlib.sha256(json.dumps(seen, sort_keys=True, default=str).encode()).hexdigest()[:16]


def origin(recipe: Recipe, seed: int) -> tuple[str, str, int]:
    """What the recipe's task depends on: a task that carries this is no other than the recipe's."""
    return recipe.task.model_dump_json(), recipe.engine.model_dump_json(), seed


def check_here(recipes: Iterable[Recipe], device_elsewhere: bool = False) -> None:
    """Refuse, before any of them runs, recipes whose data or device are not here."""
    from feduca.tasks.data import load
    from feduca.tasks.data.natural import load_natural
    from feduca.tasks.task import Settings

    wanted = {(r.engine.device, r.engine.precision, r.task.data, r.task.data_dir): None for r in recipes}
    for device, precision, data, data_dir in wanted:
        if not device_elsewhere:
            Settings(device=device, precision=precision).check()
        if is_folder(data):
            _check_folder(data)
        elif data in NATURAL:
            load_natural(data, data_dir)
        else:
            load(data, data_dir)


def _check_folder(data: str) -> None:
    if not folder_there(data):
        raise ConfigError(
            f"task.data is {shown(data)}: choose one of {', '.join(DATA_SETS)}, or a folder that holds a file or"
            " a folder per silo"
        )


def make_task(recipe: Recipe, seed: int) -> Task:
    """The recipe's task."""
    if recipe.own is not None:
        raise InputError(
            f"the run was made with a task of its own ({recipe.own}), which no recipe describes: go on, or export it, from "
            "Python with task=..."
        )
    check_memory(recipe)
    data = recipe.task.data
    task = (_own_files if is_folder(data) else _natural if data in NATURAL else _dealt)(recipe, seed)
    _check_alone(recipe, task)
    object.__setattr__(task, "origin", origin(recipe, seed))
    return task


def _own_files(recipe: Recipe, seed: int) -> TorchTask:
    from feduca.tasks import build_own_task  # torch from here on

    t = recipe.task
    _check_folder(t.data)
    there = len(entries(t.data)[0])
    if there != t.clients:
        raise DataError(
            f"{t.data} holds {there} silos, the recipe says {t.clients}: it has changed; run the recipe again"
        )
    return build_own_task(t.data, target=t.target, metric=t.metric, loss=t.loss, **_computed(recipe))


def _natural(recipe: Recipe, seed: int) -> TorchTask:
    from feduca.tasks import build_natural_task

    t = recipe.task
    return build_natural_task(
        t.data,
        validation_share=t.validation_share,
        test_share=t.test_share,
        pooled=t.pooled,
        seed=seed if t.split_seed is None else t.split_seed,
        **_computed(recipe),
    )


def _dealt(recipe: Recipe, seed: int) -> TorchTask:
    from feduca.tasks import build_task

    t = recipe.task
    return build_task(
        data=t.data,
        clients=t.clients,
        classes_per_client=t.classes_per_client,
        train_concentration=t.train_concentration,
        validation_concentration=t.validation_concentration,
        validation_share=t.validation_share,
        test_share=t.test_share,
        max_examples=t.max_examples,
        seed=seed if t.split_seed is None else t.split_seed,
        **_computed(recipe),
    )


def _computed(recipe: Recipe) -> dict[str, Any]:
    """The model, and where and how it is computed: what all kinds of data have in common."""
    t, e = recipe.task, recipe.engine
    options: dict[str, Any] = {"model": t.model, "hidden": t.hidden, "data_dir": t.data_dir, "weights": t.weights}
    options |= {"engine": e.kind, "device": e.device, "precision": e.precision, "threads": e.threads}
    return options if e.chunk is None else {**options, "chunk": e.chunk}


def make_mechanism(recipe: Recipe) -> Mechanism:
    cls = mechanisms.registry[recipe.mechanism["name"]]
    options = {key: value for key, value in recipe.mechanism.items() if key != "name"}
    for field in fields(cls):
        if wired := field.metadata.get("wired"):
            options[field.name] = reduce(getattr, wired.split("."), recipe)
    return cls(**options)


def make_server(recipe: Recipe, seed: int, model: object = None) -> Server:
    """The server's part of a recipe, in a simulation, a deployment and the drop-in strategy alike.

    Of the model, where it is known yet, it asks how many parameters it has, what they are called and what it is judged by.
    """
    check_confidence(recipe, model)
    g = recipe.gate
    plausibility = Plausibility(
        tolerance=g.plausible_tolerance,
        demand=g.plausible_demand
        + 2 * recipe.reporting.round
        + 4 * recipe.reporting.noise,  # what honest blur explains
        threshold=_meant(recipe),
        window=g.plausible_window,
        exclude=g.plausible == "refuse",
    )
    return Server(
        mechanism=make_mechanism(recipe),
        memory=memories[recipe.memory.kind],
        family=utility.family(recipe.utility.family),
        local=local_of(recipe),
        rounds=recipe.rounds,
        seed=seed,
        aggregation=Weighted(**recipe.aggregation.model_dump()),
        lr_decay=recipe.local.lr_decay,
        parameters=getattr(model, "parameters", None),
        metric=recipe.utility.metric,
        share=None if model is None else share_of(recipe.share, model),
        run=f"{recipe.hash()}-s{seed}",
        gate=Gate(g.norm, recipe.reporting.decliners) if g.on else None,
        decliners=recipe.reporting.decliners,
        outliers=Outliers(recipe.outlier) if g.on and recipe.outlier else None,
        plausibility=plausibility if g.plausible != "ignore" else None,
        standing=_standing(recipe),
        secure=recipe.privacy.secure_aggregation,
        cohort=_cohort(recipe),
    )


def _cohort(recipe: Recipe) -> Cohort | None:
    """None where everybody is asked."""
    c = recipe.cohort
    return None if c.size is None else Cohort(c.size, c.draw, c.availability)


def check_cohort(recipe: Recipe, silos: int) -> None:
    """Refuse a cohort of more silos than there are, or chances of others."""
    size, chances = recipe.cohort.size, recipe.cohort.availability
    if size is not None and size > silos:
        raise ConfigError(f"cohort.size is {size}, and there are {silos} silos: ask at most {silos}, or leave it out")
    if isinstance(chances, list) and len(chances) != silos:
        raise ConfigError(
            f"cohort.availability has {len(chances)} entries for {silos} silos: give one each, or one for all"
        )


def _standing(recipe: Recipe) -> Work | None:
    s = recipe.standing
    return None if s.kind == "off" else Work(s.patience, s.window, s.answer)


def _meant(recipe: Recipe) -> str:
    """Which value of a silo's own curve its threshold is meant to be; "outside" where it is none of them."""
    p = recipe.participation
    measured = p.against == "outside" or p.threshold == "own-accuracy" or p.average > 1
    return "outside" if measured else p.threshold


def make_behaviour(recipe: Recipe, seed: int) -> Behaviour:
    p, u, r, c = recipe.participation, recipe.utility, recipe.reporting, recipe.conduct
    mechanism = make_mechanism(recipe)
    needs = mechanism.needs | Needs(curve=recipe.diagnostics, alone=recipe.alone)
    return Behaviour(
        rule=_rule(recipe),
        offer=_offer(recipe),
        train_from="consensus" if recipe.offer.kind == "stack" else recipe.offer.train_from,
        family=utility.family(u.family),
        seed=seed,
        reporting=_reporting(recipe, seed),
        decide_by=r.decide_by,
        threshold=p.threshold,
        realised=p.check == "realised",
        average=p.average,
        decliners=r.decliners,
        metric=u.metric,
        nodes=u.nodes,
        check=u.check,
        check_every=u.check_every,
        leave_out=u.leave_out,
        tolerance=p.tolerance,
        needs=needs,
        untouched=recipe.task.test_share > 0,
        outside=_outside(recipe),
        conduct=Conduct(c.kind, None if c.clients is None else tuple(c.clients), c.after, c.noise),
        personal=getattr(mechanism, "personal", Nothing()),
        privacy=make_privacy(recipe),
        record_points=u.record_points or recipe.diagnostics,
        keep_curves=u.keep_curves,
    )


def local_of(recipe: Recipe) -> LocalSpec:
    """Local training in the first round."""
    return LocalSpec(**recipe.local.model_dump(exclude={"lr_decay"}))


def make_privacy(recipe: Recipe) -> Privacy | None:
    """How silos hide single examples, where they do."""
    p = recipe.privacy
    if p.dp == "off":
        return None
    asks = recipe.participation.rule not in ("always", "never")
    return Privacy(p.epsilon, recipe.rounds, p.clip, p.delta, p.noise, p.decisions == "noisy", asks, p.decision_share)


def _rule(recipe: Recipe) -> ParticipationRule:
    p = recipe.participation
    rules: dict[str, ParticipationRule] = {
        "always": Always(),
        "accuracy": AccuracyImproves(_comparison(recipe)),
        "loss": AccuracyImproves(_comparison(recipe)),
        "utility": UtilityThreshold(p.tolerance, p.check == "realised", recipe.utility.metric),
        "never": Never(),
    }
    rule = registry.rules.make(p.rule, _comparison(recipe)) if p.rule in registry.rules else rules[p.rule]
    rule = WarmStart(p.warm_start, rule) if p.warm_start else rule
    judge = _comparison(recipe) if p.rule == "loss" else Comparison(p.ties, p.confidence)
    return Quits(p.quits, rule, judge) if p.quits else rule


def _outside(recipe: Recipe) -> Outside | None:
    o = recipe.outside
    if recipe.participation.against == "current":
        return None
    return Outside(o.kind, o.every, Comparison("loss", metric=_comparison(recipe).metric))


def _comparison(recipe: Recipe) -> Comparison:
    """What "better" means here, to the rule and to the offer alike. Eq. 1 is about accuracy, whatever utility is."""
    p = recipe.participation
    metric = p.rule if p.rule in ("accuracy", "loss") else recipe.utility.metric
    return Comparison(p.ties, p.confidence, metric)


def _offer(recipe: Recipe) -> Offer:
    o, better = recipe.offer, _comparison(recipe)
    offers: dict[str, Offer] = {
        "global": Global(),
        "least-concession": LeastConcession(
            o.margin, o.points, better, o.margin_kind == "relative", o.budget, o.search
        ),
        "best-mixture": BestMixture(o.points, better, o.budget),
        "stack": Stack(o.space, o.folds, o.errors, o.points),
    }
    return registry.offers.make(o.kind, better) if o.kind in registry.offers else offers[o.kind]


def _reporting(recipe: Recipe, seed: int) -> ReportingPolicy:
    r = recipe.reporting
    policy: ReportingPolicy = Truthful()
    if r.kind != "truthful":
        share = tuple(r.share) if isinstance(r.share, list) else r.share
        kind = Inflate if r.kind == "inflate" else Understate
        policy = kind(share, None if r.clients is None else tuple(r.clients))
    if r.round or r.noise:
        policy = Blurred(policy, utility.family(recipe.utility.family), seed, r.round, r.noise)
    return policy
