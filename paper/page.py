"""docs/reproduction.md, written from the committed summaries: `python -m paper.page [RESULTS [TARGET]]`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feduca.studies.execute import STUDIES, ordered
from feduca.studies.summary_file import settings_text
from paper.claims import ALSO, Summaries, register
from paper.claims.look import where
from paper.commands import ON_GPU, commands, console, not_run, to_run
from paper.figures import drawings
from paper.seen import sentence
from paper.tables import markdown, table
from paper.writer import main

VIEWS = {"participation": "table1", "discrepancy": "table1", "jensen": "delta"}  # other views of the same runs
BEYOND = ("offers", "offers-quickstart", "offers-validation")  # not in the paper: their tables have a page of their own

HEAD = """# The paper, reproduced

Ours beside the paper's, cell by cell. Nothing here is typed by hand: every figure comes from a file in `results/` that the
command above it wrote; `python -m paper.page` and `python -m paper.figures` make the page of them.

How to read it:

- Accuracy is on the global test set, mean over the last ten rounds; participation is the mean over rounds and silos; both in
  percent, ± the standard deviation over seeds (of participation, where the summary holds every seed's). *Eq. 1 holds* is how
  often the shared model really was better for a silo, whichever rule was in force.
- `paper` is what the paper prints, `difference` is ours minus the paper's in points, `-` means that there is no such figure.
- `from scratch`: the paper's ResNet-18 starts from ImageNet's weights, ours, where none could be had, from random ones.
- Baselines decide by Eq. 1, FedUCA by Eq. 2, as in the paper. Where a silo sits out, the server goes on with its last model
  under the baselines and with its last update under FedUCA; `schedules` has all methods with updates.
- Rows that are ours: `uniform` and `random` weights under FedUCA's rule (the controls; `random-near` draws them from Dir(3.8),
  about as far from uniform as FedUCA's are), `forced` (FedAvg with everybody made to join: the ceiling), `feduca-fresh` and
  `feduca-maximum` (the weights just solved are the ones used; as many participants as can be).
- A table may have been filled in several sittings, with `--only` (some cells of it) and `--lockstep` (several runs side by
  side). That changes float rounding, which is not harmless over a hundred rounds:
  [findings](findings.md#how-far-two-sittings-are-apart) has the same runs twice. The errors of the claims below are over seeds
  and contain it. `seconds` of a run that had company are its share of the time; in cells of older commits they are those of
  all of them together. (`cost` has every run alone.)
"""

ABOUT = {
    "table1": "Accuracy of every method on every data set and split (the paper's Table 2).",
    "participation": "Who stays: participation in percent per method, data set and split, the paper's in parentheses.",
    "delta": "What the concentration delta of the mixture s does to participation and to Jensen's gap.",
    "strategies": "One strategy against several, under each schedule; the paper's figures belong to the lagged one.",
    "jensen": "Sum over silos of Jensen's gap per round, in percent: mean, and mean over the 50 and the 25 largest rounds.",
    "concavity": "How well a concave quadratic fits the measured utility curves, on a grid denser than the fit's.",
    "discrepancy": "How far the weights are from uniform, `||alpha - 1/N||^2`, over the rounds, with both bounds.",
    "misreporting": "Every silo inflates its threshold by so many percent.",
    "text": "20 Newsgroups with a bidirectional LSTM.",
    "causes": "Where ours differ from the paper's: what it leaves open, changed one at a time.",
    "cost": "Time and memory of 100 rounds per method, each run alone on the device; the paper's on an RTX A5000.",
    "splits": "Classes and examples per silo; pictures have silos down and classes across.",
    "schedules": "FedUCA under each schedule, and the baselines with FedUCA's memory of updates.",
    "rules": "Every method under both rules, everything else equal: the paper compares across rules.",
    "offers": "Beyond the paper: tailored offers under Eq. 1.",
    "offers-quickstart": "Beyond the paper: tailored offers with 42 validation examples a silo.",
    "offers-validation": "Beyond the paper: tailored offers with very few validation examples.",
}


def filled(text: str, block: Callable[[str], str]) -> str:
    """A text with what stands between `<!-- table NAME -->` and `<!-- end -->` written anew by `block(NAME)`."""
    marks = r"(<!-- table (\S+) -->\n).*?(<!-- end -->)"
    return re.sub(marks, lambda m: f"{m[1]}{block(m[2])}\n{m[3]}", text, flags=re.DOTALL)


def read(folder: Path) -> Summaries:
    """All committed summaries of studies, by name, each in its recipe's order."""
    found = {}
    for name in (*STUDIES, *ALSO):
        path = folder / f"{name}.json"
        if path.exists():
            cells = json.loads(path.read_text(encoding="utf-8"))
            found[name] = cells if name in ALSO else ordered(name, cells)
    return found


def shown(name: str, summaries: Summaries) -> Sequence[Mapping[str, Any]]:
    """The cells of a section: the study's own, or those of the study it is a view of."""
    if name in summaries:
        return summaries[name]
    cells = summaries.get(VIEWS.get(name, ""), ())
    return [cell for cell in cells if name != "discrepancy" or cell["method"] == "feduca"]


def page(summaries: Summaries) -> str:
    """The whole page."""
    parts = [HEAD, *(_section(name, summaries) for name in STUDIES if shown(name, summaries))]
    missing = [name for name in STUDIES if not shown(name, summaries)]
    if missing:
        parts.append(f"## Not run yet\n\nNo committed summary: {', '.join(missing)}.\n")
    parts.append(_to_do(summaries))
    parts.append(register(summaries))
    return "\n".join(parts)


TO_DO = """## Still to run

What the tables above lack, as commands for a GPU: cells that are missing or have fewer seeds than their recipe asks for
(`--fill` leaves the others alone), and cells whose summary is too old to say what claims ask of it. First comes
[the search for the paper's reading](which-reading.md): if it changes the recipes' reading, everything with FedUCA in it
is run again.
"""

BESIDE = """
Memory with silos trained one after another, as the paper has it (ours above are trained side by side):

```console
$ feduca reproduce cost --set engine.kind=sequential {gpu} --results results/sequential
```

CIFAR-100 from a warm start, in place of ImageNet's weights: a ResNet-18 trained on CIFAR-10, which its rows say. Does it
bring FedAvg with a warm start up as printed?

```console
$ feduca run pretrain {gpu}
$ feduca export runs/pretrain/* -o pretrained
$ feduca reproduce table1 --only data=cifar100 --set task.weights=pretrained/global.safetensors {gpu} --results results/pretrained
```
"""


def _to_do(summaries: Summaries) -> str:
    """The commands that would complete the tables; offers have a page of their own."""
    names = [name for name in STUDIES if name in summaries and name not in (*BEYOND, *VIEWS, "splits")]
    lines = [line for name in names for line in to_run(name, summaries[name])]
    return "\n".join([TO_DO, console(lines) if lines else "Nothing.", BESIDE.format(gpu=ON_GPU)])


def _section(name: str, summaries: Summaries) -> str:
    cells = shown(name, summaries)
    said = " ".join(text for text in (ABOUT.get(name, ""), sentence(name, cells)) if text)
    study = name if name in summaries else VIEWS[name]
    parts = [f"## {name}", console(commands(study, cells)), said]
    parts += [f"![{one.caption}](images/reproduction/{one.name}.svg)\n*{one.caption}*" for one in drawings(name, cells)]
    if name == "splits":
        parts.append(_splits(cells))
    elif name in BEYOND:
        parts.append("Tables: [tailored offers](offers.md).")
    else:
        parts += [*_tables(name, cells), _provenance(cells)]
    if name in summaries and (missing := not_run(name, cells)):
        parts.append(missing)
    return "\n\n".join(parts) + "\n"


def _tables(name: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table, or one for each part of a study that has several."""
    parts = list(dict.fromkeys(cell["labels"].get("study") for cell in cells))
    if parts == [None]:
        return [table(name, cells)]
    text = []
    for part in parts:
        text += [f"Part `{part}`:", table(name, [c for c in cells if c["labels"].get("study") == part])]
    return text


def device(cell: Mapping[str, Any]) -> str:
    """What a cell was computed on, and how exactly."""
    return f"{cell['device']} in {cell['precision']}" if cell.get("precision") else cell["device"]


def changes(cell: Mapping[str, Any]) -> str:
    """What the command line changed of the recipe; nothing where it changed nothing."""
    words = settings_text(cell.get("set") or {})
    return f", with {' '.join(words)}" if words else ""


def _provenance(cells: Sequence[Mapping[str, Any]]) -> str:
    """Where the cells come from: device, precision, commit, rounds, seeds, and what was changed."""
    sources: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        seeds = f"{len(cell['seeds'])} seed{'s' if len(cell['seeds']) > 1 else ''}"
        how = f"{cell['rounds']} rounds, {seeds}{_split(cell)}{changes(cell)}"
        source = f"{device(cell)}, commit {cell['commit'] or 'unknown'}, {how}"
        sources.setdefault(source, []).append(cell)
    if len(sources) == 1:
        return f"{next(iter(sources))}."
    return "; ".join(f"{source}: {len(some)} of {len(cells)} cells" for source, some in sources.items()) + "."


def _split(cell: Mapping[str, Any]) -> str:
    """Whether the seeds share a split."""
    return "" if cell.get("split_seed") is None else f" on the split of seed {cell['split_seed']}"


def _splits(cells: Sequence[Mapping[str, Any]]) -> str:
    """The study that trains nothing: how many classes and examples silos have, and the pictures."""
    axes = list(cells[0]["labels"])
    rows = []
    for cell in cells:
        classes = [sum(count > 0 for count in silo) for silo in cell["train"]]
        sizes = [sum(silo) for silo in cell["train"]]
        row = [*(cell["labels"][axis] for axis in axes), str(len(sizes)), _span(classes), _span(sizes)]
        rows.append(row)
    titles = [*axes, "silos", "classes per silo", "training examples per silo"]
    pictures = [
        f"![{where(cell)}: examples of each class in each silo](../results/{file})"
        for cell in cells
        for file in cell["files"]
        if file.endswith(".svg")
    ]
    return "\n\n".join([markdown(titles, rows, len(axes)), *pictures])


def _span(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def write(results: Path, target: Path) -> list[str]:
    target.write_text(page(read(results)), encoding="utf-8")
    return [f"written to {target}"]


if __name__ == "__main__":
    main("page", "Write the page of the reproduction from the summaries.", "docs/reproduction.md", write)
