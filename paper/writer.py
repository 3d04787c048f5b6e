"""What the modules that write from RESULTS (`python -m paper.page` and others) have in common: their command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from feduca.errors import InputError
from feduca.studies.execute import STUDIES

Write = Callable[[Path, Path], Sequence[str]]  # from RESULTS into TARGET; returns what to say


def main(module: str, what: str, targets: Sequence[str], write: Write, args: Sequence[str] | None = None) -> None:
    """Read RESULTS and TARGETs from the command line and write each; bad input ends in one line and exit code 2."""
    parser = argparse.ArgumentParser(
        f"python -m paper.{module}",
        description=what,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("results", metavar="RESULTS", nargs="?", default="results", help="folder of summaries")
    parser.add_argument("targets", metavar="TARGET", nargs="*", default=targets, help="what is written")
    told = parser.parse_args(args)
    try:
        _check(Path(told.results))
        lines = [line for target in told.targets for line in write(Path(told.results), Path(target))]
    except InputError as error:
        sys.exit(_refused(str(error)))
    except OSError as error:
        sys.exit(_refused(f"{error.filename}: {error.strerror}; give another TARGET"))
    print("\n".join(lines))


def _check(results: Path) -> None:
    if not results.is_dir():
        raise InputError(f"there is no folder {results}; give the one that `feduca reproduce` wrote its summaries to")
    if not any((results / f"{name}.json").is_file() for name in STUDIES):
        raise InputError(
            f"{results} holds no summary of a study (table1.json, ...); give the folder that `feduca reproduce` wrote to"
        )


def _refused(line: str) -> int:
    print(f"feduca: {line}", file=sys.stderr)
    return 2
