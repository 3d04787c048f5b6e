"""The picture on README's first screen and the story on docs/story.md: `python docs/clinics.py` (half a minute, no network).

Six clinics of a health insurance experiment (the embedded recipe `clinics`), run twice: offered one model for all, and offered
each its own mixture. Writes docs/images/clinics.json, what was recorded, and docs/images/who-is-in.svg, drawn from it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import feduca  # noqa: E402
from paper.page import filled  # noqa: E402

IMAGES, STORY = HERE / "images", HERE / "story.md"
OFFERS: Mapping[str, Mapping[str, Any]] = {
    "one model for all": {"mechanism.name": "fedavg", "participation.rule": "accuracy"},
    "its own mixture": {
        "mechanism.name": "fedavg",
        "participation.rule": "loss",
        "participation.against": "outside",
        "offer.kind": "stack",
    },
}


def recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """One run as the pages need it: who was in, round by round, and what silos deploy at the end."""
    result = feduca.run("clinics", dict(settings), seed=0)
    last = result.clients[-1]
    return {
        "settings": dict(settings),
        "in": ["".join("x" if status == "joined" else "." for status in one["status"]) for one in result.clients],
        "reasons": list(last["reason"]),
        "participation": round(result.participation, 4),
        "surely better": result.summary["better_share"],
        "surely worse": result.summary["worse_share"],
        "examples": list(last["paired"]["examples"]),
        "deployed": [round(value, 4) for value in last["test_deployed"]],
        "alone": [round(value, 4) for value in last["test_alone"]],
    }


WIDTH, LEFT, TOP, CELL = 720, 66, 58, 9  # the strips: where they begin, how wide a round is
ROW, GAP = 21, 20
STYLE = """
text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px } .quiet { fill: #59636e }
.in { fill: #0072b2 } .out { fill: #d8dee4 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #9198a1 } .in { fill: #56b4e9 } .out { fill: #30363d }
}
"""


def picture(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Two strips side by side, a row per clinic and a column per round: filled is in."""
    first = next(iter(found.values()))
    silos, rounds = len(first["in"][0]), len(first["in"])
    height = TOP + silos * ROW + 36
    body = []
    for panel, (title, one) in enumerate(found.items()):
        x0 = LEFT + panel * (rounds * CELL + LEFT + GAP)
        share = f"{100 * one['participation']:.0f} % in"
        body.append(f'<text class="title" x="{x0}" y="22">offered {title}</text>')
        body.append(f'<text class="quiet" x="{x0}" y="42">{share}</text>')
        for silo in range(silos):
            y = TOP + silo * ROW
            body.append(f'<text class="quiet" x="{x0 - 8}" y="{y + 13}" text-anchor="end">clinic {silo + 1}</text>')
            for there in "x.":
                marks = [t for t in range(rounds) if one["in"][t][silo] == there]
                path = "".join(f"M{x0 + t * CELL} {y}h{CELL - 1}v{ROW - 4}h-{CELL - 1}z" for t in marks)
                body.append(f'<path class="{"in" if there == "x" else "out"}" d="{path}"/>' if path else "")
        y = TOP + silos * ROW + 16
        body.append(f'<text class="quiet" x="{x0}" y="{y}">round 1</text>')
        body.append(f'<text class="quiet" x="{x0 + rounds * CELL}" y="{y}" text-anchor="end">{rounds}</text>')
    said = "; ".join(f"offered {title}, {100 * one['participation']:.0f} % are in" for title, one in found.items())
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
    return "\n".join(
        [
            head,
            f"<title>{silos} clinics over {rounds} rounds: {said}</title>",
            f"<style>{STYLE}</style>",
            *filter(None, body),
            "</svg>\n",
        ]
    )


def block(found: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """A table of docs/story.md: what each clinic deploys after the last round, beside what it would have had alone."""
    one = found["one model for all" if name == "shared" else "its own mixture"]
    rounds = len(one["in"])
    lines = [
        "| clinic | takes the offer, rounds | deploys, accuracy % | alone % | points |",
        "|---|---:|---:|---:|---:|",
    ]
    for silo, (deployed, alone) in enumerate(zip(one["deployed"], one["alone"])):
        taken = sum(there[silo] == "x" for there in one["in"])
        gain = 100 * (deployed - alone)
        lines.append(f"| {silo + 1} | {taken} of {rounds} | {100 * deployed:.1f} | {100 * alone:.1f} | {gain:+.1f} |")
    return "\n".join(lines)


def main() -> None:
    found = {title: recorded(settings) for title, settings in OFFERS.items()}
    (IMAGES / "clinics.json").write_text(json.dumps({"command": "python docs/clinics.py", **found}, indent=1) + "\n")
    (IMAGES / "who-is-in.svg").write_text(picture(found), encoding="utf-8")
    STORY.write_text(filled(STORY.read_text(encoding="utf-8"), lambda name: block(found, name)), encoding="utf-8")


if __name__ == "__main__":
    main()
