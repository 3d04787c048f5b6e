"""Run directories of any size, written through the library's own writer, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feduca.api import recipe
from feduca.core.records import ClientRecord, RoundRecord, plain
from feduca.core.utility import Quadratic, nodes
from feduca.runs.directory import RunDirectory, summarise

LETTERS = {"j": "joined", "d": "declined", "a": "absent", "r": "refused", "l": "left"}


class Written:
    """A run directory that grows by one round at a time; remembers the statuses it wrote."""

    def __init__(
        self,
        root: Path,
        silos: Sequence[str],
        rounds: int,
        seed: int = 0,
        points: bool = False,
        alone: bool = False,
        judged: bool = False,
    ) -> None:
        settings = {"task.clients": len(silos), "utility.record_points": points}
        settings |= {"participation.against": "outside"} if judged else {}
        self.recipe = recipe("quickstart", settings, rounds=rounds, seed=seed)
        self.directory = RunDirectory(root, "synthetic", self.recipe.hash(), seed)
        self.path = self.directory.path
        self.silos, self.points = list(silos), points
        self.judged = judged  # answers were counted, and silos' private models score three points more than offers
        self.alone = alone  # models alone on untouched data are known, and the last silo leaves for good in round 3
        self.status: list[str] = []  # one string of letters per round
        self._rng = np.random.default_rng(seed)
        self._records: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        about = {"data": "synthetic"} | ({"examples": {"test": list(range(10, 10 + len(silos)))}} if alone else {})
        self.directory.begin(self.recipe.plain(), seed, self.silos, about)

    def round(self) -> None:
        """One more round of plausible records."""
        rng, n, t = self._rng, len(self.silos), len(self.status) + 1
        letters = "".join(rng.choice(list("jdar"), size=n, p=[0.7, 0.2, 0.07, 0.03])) if t > 1 else "j" * n
        if self.alone and t >= 3:
            letters = letters[:-1] + "l"
        self.status.append(letters)
        joined = letters.count("j")
        peak, top = rng.uniform(0.1, 0.9, n), rng.uniform(0.5, 0.95, n)
        a = rng.uniform(0.05, 0.4, n)
        zeta = np.stack([a, 2 * a * peak, top - a * peak**2], axis=1)
        alpha = rng.dirichlet(np.full(n, 5.0))
        family = Quadratic()
        gamma = family.value(zeta, alpha) - rng.normal(0, 0.005, n)
        accuracy = 1 - 0.8 * np.exp(-t / 20)
        r, _ = nodes(8)
        places = np.concatenate([r, np.linspace(0, 1, 21)])
        values = family.value(zeta, places[:, None]).T + rng.normal(0, 0.01, (n, len(places)))
        fallback = "tilt" if t % 17 == 0 else None
        record = RoundRecord(
            round=t, accuracy=accuracy, loss=1 - accuracy, participation=joined / n, joined=joined, satisfied=joined,
            status="optimal", reason="", fallback=fallback, slack=float(rng.exponential(0.01)), gap=1e-12,
            jensen=float(rng.exponential(0.01)), discrepancy=float(rng.uniform(0, 0.1)), discrepancy_bound=0.3,
            discrepancy_bound_expected=0.12, r2=0.8, smallest_cohort=joined, largest_staleness=1, concession=0.0,
            promise_kept=float(rng.normal(0, 0.02)), s=[0.2] * 5, bytes_down=1, bytes_up=1, seconds={"round": 0.1},
        )  # fmt: skip
        nothing = np.full(n, np.nan)
        without = np.linspace(0.4, 0.6, n) if self.alone else None
        deployed = None if without is None else without + np.where(np.arange(n) % 4 == 1, -0.05, 0.1)
        more, pairs = (0.03, _pairs(n)) if self.judged else (-0.1, None)
        clients = ClientRecord(
            round=t, status=[LETTERS[x] for x in letters], reason=[f"because of {x}" for x in letters], alpha=alpha,
            announced=alpha, slack=np.zeros(n), satisfied=np.ones(n, bool), zeta=zeta, gamma=gamma, eq1=np.ones(n, bool),
            eq2=np.ones(n), global_accuracy=top, own_accuracy=top + more, offered_accuracy=top, concession=np.zeros(n),
            evaluations=np.zeros(n), promised=top, promise_kept=rng.normal(0, 0.05, n), r2=np.full(n, 0.8),
            capped=np.zeros(n, bool), staleness=np.zeros(n), update_norm=nothing, test_deployed=deployed, test_own=None,
            test_global=None, test_alone=without, paired=pairs,
            utility_points={"places": places, "values": values} if self.points else None,
        )  # fmt: skip
        for kept, item in zip(self._records, (record, clients)):
            kept.append(plain(item))
        self.directory.append(self._records[0][-1], self._records[1][-1])

    def finish(self) -> Path:
        self.directory.finish(summarise(*self._records, self.silos))
        self.directory.__exit__(None, None, None)  # lets go of the folder
        return self.path


def _pairs(n: int) -> dict[str, Any]:
    """Answers of four kinds of silos in turn: better off, worse off, no different, and too few to say."""
    kinds = {
        "examples": [400, 400, 400, 12],
        "gained": [60, 10, 2, 1],
        "lost": [10, 60, 2, 2],
        "loss_gain": [0.3, -0.3, 0.0, 0.0],
        "loss_variance": [1.0, 1.0, 0.01, 1.0],
    }
    return {name: np.array([values[k % 4] for k in range(n)], float) for name, values in kinds.items()}


def written(
    root: Path,
    silos: int | Sequence[str],
    rounds: int,
    seed: int = 0,
    points: bool = False,
    alone: bool = False,
    judged: bool = False,
) -> Written:
    """A finished run of `rounds` rounds."""
    names = [f"silo-{k}" for k in range(silos)] if isinstance(silos, int) else silos
    run = Written(root, names, rounds, seed, points, alone, judged)
    for _ in range(rounds):
        run.round()
    run.finish()
    return run


def before_seals(path: Path) -> Path:
    """The same run as an earlier version left it: without checksums of its records."""
    import json
    import shutil

    status = json.loads((path / "status.json").read_text())
    kept = {key: status[key] for key in ("state", "summary")}
    (path / "status.json").write_text(json.dumps({"schema": 1, **kept}))
    shutil.rmtree(path / "checkpoint", ignore_errors=True)
    return path


def stretched(root: Path, silos: int, rounds: int, points: bool = False) -> Path:
    """A long run whose rounds repeat those of a short one: quick to write, as heavy to read."""
    import json

    path = written(root, silos, 20, points=points).path
    for name in ("rounds", "clients"):
        file = path / f"{name}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        bodies = [json.dumps(line)[len(f'{{"round": {line["round"]}') :] for line in lines]
        file.write_text("".join(f'{{"round": {t}{bodies[t % 20]}\n' for t in range(1, rounds + 1)))
    return before_seals(path)
