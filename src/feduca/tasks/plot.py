"""Pictures of a split: examples of each class in each silo, for training and for deciding."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from feduca.errors import ConfigError


def plot(
    train: np.ndarray, validation: np.ndarray, path: str | Path, *, labels: tuple[str, ...] = (), title: str = ""
) -> list[Path]:
    """Draw two heat maps, silos down and classes across, as PNG and SVG; returns the files written.

    `train` and `validation` are tables of `partition.table`; `path` is a file name without its ending.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("drawing a partition needs matplotlib: pip install 'feduca[plots]'") from error
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    silos, classes = train.shape
    figure = Figure(figsize=(2 * (1.6 + 0.32 * min(classes, 40)), 1.2 + 0.32 * silos), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, counts, name in zip(figure.subplots(1, 2), (train, validation), ("training", "validation")):
        image = axes.imshow(counts, aspect="auto", cmap="viridis", vmin=0)
        axes.set_title(f"{name} examples")
        axes.set_xlabel("class")
        axes.set_ylabel("silo")
        axes.set_yticks(range(silos))
        if classes <= 20:
            axes.set_xticks(range(classes), labels or [str(c) for c in range(classes)], rotation=90 if labels else 0)
            for k in range(silos):
                for c in range(classes):
                    if counts[k, c]:
                        shade = "white" if counts[k, c] < counts.max() / 2 else "black"
                        axes.text(c, k, str(counts[k, c]), ha="center", va="center", color=shade, fontsize=6)
        figure.colorbar(image, ax=axes)
    if title:
        figure.suptitle(title)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    written = [target.with_name(target.name + ending) for ending in (".png", ".svg")]
    with matplotlib.rc_context({"svg.hashsalt": "feduca", "svg.fonttype": "none"}):  # the same file every time
        figure.savefig(written[0], dpi=150)
        figure.savefig(written[1], metadata={"Date": None})
    return written
