"""docs/reproduction.md and the pages in docs/paper, from the committed summaries: `python -m paper.page [RESULTS [DOCS]]`.

A page per table of the paper, a page per group of its claims, and one that leads to them.
"""

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
from paper.sentences import sentence
from paper.tables import markdown, table
from paper.writer import main

VIEWS = {"participation": "table1", "discrepancy": "table1", "jensen": "delta"}  # other views of the same runs
BEYOND = ("offers", "offers-quickstart", "offers-validation")  # not in the paper: docs/offers*.md show them

HEAD = """# The paper, reproduced

Ours beside the paper's, cell by cell, a page per table; and [a verdict on each claim](paper/claims.md). Nothing there is typed by
hand: every figure comes from a file in `results/` that the command above it wrote; `python -m paper.page` and
`python -m paper.figures` make the pages of them.

How to read them:

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
  [findings](findings.md#how-far-two-sittings-are-apart) has the same runs twice. The errors of the claims are over seeds
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
}
TITLES = {
    "table1": "Accuracy",
    "participation": "Participation",
    "delta": "Delta",
    "strategies": "Several strategies",
    "jensen": "Jensen's gap",
    "concavity": "Utility curves",
    "discrepancy": "Aggregation discrepancy",
    "misreporting": "Misreporting",
    "text": "20 Newsgroups",
    "causes": "Where ours differ",
    "cost": "Time and memory",
    "splits": "Splits",
    "schedules": "Schedules",
    "rules": "Both rules",
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


def pages(summaries: Summaries) -> dict[str, str]:
    """All pages, by their path below docs/."""
    studies = [name for name in STUDIES if name not in BEYOND]
    there = {f"paper/{name}.md": _study(name, summaries) for name in studies if shown(name, summaries)}
    missing = [name for name in studies if not shown(name, summaries)]
    claims = {f"paper/{name}.md": text for name, text in register(summaries).items()}
    front = {"reproduction.md": _front(list(there), list(claims), missing)}
    return {**front, **there, "paper/to-run.md": _to_do(summaries), **claims}


def _front(tables: Sequence[str], claims: Sequence[str], missing: Sequence[str]) -> str:
    """What leads to the other pages, and how they are read."""
    names = [Path(path).stem for path in tables]
    rows = [[f"[{TITLES.get(name, name)}](paper/{name}.md)", f"`{name}`", ABOUT.get(name, "")] for name in names]
    parts = [HEAD, "## Tables and figures\n", markdown(["page", "study", "what it is about"], rows, 3) + "\n"]
    if missing:
        parts.append(f"No committed summary: {', '.join(missing)}.\n")
    parts.append("What these tables lack, and how to run it: [still to run](paper/to-run.md).\n")
    listed = "\n".join(["paper/claims", *tables, *claims[1:], "paper/to-run"]).replace(".md", "")
    parts.append(f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{listed}\n```\n")
    return "\n".join(parts)


TO_DO = """# Still to run

What the tables of the reproduction lack, as commands for a GPU: cells that are missing or have fewer seeds than their
recipe asks for (`--fill` leaves the others alone), and cells whose summary is too old to say what claims ask of it. First comes
[the search for the paper's reading](../which-reading.md): if it changes the recipes' reading, everything with FedUCA in it
is run again.
"""

BESIDE = """
Memory with silos trained one after another, as the paper has it (ours are trained side by side):

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
    """The page of commands that would complete the tables; offers have pages of their own."""
    names = [name for name in STUDIES if name in summaries and name not in (*BEYOND, *VIEWS, "splits")]
    lines = [line for name in names for line in to_run(name, summaries[name])]
    return "\n".join([TO_DO, console(lines) if lines else "Nothing.", BESIDE.format(gpu=ON_GPU)])


def _study(name: str, summaries: Summaries) -> str:
    """The page of one study: what it shows in words, pictures, then the table under its command."""
    cells = shown(name, summaries)
    said = " ".join(text for text in (ABOUT.get(name, ""), sentence(name, cells)) if text)
    study = name if name in summaries else VIEWS[name]
    parts = [f"# {TITLES.get(name, name)}: `{name}`", said]
    parts += [
        f"![{one.caption}](../images/reproduction/{one.name}.svg)\n*{one.caption}*" for one in drawings(name, cells)
    ]
    parts.append(console(commands(study, cells)))
    parts += [_splits(cells)] if name == "splits" else [*_tables(name, cells), _provenance(cells)]
    if name in summaries and (missing := not_run(name, cells)):
        parts.append(missing)
    parts.append("[How to read it](../reproduction.md), [the paper's claims](claims.md).")
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
        f"![{where(cell)}: examples of each class in each silo](../../results/{file})"
        for cell in cells
        for file in cell["files"]
        if file.endswith(".svg")
    ]
    return "\n\n".join([markdown(titles, rows, len(axes)), *pictures])


def _span(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def write(results: Path, target: Path) -> list[str]:
    """All pages into a folder; pages of no study any more are removed."""
    found = {target / path: text for path, text in pages(read(results)).items()}
    (target / "paper").mkdir(parents=True, exist_ok=True)
    for old in set((target / "paper").glob("*.md")) - set(found):
        old.unlink()
    for path, text in found.items():
        path.write_text(text, encoding="utf-8")
    return [f"{len(found)} pages written to {target}"]


if __name__ == "__main__":
    main("page", "Write the pages of the reproduction from the summaries.", ["docs"], write)
