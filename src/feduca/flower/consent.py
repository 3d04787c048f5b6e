"""Which settings a silo works with: under `approve = true` in its policy, those that its operator has seen and approved.

SILO/approved.json    the settings that were approved, and the runs that may use them
SILO/state/proposed.json    what the server asked for last and was refused

Settings are the recipe inside the app, and what the server adds to a run (`--run-config`). Of the latter an app only ever sees
what was approved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from feduca.errors import InputError, printable
from feduca.flower import approval
from feduca.flower.folder import OURS
from feduca.runs import files
from feduca.types import LocalSpec

APPROVED, PROPOSED = "approved.json", "state/proposed.json"
SERVERS = (*OURS, "out")  # of a run's settings: about the server's own disk, and kept from the app
RECIPE = "recipe.toml"
REHEARSAL = "dry-run"  # the name under which `deploy check --exchange` asks who is there
MECHANISMS = ("prox", "objective", "bound")  # of local training: set by the mechanism, round by round
NAME = 200  # characters of a run's name


@dataclass(frozen=True)
class Proposal:
    """What a server asks a silo to work with."""

    texts: Mapping[str, str]  # the settings, as files
    run: str = ""  # the federation's name for itself; empty where the message says none

    @staticmethod
    def of(bundle: bytes, settings: Mapping[str, Any], run: str = "") -> Proposal:
        """`bundle` is the app, `settings` what the server adds to its run."""
        found = {name: text for name, text in approval.texts(bundle).items() if Path(name).name == RECIPE}
        lines = [f"{name} = {json.dumps(value)}" for name, value in sorted(settings.items()) if name not in SERVERS]
        return Proposal({**found, "run-config": "\n".join(lines)}, printable(run, NAME))


def for_app(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run's settings, those that stand in a proposal."""
    return {name: value for name, value in settings.items() if name not in SERVERS}


def unlike(recipe: Mapping[str, Any], content: Any) -> str | None:
    """Where a round's announcement asks for other local training than the recipe that was approved; None where it does not.

    Its learning rate may be lower, for rates decay; terms of a mechanism's own are the approved mechanism's.
    """
    said = content.get("announcement")
    if said is None:
        return None
    try:
        asked = json.loads(str(said["local"]))
        told = recipe.get("local", {})
        for name, field in LocalSpec.__dataclass_fields__.items():
            if name in MECHANISMS:
                continue
            agreed, now = told.get(name, field.default), asked[name]
            if not (now <= agreed if name == "lr" else now == agreed):
                return f"the server asks for local.{name} = {now!r}, and {agreed!r} was approved"
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        return f"the server's announcement is damaged: {type(error).__name__}"
    return None


def granted(silo: Path, asked: Proposal, hello: bool) -> bool:
    """Whether these settings are approved, for this run. Only a question who is there (`hello`) may be of no run."""
    seen = _read(silo / APPROVED)
    if seen is None or seen["texts"] != dict(asked.texts):
        return False
    return hello if asked.run in ("", REHEARSAL) else asked.run in seen["runs"]


def listed(silo: Path, run: str) -> bool:
    """Whether the operator has approved this very run."""
    seen = _read(silo / APPROVED)
    return seen is not None and run in seen["runs"]


def propose(silo: Path, asked: Proposal) -> None:
    """Put aside what was refused, for the operator to look at."""
    text = json.dumps(asdict(asked), indent=1)
    path = silo / PROPOSED
    if path.is_symlink() or not path.is_file() or path.read_text(encoding="utf-8") != text:
        _keep(path, text)


def waiting(silo: Path) -> Proposal | None:
    """What waits for approval."""
    seen = _read(silo / PROPOSED)
    return None if seen is None else Proposal(seen["texts"], seen["run"])


def difference(silo: Path, asked: Proposal) -> str:
    """What approving it would change, as a unified diff."""
    seen = _read(silo / APPROVED) or {"texts": {}, "runs": []}
    old, new = dict(seen["texts"]), dict(asked.texts)
    if asked.run not in ("", REHEARSAL, *seen["runs"]):
        old |= {"runs": "\n".join(seen["runs"])} if seen["runs"] else {}
        new |= {"runs": "\n".join([*seen["runs"], asked.run])}
    return approval.compared(old, new)


def approve(silo: Path, asked: Proposal) -> None:
    """From the next message on these settings are the ones to work with; approvals of other settings end."""
    seen = _read(silo / APPROVED)
    runs = seen["runs"] if seen is not None and seen["texts"] == dict(asked.texts) else []
    named = [] if asked.run in ("", REHEARSAL) else [asked.run]
    _keep(
        silo / APPROVED,
        json.dumps({"texts": dict(asked.texts), "runs": list(dict.fromkeys([*runs, *named]))}, indent=1),
    )
    (silo / PROPOSED).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        tree = json.loads(files.read(path, approval.LARGEST))
        texts = tree["texts"]
        runs = [str(name) for name in tree.get("runs", [])]
        if not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("its texts are none")
        return {"texts": dict(texts), "runs": runs, "run": str(tree.get("run", ""))}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it, and approve again what the server sends") from None


def _keep(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    files.write_whole(path, text)
    path.chmod(0o600)
