"""The tables of docs/robustness.md and SECURITY.md, from benchmarks/results/robustness.json (`robustness.py tables`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tables import markdown, replace_tables  # beside this file

ROOT = Path(__file__).resolve().parents[1]


def _percent(value: dict[str, float]) -> str:
    return f"{100 * value['mean']:.1f} +- {100 * value['std']:.1f}"


def tables(whole: dict[str, Any]) -> None:
    """Put the committed figures into docs/robustness.md and SECURITY.md."""
    replace_tables(ROOT / "docs" / "robustness.md", robustness(whole))
    replace_tables(ROOT / "SECURITY.md", security(whole["disclosure"]))


def robustness(whole: dict[str, Any]) -> dict[str, str]:
    """The tables of docs/robustness.md."""
    found = whole["faults"]
    splits = list(found["splits"])
    header = ["protection"] + [f"{split}: {what}" for split in splits for what in ("clean", "faulty")]
    lines = []
    for name in found["splits"][splits[0]]:
        if name == "none":
            continue
        cells = [found["splits"][split][name][what] for split in splits for what in ("clean", "faulty")]
        lines.append([name, *map(_percent, cells)])
    ended = [max(found["splits"][split]["none"]["faulty"]["rounds"]) for split in splits]
    lines.append(["none", *(cell for last in ended for cell in ("as gate", f"stopped by round {last + 1}"))])
    eq2 = found["feduca_eq2_different_classes"]
    costs = whole["checkpoints"]
    sizes = [[size, f"{1000 * t['write_s']:.0f}", f"{1000 * t['read_s']:.0f}"] for size, t in costs["by_size"].items()]
    flagged = whole["plausibility"]["flagged_share"]
    return {
        "faults": markdown(header, lines),
        "eq2": markdown(
            ["protection", "clean: accuracy", "participation", "faulty: accuracy", "participation"],
            [
                [
                    name,
                    *(
                        cell
                        for what in ("clean", "faulty")
                        for cell in (_percent(row[what]), f"{100 * row[what]['participation']:.0f}")
                    ),
                ]
                for name, row in eq2.items()
            ],
        ),
        "attack": markdown(
            ["protection", *splits],
            [
                [
                    name,
                    *(
                        "stopped" if row[split]["accuracy"] is None else _percent(row[split]["accuracy"])
                        for split in splits
                    ),
                ]
                for name, row in whole["attack"]["rows"].items()
            ],
        ),
        "honest": markdown(
            ["the longest honest update", "beside the others'"],
            [[name, f"{max(rows.values()):.2f} times"] for name, rows in whole["outliers"]["honest"].items()],
        ),
        "useless": markdown(
            ["length of the useless update", "gate.outlier = 0", "5 (the default)"],
            [
                [name, _percent(row["off"]), _percent(row["bound"])]
                for name, row in whole["outliers"]["attacked"].items()
            ],
        ),
        "natural": _bounded(whole["natural"], "forced"),
        "images": _bounded(whole["images"], "forced"),
        "checkpoints": markdown(["size", "write, ms", "read, ms"], sizes),
        "ratio": markdown(
            ["quickstart, 30 rounds", "seconds"],
            [*([name, f"{t:.2f}"] for name, t in costs["seconds"].items()), ["ratio", f"{costs['ratio']:.2f}"]],
        ),
        "plausibility": markdown(
            ["one silo inflates by", "rounds in which it is flagged, %", "the others, %"],
            [
                [f"{100 * float(k):.0f} %", f"{100 * v['the liar']:.0f}", f"{100 * v['the others']:.1f}"]
                for k, v in flagged.items()
            ],
        ),
    }


def _bounded(part: dict[str, Any], attacked: str) -> str:
    """Honest runs and useless updates, with the bound and without it."""
    lengths = ["18", "5.6e+06"]
    heads = ["silos", "longest honest update", "honest, no bound", "bound"]
    return markdown(
        [*heads, *(head for length in lengths for head in (f"{length}, no bound", "bound"))],
        [
            [
                data,
                f"{max(row['longest'] for row in rows.values()):.2f} times",
                *(f"{100 * rows[attacked][how]:.1f}" for how in ("off", "bound")),
                *(f"{100 * part['attacked'][data][length][how]:.1f}" for length in lengths for how in ("off", "bound")),
            ]
            for data, rows in part["honest"].items()
        ],
    )


def security(told: dict[str, Any]) -> dict[str, str]:
    """The tables of SECURITY.md."""
    return {
        "disclosure": markdown(
            [
                "reports",
                "group, last round, %",
                "group, all rounds, %",
                "label entropy, R^2",
                "participation %",
                "accuracy %",
            ],
            [
                [
                    name,
                    _percent(row["same_group_one_round"]),
                    _percent(row["same_group_all_rounds"]),
                    f"{row['label_entropy_r2']:.2f}",
                    _percent(row["participation"]),
                    _percent(row["accuracy"]),
                ]
                for name, row in told["options"].items()
            ],
        ),
        "model": markdown(
            ["guessing the class group from", "right, %"],
            [
                ["nothing (chance)", f"{100 * told['chance_same_group']:.0f}"],
                ["the output biases of one model sent", _percent(told["same_group_from_first_model"])],
            ],
        ),
    }
