"""A silo's own disk: what it keeps between rounds, so that neither its own restart nor the server's loses anything.

    FOLDER/log.jsonl                       what the silo was offered, what it decided and why
    FOLDER/sent.jsonl                      what left the silo, message by message (warden.py)
    FOLDER/ledger.json                     how many messages it has worked on, and what epsilon each run may spend
    FOLDER/deployed.safetensors            what it deploys since its last decision (kept.py)
    FOLDER/veto                            if there: take no part; the file's text is for its operator
    FOLDER/leave                           if there: leave the federation for good
    FOLDER/privacy.json                    what all runs have spent of its examples' privacy; never taken back
    FOLDER/runs/RUN/round-000007.safetensors   the memory after round 7 and the answer given in it

One file per round, written whole or not at all (arrays in safetensors, words as JSON in its header; nothing is ever unpickled),
and the last two are kept: asked the same again, a silo gives the same answer; asked something else in the same round, because the
server had to go back, it starts from the memory before.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feduca.client.accounting import ORDERS
from feduca.client.memory import blank
from feduca.core.arrays import like
from feduca.errors import InputError, RunError
from feduca.federation.replay import pack, unpack
from feduca.runs import files
from feduca.types import Announcements, Array, ClientMemory, Reports, UtilityFamily

KEPT = 2
SENT, LEDGER, SPENT = "sent.jsonl", "ledger.json", "privacy.json"


@dataclass(frozen=True)
class Entry:
    """One round on the silo's disk."""

    round: int
    digest: str  # of the announcement that was answered
    memory: ClientMemory
    answer: Reports
    policy: str = ""  # the mark of the silo's policy that it was decided under


def digest(asked: Announcements, theta: np.ndarray) -> str:
    """A fingerprint of everything in an announcement."""
    words = [
        asked.run,
        asked.round,
        asked.clients.tolist(),
        asked.alpha_formed.tolist(),
        asked.alpha_announced.tolist(),
    ]
    words += [asked.s.tolist(), asdict(asked.local), str(theta.dtype)]
    beside = b"" if asked.control is None else np.ascontiguousarray(asked.control).tobytes()
    return hashlib.sha256(json.dumps(words).encode() + np.ascontiguousarray(theta).tobytes() + beside).hexdigest()


class SiloStore:
    """The files of one silo."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the silo's folder {folder} cannot be made: {error.strerror}; choose another") from None

    def word(self, name: str) -> str | None:
        """What the operator wrote into `veto` or `leave`; None where there is no such file."""
        path = self.folder / name
        return path.read_text(encoding="utf-8", errors="replace").strip()[:500] if path.is_file() else None

    def log(self, **what: Any) -> int:
        """One line of the silo's own log, with the time; returns its number."""
        line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **what})
        with (self.folder / "log.jsonl").open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if file.write(data := f"{line}\n".encode()) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)  # half a line would spoil the next one, too
                raise
            file.seek(0)
            return sum(1 for _ in file)

    def note_sent(self, **what: Any) -> None:
        """One line of what left the silo."""
        line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **what})
        with files.appending(self.folder / SENT) as file:
            file.write(f"{line}\n".encode())

    @property
    def worked(self) -> int:
        """How many messages that may train were passed on to an app, over all runs."""
        return self._ledger()[0]

    @property
    def promised(self) -> dict[str, float]:
        """The epsilon that each run let in may spend, where the policy bounds it."""
        return self._ledger()[1]

    def count(self, run: str = "", epsilon: float | None = None) -> None:
        """One more message passed on; of a run that may spend so much."""
        worked, promised = self._ledger()
        if epsilon is not None:
            promised[run] = max(epsilon, promised.get(run, 0.0))
        files.write_whole(self.folder / LEDGER, json.dumps({"worked": worked + 1, "epsilon": promised}))

    def _ledger(self) -> tuple[int, dict[str, float]]:
        path = self.folder / LEDGER
        try:
            tree = files.read_json(path)
            worked, promised = tree["worked"], {str(run): float(value) for run, value in tree["epsilon"].items()}
            if isinstance(worked, bool) or not isinstance(worked, int) or worked < 0:
                raise ValueError(f"worked is {worked!r}")
            if not all(value >= 0 for value in promised.values()):
                raise ValueError("an epsilon in it is no number from 0 on")
            return worked, promised
        except FileNotFoundError:
            return 0, {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(
                f'{path} is damaged ({error}); write {{"worked": N, "epsilon": {{}}}} into it, with the rounds it has worked'
            ) from None

    @property
    def runs(self) -> list[str]:
        """Runs of which there is a round on disk."""
        return sorted({path.parent.name for path in self.folder.glob("runs/*/round-*.safetensors")})

    def decided(self, run: str, round: int) -> tuple[str, str]:
        """The status of the answer in a round, and the mark of the policy it was given under; empty where there is none."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(self._path(run, round)), framework="numpy") as file:
                words = json.loads((file.metadata() or {})["feduca"])
            return str(words["answer"]["status"][0]), str(words.get("policy", ""))
        except (SafetensorError, KeyError, ValueError, TypeError, OSError, InputError):
            return "", ""

    def rounds(self, run: str) -> list[int]:
        """Rounds of a run on disk, oldest first."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self._run(run).glob("round-*.safetensors"))

    def load(self, run: str, round: int, theta: Array) -> Entry:
        """One round's entry; arrays become `theta`'s kind where they are models."""
        from safetensors import SafetensorError, safe_open

        path = self._path(run, round)
        try:
            with safe_open(str(path), framework="numpy") as file:
                words = json.loads((file.metadata() or {})["feduca"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            answer = unpack(_below(arrays, "answer/"), words["answer"])
            extra = {
                name: like(theta, value) if value.shape[1:] == tuple(theta.shape) else value  # models, and numbers
                for name, value in _below(arrays, "extra/").items()
            }
            kept = _below(arrays, "memory/")
            models = {name: like(theta, kept.pop(name)) for name in ("own", "contributed")}
            memory = ClientMemory(**kept, **models, extra=extra)
            return Entry(round, words["digest"], memory, answer, words.get("policy", ""))
        except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
            raise InputError(
                f"{path} is damaged ({error}); move it away, the silo then starts from the one before"
            ) from None

    def spent(self) -> np.ndarray | None:
        """The curves [2, orders] that all runs have spent of this silo's privacy (client/privacy.py); None before the first."""
        path = self.folder / SPENT
        if not path.exists():
            return None
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            curves = np.array(kept["curves"], float)
            if kept["orders"] != list(ORDERS) or curves.shape != (2, len(ORDERS)) or not (curves >= 0).all():
                raise ValueError("it is of another version, or not a ledger")
            return curves
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise InputError(
                f"{path} cannot be read ({error}), so nobody knows what is left of this silo's privacy budget; do not take"
                " part: an older backup of it would give back epsilon that is spent"
            ) from None

    def spend(self, curves: np.ndarray) -> None:
        """Write down what is spent, all runs together, before anything of it is sent; nothing of it ever falls."""
        new, before = np.asarray(curves, float).reshape(2, -1), self.spent()
        if not (new >= 0).all():
            raise RunError("this round's privacy costs are no numbers from 0 on; it is not answered: report this")
        new = new if before is None else np.maximum(before, new)
        text = json.dumps({"orders": list(ORDERS), "curves": new.tolist()})
        files.write_whole(self.folder / SPENT, text)

    def save(self, run: str, entry: Entry) -> None:
        """Write one round, whole or not at all, and forget those before the last two."""
        from safetensors.numpy import save

        answer, words = pack(entry.answer)
        arrays = {f"answer/{name}": value for name, value in answer.items()}
        arrays |= {f"memory/{name}": _plain(v) for name, v in vars(entry.memory).items() if name != "extra"}
        arrays |= {f"extra/{name}": _plain(value) for name, value in entry.memory.extra.items()}
        told = {"digest": entry.digest, "answer": words} | ({"policy": entry.policy} if entry.policy else {})
        data = save(arrays, metadata={"feduca": json.dumps(told)})
        path = self._path(run, entry.round)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".part{os.getpid()}")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:  # a full disk: it is not filled further, round by round
            part.unlink(missing_ok=True)
            raise
        for old in self.rounds(run)[:-KEPT]:
            self._path(run, old).unlink(missing_ok=True)

    def before(self, run: str, round: int, theta: Array, family: UtilityFamily) -> ClientMemory:
        """The silo's memory when `round` begins: after its last round before that one, blank if there was none."""
        earlier = [t for t in self.rounds(run) if t < round]
        return self.load(run, earlier[-1], theta).memory if earlier else blank(theta, 1, family)

    def _run(self, run: str) -> Path:
        if not run or not all(c.isalnum() or c in "-_." for c in run) or run.startswith("."):
            raise InputError(f"{run[:80]!r} is not the name of a run")
        return self.folder / "runs" / run

    def _path(self, run: str, round: int) -> Path:
        return self._run(run) / f"round-{round:06d}.safetensors"


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _plain(value: Array) -> np.ndarray:
    return np.ascontiguousarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
