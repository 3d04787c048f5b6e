"""What a page says first of a run: who is in, what silos deploy, who is better off, who loses most; and why, silo by silo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feduca.core import wording
from feduca.report import reasons
from feduca.report.better_off import judged
from feduca.report.cleaning import ClientRound, Number
from feduca.report.reading import Run
from feduca.report.verdict import SAME, average, ended, figures, gone, mood, percent, unheard, untouched
from feduca.runs import standing
from feduca.runs.standing import LAST

FEW = 20  # validation examples, below which a page warns
FLAT = 0.01  # a fitted curve that varies by less says little
CARDS = 60  # silos that get one
NAMED = 4

_WILL = {
    "accuracy": "silos may refuse: they compare {metric}",
    "utility": "silos may refuse: a fitted curve against what they ask for",
    "always": "nobody may refuse",
    "never": "nobody takes part",
}
CHOSEN = "each deploys its mixture only if its own validation data prefer it"
_OFFER = {
    "global": "one shared model for all",
    "least-concession": "each silo is offered the least concession that it takes",
    "best-mixture": "each silo is offered its own mixture",
    "stack": "each silo is offered its own mixture of models",
}
_TITLE = {
    "j": "is in",
    "d": "stays out",
    "a": "did not answer",
    "r": "was refused",
    "l": "has left",
    "n": "was not asked",
}


def answer(run: Run, label: str) -> dict[str, Any]:
    """Headline, tiles, warnings and cards of one run."""
    if not run.rounds:
        nothing: dict[str, Any] = {"tiles": [], "caveats": [], "missing": "", "cards": [], "more": 0, "before": None}
        return {"headline": "No round has finished yet", "subtitle": _subtitle(run, label), "strip": "", **nothing}
    return {
        "headline": headline(run),
        "subtitle": _subtitle(run, label),
        "tiles": _tiles(run),
        "caveats": [said for said in (_few(run), _flat(run)) if said],
        "missing": _missing(run),
        "cards": _cards(run),
        "more": max(0, len(run.silos) - CARDS),
        "before": _before(run),
        "strip": _course(run),
    }


def headline(run: Run) -> str:
    """How it ended, in one line, and who has no standing."""
    return _ending(run) + _unheard(run)


def _ending(run: Run) -> str:
    said = standing.each(untouched(run))
    gains = [] if said is None else [g for pair in zip(*said) if (g := standing.gain(*pair)) is not None]
    if run.state == "running" and run.planned and len(run.rounds) < run.planned:
        start = f"Round {len(run.rounds)} of {run.planned}: {_now(run)}"
    elif run.forced or run.chosen:
        start = _all(run)
    else:
        start = mood(ended(run))
    if not gains:
        return start
    better, n = sum(g > 0 for g in gains), len(gains)
    if better == 0 and all(g == 0 for g in gains):
        return f"{start}, and nobody is better or worse off than alone"
    if _sure(run) == (0, 0):
        return f"{start}, and no silo is surely better or worse off than alone"
    link = "and" if 2 * better >= n else "but only" if better else "but"
    who = ("all" if n > 1 else "its one") if better == n else f"{better} of" if better else "none of"
    silos = "silo is" if n == 1 else "silos are"
    return f"{start}, {link} {who} {n if n > 1 or better < n else ''} {silos} better off than alone".replace("  ", " ")


def _all(run: Run) -> str:
    """Of a run where everybody is in by rule: all, or those that the server counted and that answered."""
    if ended(run) in (1, None):
        return "Everybody trains along" if run.chosen else "Everybody was forced in"
    return f"{_now(run).removesuffix(' are in')} {'train along' if run.chosen else 'were forced in'}"


def _unheard(run: Run) -> str:
    """Who has no standing, to end the headline; empty where all have one."""
    found = [run.silos[k] for k in unheard(run)]
    if not found:
        return ""
    who = found[0] if len(found) == 1 else " and ".join(found) if len(found) == 2 else f"{len(found)} silos"
    return f"; {who} {'has' if len(found) == 1 else 'have'} no standing"


def _now(run: Run) -> str:
    last = run.clients.glimpses[-1].status if run.clients else ""
    return f"{last.count('j')} of {len(last)} silos are in" if last else "under way"


def _subtitle(run: Run, label: str) -> str:
    offer, rule = run.setting("offer", "kind", "global"), run.setting("participation", "rule")
    will = CHOSEN if run.chosen else _WILL.get(rule, f"silos decide by {rule}").format(metric=run.score)
    if rule == "accuracy" and run.setting("participation", "ties") == "loss":
        will += ", ties by loss"
    if run.setting("participation", "against") == "outside" and rule != "always":
        will += ", against a private model"
    rounds = f"{len(run.rounds)} rounds" if len(run.rounds) != 1 else "1 round"
    parts = [run.name, label, _OFFER.get(offer, f"offers of kind {offer}"), will, rounds, f"seed {run.seed}"]
    return " · ".join(part for part in parts if part)


def _tiles(run: Run) -> list[dict[str, str]]:
    said, last, score = figures(run), min(LAST, len(run.rounds)), run.score
    share = ended(run)
    rounds = "the last round" if last == 1 else f"the last {last} rounds"
    hint = f"{_count(run.clients.glimpses[-1].status)} in the very last" if run.clients else ""
    if said["participation"] is not None and share is not None and abs(said["participation"] - share) > 0.005:
        hint += f"; {percent(said['participation'])} over all {len(run.rounds)} rounds"
    if run.chosen:
        hint = "; ".join(filter(None, (hint if share != 1 else "", CHOSEN)))
    elif run.forced and (free := _share(run, "offer_wins")) is not None:
        hint = f"forced; {_short(free)} would have said yes"
    tiles = [{"value": _short(share), "label": f"of silos in, {rounds}", "hint": hint}]
    tiles.append(_deployed(run, said))
    found = standing.each(untouched(run))
    gains = (
        {} if found is None else {k: g for k, pair in enumerate(zip(*found)) if (g := standing.gain(*pair)) is not None}
    )
    if not gains or found is None:
        unknown = (
            "not known: the run has no models alone" if _tested(run) else "not known: no data that no decision saw"
        )
        tiles.append({"value": wording.NOTHING, "label": "better off than alone", "hint": unknown})
        tiles.append(
            {
                "value": wording.NOTHING,
                "label": "the worst silo, against alone",
                "hint": "not known, for the same reason",
            }
        )
        return tiles
    better, worse = sum(g > 0 for g in gains.values()), sum(g < 0 for g in gains.values())
    ties = len(gains) - better - worse
    sure = "" if (tested := _sure(run)) is None else f"; tested: {tested[0]} surely better, {tested[1]} surely worse"
    rest = " and ".join([f"{n} {word}" for n, word in ((ties, "equal"), (worse, "worse")) if n] or ["nobody is worse"])
    unknown = f", {len(run.silos) - len(gains)} not known" if len(gains) < len(run.silos) else ""
    tiles.append(
        {
            "value": f"{better} of {len(gains)}",
            "label": "silos better off than alone",
            "hint": f"{rest}{unknown}, on data no decision saw{sure}",
        }
    )
    worst = min(gains, key=lambda k: gains[k])
    n = run.test_examples[worst] if worst < len(run.test_examples) else None
    deployed, alone = (reasons.counted(column[worst], n, score) for column in found)
    mean = ", on average" if last > 1 else ""
    unit = "points" if score == "accuracy" else score
    tiles.append(
        {
            "value": wording.points(gains[worst], score) if abs(gains[worst]) > SAME else "0",
            "label": f"{unit}, {'of the silo that loses most' if gains[worst] < 0 else 'of the silo that gains least'}",
            "hint": f"{run.silos[worst]}{mean}: {deployed} deployed, {alone} alone",
        }
    )
    return tiles


def _sure(run: Run) -> tuple[int, int] | None:
    """How many are better and worse off beyond chance (a paired test); None where nobody is judged."""
    if (found := judged(run)) is None:
        return None
    _, by_accuracy, by_loss = found
    verdicts = (by_accuracy if any(by_accuracy.verdicts) else by_loss).verdicts
    return sum(word == "better" for word in verdicts), sum(word == "worse" for word in verdicts)


def _count(status: str) -> str:
    asked = len(status) - status.count("n")
    return f"{status.count('j')} of {asked}{'' if asked == len(status) else ' asked'}"


def _short(share: Number) -> str:
    """A share as a tile has it: whole percents, but not 100 % where somebody is out."""
    if share is None:
        return wording.NOTHING
    whole = round(100 * share)
    return f"{100 * share:.1f} %" if whole in (0, 100) and 0 < share < 1 else f"{whole} %"


def _deployed(run: Run, said: dict[str, Number]) -> dict[str, str]:
    score = run.score
    label = f"{score} of the deployed models"
    value, alone = said["deployed"], said["alone"]
    close = value is not None and alone is not None and abs(value - alone) < 0.015  # whole percents would look alike
    hint = (
        "" if alone is None else f"{percent(alone) if close and score == 'accuracy' else _scored(alone, score)} alone"
    )
    if value is None:
        value = average(
            c.numbers["offered_accuracy" if letter == "j" else "own_accuracy"][k]
            for c in run.clients[-LAST:]
            for k, letter in enumerate(c.status)
        )
        hint = "on validation data, which the decision saw"
    elif said["accuracy"] is not None:
        hint = "; ".join(
            filter(None, (hint, f"the shared model: {_scored(said['accuracy'], score)} on common test data"))
        )
    return {
        "value": percent(value) if close and score == "accuracy" else _scored(value, score),
        "label": label,
        "hint": hint,
    }


def _scored(value: Number, score: str) -> str:
    return wording.NOTHING if value is None else _short(value) if score == "accuracy" else f"{value:.3f}"


def _tested(run: Run) -> bool:
    return any(run.test_examples) or any(c.means["deployed"] is not None for c in run.clients.glimpses[-1:])


def _missing(run: Run) -> str:
    """What to add to the command so that the page can say who is better off; empty where it can."""
    if standing.each(untouched(run)) is not None or run.state == "running":
        return ""
    settings = [] if run.setting("alone", "") or run.config.get("alone") is True else ["--set alone=true"]
    if not _tested(run):
        settings.append("--set task.test_share=0.5")
    if not settings:
        return ""
    return f"To see what each silo gains, run it again with {' '.join(settings)}"


def _few(run: Run) -> str:
    few = {k: n for k, n in enumerate(run.validation_examples) if n is not None and n < FEW}
    if not few:
        return ""
    order = sorted(few, key=lambda k: (few[k], k))
    least = few[order[0]]
    case = f"; one case more or less is {100 / least:.0f} points" if least and run.score == "accuracy" else ""
    named = ", ".join(f"{run.silos[k]} ({few[k]:.0f})" for k in order[:NAMED])
    more = f" and {len(order) - NAMED} more" if len(order) > NAMED else ""
    return f"Few validation examples: {named}{more} decide on fewer than {FEW}{case}. Chance decides much there."


def _flat(run: Run) -> str:
    """Whether the fitted curves of the last round say nothing: they hardly change with the weight."""
    from feduca.core.utility import families

    family = families.get(run.setting("utility", "family", "quadratic"))
    if family is None or not run.clients:
        return ""
    import numpy as np

    grid = np.linspace(0, 1, 21)[:, None]
    fitted = [z for z in run.clients[-1].zeta if z is not None and len(z) == family.size]
    spreads = [float(np.ptp(family.value(np.asarray([z], float), grid))) for z in fitted]
    flat = sum(spread < FLAT for spread in spreads)
    if not flat or 2 * flat < len(spreads):
        return ""
    return (
        f"Flat curves: {flat} of {len(spreads)} fitted curves change by less than one point over all weights, so they say"
        " little about what a silo would get."
    )


def _course(run: Run) -> str:
    """Who was in at first and in the end."""
    if not run.clients:
        return ""
    seen = run.clients.glimpses
    first = seen[min(1, len(seen) - 1)]  # in the first round silos have no model of their own yet, and all are in
    early, late = _count(first.status), _count(seen[-1].status)
    if run.setting("participation", "rule") == "always" and all(set(one.status) <= {"j", "n"} for one in seen):
        return f"Who trained along: everybody; {CHOSEN}" if run.chosen else "Who was in: everybody, by force"
    if len(seen) < 3:
        return f"Who was in: {late}"
    return f"Who was in: {early} in round {first.round}, {late} in round {seen[-1].round}"


def _share(run: Run, which: str) -> Number:
    last = [getattr(c, which) for c in run.clients.glimpses[-LAST:]]
    asked = [letters.count("j") + letters.count("d") for letters in last]
    return sum(letters.count("j") for letters in last) / sum(asked) if sum(asked) else None


def compared(run: Run) -> tuple[str, str] | None:
    """What to show beside who was in: a column of the glimpses (silos.py), and what it is."""
    if all(c.means["own"] is None for c in run.clients.glimpses):
        return None
    if run.setting("offer", "kind", "global") not in ("", "global"):
        return "shared_wins", "Offered the shared model"
    if run.setting("participation", "rule") == "always":
        return "offer_wins", "If they were asked"
    return None


def _before(run: Run) -> dict[str, str] | None:
    """Beside who was in: who would have been, had silos been offered the shared model, or been asked at all."""
    found = compared(run)
    share = None if found is None else _share(run, found[0])
    if found is None or share is None:
        return None
    last = min(LAST, len(run.rounds))
    return {
        "title": f"{found[1]}, {_short(share)} would join",
        "hint": "It would join where that model is better than its own, by"
        f" {run.score} on its validation data, in that round of this run. The share is of the last {last} rounds.",
    }


def _cards(run: Run) -> list[dict[str, Any]]:
    """One per silo: those who are out first, then those who gain least."""
    if not run.clients:
        return []
    last, left = run.clients[-1], gone(run)
    found = standing.each(untouched(run))
    gains = [None] * len(run.silos) if found is None else [standing.gain(*pair) for pair in zip(*found)]
    often, unasked = [0] * len(run.silos), [0] * len(run.silos)
    for seen in run.clients.glimpses:
        for k, letter in enumerate(seen.status):
            often[k] += letter == "j"
            unasked[k] += letter == "n"
    order = sorted(range(len(run.silos)), key=lambda k: (last.status[k] == "j", _key(gains[k]), k))
    return [_card(run, last, k, gains[k], often[k], unasked[k], left) for k in order[:CARDS]]


def _key(gain: Number) -> float:
    return float("inf") if gain is None else gain


def _card(
    run: Run, last: ClientRound, k: int, gain: Number, often: int, unasked: int, left: dict[int, int]
) -> dict[str, Any]:
    letter, why = last.status[k], reasons.why(run, last, k)
    title = f"{run.silos[k]} {_TITLE[letter]}"
    if letter == "j" and (run.chosen or run.forced):
        title = f"{run.silos[k]} {'trains along' if run.chosen else 'is forced in'}"
    if last.lost[k]:
        title = f"{run.silos[k]} has no standing"
    if k in left:
        title = f"{run.silos[k]} left in round {left[k]}"
    step, words = why.next, why.words
    if letter == "j" and gain is not None and gain < -SAME:
        words += f" On untouched data it is {wording.points(-gain, run.score, unit=' points').lstrip('+')} worse off than alone."
        if step is None and run.setting("participation", "against") != "outside":
            step = reasons.OUTSIDE
    n = len(run.clients) - unasked
    feet = [f"in for {often} of {n} round{'s' * (n != 1)}"]
    if (paid := last.numbers["epsilon"][k]) is not None:
        feet.append(f"epsilon {paid:.3g} spent")
    if last.standing[k] is not None:
        said = f": {last.standing_reason[k]}" if last.standing_reason[k] else ""
        feet.append(f"standing {last.standing[k]:.2f} of 1 (none at 0.5 or below){said}")
    return {
        "silo": k,
        "state": letter,
        "title": title,
        "words": words,
        "exact": why.exact,
        "next": None if step is None else [step.words, " ".join(f"--set {s}" for s in _new(run, step.settings))],
        "feet": feet,
    }


def _new(run: Run, settings: Sequence[str]) -> list[str]:
    """Those that the run does not have yet."""
    return [s for s in settings if run.setting(s.split(".")[0], s.split(".")[1].split("=")[0]) != s.partition("=")[2]]
