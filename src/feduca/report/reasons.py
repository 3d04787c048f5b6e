"""Why a silo is in or out, in words: what it compared, counted in its own cases, and what to try next.

A record's reason has the figures (`u(0.0422) = 0.9536 is below gamma = 0.9536`); they stay at hand, below the words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from feduca.core import wording
from feduca.core.records import WITHOUT
from feduca.report.cleaning import ClientRound, Number
from feduca.report.reading import Run

_FLOAT = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
_CURVE = re.compile(rf"(?:u\(({_FLOAT})\)|realised utility) = ({_FLOAT}) (meets|is below) gamma = ({_FLOAT})$")
_LEFT = re.compile(r"left for good: (\d+) rounds? without beating its (.+?)(?:;|$)")
_WARM = re.compile(r"warm start until round (\d+)$")
ABSURD = 1e9  # scores beyond it


@dataclass(frozen=True)
class Next:
    """What to try: in words, and the settings that do it."""

    words: str
    settings: tuple[str, ...]


MIXTURE = Next(
    "Offer it a mixture of its own",
    ("participation.rule=accuracy", "participation.ties=loss", "offer.kind=best-mixture", "offer.train_from=consensus"),
)
LOSS_DECIDES = Next("Let the loss decide ties", ("participation.ties=loss",))
MEASURED = Next("Let it decide by what it measures", ("participation.rule=accuracy", "participation.ties=loss"))
CHOICE = Next("Let silos choose", ("participation.rule=accuracy", "participation.ties=loss"))
OUTSIDE = Next("Let it keep a private model to fall back on", ("participation.against=outside",))
FROM_CONSENSUS = Next("Train what is shared from the shared model", ("offer.train_from=consensus",))


@dataclass(frozen=True)
class Reason:
    words: str
    exact: str = ""  # the record's own words, where they say more
    next: Next | None = None


def counted(score: Number, examples: Number, metric: str = "accuracy") -> str:
    """A score in cases: "19 of 21"; in percent (or as it is) where nobody knows how many there were."""
    if score is None:
        return "nobody knows how many"
    if metric != "accuracy":
        return wording.scored(score, metric)
    if not examples:
        return wording.percent(score, unit=" %")
    right = score * examples
    near = round(right)
    shown = str(near) if abs(right - near) < 0.05 else f"{right:.1f}"
    return f"{shown} of {examples:.0f}"


def why(run: Run, c: ClientRound, k: int) -> Reason:
    """Of silo `k` in round `c`."""
    said, letter = c.reason[k], c.status[k]
    if letter == "n":
        return Reason("It was not asked in this round.")
    if letter == "a":
        return Reason("It did not answer in this round.", _told(said, "absent"))
    if letter != "l" and (because := c.lost[k] or said.partition(WITHOUT)[2]):
        return _unheard(said, letter, because)
    if letter == "r":
        return Reason("The server refused what it sent.", _told(said, "refused"))
    if letter == "l":
        found = _LEFT.match(said)
        if found is None:
            return Reason("It has left for good.", said)
        times = "once" if found[1] == "1" else f"for {found[1]} rounds running"
        return Reason(f"It has left for good: {times}, what it deployed was no better than its {found[2]}.", said)
    if said == "no model of its own yet":
        return Reason("It has no model of its own yet, so it takes part.")
    if found := _WARM.match(said):
        return Reason(f"Everybody takes part until round {found[1]}; then it decides for itself.")
    if said == "joins always":
        return _chosen(run, c, k) if run.chosen else _forced(run, c, k)
    if said == "stays alone":
        return Reason("Nobody is asked to take part: every silo trains alone.", next=CHOICE)
    if found := _CURVE.match(said):
        return _curve(run, c, k, found)
    if letter == "d" and said.startswith(("no point on the way", "nothing beat", "no offer")):
        return _nothing(run, c, k, said)
    return _compared(run, c, k, said)


def no_standing(because: str) -> str:
    """That a silo has no standing, why, and what follows from it."""
    who = "" if because.startswith("what it sent") else "it "
    return f"no standing: {who}{because}. It is sent no new model, and what it sends is not counted."


def _unheard(said: str, letter: str, because: str) -> Reason:
    declined = " In this round it declined." if letter == "d" else ""
    words = f"It has {no_standing(because)}{declined} It comes back by working on the models that it is sent."
    exact = said if WITHOUT in said else "; ".join(filter(None, (said, WITHOUT + because)))
    return Reason(words, exact)


def _told(said: str, word: str) -> str:
    return "" if said in ("", word) else said


def _pair(run: Run, c: ClientRound, k: int) -> tuple[float, float] | None:
    """What the offer and its own model scored on its validation data."""
    offered, own = c.numbers["offered_accuracy"][k], c.numbers["own_accuracy"][k]
    if offered is None or own is None or max(abs(offered), abs(own)) > ABSURD:
        return None
    return offered, own


def _both(run: Run, k: int, offered: float, own: float) -> str:
    """Both models, the better one first; a tie is said to be one."""
    n, metric, mine = run.validation_examples[k], run.score, _called(run)
    share = metric == "accuracy"
    unit = " cases" if n and share else ""
    most, least = (counted(score, n, metric) for score in (max(offered, own), min(offered, own)))
    least = least.partition(" of ")[0] if unit else least
    if abs(offered - own) <= 1e-12:
        return f"The offered model and {mine} {'are both right in' if share else f'both have {metric}'} {most}{unit}."
    right, less = ("is right in", "in ") if share else (f"has {metric}", "")
    better, other = ("the offered model", mine) if offered > own else (mine, "the offered one")
    return f"{better[0].upper()}{better[1:]} {right} {most}{unit}, {other} {less}{least}."


def _called(run: Run) -> str:
    if run.setting("participation", "against") != "outside":
        return "its own model"
    return "the best model of its own" if run.setting("outside", "kind") == "best-kept" else "its private model"


def _offers(run: Run) -> bool:
    return run.setting("offer", "kind", "global") not in ("", "global")


def _chosen(run: Run, c: ClientRound, k: int) -> Reason:
    """It trains along, and deploys the mixture where its validation data prefer that to its outside option."""
    free = "It deploys its mixture only if its own validation data prefer it."
    pair = _pair(run, c, k)
    return Reason(free if pair is None else f"{free} {_both(run, k, *pair)}")


def _forced(run: Run, c: ClientRound, k: int) -> Reason:
    pair = _pair(run, c, k)
    if pair is None:
        return Reason("It was not asked.")
    offered, own = pair
    said = _both(run, k, offered, own)
    if offered > own:
        return Reason(f"It was not asked, and would have said yes. {said}")
    if offered < own:
        return Reason(f"It was not asked, and would have said no. {said}", next=CHOICE)
    return Reason(f"It was not asked. {said}")


def _curve(run: Run, c: ClientRound, k: int, found: re.Match[str]) -> Reason:
    """Eq. 2: what a fitted curve promises against what the silo asks for."""
    promised, asked, met = float(found[2]), float(found[4]), found[3] == "meets"
    loss = run.setting("utility", "metric", "accuracy") != "accuracy" or run.score != "accuracy"
    first, second = ((f"{v:.3f}" if loss else f"{100 * v:.1f} %") for v in (promised, asked))
    if first == second:  # a few more digits, where these do not tell them apart
        first, second = ((f"{v:.5f}" if loss else f"{100 * v:.2f} %") for v in (promised, asked))
    source = "Its fitted curve promises" if found[1] else "The offered model brings"
    pair, exact = _pair(run, c, k), found[0]
    measured = "" if pair is None else " " + _both(run, k, *pair)
    if met:
        said = f"{source} {first}; it asks for {second}." if first != second else f"{source} the {second} it asks for."
        return Reason(said + measured, exact)
    if not loss and asked > 1:
        return Reason(f"It asks for {second}, which no model can give.{measured}", exact, MEASURED)
    close = abs(promised - asked) < 5e-4
    said = f"{source} a hair less than it asks for" if close else f"{source} {first}, and it asks for {second}"
    return Reason(f"{said}.{measured}", exact, MEASURED if pair is not None and pair[0] > pair[1] else MIXTURE)


def _nothing(run: Run, c: ClientRound, k: int, said: str) -> Reason:
    own, n = c.numbers["own_accuracy"][k], run.validation_examples[k]
    unit = " cases" if n and run.score == "accuracy" else ""
    tail = "" if own is None or abs(own) > ABSURD else f", right in {counted(own, n, run.score)}{unit}"
    if run.score != "accuracy":
        tail = "" if own is None or abs(own) > ABSURD else f" ({run.score} {own:.3f})"
    best = f"No mixture with the shared model beats its own model{tail}."
    return Reason(best, said, FROM_CONSENSUS if run.setting("offer", "train_from") == "offer" else None)


def _compared(run: Run, c: ClientRound, k: int, said: str) -> Reason:
    """Eq. 1 and its like: the offer against its own model, on its own data."""
    pair, joined = _pair(run, c, k), c.status[k] == "j"
    if pair is None or run.setting("participation", "rule") not in ("accuracy", "utility"):
        return Reason(f"It says: {said}" if said else "No reason was recorded.")
    offered, own = pair
    both = _both(run, k, offered, own)
    if "tie at confidence" in said:
        words = f"{both} On so few cases that is no sure difference"
    elif abs(offered - own) <= 1e-12:
        words = both[:-1]
    else:
        return Reason(both, said, None if joined or offered > own else None if _offers(run) else MIXTURE)
    if "loss" not in said:
        return Reason(f"{words}. A tie is no reason to join.", said, None if joined else LOSS_DECIDES)
    sure = "surer of its answers (a lower loss)" if joined else "no surer of its answers (by the loss)"
    return Reason(f"{words}; the offered one is {sure}.", said, None if joined or _offers(run) else MIXTURE)
