"""`feduca partition`: how a recipe spreads its data over the silos, as a table and as heat maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from feduca.recipes.build import make_task
from feduca.recipes.folders import NATURAL, is_folder
from feduca.recipes.schema import Recipe
from feduca.runs.directory import check_writable

WIDEST = 20  # more classes than this are not printed one by one


def describe(recipe: Recipe, seed: int, pictures: Path | None = None) -> dict[str, Any]:
    """Examples of each class in each silo, for training and for deciding; drawn into `pictures` where that is given.

    `holds` are the classes of each silo's group: of one of them it may have been dealt none, of any other it cannot have any.
    """
    from feduca.tasks import table
    from feduca.tasks.data.plot import plot

    if pictures is not None:
        check_writable(pictures)
    task: Any = make_task(recipe.with_settings({"engine.device": "cpu", "engine.precision": "fp32"}), seed)
    labels, classes = task.pool.y.numpy(), int(task.about["classes"])
    if not np.issubdtype(labels.dtype, np.integer):
        labels, classes = np.zeros(len(labels), np.int64), 1  # values, not classes: examples are all there is to count
    counts = {
        part: table([silo.rows[part] for silo in task.members], labels, classes) for part in ("train", "validation")
    }
    groups = task.about.get("groups") or [list(range(classes))]
    holds = [groups[silo.client % len(groups)] for silo in task.members]
    written = []
    if pictures is not None:
        t = recipe.task
        name, dealt = Path(t.data).name, not (is_folder(t.data) or t.data in NATURAL)
        split = f"{t.clients}-silos" + (f"-{t.train_concentration}-{t.validation_concentration}" if dealt else "")
        target = pictures / f"{name}-{split}-s{seed}-{recipe.hash()[:4]}"
        title = f"{name}, seed {seed}"
        if dealt:
            title += f"\nDirichlet concentration of a silo's classes: {t.train_concentration} for training, "
            title += f"{t.validation_concentration} for validation"
        mask = np.array([[c in own for c in range(classes)] for own in holds])
        drawn = plot(counts["train"], counts["validation"], target, title=title, holds=mask)
        written = [str(path) for path in drawn]
    return {
        "data": recipe.task.data,
        "seed": seed,
        "silos": list(task.silos),
        "holds": holds,
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
    width, classes = max(map(len, shown["silos"])), len(shown["train"][0])
    lines = [f"{shown['data']}, seed {shown['seed']}: training/validation examples{' of each class' * (classes > 1)}"]
    if 1 < classes <= WIDEST:
        header = " ".join(f"{c:>5} {'':<4}" for c in range(classes))
        lines.append(f"{'class':<{width}} {header}".rstrip())
    for name, own, train, validation in zip(shown["silos"], shown["holds"], shown["train"], shown["validation"]):
        if classes > WIDEST:
            some = sum(a + b > 0 for a, b in zip(train, validation))
            total = f"{sum(train)}/{sum(validation)}"
            lines.append(f"{name:<{width}} {total} examples of {some} of its {len(own)} classes, of {classes}")
            continue
        counts = (
            f"{a:>5}/{b:<4}" if c in own else f"{'.':>5} {'':<4}" for c, (a, b) in enumerate(zip(train, validation))
        )
        lines.append(f"{name:<{width}} {' '.join(counts)}".rstrip())
    if classes <= WIDEST and any(len(own) < classes for own in shown["holds"]):
        lines.append(".: not a class of this silo; 0: one of its classes of which it was dealt no example")
    return "\n".join([*lines, *(f"written to {path}" for path in shown["written"])])
