"""Pictures of a split: examples of each class in each silo, for training and for deciding."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from feduca.errors import ConfigError

NOT_ITS_CLASS = "#e4e4e4"


def plot(
    train: np.ndarray,
    validation: np.ndarray,
    path: str | Path,
    *,
    labels: tuple[str, ...] = (),
    title: str = "",
    holds: np.ndarray | None = None,
) -> list[Path]:
    """Draw two heat maps, silos down and classes across, as PNG and SVG; returns the files written.

    `train` and `validation` are tables of `partition.table`; `path` is a file name without its ending. `holds[silos, classes]`
    says which classes are a silo's at all: the others are left grey. Colours are shares of a silo's examples, on one scale for
    both maps; the numbers are examples.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("drawing a partition needs matplotlib: pip install 'feduca[plots]'") from error
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    silos, classes = train.shape
    figure = Figure(figsize=(2 * (1.6 + 0.32 * min(classes, 40)), 1.2 + 0.32 * silos), layout="constrained")
    FigureCanvasAgg(figure)
    holds = np.ones(train.shape, bool) if holds is None else np.asarray(holds, bool)
    shares = [counts / np.maximum(counts.sum(1, keepdims=True), 1) for counts in (train, validation)]
    colours = matplotlib.colormaps["viridis"].with_extremes(bad=NOT_ITS_CLASS)
    highest = max(float(share.max()) for share in shares)
    both = figure.subplots(1, 2)
    for axes, counts, share, name in zip(both, (train, validation), shares, ("training", "validation")):
        shown = np.ma.array(share, mask=~holds)
        axes.imshow(shown, aspect="auto", cmap=colours, norm=Normalize(0, highest))
        axes.set_title(f"{name} examples")
        axes.set_xlabel("class")
        axes.set_ylabel("silo")
        axes.set_yticks(range(silos))
        if classes <= 20:
            axes.set_xticks(range(classes), labels or [str(c) for c in range(classes)], rotation=90 if labels else 0)
            for k in range(silos):
                for c in range(classes):
                    if holds[k, c]:
                        shade = "white" if share[k, c] < highest / 2 else "black"
                        axes.text(c, k, str(counts[k, c]), ha="center", va="center", color=shade, fontsize=6)
    scale = ScalarMappable(Normalize(0, highest), colours)
    figure.colorbar(scale, ax=both, label="share of the silo's examples")
    if title:
        figure.suptitle(title, fontsize="medium")
    if not holds.all():
        figure.supxlabel("grey: not a class of this silo", fontsize="small")
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    written = [target.with_name(target.name + ending) for ending in (".png", ".svg")]
    with matplotlib.rc_context({"svg.hashsalt": "feduca", "svg.fonttype": "none"}):  # the same file every time
        figure.savefig(written[0], dpi=150)
        figure.savefig(written[1], metadata={"Date": None})
    return written
