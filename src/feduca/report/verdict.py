"""The sentences on top of a page: who is in, who is out and why, what the server promised and what it delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from feduca.core import wording
from feduca.report.better_off import sentence as judgement
from feduca.report.better_off import why_out
from feduca.report.cleaning import Number, number
from feduca.report.liveness import lapse
from feduca.report.reading import Run
from feduca.report.reasons import no_standing
from feduca.runs import privacy, standing
from feduca.runs.manifest import nothing_kept
from feduca.runs.standing import LAST

NAMED = 4  # silos that a sentence names
SAME = 0.0005  # shares and scores that look alike with one decimal in percent are a tie
ONE = 0.02  # models alone that score closer than this are drawn as one level
ABSURD = 1e9  # scores beyond it


def average(values: Iterable[Number]) -> Number:
    """Mean of what is defined."""
    defined = [v for v in values if v is not None]
    return sum(defined) / len(defined) if defined else None


def percent(value: Number) -> str:
    return wording.percent(value, unit=" %", nothing="unknown")


def scored(value: Number, score: str) -> str:
    """A score in words: accuracy in percent, any other as it is."""
    return percent(value) if score == "accuracy" or value is None else f"{score} {value:.3f}"


def figures(run: Run) -> dict[str, Number]:
    """The figures of a run so far, from its records."""

    def over(name: str, last: int = 0) -> Number:
        return average(line.numbers[name] for line in run.rounds[-last:])

    against = standing.summary(untouched(run), run.silos)
    return {
        "accuracy": over("accuracy", LAST),
        "deployed": average(standing.last(untouched(run), "test_deployed") or ()),
        "alone": against.get("alone"),
        "better_off": against.get("better_off"),
        "gain_worst": against.get("gain_worst"),
        "participation": over("participation"),
        "ended": over("participation", LAST),
        "promise_kept": over("promise_kept"),
        "slack": over("slack"),
        "gap": max((g for line in run.rounds if (g := line.numbers["gap"]) is not None), default=None),
        "jensen": over("jensen"),
        "discrepancy": over("discrepancy"),
        "r2": over("r2"),
        "fallbacks": float(sum(line.words["fallback"] is not None for line in run.rounds)),
        "seconds": sum(line.seconds or 0.0 for line in run.rounds),
    }


def ended(run: Run) -> Number:
    """The share of silos that took part in the last ten rounds."""
    return average(line.numbers["participation"] for line in run.rounds[-LAST:])


def verdict(run: Run) -> list[str]:
    """What happened in one run: how it ended first, then one sentence per question."""
    if run.doubt:
        return [
            f"Do not believe these figures: the records are not those that the run wrote ({run.doubt});"
            " repeat the run with --again.",
            *verdict(replace(run, doubt="")),
        ]
    if not run.rounds:
        return [f"{_state(run)} No round has finished yet.".strip()]
    who = (_unheard(run), _silent(run), _gone(run), _private(run), _unreleased(run))
    sentences = [_course(run), _state(run), better_off(run), judgement(run), why_out(run), *who]
    return [sentence for sentence in sentences if sentence]


def _course(run: Run) -> str:
    """How it ended, and how it came there."""
    said, last = figures(run), min(LAST, len(run.rounds))
    share, end = said["participation"], ended(run)
    text = f"{mood(end)}: {percent(end)} of silos took part in the last {_count(last, 'round')}"
    if share is not None and end is not None and abs(share - end) >= SAME:
        text += f", {percent(share)} over all {len(run.rounds)}"
    if run.clients:
        text += f"; {_joined_last(run)} of {len(run.silos)} in the very last"
    if said["accuracy"] is None:
        return f"{text}. There is no common test set to score the shared model on."
    return f"{text}. The shared model reaches {scored(said['accuracy'], run.score)} (mean of the last {_count(last, 'round')})."


def research(run: Run) -> list[str]:
    """What the server solved and promised, for those who study it."""
    said = figures(run) if run.rounds else {}
    return [sentence for sentence in (_promise(run, said), _program(run, said)) if sentence] if said else []


def notices(run: Run) -> list[str]:
    """What must be said before any figure: doubts, failures, what is still going on, who is gone."""
    doubt = verdict(run)[:1] if run.doubt else []
    headline = run.state == "running" and run.silent is None and not run.failure  # it says how far the run is
    state = "" if headline else _state(run)
    who = (_unheard(run), _silent(run), _gone(run), _private(run), _unreleased(run)) if run.rounds else ()
    return [said for said in (*doubt, state, *who) if said]


def comparison(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Several methods in one sentence; methods that look alike are said to tie."""
    rows: dict[str, list[dict[str, Number]]] = {}
    forced = set()
    for run, name in zip(runs, names):
        rows.setdefault(name, []).append(figures(run))
        if run.forced:
            forced.add(name)
    if len(rows) < 2:
        return f"{_count(len(runs), 'seed')} of {names[0]}."
    means = {name: {key: average(f[key] for f in found) for key in found[0]} for name, found in rows.items()}
    said, metric = f"{len(rows)} methods side by side.", runs[0].score
    if len(different := list(dict.fromkeys(run.data for run in runs))) > 1:
        return f"{said} They learn from different data ({', '.join(different)}), so they are not ranked."
    one = len({run.score for run in runs}) == 1
    free = {n: v for n, m in means.items() if n not in forced and (v := m["participation"]) is not None}
    if most := _best(free):
        keeps = "keeps most of them" if len(most) == 1 else "keep equally many"
        said += f" Of those that let silos choose, {_and(most)} {keeps} ({percent(free[most[0]])})."
    for key, what in (("deployed", "what silos deploy"), ("accuracy", "the shared model")):
        reached = {n: v for n, m in means.items() if (v := m[key]) is not None} if one else {}
        if len(reached) == len(means) and (best := _best(reached)):
            tie = "are best" if len(best) > 1 else "is best"
            alone = [means[name]["alone"] if key == "deployed" else None for name in best]
            beside = (
                f"; alone they would have {scored(one_level, metric)}"
                if (one_level := level(alone)) is not None
                else ""
            )
            said += f" By {what}, {_and(best)} {tie} ({scored(reached[best[0]], metric)}{beside})."
            break
    return said


def level(alone: Sequence[Number]) -> Number:
    """What silos would have alone, where that is one figure: methods on other data or settings have another."""
    known = [value for value in alone if value is not None]
    return average(known) if known and max(known) - min(known) < ONE else None


def _best(values: Mapping[str, float]) -> list[str]:
    """The names of the largest value, ties included; none where all are alike."""
    top = max(values.values(), default=0.0)
    best = [name for name, value in values.items() if top - value < SAME]
    return best if len(best) < len(values) or len(values) == 1 else []


def _and(names: Sequence[str]) -> str:
    named = [f"“{name}”" for name in names[:3]] + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
    return " and ".join(named) if len(named) < 3 else f"{', '.join(named[:-1])} and {named[-1]}"


def mood(share: Number) -> str:
    """A share of silos at the end, in words."""
    if share is None:
        return "Participation is not recorded"
    for least, words in (
        (1.0, "Everybody stays"),
        (0.9, "Almost everybody stays"),
        (0.5, "Most silos are in at the end"),
        (0.2, "Most silos are out at the end"),
        (1e-9, "Almost nobody is in at the end"),
    ):
        if share >= least:
            return words
    return "Nobody is in at the end"


def _state(run: Run) -> str:
    if run.state == "failed":
        return f"The run failed: {run.failure or 'no reason was recorded'}."
    if run.state == "interrupted":
        goes_on = "starts anew: no checkpoint was kept" if nothing_kept(run.path) else "goes on from there"
        return f"The run was interrupted after round {len(run.rounds)}; `feduca resume` {goes_on}."
    if run.state == "running":
        planned = f" of {run.planned}" if run.planned else ""
        if run.silent is not None:
            return (
                f"It says that it is running, but nothing was written for {lapse(run.silent)} and nobody here holds its"
                f" folder: it was probably killed after round {len(run.rounds)}; `feduca resume` goes on."
            )
        waits = f" It waits, and goes on by itself: {run.failure}." if run.failure else ""
        return f"Still running: round {len(run.rounds)}{planned}.{waits}"
    return ""


def _joined_last(run: Run) -> int:
    return run.clients.glimpses[-1].status.count("j") if run.clients else 0


def untouched(run: Run) -> list[dict[str, list[Number]]]:
    """What silos' models scored on untouched data in the last rounds, without numbers that are no scores."""
    return [
        {
            name: [None if v is None or abs(v) > ABSURD else v for v in c.numbers[name]]
            for name in ("test_deployed", "test_alone")
        }
        for c in run.clients[-LAST:]
    ]


def better_off(run: Run) -> str:
    """What silos deploy against what they would have had alone; empty where the run does not know."""
    said = standing.better_off(untouched(run), run.silos, run.score)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def gone(run: Run) -> dict[int, int]:
    """Who has left for good, and in which round."""
    return standing.left((c.round, c.status) for c in run.clients.glimpses)


def _gone(run: Run) -> str:
    said = standing.departed(gone(run), run.silos)
    return f"{said}." if said else ""


def silent(run: Run) -> dict[int, int]:
    """Who did not answer in the last round, and for how many rounds in a row."""
    last = run.clients.glimpses[-1].status if run.clients else ""
    found = dict.fromkeys((k for k, letter in enumerate(last) if letter == "a"), 0)
    for k in found:
        for seen in reversed(run.clients.glimpses):
            if seen.status[k : k + 1] != "a":
                break
            found[k] += 1
    return found


def _silent(run: Run) -> str:
    """Who is absent, and whose answer was refused, by name."""
    found, last = silent(run), run.clients.glimpses[-1].status if run.clients else ""
    absent = [f"{run.silos[k]} ({_count(rounds, 'round')})" for k, rounds in found.items()]
    refused = [run.silos[k] for k, letter in enumerate(last) if letter == "r" and k not in unheard(run)]
    said = f"No answer in the last round from {_listed(absent)}." if absent else ""
    more = f"The server refused what {_listed(refused)} sent in the last round." if refused else ""
    return " ".join(filter(None, (said, more)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _private(run: Run) -> str:
    """What silos have spent of their privacy."""
    if not run.clients:
        return ""
    last, table = run.clients[-1], run.config.get("privacy")
    budget = number(table.get("epsilon")) if isinstance(table, Mapping) else None
    said = privacy.sentence(last.numbers["epsilon"], last.reason, budget)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _unreleased(run: Run) -> str:
    """What secure aggregation could not add up."""
    said = privacy.unreleased([line.words["reason"] for line in run.rounds])
    return f"{said[0].upper()}{said[1:]}." if said else ""


def unheard(run: Run) -> dict[int, str]:
    """Who has no standing after the last round, and why."""
    return {k: why for k, why in enumerate(run.clients[-1].lost if run.clients else ()) if why}


def _unheard(run: Run) -> str:
    found = unheard(run)
    said = [f"{run.silos[k]} has {no_standing(why)}" for k, why in list(found.items())[:NAMED]]
    return " ".join(said + ([f"{len(found) - NAMED} more have none."] if len(found) > NAMED else []))


def _promise(run: Run, said: Mapping[str, Number]) -> str:
    kept = said["promise_kept"]
    if kept is None:
        return "No utility curve was estimated, so nothing was promised."
    side = "above" if kept >= 0 else "below"
    own = "points of accuracy" if run.score == "accuracy" else f"hundredths of {run.score}"
    unit = own if run.setting("utility", "metric", "accuracy") == "accuracy" else "hundredths of loss"
    return f"What silos got was on average {abs(100 * kept):.1f} {unit} {side} what their curves had promised."


def _program(run: Run, said: Mapping[str, Number]) -> str:
    solved = [line for line in run.rounds if line.numbers["satisfied"] is not None]
    if not solved or not run.silos:
        return ""
    full = sum(line.numbers["satisfied"] == len(run.silos) for line in solved)
    text = f"The solved weights met every silo's demand in {full} of {_count(len(solved), 'round')}"
    if fallbacks := int(said["fallbacks"] or 0):
        text += f", with {_count(fallbacks, 'fallback')}"
    if said["gap"] is not None:
        text += f"; the solver's largest certified gap was {said['gap']:.1g}"
    return text + "."


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
