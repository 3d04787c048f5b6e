"""Tables in documents that come from committed run summaries: between `<!-- table: name -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from pathlib import Path


def markdown(header: list, rows: list[list]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def replace_tables(path: Path, tables: dict[str, str]) -> None:
    """Put each table in its place; a document without a place for one of them is an error."""
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
        if count != 1:
            raise SystemExit(f"{path} has {count} places for the table {name!r}, not 1")
    path.write_text(text, encoding="utf-8")
