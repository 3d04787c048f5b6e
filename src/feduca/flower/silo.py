"""What a silo does with one announcement: heed its operator, look at its disk, take the client's step, remember, answer."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass, replace

import numpy as np

from feduca.client.behaviour import Behaviour
from feduca.client.decision import Choice
from feduca.client.gain import ALONE, GAIN
from feduca.client.privacy import KEY, never_less
from feduca.client.requests import drive
from feduca.client.step import step
from feduca.core.arrays import like
from feduca.core.messages import silent
from feduca.core.records import plain
from feduca.errors import RunError
from feduca.flower import consent, kept
from feduca.flower.failures import ERASES, LEAVES, POLICY
from feduca.flower.policy import Policy
from feduca.flower.store import Entry, SiloStore, digest
from feduca.recipes.schema import Recipe
from feduca.types import DECLINED, JOINED, REFUSED, Announcements, Reports, Task


@dataclass(frozen=True)
class Answer:
    report: Reports
    leave: bool = False
    erase: bool = False  # leaving, it asks the server to forget its update


def respond(
    name: str,
    store: SiloStore,
    task: Task,
    how: Behaviour,
    asked: Announcements,
    policy: Policy | None = None,
    recipe: Recipe | None = None,
) -> Answer:
    """The silo's answer to `asked` (for this one silo, `theta` as numpy).

    What the operator or the policy keeps in leaves as `POLICY`: a decision, without a word or number about why. With the `recipe`
    the model that the silo now deploys is kept for `feduca silo export`.
    """
    policy = policy or Policy()
    started = time.perf_counter()
    fingerprint = digest(asked, np.asarray(asked.theta))
    first = task.init(how.seed)
    theta = like(first, asked.theta)  # whatever kind of array the task works with
    control = None if asked.control is None else like(first, asked.control)
    asked = replace(asked, theta=theta, control=control)
    t = asked.round
    offered = {"alpha_formed": float(asked.alpha_formed[0]), "alpha_announced": float(asked.alpha_announced[0])}
    said = {"silo": name, "run": asked.run, "round": t, "offered": offered}
    nothing = silent(asked, REFUSED, POLICY, how.family.size)

    if (out := kept_out(store, policy)) is not None:
        store.log(**said, decision=REFUSED, reason=out.why)
        return Answer(nothing, out.leaves, out.erases)

    known = store.rounds(asked.run)
    if t in known:
        entry = store.load(asked.run, t, theta)
        if entry.digest == fingerprint:
            store.log(**said, decision=entry.answer.status[0], reason="asked again: the same answer as before")
            return Answer(entry.answer)
        if policy.epsilon is not None:  # the memory before it knows nothing of what the first answer spent
            store.log(**said, decision="declined", reason="asked something else in a round that it has answered")
            return Answer(nothing)
    if known and t < known[-1]:
        store.log(**said, decision="error", reason=f"this silo has already answered round {known[-1]}")
        raise RunError(f"round {t} is over: silo {name} has already answered round {known[-1]} of {asked.run}")

    memory = store.before(asked.run, t, theta, how.family)
    if how.privacy is not None:
        how = replace(how, privacy=replace(how.privacy, secret=True))
        memory = replace(memory, extra=never_less(memory.extra, store.spent()))
    begins = not known and (store.runs == [] or consent.listed(store.folder.parent, asked.run))
    counts = np.asarray(task.examples), getattr(task, "validation_examples", None)
    seen: list[Choice] = []
    after, report = drive(step(memory, asked, how, task.parameters, *counts, lambda: first, seen.append), task)
    m, extra, decision, reason = report.measurements, after.extra, report.status[0], report.reason[0]
    if how.privacy is not None:
        store.spend(extra[KEY])  # before anything can be sent: a crash costs budget, and gives none back
        report = how.privacy.discreet(report)
    answer = report
    if policy.judges:
        if (
            decision == JOINED and not memory.trained.any() and not begins
        ):  # a new name for a run is no way around a rule
            decision, reason = (
                DECLINED,
                "it has no model of its own to compare with; `feduca silo approve` lets a run begin",
            )
        if decision == DECLINED:
            answer = nothing
    store.save(asked.run, Entry(t, fingerprint, after, answer, policy.mark if policy.judges else ""))
    if recipe is not None:
        kept.keep(store, recipe, task, name, asked, seen[0])
    store.log(
        **said,
        decision=decision,
        reason=reason,
        accuracy=plain({"global": m.global_.accuracy[0], "offered": m.offered.accuracy[0], "own": m.own.accuracy[0]}),
        **(plain({"alone": extra[ALONE][0], "gain": extra[GAIN][0]}) if GAIN in extra else {}),
        concession=plain(m.concession[0]),
        gamma=plain(after.gamma[0]),
        gamma_reported=plain(report.gamma[0]),
        zeta=plain(after.zeta[0]),
        **(plain({"epsilon": m.noted["epsilon"][0]}) if "epsilon" in m.noted else {}),
        **({"norm": plain(_length(answer.theta[0] - theta))} if answer.status[0] == JOINED else {}),
        seconds=round(time.perf_counter() - started, 3),
    )
    return Answer(answer)


@dataclass(frozen=True)
class Out:
    """Why a silo takes no part just now, for its operator; and whether that is for good."""

    why: str
    leaves: bool = False
    erases: bool = False

    @property
    def said(self) -> str:
        """What the server hears."""
        return ERASES if self.erases else LEAVES if self.leaves else POLICY


def kept_out(store: SiloStore, policy: Policy, worked: int = 0) -> Out | None:
    """What the operator's word, then the policy, say before anything is looked at; None: go on."""
    for word, said in (("leave", "left for good"), ("veto", "vetoed by its operator")):
        if (text := store.word(word)) is not None:
            leaves = word == "leave"
            erases = leaves and text.partition(":")[0].strip() == "erase"
            return Out(f"{said}{': ' + text if text else ''}", leaves, erases)
    why = policy.shut(dt.datetime.now(), worked)
    return None if why is None else Out(why)


def _length(update: object) -> float:
    return float((np.asarray(getattr(update, "cpu", lambda: update)(), dtype=float) ** 2).sum() ** 0.5)
