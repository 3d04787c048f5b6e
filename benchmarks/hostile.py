"""Damaged run folders and hostile settings, counted: what is read back is right, or something is said.

    python benchmarks/hostile.py [--count 300] [--seed 0]    into benchmarks/results/hostile.json and docs/robustness.md
    python benchmarks/hostile.py --smoke                     a few of each, printed only

The cases are those of tests/fuzz, which the tests run, too: `folders.py` damages a finished or an interrupted run, `settings.py`
sends settings, recipes and programs that make no sense. Seeds other than 0 are other cases.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "fuzz"), str(ROOT / "tests")]

import folders  # noqa: E402
import settings  # noqa: E402

from tables import markdown, replace_tables  # noqa: E402

RESULT, DOCUMENT = ROOT / "benchmarks" / "results" / "hostile.json", ROOT / "docs" / "robustness.md"
HOW = ("clear", "right", "wrong", "traceback", "hang")
SURFACES = {"a_run": "run", "a_comparison": "compare", "a_file": "a recipe's file", "a_program": "solve"}

Counts = dict[str, dict[str, int]]


def of_folders(count: int, seed: int) -> Counts:
    """How every reader of a run folder answers."""
    seen: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as root:
        found, other = folders.victims(Path(root) / "victims")
        for case in range(seed, seed + count):
            counted, complaints = folders.examine(case, found, other, Path(root) / "damaged")
            seen += counted
            for line in complaints:
                print(f"seed {case}: {line}", file=sys.stderr)
    return {name: {how: seen[name, how] for how in HOW} for name in folders.READERS}


def of_settings(count: int, seed: int) -> Counts:
    """How every place that takes settings answers."""
    seen: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as here:
        os.chdir(here)
        for case in range(seed, seed + count):
            try:
                name, how = settings.answer(case)
            except Exception as error:
                name = settings.SURFACES[case % len(settings.SURFACES)].__name__
                kinds = {settings.Hang: "hang", AssertionError: "wrong"}
                how = kinds.get(type(error), "traceback")
                print(f"seed {case}: {how}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            seen[SURFACES[name], how] += 1
        os.chdir(ROOT)
    return {name: {how: seen[name, how] for how in HOW} for name in SURFACES.values()}


def tables(found: dict[str, Any]) -> dict[str, str]:
    """The table of docs/robustness.md."""
    parts = {"damaged folders": found["folders"], "hostile settings": found["settings"]}
    rows = [[what, name, *map(str, how.values())] for what, counts in parts.items() for name, how in counts.items()]
    return {"hostile": markdown(["asked with", "who answers", *HOW], rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="of either kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--smoke", action="store_true", help="a few of each, printed only")
    options = parser.parse_args()
    count = 8 if options.smoke else options.count
    logging.getLogger("feduca").addHandler(logging.NullHandler())
    logging.getLogger("feduca").propagate = False
    warnings.simplefilter("ignore")  # a model that diverges says so
    found = {
        "command": f"python benchmarks/hostile.py --count {count} --seed {options.seed}",
        "folders": of_folders(count, options.seed),
        "settings": of_settings(count, options.seed),
    }
    if options.smoke:
        print(json.dumps(found, indent=1))
        return
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    replace_tables(DOCUMENT, tables(found))


if __name__ == "__main__":
    main()
