"""The model card of exported models, for people: what they are, how they did and how to use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from feduca.core import wording
from feduca.core.records import mean


def readme(card: Mapping[str, Any]) -> str:
    """The model card."""

    metric = card.get("metric", "accuracy")

    def scored(value: float | None) -> str:
        return wording.scored(value, metric, unit=" %", nothing="not measured")

    summary, scores, silos = card["summary"], card["scores"], card["silos"]
    lines = [
        f"# {_text(card['name'])}: models of a federation",
        "",
        f"Trained with feduca {card['feduca']}: {card['rounds']} rounds, {len(silos)} silos, mechanism `{card['mechanism']}`, "
        f"participation rule `{card['rule']}`, offer `{card['offer']}`, data `{_text(card['data'])}`, "
        f"{card['parameters']} parameters.",
        "",
        *([f"Beware: {_text(card['note'])}.", ""] if card.get("note") else []),
        f"Configuration `{card['config_hash']}`, seed {card['seed']}; the whole of it is in `card.json`.",
        "",
        "## How it did",
        "",
        f"- Shared model on the common test set, {_text(metric)}: {scored(summary['accuracy'])} "
        f"(mean of the last {min(10, card['rounds'])} rounds), {scored(summary['final_accuracy'])} after the last.",
        f"- Participation: {wording.percent(summary['participation'], unit=' %', nothing='not measured')} of silos and rounds.",
    ]
    if card["share"] != "all":
        lines += [
            f"- What silos shared of it is `{card['share']}`; the rest of `global` is as at the start: use silos' models."
        ]
    if "validation" in scores:
        untouched = scores.get("test", {}).get("accuracy")
        single = scores.get("distilled", {}).get("test" if untouched else "validation", {})
        one = bool(single)
        weights = card.get("mixtures") or card.get("distilled") or {}
        lines += [
            f"- Silos' deployed models on their own validation data, {_text(metric)}: "
            f"{scored(mean(_numbers(scores['validation']['accuracy'])))} on average. "
            "These data chose the models, so this flatters them.",
            "",
            "| silo | file | deploys | validation |"
            + (" untouched data |" if untouched else "")
            + (" one network |" if one else ""),
            "|---|---|---|---|" + ("---|" if untouched else "") + ("---|" if one else ""),
        ]
        for k, name in enumerate(silos):
            kind = "its own model" if scores["own_model"][k] else "the offered model"
            if name in weights:
                kind = "a mixture: " + ", ".join(f"{model} {w:.3f}" for model, w in weights[name].items())
            file, score = card["files"][name]["file"], scored(scores["validation"]["accuracy"][k])
            row = f"| {_text(name)} | `{file}` | {kind} | {score} |"
            row += f" {scored(untouched[k])} |" if untouched else ""
            lines.append(row + (f" {scored(single[name]['accuracy']) if name in single else ''} |" if one else ""))
        if one:
            lines += [
                "",
                "The files of mixtures hold *one network* each, trained on the silo's own training data to answer as its mixture"
                f" does; its column is its score on {'untouched' if untouched else 'validation'} data, beside the mixture's.",
            ]
        elif weights:
            lines += [
                "",
                "A mixture's file holds all its models; `module` returns one that mixes their class probabilities by the weights"
                " and gives the logarithms. `feduca export --distil` makes one network of each.",
            ]
    else:
        lines.append("- Silos keep their own models; only the shared one is here.")
    lines += [
        "",
        "## How to use it",
        "",
        "```python",
        "import feduca",
        "",
        'exported = feduca.load("this folder")',
        'arrays = exported.models["global"]  # by parameter name; a silo\'s name gives its own',
        'module = exported.module("global")  # as a PyTorch module; of your own architecture: into=YourModule()',
        "```",
        "",
        "## Limits",
        "",
        "A research artefact. It was judged on the data named above and on nothing else; silos differ: look at the row of yours.",
        "",
    ]
    return "\n".join(lines)


def _numbers(values: Any) -> list[float]:
    return [float("nan") if v is None else v for v in values]


def _text(value: Any) -> str:
    """A name in Markdown: no markup of its own."""
    return re.sub(r"[^\w .,:+-]", "_", str(value))[:120]
