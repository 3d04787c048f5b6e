"""`feduca partition`: how a recipe spreads its data over the silos, as a table and as heat maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from feduca.config import Recipe
from feduca.experiment import make_task
from feduca.folders import is_folder
from feduca.runs import check_writable

WIDEST = 20  # more classes than this are not printed one by one


def describe(recipe: Recipe, seed: int, pictures: Path | None = None) -> dict[str, Any]:
    """Examples of each class in each silo, for training and for deciding; drawn into `pictures` where that is given."""
    from feduca.tasks import plot, table

    if pictures is not None:
        check_writable(pictures)
    task: Any = make_task(recipe.with_settings({"engine.device": "cpu", "engine.precision": "fp32"}), seed)
    labels, classes = task.pool.y.numpy(), int(task.about["classes"])
    if not np.issubdtype(labels.dtype, np.integer):
        labels, classes = np.zeros(len(labels), np.int64), 1  # values, not classes: examples are all there is to count
    counts = {
        part: table([silo.rows[part] for silo in task.members], labels, classes) for part in ("train", "validation")
    }
    written = []
    if pictures is not None:
        t = recipe.task
        name, how = Path(t.data).name, (t.train_concentration, t.validation_concentration)
        dealt = () if is_folder(t.data) else how
        target = pictures / "-".join(map(str, (name, t.clients, "silos", *dealt, f"s{seed}", recipe.hash()[:4])))
        title = ", ".join([name, *([f"{how[0]} / {how[1]}"] if dealt else []), f"seed {seed}"])
        written = [str(path) for path in plot(counts["train"], counts["validation"], target, title=title)]
    return {
        "data": recipe.task.data,
        "seed": seed,
        "silos": list(task.silos),
        **{part: rows.tolist() for part, rows in counts.items()},
        "written": written,
    }


def study_text(summary: list[dict[str, Any]], results: str) -> str:
    """The summary of the study `splits`: every cell's place in it, its counts and its pictures."""
    return "\n\n".join(
        f"{', '.join(cell['labels'].values())}\n"
        + text({**cell, "written": [f"{results}/{name}" for name in cell["files"]]})
        for cell in summary
    )


def text(shown: dict[str, Any]) -> str:
    """The counts as plain text: training / validation examples of each class, silo by silo."""
    width = max(map(len, shown["silos"]))
    what = "examples" if len(shown["train"][0]) == 1 else "examples per class"
    lines = [f"{shown['data']}, seed {shown['seed']}: {what}, training and validation"]
    for name, train, validation in zip(shown["silos"], shown["train"], shown["validation"]):
        if len(train) > WIDEST:
            has = sum(a + b > 0 for a, b in zip(train, validation))
            lines.append(f"{name:<{width}} {sum(train)}/{sum(validation)} of {has} of {len(train)} classes")
            continue
        cells = " ".join(f"{a:>5}/{b:<4}" if a or b else f"{'.':>5} {'':<4}" for a, b in zip(train, validation))
        lines.append(f"{name:<{width}} {cells}".rstrip())
    return "\n".join([*lines, *(f"written to {path}" for path in shown["written"])])
