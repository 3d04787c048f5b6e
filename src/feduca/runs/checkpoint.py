"""Checkpoints: everything a run needs to go on, written so that a crash at any moment leaves a usable one behind.

    checkpoint/round-00000007/state.json          words, numbers and the names of arrays, with a checksum over all of it
    checkpoint/round-00000007/arrays.safetensors  the arrays; state.json holds their checksum
    checkpoint/rows/own.rows                      where few of many silos are asked: their rows (store.py)

A checkpoint is written into a hidden folder, flushed to the disk and renamed, so it exists whole or not at all; the last two are
kept, or more, so that a damaged one has a predecessor. Nothing is ever unpickled. What goes in is a tree (see `Tree`): the
server's state, the clients' memory in a simulation, a silo's own memory in a deployment.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from feduca.core.rows import Rows
from feduca.errors import CheckpointError, InputError
from feduca.runs import files, store
from feduca.runs.store import OnDisk
from feduca.types import Allocation, Array, Certificate, ClientMemory, ServerState

T = TypeVar("T")

# None, bool, int, float, str, a list or a dict (string keys) of trees, a numpy array of numbers, a torch tensor, or one of the
# dataclasses in `_TYPES`, or Rows. Tuples come back as lists. This is what a mechanism's state must be made of, too.
Tree = Any

SCHEMA = 1
KEPT = 2
SMALL = 32 << 20  # bytes up to which `every_s` left open means every round ...
SELDOM = 300.0  # ... and the seconds between two checkpoints of anything larger

MOST = 256 << 20  # bytes of state.json

_STATE, _ARRAYS = "state.json", "arrays.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands after a round."""

    run: str  # recipe hash and seed: a checkpoint never continues another run
    state: ServerState
    clients: Mapping[str, Array]  # Federation.snapshot()
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # record file -> {"bytes", "sha256"} so far


_TYPES = {cls.__name__: cls for cls in (Checkpoint, ServerState, Allocation, Certificate, ClientMemory)}


# ---------------------------------------------------------------------------------------------------------------------
# On disk


def write(folder: Path, number: int, tree: Tree, keep: int = KEPT) -> Path:
    """Write `tree` as checkpoint `number` of `folder`: whole or not at all, and on the disk when this returns.

    Raises OSError when the disk is full or read-only; older checkpoints are untouched then.
    """
    from safetensors.numpy import save_file

    arrays: dict[str, np.ndarray] = {}
    encoded = _encode(tree, arrays, "", folder / store.FOLDER)
    final = folder / _name(number)
    part = folder / f".{final.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.remove(part)
        part.mkdir()
        save_file(arrays, part / _ARRAYS)
        body = {"number": number, "tree": encoded, "arrays": _file_digest(part / _ARRAYS)}
        text = json.dumps({"schema": SCHEMA, "sha256": _digest(body), "body": body}, allow_nan=False)
        (part / _STATE).write_text(text, encoding="utf-8")
        for path in (part / _ARRAYS, part / _STATE, part):
            _sync(path)
        files.remove(final)  # only ever a damaged one: a run goes on from the newest that can be read
        part.rename(final)
        _sync(folder)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if type(error).__name__ == "SafetensorError":  # how a full disk looks from there
            raise OSError(None, str(error)) from None
        raise
    for stale in existing(folder)[keep:]:
        shutil.rmtree(stale, ignore_errors=True)
    return final


def read(path: Path, like: Array | None = None, rows: OnDisk | None = None) -> Tree:
    """The tree that `write` put at `path`. Tensors come back on the device of `like` (on the CPU without it).

    `rows` are the run's files of rows, where it is to go on: whoever writes there has to know what checkpoints know.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    with _complaining(path, SafetensorError):
        body = _body(path)
        if not isinstance(body["arrays"], str) or files.digest(path / _ARRAYS) != body["arrays"]:
            raise CheckpointError(f"{path}/{_ARRAYS} does not match its checksum")
        rows = rows or OnDisk(path.parent / store.FOLDER)
        return _decode(body["tree"], load_file(path / _ARRAYS), like, rows)


def records(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """What the checkpoint of a run at `path` knows of the record files: {"bytes", "sha256"} of each. Reads no arrays."""
    with _complaining(path):
        found = _decode(_body(path)["tree"]["files"], {}, None)
        return {str(name): {"bytes": int(want["bytes"]), "sha256": want["sha256"]} for name, want in found.items()}


def run_of(path: Path) -> str:
    """Which run the checkpoint at `path` belongs to. Reads no arrays."""
    with _complaining(path):
        return str(_decode(_body(path)["tree"]["run"], {}, None))


def _body(path: Path) -> dict[str, Any]:
    """What state.json holds, provided that its checksum says so."""
    if path.is_symlink() or path.parent.is_symlink():
        raise CheckpointError(f"{path} is a link; links in a run directory are not followed")
    whole = json.loads(files.read(path / _STATE, MOST))
    if whole["schema"] != SCHEMA:
        raise CheckpointError(
            f"{path} has schema {str(whole['schema'])[:40]!r}, this version reads {SCHEMA}; use a version that does"
        )
    body = whole["body"]
    if _digest(body) != whole["sha256"] or path.name != _name(body["number"]):
        raise CheckpointError(f"{path}/{_STATE} does not match its checksum")
    return body


@contextlib.contextmanager
def _complaining(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Whatever goes wrong while a checkpoint is read is a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except InputError as error:  # a link or a pipe where a file should be
        raise CheckpointError(str(error)) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, *others) as error:
        raise CheckpointError(f"{path} cannot be read ({_short(error)})") from None


def newest(folder: Path, use: Callable[[Path], T]) -> tuple[T | None, list[str]]:
    """The newest checkpoint that `use` accepts (it raises CheckpointError otherwise), and what was wrong with newer ones."""
    complaints = []
    for path in existing(folder):
        try:
            return use(path), complaints
        except CheckpointError as error:
            complaints.append(str(error))
    return None, complaints


def existing(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first, readable or not."""
    try:
        return sorted((p for p in folder.iterdir() if _number(p) is not None), key=lambda p: -(_number(p) or 0))
    except OSError:
        return []


def remains(folder: Path) -> list[Path]:
    """The same, what a crash may have left of one that was being written, and the files of rows."""
    rows = folder / store.FOLDER
    return [*existing(folder), *folder.glob(".round-*.part"), *([rows] if rows.is_symlink() or rows.exists() else [])]


def numbered(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by the round they were written after, readable or not."""
    return {_number(path) or 0: path for path in existing(folder)}


def discard_after(folder: Path, number: int) -> None:
    """Remove what is newer than the checkpoint a run goes on from: it was damaged, or is not wanted."""
    for path in existing(folder):
        if (_number(path) or 0) > number:
            files.remove(path)


class Schedule:
    """When to write one: every `every_s` seconds (0 = every round), and after the last round in any case.

    `every_s = None` means every round while a checkpoint is small (`SMALL`), otherwise every `SELDOM` seconds.
    """

    def __init__(self, every_s: float | None) -> None:
        self._every_s = every_s
        self._last: float | None = None
        self._bytes = 0

    def due(self) -> bool:
        if self._last is None:
            return True
        every = self._every_s if self._every_s is not None else (0.0 if self._bytes <= SMALL else SELDOM)
        return time.monotonic() - self._last >= every

    def wrote(self, path: Path, rows: int = 0) -> None:
        """One is at `path`, with so many bytes of rows since the last one."""
        self._last = time.monotonic()
        self._bytes = (path / _ARRAYS).stat().st_size + rows


# ---------------------------------------------------------------------------------------------------------------------
# Trees


def _encode(tree: Tree, arrays: dict[str, np.ndarray], where: str, home: Path = Path()) -> Any:
    """JSON-ready; arrays are put aside under the path that leads to them, and rows lie in `home`."""
    if tree is None or isinstance(tree, bool | str):
        return tree
    if isinstance(tree, int | np.integer):
        return int(tree)
    if isinstance(tree, float | np.floating):
        return float(tree) if math.isfinite(tree) else {"$float": str(float(tree))}
    if isinstance(tree, np.bool_):
        return bool(tree)
    if isinstance(tree, list | tuple):
        return [_encode(item, arrays, f"{where}.{i}", home) for i, item in enumerate(tree)]
    if isinstance(tree, Rows):
        about, parts = store.described(tree, home)
        kind = _host(tree.book.empty)[1]
        kinds = {name: kind if name in ("rows", "empty") else "numpy" for name in parts}
        return {"$rows": about} | {k: _aside(x, kinds[k], arrays, f"{where}.{k}") for k, x in parts.items()}
    if is_dataclass(tree) and type(tree).__name__ in _TYPES:
        return {"$type": type(tree).__name__} | _encode(vars(tree), arrays, where, home)
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str) or key.startswith("$"):
                raise CheckpointError(
                    f"a checkpoint cannot hold the key {key!r} (at {where or 'the top'}); use a plain string"
                )
        return {key: _encode(value, arrays, f"{where}.{key}", home) for key, value in tree.items()}
    host, kind = _host(tree)
    if host is None or host.dtype.kind not in "biuf":
        what = type(tree).__name__ if host is None else f"array of {host.dtype}"
        raise CheckpointError(
            f"a checkpoint cannot hold a {what} (at {where or 'the top'}); use numbers, words or arrays"
        )
    return _aside(host, kind, arrays, where)


def _aside(host: np.ndarray, kind: str, arrays: dict[str, np.ndarray], where: str) -> dict[str, str]:
    name = where.lstrip(".") or "array"
    arrays[name] = np.ascontiguousarray(host).reshape(host.shape)
    return {"$array": name, "kind": kind}


def _decode(node: Any, arrays: Mapping[str, np.ndarray], like: Array | None, rows: OnDisk | None = None) -> Tree:
    if isinstance(node, list):
        return [_decode(item, arrays, like, rows) for item in node]
    if not isinstance(node, dict):
        return node
    if "$float" in node:
        return float(node["$float"])
    if "$array" in node:
        return _device(arrays[node["$array"]], node["kind"], like)
    values = {key: _decode(value, arrays, like, rows) for key, value in node.items() if key != "$type"}
    if "$rows" in node and rows is not None:
        return store.read_back(values.pop("$rows"), values, rows)
    if "$type" not in node:
        return values
    cls = _TYPES[node["$type"]]
    names = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls)}
    if not values.keys() <= names.keys() or any(needed and name not in values for name, needed in names.items()):
        raise CheckpointError(
            f"a {cls.__name__} of another version of feduca; use that version, or repeat the run with --again"
        )
    return cls(**values)


def _host(x: Any) -> tuple[np.ndarray | None, str]:
    """A numpy view or copy, and what it was: `numpy`, or the dtype of a torch tensor."""
    if isinstance(x, np.ndarray):
        return x, "numpy"
    if not hasattr(x, "detach"):
        return None, ""
    return store.host(x), str(x.dtype)


def _device(x: np.ndarray, kind: str, like: Array | None) -> Array:
    if kind == "numpy":
        return x
    import torch  # only where a tensor was written

    dtype = getattr(torch, kind.removeprefix("torch."))
    return torch.from_numpy(x).to(device=getattr(like, "device", "cpu"), dtype=dtype)


# ---------------------------------------------------------------------------------------------------------------------


def _name(number: int) -> str:
    return f"round-{number:08d}"


def _number(path: Path) -> int | None:
    head, _, tail = path.name.partition("-")
    return int(tail) if head == "round" and len(tail) >= 8 and tail.isascii() and tail.isdigit() else None


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _short(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {text}".splitlines()[0][:200]
