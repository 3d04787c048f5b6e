"""The numbers in docs/methods, and where they come from.

    python benchmarks/method_pages.py run [cross|audit|sampled|expected]...   run the commands below and write results/NAME.json
    python benchmarks/method_pages.py pages                          rewrite the tables in docs/methods from those files
    python benchmarks/method_pages.py check                          say which page is behind them (a test does this, too)

A page marks where a table belongs: `<!-- table: cross FedProx -->` ... `<!-- /table -->`. Everything between is generated.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "cross": "feduca compare cross --set 'seeds=[0,1,2]' --json",
    "audit": "feduca audit --json",
    "sampled": "feduca compare sampled --json",
    "expected": "feduca compare expected --set 'seeds=[0,1,2]' --json",
}
KEPT = (  # of a row of `compare --json`
    "method",
    "axes",
    "seeds",
    "rounds",
    "accuracy",
    "accuracy_std",
    "participation",
    "deployed",
    "worst_client",
    "promise_kept",
    "eq1_share",
    "concession",
    "fallbacks",
    "discrepancy",
)
MARK = re.compile(r"(<!-- table: (\w+)(?: ([^>]*?))? -->\n).*?(<!-- /table -->)", re.S)


def record(name: str, printed: str) -> None:
    """Keep what a command printed, with the command beside it."""
    found = json.loads(printed)
    body = {"rows": [{key: row.get(key) for key in KEPT} for row in found]} if isinstance(found, list) else found
    path = ROOT / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({"command": COMMANDS[name], "commit": _commit(), **body}, indent=1) + "\n", encoding="utf-8"
    )


def _commit() -> str | None:
    from feduca.studies.summarise import commit

    return commit()


def summary(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def table(name: str, what: str | None) -> str:
    """The generated part of a page: the command, then its table."""
    found = summary(name)
    lines = {"cross": _cross, "audit": _audit, "sampled": _sampled, "expected": _expected}[name](found, what)
    return "\n".join([f"    {found['command']}", "", *lines, ""])


def _percent(value: float | None, std: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}" if std is None else f"{100 * value:.1f} +- {100 * std:.1f}"


def _grid(head: list[str], rows: list[list[str]], left: int = 1) -> list[str]:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]


def _figures(row: dict[str, Any]) -> list[str]:
    return [
        _percent(row["participation"]),
        _percent(row["accuracy"], row["accuracy_std"]),
        _percent(row["worst_client"]),
        _percent(row["promise_kept"]),
    ]


FIGURES = ["participation %", "accuracy %", "worst client %", "promise kept, points"]


def _cross(found: dict[str, Any], method: str | None) -> list[str]:
    """A method's block of the cross; or, as `offer|rule`, one column of it over all methods."""
    rows = found["rows"]
    if method and "|" in method:
        offer, rule = method.split("|")
        chosen = [row for row in rows if row["axes"].get("offer") == offer and row["axes"].get("rule") == rule]
        chosen += [row for row in rows if len(row["axes"]) == 1]
        return _grid(["method", *FIGURES], [[row["axes"]["method"], *_figures(row)] for row in chosen])
    chosen = [row for row in rows if row["axes"]["method"] == method]
    if not chosen:
        raise SystemExit(f"results/cross.json has no method {method!r}")
    names = [[row["axes"].get("offer", ""), row["axes"].get("rule", "")] for row in chosen]
    return _grid(["offer", "rule", *FIGURES], [[*name, *_figures(row)] for name, row in zip(names, chosen)], 2)


def _sampled(found: dict[str, Any], what: str | None) -> list[str]:
    rows = [
        [row["axes"]["schedule"], row["axes"]["aggregation"], *_figures(row), f"{row['discrepancy']:.3f}"]
        for row in found["rows"]
    ]
    return _grid(["schedule", "aggregation", *FIGURES, "discrepancy"], rows, 2)


def _expected(found: dict[str, Any], what: str | None) -> list[str]:
    """Some methods (`A|B`) beside FedAvg, or all of them."""
    chosen = ["FedAvg", *what.split("|")] if what else [row["axes"]["method"] for row in found["rows"]]
    if strange := set(chosen) - {row["axes"]["method"] for row in found["rows"]}:
        raise SystemExit(f"results/expected.json has no method {min(strange)!r}")
    rows = [
        [row["axes"]["method"], row["axes"]["rule"]]
        + [_percent(row[key]) for key in ("participation", "deployed", "worst_client")]
        + [_percent(row["accuracy"], row["accuracy_std"]) if row["accuracy"] is not None else "-"]
        for row in found["rows"]
        if row["axes"]["method"] in chosen
    ]
    return _grid(["method", "rule", "participation %", "deployed %", "worst silo %", "shared model %"], rows, 2)


def _value(value: dict[str, float | None]) -> str:
    return _percent(value["mean"], value["stderr"])


def _audit(found: dict[str, Any], what: str | None) -> list[str]:
    if what == "everybody":
        keys = ("accuracy", "participation", "deployed", "worst_client")
        rows = [[f"{row['share']:.0%}", *(_value(row[key]) for key in keys)] for row in found["everybody"]]
        return _grid(["everybody inflates by", "accuracy", "participation", "deployed", "worst client"], rows)
    if what == "alone":
        head = [
            "one silo",
            "decides by",
            "own accuracy",
            "weight",
            "presence",
            "others' accuracy",
            "better off",
            "worse off",
        ]
        rows = [
            [
                f"{row['kind']}s by {row['share']:.0%}",
                row["decide_by"],
                *(_value(row[key]) for key in ("own", "weight", "joined", "others")),
                f"{row['gained']:.0%}",
                f"{row['lost']:.0%}",
            ]
            for row in found["alone"]
        ]
        return _grid(head, rows, 2)
    if what == "responses":
        head = ["seed", "settled", "sweeps", "moves", "inflations at the end", "accuracy", "participation"]
        rows = [
            [
                str(one["seed"]),
                "yes" if one["settled"] else "cycle" if one["cycle"] else "no",
                str(one["sweeps"]),
                str(one["moves"]),
                " ".join(f"{g:.0%}" for g in one["profile"]),
                " to ".join(_percent(v) for v in one["accuracy"]),
                " to ".join(_percent(v) for v in one["participation"]),
            ]
            for one in found["best_response"]
        ]
        return _grid(head, rows)
    return [f"- {sentence}" for sentence in found["verdict"]]


def rewritten(text: str) -> str:
    """A page with its tables up to date."""
    return MARK.sub(lambda m: m[1] + table(m[2], m[3]) + m[4], text)


def behind() -> list[Path]:
    """Pages whose tables are not what the summaries say."""
    return [
        page
        for page in sorted((ROOT / "docs/methods").glob("*.md"))
        if rewritten(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")
    ]


def main(verb: str, *names: str) -> None:
    if verb == "run":
        for name in names or COMMANDS:
            words = shlex.split(COMMANDS[name])
            record(
                name,
                subprocess.run(
                    [sys.executable, "-m", *words], check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8"
                ).stdout,
            )
    elif verb == "pages":
        for page in behind():
            page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
            print(f"updated {page.relative_to(ROOT)}")
    elif verb == "check":
        late = behind()
        if late:
            raise SystemExit("behind results/: " + ", ".join(str(page.relative_to(ROOT)) for page in late))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["help"])
