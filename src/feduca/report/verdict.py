"""The sentences on top of a page: who is in, who is out and why, what the server promised and what it delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from feduca.core import wording
from feduca.report.better_off import sentence as judgement
from feduca.report.better_off import why_out
from feduca.report.cleaning import Number
from feduca.report.reading import Run
from feduca.runs import standing
from feduca.runs.manifest import nothing_kept
from feduca.runs.standing import LAST

_MECHANISMS = {"feduca": "FedUCA", "fedavg": "FedAvg", "uniform": "uniform weights", "random": "random weights"}
_RULES = {"accuracy": "Eq. 1", "utility": "Eq. 2", "always": "everybody forced in"}
NAMED = 4  # silos that a sentence names
ABSURD = 1e9  # scores beyond it
LABEL, SETTING = 300, 60  # characters of a run's name, and of a setting in it


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
        "better_off": against.get("better_off"),
        "gain_worst": against.get("gain_worst"),
        "participation": over("participation"),
        "promise_kept": over("promise_kept"),
        "slack": over("slack"),
        "gap": max((g for line in run.rounds if (g := line.numbers["gap"]) is not None), default=None),
        "jensen": over("jensen"),
        "discrepancy": over("discrepancy"),
        "r2": over("r2"),
        "fallbacks": float(sum(line.words["fallback"] is not None for line in run.rounds)),
        "seconds": sum(line.seconds or 0.0 for line in run.rounds),
    }


def labels(runs: Sequence[Run]) -> list[str]:
    """One name per run: mechanism and rule, then whatever else tells the runs apart. Seeds do not: they form a band.

    Runs of one name are shown as seeds of one method, so what is configured otherwise must have another name.
    """
    flat = [_flat({k: v for k, v in run.config.items() if k not in ("name", "seeds", "compare")}) for run in runs]
    bases = [_base(run) for run in runs]
    shown = {"mechanism.name", "participation.rule", "participation.warm_start", "offer.kind"}
    keys = [_differ(base, bases, flat) - shown for base in bases]
    short = [_told(*one, set()) for one in zip(bases, flat, keys)]
    # Three settings may not be enough: what tells namesakes apart comes first then, where a legend does not cut it off.
    names = [_told(base, own, some, _differ(s, short, flat)) for base, own, some, s in zip(bases, flat, keys, short)]
    kinds = [frozenset(config.items()) for config in flat]
    return [_numbered(name, names, kind, kinds) for name, kind in zip(names, kinds)]


def _differ(name: str, names: Sequence[str], flat: Sequence[Mapping[str, str]]) -> set[str]:
    """The settings in which runs of one name differ."""
    alike = [config for other, config in zip(names, flat) if other == name]
    return {key for key in set().union(*alike) if len({config.get(key) for config in alike}) > 1}


def _told(base: str, config: Mapping[str, str], keys: set[str], first: set[str]) -> str:
    """A name with some of these settings: all of those that come `first`, of others as many as make three."""
    order = [*sorted(first), *sorted(keys - first)]
    extra = [f"{key.rpartition('.')[2]} = {config.get(key, 'unset')}"[:SETTING] for key in order]
    most = max(3, len(first))
    return ", ".join([base, *extra[:most], *(["and more"] if len(extra) > most else [])])[:LABEL]


def _numbered(name: str, names: Sequence[str], kind: frozenset, kinds: Sequence[frozenset]) -> str:
    """With a number where other configurations have the name, too: values may differ in what does not fit it."""
    namesakes = list(dict.fromkeys(other for own, other in zip(names, kinds) if own == name))
    return name if len(namesakes) == 1 else f"{namesakes.index(kind) + 1}: {name}"


def _base(run: Run) -> str:
    mechanism, rule, warm = (
        run.setting("mechanism", "name", "?"),
        run.setting("participation", "rule", "?"),
        run.setting("participation", "warm_start", "0"),
    )
    parts = [_MECHANISMS.get(mechanism, mechanism), _RULES.get(rule, rule)]
    if warm not in ("0", ""):
        parts.append(f"warm start {warm}")
    if (offer := run.setting("offer", "kind", "global")) not in ("global", ""):
        parts.append(offer)
    return ", ".join(parts)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    out: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = str(value)
    return out


def verdict(run: Run) -> list[str]:
    """What happened in one run: a headline first, then one sentence per question."""
    if run.doubt:
        return [
            f"Do not believe these figures: the records are not those that the run wrote ({run.doubt});"
            " repeat the run with --again.",
            *verdict(replace(run, doubt="")),
        ]
    if not run.rounds:
        return [f"{_state(run)} No round has finished yet."]
    said = figures(run)
    share, silos, done = said["participation"], len(run.silos), len(run.rounds)
    sentences = [
        f"{_mood(share)}: {percent(share)} of silos took part on average over {_count(done, 'round')}, "
        + ("" if silos == 0 else f"{_joined_last(run)} of {silos} in the last, ")
        + (
            f"and the shared model reaches {scored(said['accuracy'], run.score)} (mean of the last {min(LAST, done)} rounds)."
            if said["accuracy"] is not None
            else "and there is no common test set to score the shared model on."
        )
    ]
    if state := _state(run):
        sentences.append(state)
    sentences += [
        better_off(run),
        judgement(run),
        _who(run),
        why_out(run),
        _gone(run),
        _promise(run, said),
        _program(run, said),
    ]
    return [sentence for sentence in sentences if sentence]


def comparison(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Several methods in one sentence."""
    rows: dict[str, list[dict[str, Number]]] = {}
    forced = set()
    for run, name in zip(runs, names):
        rows.setdefault(name, []).append(figures(run))
        if run.setting("participation", "rule") == "always":
            forced.add(name)
    if len(rows) < 2:
        return f"{_count(len(runs), 'seed')} of {names[0]}."
    means = {name: {key: average(f[key] for f in found) for key in found[0]} for name, found in rows.items()}
    free = {n: m["participation"] for n, m in means.items() if n not in forced and m["participation"] is not None}
    reached = {n: m["accuracy"] for n, m in means.items() if m["accuracy"] is not None}
    said = f"{len(rows)} methods side by side. "
    if free:
        most, least = max(free, key=lambda n: free[n] or 0), min(free, key=lambda n: free[n] or 0)
        said += f"Of those that let silos choose, {most} keeps most of them ({percent(free[most])})"
        said += f" and {least} fewest ({percent(free[least])}). " if least != most else ". "
    if reached and len({run.score for run in runs}) == 1:
        best, score = max(reached, key=lambda n: reached[n] or 0), runs[0].score
        most = "most accurate" if score == "accuracy" else "best"
        said += f"The {most} shared model is that of {best} ({scored(reached[best], score)})."
    return said.strip()


def _mood(share: Number) -> str:
    if share is None:
        return "Participation is not recorded"
    if share >= 0.9:
        return "Silos stay"
    if share >= 0.5:
        return "Most silos stay"
    if share >= 0.2:
        return "Most silos leave"
    return "The federation falls apart"


def _state(run: Run) -> str:
    if run.state == "failed":
        return f"The run failed: {run.failure or 'no reason was recorded'}."
    if run.state == "interrupted":
        goes_on = "starts anew: no checkpoint was kept" if nothing_kept(run.path) else "goes on from there"
        return f"The run was interrupted after round {len(run.rounds)}; `feduca resume` {goes_on}."
    if run.state == "running":
        planned = f" of {run.planned}" if run.planned else ""
        return f"Still running: round {len(run.rounds)}{planned}."
    return ""


def _joined_last(run: Run) -> int:
    return run.clients.glimpses[-1].status.count("j") if run.clients else 0


def _who(run: Run) -> str:
    if not run.clients:
        return ""
    last = run.clients[-1]
    out = [(run.silos[k], last.reason[k]) for k, letter in enumerate(last.status) if letter not in "jl"]
    if "j" not in last.status and not out:
        return ""  # everybody has left: `_gone` says so
    if not out:
        return f"In round {last.round} everybody {'who has not quit ' * ('l' in last.status)}was in."
    named = "; ".join(f"{name} ({why or 'no reason recorded'})" for name, why in out[:NAMED])
    more = f"; and {len(out) - NAMED} more" if len(out) > NAMED else ""
    return f"Out in round {last.round}: {named}{more}."


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
