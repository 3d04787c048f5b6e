"""What a silo does with one announcement: heed its operator, look at its disk, take the client's step, remember, answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from feduca.client.behaviour import Behaviour
from feduca.client.privacy import KEY, never_less
from feduca.client.requests import drive
from feduca.client.step import step
from feduca.core.arrays import like
from feduca.core.messages import silent
from feduca.core.records import plain
from feduca.errors import RunError
from feduca.flower.store import Entry, SiloStore, digest
from feduca.types import REFUSED, Announcements, Reports, Task


@dataclass(frozen=True)
class Answer:
    report: Reports
    leave: bool = False
    erase: bool = False  # leaving, it asks the server to forget its update


def respond(name: str, store: SiloStore, task: Task, how: Behaviour, asked: Announcements) -> Answer:
    """The silo's answer to `asked` (for this one silo, `theta` as numpy)."""
    started = time.perf_counter()
    fingerprint = digest(asked, np.asarray(asked.theta))
    first = task.init(how.seed)
    theta = like(first, asked.theta)  # whatever kind of array the task works with
    control = None if asked.control is None else like(first, asked.control)
    asked = replace(asked, theta=theta, control=control)
    t = asked.round
    offered = {"alpha_formed": float(asked.alpha_formed[0]), "alpha_announced": float(asked.alpha_announced[0])}
    said = {"silo": name, "run": asked.run, "round": t, "offered": offered}

    for word, leave in (("leave", True), ("veto", False)):
        text = store.word(word)
        if text is not None:
            reason = f"{'left for good' if leave else 'vetoed by its operator'}{': ' + text if text else ''}"
            store.log(**said, decision=REFUSED, reason=reason)
            examples = int(np.asarray(task.examples)[0])
            erase = leave and text.partition(":")[0].strip() == "erase"
            return Answer(silent(asked, REFUSED, reason, how.family.size, examples), leave, erase)

    known = store.rounds(asked.run)
    if t in known:
        entry = store.load(asked.run, t, theta)
        if entry.digest == fingerprint:
            store.log(**said, decision=entry.answer.status[0], reason="asked again: the same answer as before")
            return Answer(entry.answer)
    if known and t < known[-1]:
        store.log(**said, decision="error", reason=f"this silo has already answered round {known[-1]}")
        raise RunError(f"round {t} is over: silo {name} has already answered round {known[-1]} of {asked.run}")

    memory = store.before(asked.run, t, theta, how.family)
    if how.privacy is not None:
        how = replace(how, privacy=replace(how.privacy, secret=True))
        memory = replace(memory, extra=never_less(memory.extra, store.spent()))
    counts = np.asarray(task.examples), getattr(task, "validation_examples", None)
    after, report = drive(step(memory, asked, how, task.parameters, *counts, lambda: first), task)
    m, said_why = report.measurements, report.reason[0]
    spent = {}
    if how.privacy is not None:
        store.spend(after.extra[KEY])  # before anything can be sent: a crash costs budget, and gives none back
        spent = {"epsilon": plain(m.noted["epsilon"][0])}
        report = how.privacy.discreet(report)
    store.save(asked.run, Entry(t, fingerprint, after, report))
    store.log(
        **said,
        decision=report.status[0],
        reason=said_why,
        **spent,
        accuracy=plain({"global": m.global_.accuracy[0], "offered": m.offered.accuracy[0], "own": m.own.accuracy[0]}),
        concession=plain(m.concession[0]),
        gamma=plain(after.gamma[0]),
        gamma_reported=plain(report.gamma[0]),
        zeta=plain(after.zeta[0]),
        seconds=round(time.perf_counter() - started, 3),
    )
    return Answer(report)
