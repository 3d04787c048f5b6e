"""Whether two run directories hold the same run: every byte but the clocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def without_clocks(path: Path) -> dict[str, Any]:
    """Everything a run directory says, `seconds` left out; the final model's bytes included."""
    lines = {
        name: [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (path / name).read_text().splitlines()
        ]
        for name in ("rounds.jsonl", "clients.jsonl")
    }
    status = json.loads((path / "status.json").read_text())
    status.pop("seal", None)
    for name in ("rounds.jsonl", "env.json"):  # their clocks and machines may differ
        status.get("records", {}).pop(name, None)
    status.get("summary", {}).pop("seconds", None)
    points = {}
    for point in sorted((path / "checkpoint").iterdir()):
        tree = json.loads((point / "state.json").read_text())["body"]["tree"]
        del tree["files"]  # lengths and digests of files that hold clocks
        points[point.name] = (tree, (point / "arrays.safetensors").read_bytes())
    return lines | {"status": status, "config": (path / "config.toml").read_text(), "checkpoints": points}
