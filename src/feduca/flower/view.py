"""What a silo's operator sees: everything that is on the silo's own disk, cleaned, without a word to the server.

The log may hold what an app wrote into it, and apps come from a server: every text is cut and cleaned, every number checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feduca.errors import InputError
from feduca.flower import approval, consent, kept
from feduca.flower.deploy import outdated
from feduca.flower.folder import read_silo
from feduca.flower.policy import read as read_policy
from feduca.flower.silo import kept_out
from feduca.flower.store import SENT, SiloStore
from feduca.report.cleaning import text
from feduca.runs import files

LAST = 500  # lines of a log that are looked at
PIECE = 4 << 20  # bytes of a log's end that are read
LARGEST = 1e300  # a JSON integer may have any number of digits
DECISIONS = ("joined", "declined", "refused", "left", "failed", "error")


def seen(folder: Path) -> dict[str, Any]:
    """The state of a silo, for `feduca silo status` and its page."""
    mine = read_silo(folder)
    store = SiloStore(mine.state)
    lines = [line for line in _lines(mine.state / "log.jsonl") if isinstance(line.get("decision"), str)]
    sent = [_sent(line) for line in _lines(mine.state / SENT)]
    rounds = _rounds(lines)
    last = text(lines[-1]["decision"]) if lines else ""
    why = text(lines[-1].get("reason", "")) if lines else ""
    wrong = ""
    try:
        policy = read_policy(mine.path)
        said, out = policy.in_words(), kept_out(store, policy, store.worked)
        why_out = "" if out is None else text(out.why)
    except InputError as error:
        said, wrong, why_out = [], text(str(error)), text(str(error))
    return {
        "silo": text(mine.name),
        "server": text(mine.superlink),
        "in": not why_out and last == "joined",
        "out": why_out,  # nothing passes; empty where messages do
        "last": {"decision": last, "reason": why, "time": text(lines[-1].get("time", "")) if lines else ""},
        "worked": store.worked,
        "policy": [text(line) for line in said],
        "wrong": wrong,
        "rounds": rounds,
        "gain": next((r["gain"] for r in reversed(rounds) if r["gain"] is not None), None),
        "sent": sent[-LAST:],
        "totals": {
            "messages": len(sent),
            "bytes": sum(line["bytes"] or 0 for line in sent),
            "models": sum(line["what"] == "model" for line in sent),
        },
        "epsilon": _spent(rounds),
        "waiting": waiting(mine.path),
        "outdated": [text(name) for name in outdated(mine)],  # entries of silo.toml that want a restart
        "model": _model(store),
    }


def waiting(silo: Path) -> list[str]:
    """What waits for the operator, in words."""
    found = []
    if (silo / approval.PROPOSED).is_file():
        found.append("an app that the server sent")
    try:
        asked = consent.waiting(silo)
    except InputError as error:
        return [*found, text(str(error))]
    if asked is not None:
        found.append(f"run {text(asked.run)}" if asked.run else "settings that the server sent")
    return found


def _model(store: SiloStore) -> dict[str, Any] | None:
    try:
        card = kept.about(store)
    except InputError as error:
        return {"what": text(str(error)), "round": None, "accuracy": None}
    if card is None:
        return None
    scores = card.get("validation")
    deployed = scores.get("deployed") if isinstance(scores, Mapping) else None
    accuracy = deployed.get("accuracy") if isinstance(deployed, Mapping) else None
    return {"what": kept.WHAT[card["what"]], "round": card["round"], "accuracy": _number(accuracy)}


def _rounds(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The decisions, oldest first; asked again, a silo's last answer counts."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in lines:
        run, turn, score = text(line.get("run", "")), line.get("round"), line.get("accuracy")
        turn = (
            int(turn)
            if isinstance(turn, int) or (isinstance(turn, str) and turn.isdecimal() and len(turn) < 9)
            else None
        )
        score = score if isinstance(score, Mapping) else {}
        if turn is None or isinstance(turn, bool) or line["decision"] not in DECISIONS:
            continue
        if str(line.get("reason", "")).startswith("asked again"):
            continue
        row = {
            "run": run,
            "round": turn,
            "time": text(line.get("time", "")),
            "decision": line["decision"],
            "reason": text(line.get("reason", "")),
            **{name: _number(score.get(name)) for name in ("own", "offered", "global")},
            **{name: _number(line.get(name)) for name in ("alone", "gain", "norm", "epsilon")},
        }
        found.pop((run, turn), None)
        found[run, turn] = row
    return list(found.values())[-LAST:]


def _spent(rounds: list[dict[str, Any]]) -> float | None:
    """What was spent on the silo's examples: the last that each run has said, added up."""
    last = {r["run"]: r["epsilon"] for r in rounds if r["epsilon"] is not None}
    return sum(last.values()) if last else None


def _sent(line: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "time": text(line.get("time", "")),
        "round": _number(line.get("round")),
        "what": text(line.get("what", "")),
        "bytes": _number(line.get("bytes")),
        "said": text(line.get("said", "")),
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    """The last lines of a log; of those that are none, nothing."""
    try:
        with files.opened(path, files.LARGE) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - PIECE))
            raw = file.read(PIECE).split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for line in raw[1:] if size > PIECE else raw:
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(item, dict):
            found.append(item)
    return found[-4 * LAST :]


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 9:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        return None
    return float(value) if math.isfinite(value) else None
