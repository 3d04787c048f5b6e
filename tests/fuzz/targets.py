"""Fuzz targets: each takes bytes, builds something hostile from them, and fails if the library answers with anything but a clear
refusal or a correct result. Run by hypothesis in the tests (tests/property/test_fuzz.py), or by atheris, guided by coverage:

    pip install atheris && python tests/fuzz/targets.py reports
"""

from __future__ import annotations

import datetime as dt
import json
import math
import shutil
import struct
import sys
import tempfile
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import feduca
from feduca import program
from feduca.client.behaviour import Behaviour
from feduca.client.offers import Global
from feduca.client.participation import Always
from feduca.core import rounds as loop
from feduca.core.memory import memories
from feduca.core.messages import together
from feduca.core.recording import Finished, client_record, round_record
from feduca.core.records import plain
from feduca.core.rounds import Server
from feduca.core.utility import Quadratic
from feduca.errors import CheckpointError, FeducaError, InputError
from feduca.federation import InProcess
from feduca.mechanisms import FedAvg, FedUCA
from feduca.recipes import schema as config
from feduca.runs import directory as runs
from feduca.runs.directory import RunDirectory
from feduca.studies.cells import cells
from feduca.trust import gate
from feduca.types import LocalSpec, Needs
from numpy_task import NumpyTask

FAMILY = Quadratic()
EXTREMES = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e-12, 1e-4, 0.5, 1e6, 1e9, 1e12, 1e154, 1e300, math.inf, -math.inf, math.nan)


class Draw:
    """Decisions out of bytes; zeros when they run out."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, n: int) -> int:
        return (self.byte() * 256 + self.byte()) % n

    def pick(self, options: Any) -> Any:
        return options[self.below(len(options))]

    def number(self) -> float:
        if self.byte() % 2:
            return self.pick(EXTREMES) * (1 if self.byte() % 2 else -1)
        return struct.unpack("<d", bytes(self.byte() for _ in range(8)))[0]

    def text(self) -> str:
        return bytes(self.byte() for _ in range(self.below(12))).decode("latin-1")

    def junk(self, depth: int = 0) -> Any:
        """Any kind of object a decoder might hand over, and some that none should."""
        kind = self.below(14 if depth < 3 else 9)
        if kind >= 12:
            return {self.text(): self.junk(depth + 1) for _ in range(self.below(3))}
        if kind >= 9:
            return [self.junk(depth + 1) for _ in range(self.below(4))]
        simple = (None, True, self.number(), self.text(), self.below(9) - 4, 10**400, object(), b"\x80\x04", 3 + 4j)
        return simple[kind]

    def array(self) -> Any:
        dtype = self.pick(("f4", "f8", "i8", "O", "U3", "c16", "f2", "?"))
        shape = self.pick(((4,), (4, 1), (0,), (3,), (), (2, 2), (5,)))
        value = self.number() if dtype in ("f4", "f8", "f2", "c16") else 0
        with np.errstate(all="ignore"):
            return np.full(shape, value, dtype=dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Reports


@cache
def scene(mechanism: str = "fedavg") -> tuple:
    """A federation of four after a round: server, state, what is asked next, and the honest answers."""
    task = NumpyTask()
    how = FedUCA(n_s=2) if mechanism == "feduca" else FedAvg()
    server = Server(how, memories["update"], FAMILY, LocalSpec(epochs=1), 9, seed=1, run="run-1")
    federation = InProcess(task, Behaviour(Always(), Global(), FAMILY, seed=1, needs=Needs(curve=True)))
    state = loop.begin(server, task.init(0), task.examples)
    state, _ = loop.advance(server, state, federation.exchange(loop.announce(server, state)))
    asked = loop.announce(server, state)
    return server, state, asked, federation.exchange(asked)


def message(client: int, mechanism: str = "fedavg") -> dict[str, Any]:
    """The honest message of a client, as a codec would hand it over."""
    _, _, asked, reports = scene(mechanism)
    return {
        "run": asked.run,
        "round": asked.round,
        "client": client,
        "status": "joined",
        "reason": "likes it",
        "theta": reports.theta[client].copy(),
        "gamma": float(reports.gamma[client]),
        "zeta": reports.zeta[client].tolist(),
        "measurements": {"own.accuracy": 0.5, "examples": 20, "train_loss": 0.4},
    }


def hostile(draw: Draw, client: int, mechanism: str) -> Any:
    """The honest message with something done to it."""
    raw: Any = message(client, mechanism)
    for _ in range(1 + draw.below(3)):
        if not isinstance(raw, dict):
            break
        key, what = draw.pick(sorted(raw) or ["run"]), draw.below(10)
        if what == 0:
            raw.pop(key, None)
        elif what == 1:
            raw[draw.text()] = draw.junk()
        elif what == 2:
            raw = draw.junk()
        elif what == 3:
            raw["theta"] = draw.array()
        elif what == 4:
            raw["theta"] = np.full(4, draw.number())
        elif what == 5:
            raw["gamma"] = draw.number()
        elif what == 6:
            raw["zeta"] = [draw.number() for _ in range(draw.pick((3, 3, 3, 2, 4, 0)))]
        elif what == 7:
            raw["measurements"] = {draw.pick(("own.accuracy", "examples", "told.x", "x", "capped")): draw.junk()}
        elif what == 8:
            raw["client"], raw["round"] = draw.below(6), draw.below(5)
        else:
            raw[key] = draw.junk()
    return raw


def reports(data: bytes, mechanism: str = "fedavg") -> str:
    """One of four silos sends something hostile. Returns its status."""
    draw = Draw(data)
    server, state, asked, honest = scene(mechanism)
    bad = draw.below(4)
    rows = [
        gate.read(hostile(draw, k, mechanism) if k == bad else message(k, mechanism), asked, k, FAMILY)
        for k in range(4)
    ]
    before, admitted = loop.admit(server, state, asked, together(rows, asked.round, asked.theta, FAMILY.size))
    after, _ = loop.advance(server, before, admitted.reports)
    others = np.arange(4) != bad
    assert list(np.array(admitted.reports.status)[others]) == ["joined"] * 3
    # Nothing of the other silos' state depends on what the bad one sent ...
    assert np.array_equal(after.gamma[others], honest.gamma[others])
    assert np.array_equal(after.zeta[others], honest.zeta[others])
    assert np.array_equal(after.remembered[others], (state.theta - honest.theta)[others])
    assert (after.last_joined[others] == asked.round).all()
    assert np.isfinite(after.theta).all()
    assert np.isfinite(after.announced.alpha).all()
    status = admitted.reports.status[bad]
    if status == "refused":  # ... and a refusal changes nothing of its own, and says why.
        assert admitted.reports.reason[bad].startswith("refused: ")
        assert len(admitted.reports.reason[bad]) > len("refused: ")
        assert after.gamma[bad] == state.gamma[bad]
        assert np.array_equal(after.zeta[bad], state.zeta[bad])
        assert np.array_equal(after.remembered[bad], state.remembered[bad])
        assert after.last_joined[bad] == state.last_joined[bad]
    else:
        assert status in ("joined", "declined")
        assert math.isfinite(after.gamma[bad])
    ended = Finished(server, before, after, after.pending, admitted)
    record = (round_record(ended, None, {}), client_record(ended))
    json.dumps([plain(part) for part in record], allow_nan=False)
    return status


# ---------------------------------------------------------------------------------------------------------------------
# Damaged files


def damaged(draw: Draw, content: bytes) -> bytes:
    """Bytes flipped, cut out, put in, or everything replaced."""
    content = bytearray(content)
    for _ in range(1 + draw.below(4)):
        at, what = draw.below(max(1, len(content))) if len(content) < 65536 else draw.below(65536), draw.below(6)
        if what == 0 and content:
            content[at] ^= 1 << draw.below(8)
        elif what == 1:
            del content[at:]
        elif what == 2:
            del content[at : at + 1 + draw.below(40)]
        elif what == 3:
            content[at:at] = bytes(draw.byte() for _ in range(1 + draw.below(8)))
        elif what == 4:
            content[at:at] = draw.pick(
                (b"\x00" * 64, b"[", b'"', b"{}", b"\xff\xfe", b"1e999", b"nan", b"\n", b"9" * 30)
            )
        else:
            content[:] = draw.pick(
                (b"", b"{}", b"[]", b"null", b"0", b'"x"', b"\x80\x04K\x01.", b"[" * 3000, bytes(content[:at]))
            )
    return bytes(content)


@cache
def small_run() -> tuple[Path, NumpyTask, dict[str, Any]]:
    """A finished little run on the disk, with the states of its last two checkpoints."""
    root = Path(tempfile.mkdtemp(prefix="feduca-fuzz-"))
    task = NumpyTask()
    result = feduca.run(
        {}, {"rounds": 3, "task.clients": 4, "local.epochs": 1, "utility.check": 4}, out=root, task=task
    )
    assert result.run_dir is not None
    truth = {}
    for point in (result.run_dir / "checkpoint").iterdir():
        found = runs.checkpoint.read(point)
        truth[point.name] = (found.state, found.clients)
    return result.run_dir, task, truth


def checkpoints(data: bytes) -> str:
    """Damage something in an unfinished run directory, then resume it: an error, or exactly a state that was."""
    draw = Draw(data)
    source, task, truth = small_run()
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / source.parent.name / source.name
        shutil.copytree(source, path)
        files = sorted(p for p in path.rglob("*") if p.is_file())
        # Mostly the checkpoints themselves; sometimes the records they stand on.
        files = [p for p in files if "checkpoint" in p.parts] * 3 + [p for p in files if "checkpoint" not in p.parts]
        for _ in range(1 + draw.below(3)):
            target = draw.pick(files)
            if target.exists():
                target.unlink() if draw.below(12) == 0 else target.write_bytes(damaged(draw, target.read_bytes()))
        config_hash, _, seed = source.name.rpartition("-s")
        with RunDirectory(Path(root), source.parent.name, config_hash, int(seed)) as directory:
            try:
                resumed = directory.resume(task.init(0), task.silos)
            except CheckpointError:
                return "refused"
        assert resumed is not None
        state, clients = truth[f"round-{resumed.state.round - 1:08d}"]
        assert same(resumed.state, state)
        assert same(resumed.clients, clients)
        assert len(resumed.rounds) == len(resumed.records) == state.round - 1
        return f"round {state.round - 1}"


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, through dataclasses, mappings, lists and arrays."""
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b) or (a != a and b != b)


def run_directories(data: bytes) -> str:
    """Damage a finished run directory, then read it and ask to resume it: a result or one clear line."""
    draw = Draw(data)
    source, task, _ = small_run()
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / source.parent.name / source.name
        shutil.copytree(source, path)
        files = sorted(p for p in path.iterdir() if p.is_file())
        for _ in range(1 + draw.below(2)):
            target = draw.pick(files)
            if target.exists():
                target.unlink() if draw.below(12) == 0 else target.write_bytes(damaged(draw, target.read_bytes()))
        answers = []
        for ask in (lambda: runs.load(path).row(), lambda: feduca.resume(path, task=task).row()):
            try:
                answers.append("read" if ask() else "")
            except InputError as error:
                assert_one_line(error)
                answers.append("refused")
        return " ".join(answers)


# ---------------------------------------------------------------------------------------------------------------------
# Configs and programs


@cache
def recipe_texts() -> list[bytes]:
    folder = Path(config.__file__).parent
    return [path.read_bytes() for path in sorted(folder.glob("*.toml"))]


LINES = (
    b"rounds = -1", b"rounds = 1e9", b"name = 1979-05-27", b"name = '../x'", b"seeds = []", b"[task]\nclients = 'ten'",
    b"[mechanism]\nname = 'feduca'\ndelta = nan", b"[mechanism]\nname = 3", b"[mechanism]\nn_s = 1e400", b"task = 3",
    b"[gate]\nnorm = inf", b"[[compare]]\nset = 3", b"[[compare]]\nlabel = 'x'\nset = { 'a.b.c' = 1 }", 
    b"[reporting]\nclients = [99]",
    b"[task]\nhidden = [[1]]", b"[aggregation]\ntrim = 0.5", b"[checkpoint]\nevery_s = -1", b"[local]\nlr = 0", b"mechanism = []",
)  # fmt: skip


def configs(data: bytes) -> str:
    """A damaged or nonsensical recipe: validated, or refused in one line."""
    draw = Draw(data)
    text = draw.pick(recipe_texts())
    for _ in range(draw.below(3)):
        text = damaged(draw, text)
    for _ in range(draw.below(3)):
        text = text + b"\n" + draw.pick(LINES) if draw.byte() % 2 else draw.pick(LINES) + b"\n" + text
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "recipe.toml"
        path.write_bytes(text)
        try:
            recipe = config.load(path)
            if len(recipe.compare) <= 12 and draw.below(8) == 0:
                cells(recipe)
        except FeducaError as error:
            assert_one_line(error)
            answer = "refused"
        else:
            answer = "accepted"
            again = config.Recipe.model_validate(recipe.model_dump())
            assert again.hash() == recipe.hash()
        keys = ("rounds", "mechanism.name", "task.clients", "x.y.z", "mechanism", "task", "", ".", "compare", "seeds.0")
        setting = draw.pick((f"{draw.pick(keys)}={draw.text()}", draw.text(), f"{draw.pick(keys)}={draw.number()}"))
        try:
            config.load("quickstart", dict([config.parse_setting(setting)]))
        except FeducaError as error:
            assert_one_line(error)
        return answer


def programs(data: bytes) -> str:
    """Any numbers as a participation program: certified, admitted to be inaccurate, or refused."""
    draw = Draw(data)
    n, n_s = 1 + draw.below(5), 1 + draw.below(4)
    tame = (
        draw.byte() % 4 > 0
    )  # mostly programs that are some, with numbers as large and small as the gate lets through

    def number(default: float) -> float:
        value = draw.number()
        return value if not tame or abs(value) <= gate.LARGEST else default

    zeta: Any = [[number(1.0), number(0.5), number(0.5)] for _ in range(n)]
    if tame:
        zeta = [[abs(a) or 1e-4, b, c] for a, b, c in zeta]
    gamma: Any = [number(0.5) if draw.byte() % 3 else None for _ in range(n)]
    s: Any = [abs(number(1.0)) for _ in range(n_s)]
    if tame and 0 < (total := sum(s)) < math.inf:
        s = [x / total for x in s]
    content = {"zeta": zeta, "gamma": gamma, "s": s, "eps": draw.pick((0, 0.01, number(0.0)))}
    if draw.below(6) == 0:
        content[draw.pick((*content, "beta", "family", draw.text()))] = draw.junk()
    options = {name: draw.pick(values) for name, values in (
        ("selection", ("centre", "closest", "margin")), ("objective", ("squared", "linear", "participation")),
    )}  # fmt: skip
    try:
        answer = program.allocate(**content, **options) if set(content) >= {"zeta", "gamma", "s"} else None
    except InputError as error:
        assert_one_line(error)
        return "refused"
    except TypeError as error:  # an unknown keyword is Python's to refuse
        if "unexpected keyword" in str(error) or "multiple values" in str(error):
            return "refused"
        raise
    if answer is None:
        return "refused"
    assert np.isfinite(answer.alpha).all()
    assert answer.alpha.min() >= -1e-9
    assert abs(answer.alpha.sum() - 1) < 1e-6
    assert answer.status == "optimal" or answer.reason
    return answer.status


POLICIES = (
    b"veto = false", b"approve = true", b"rounds = 3", b"hours = ['Mon-Fri 19:00-07:00', 'Sat']", b"epsilon = 3",
    b"rule = 'loss'", b"least_gain = 0.1", b"examples = 5", b"veto = 'no'", b"hours = ['\\u0000']", b"rounds = 1e9",
    b"least_gain = inf", b"[veto]", b"a.b = 1",
)  # fmt: skip


def policies(data: bytes) -> str:
    """A damaged policy of a silo: heeded whole, or an error in one line."""
    from feduca.flower import policy

    draw = Draw(data)
    text = b"\n".join(draw.pick(POLICIES) for _ in range(draw.below(4)))
    for _ in range(draw.below(3)):
        text = damaged(draw, text)
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / policy.FILE).write_bytes(text)
        try:
            found = policy.read(Path(root))
        except FeducaError as error:
            assert_one_line(error)
            return "refused"
        found.shut(dt.datetime(2026, 11, 2, draw.below(24)), draw.below(10))
        assert policy.Policy(**found.model_dump()) == found
        return "accepted"


def assert_one_line(error: FeducaError) -> None:
    text = str(error)
    assert text
    assert "\n" not in text, text


TARGETS = {
    "reports": reports,
    "checkpoints": checkpoints,
    "run_directories": run_directories,
    "configs": configs,
    "programs": programs,
    "policies": policies,
}


def main() -> None:
    import atheris  # type: ignore[import-not-found]

    target = TARGETS[sys.argv.pop(1)]
    atheris.instrument_all()
    atheris.Setup(sys.argv, lambda data: target(data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
