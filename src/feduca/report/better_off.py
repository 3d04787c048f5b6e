"""What a page says of better and worse: silos judged against the model alone, and why some keep to a model of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feduca.analysis import judging
from feduca.analysis.judging import Judged, Paired
from feduca.core.wording import percent, points, scored
from feduca.report.cleaning import Number, number
from feduca.report.reading import Run

WORDS = {"better": "better off", "same": "no different", "worse": "worse off", "undecided": "undecided"}
NAMED = 4  # silos that a sentence names
ABSURD = 1e9  # scores beyond it


def judged(run: Run) -> tuple[Paired, Judged, Judged] | None:
    """The counts of the last round, and what they say by accuracy and by log-loss; None where nobody can be judged."""
    columns = run.clients[-1].paired if run.clients else None
    if columns is None:
        return None
    seen = Paired.of(columns)
    by_accuracy, by_loss = judging.accuracy(seen), judging.log_loss(seen)
    return (seen, by_accuracy, by_loss) if any(by_loss.verdicts) else None


def shares(runs: Sequence[Run]) -> str | None:
    """Better, worse, no different, undecided in percent, together a hundred.

    The answers of several seeds of one method are judged together.
    """
    found = judging.poolable([run.clients[-1].paired if run.clients else None for run in runs], _task(runs[0]))
    said = {} if found is None else judging.figures(*found)
    counted = _counted([said.get(f"{word}_share") for word in judging.VERDICTS])
    by = "" if counted else "loss_"
    return " / ".join(percent(said[f"{by}{word}_share"]) for word in judging.VERDICTS) + " %" if said else None


def _counted(of_accuracy: Sequence[Any]) -> bool:
    """Whether answers are right or wrong, so that accuracy can be judged; else log-loss is."""
    return any(value is not None for value in of_accuracy)


def _task(run: Run) -> dict[str, Number]:
    """What of the recipe says how untouched parts of several seeds overlap; without it they are taken for the same."""
    task = run.config.get("task")
    said = task if isinstance(task, Mapping) else {}
    found = {key: number(said.get(key)) for key in ("validation_share", "test_share")}
    if None in found.values():
        return {}
    return found | {"split_seed": number(said.get("split_seed"))}


def sentence(run: Run) -> str:
    """How many silos are better off than alone, and the like, with shares; empty where nobody is judged."""
    if (found := judged(run)) is None:
        return ""
    _, by_accuracy, by_loss = found
    counted = any(by_accuracy.verdicts)
    verdicts = [word for word in (by_accuracy if counted else by_loss).verdicts if word]
    counts = [
        f"{verdicts.count(word)} {said} ({percent(verdicts.count(word) / len(verdicts), unit=' %')})"
        for word, said in WORDS.items()
    ]
    silos = "silo" if len(verdicts) == 1 else "silos"
    return (
        f"Against the models alone, judged with errors by {'accuracy' if counted else 'log-loss'} on untouched data in round"
        f" {run.clients[-1].round}: of {len(verdicts)} {silos} {', '.join(counts)}."
    )


def rows(run: Run) -> list[list[Any]] | None:
    """Per silo: the verdict, its p-value, answers right only as deployed and only alone; by log-loss the verdict, p, gain."""
    if (found := judged(run)) is None:
        return None
    seen, *both = found
    figures = [[_said(v) for v in column] for column in (seen.gained, seen.lost, both[0].p, both[1].p, both[1].gain)]
    words = [[WORDS.get(word, "") for word in one.verdicts] for one in both]
    gained, lost, p, loss_p, gain = figures
    return [list(one) for one in zip(words[0], p, gained, lost, words[1], loss_p, gain)]


def _said(value: float) -> Number:
    known = number(float(value))
    return None if known is None else float(f"{known:.4g}")


def kept(run: Run) -> dict[int, tuple[float, float]]:
    """Who is out in the last round with an outside option that beats what it was offered, and both scores.

    On the validation data that it decided by, under `participation.against = "outside"`.
    """
    if run.setting("participation", "against") != "outside" or not run.clients:
        return {}
    last = run.clients[-1]
    pairs = zip(last.status, last.numbers["own_accuracy"], last.numbers["offered_accuracy"])
    return {
        k: (own, offered)
        for k, (letter, own, offered) in enumerate(pairs)
        if letter == "d" and own is not None and offered is not None and ABSURD > own > offered > -ABSURD
    }


def option(run: Run) -> str:
    """What the outside option of a run's silos is called."""
    return "best model of its own" if run.setting("outside", "kind") == "best-kept" else "private model"


def why_out(run: Run) -> str:
    """Who stays out because its private model is better, and by how much; empty where nobody does."""
    found = kept(run)
    if not found:
        return ""
    order = sorted(found, key=lambda k: found[k][1] - found[k][0])
    named = "; ".join(f"{run.silos[k]} ({margin(*found[k], run.score)})" for k in order[:NAMED])
    more = f"; and {len(order) - NAMED} more" if len(order) > NAMED else ""
    out = run.clients[-1].status.count("d")
    return (
        f"{len(found)} of the {out} that declined in round {run.clients[-1].round} {'do' if len(found) > 1 else 'does'} so"
        f" because the {option(run)} is better than the offer on the silo's validation data: {named}{more}."
    )


def margin(own: float, offered: float, metric: str) -> str:
    """By how much an outside option beats what was offered."""
    both = " against ".join(scored(value, metric, unit=" %") for value in (own, offered))
    return f"{both}, {points(own - offered, metric, unit=' points')}"
