"""What robustness costs and buys: the figures of docs/robustness.md and SECURITY.md.

    python benchmarks/robustness.py [faults|outliers|natural|images|attack|disclosure|checkpoints|plausibility|all] [--smoke]
    python benchmarks/robustness.py tables

Writes `benchmarks/results/robustness.json` (each part replaces its own entry); `--smoke` runs all of it small and writes nothing.
`tables` puts the committed figures into the two documents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import feduca
from feduca import api
from feduca.core import rounds as loop
from feduca.errors import RunError
from feduca.federation import Faulty, Recording
from feduca.federation.faults import KINDS
from feduca.recipes.build import build
from feduca.runs import checkpoint
from feduca.runs.directory import environment
from feduca.studies.cells import Cell, cells

RESULT = Path(__file__).parent / "results" / "robustness.json"
BAD = (1, 4, 7)  # three of the ten silos
LIGHT = {"local.epochs": 2, "local.batch_size": 20}  # 200 rounds make up for less work in each


def _mean_std(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}


# ---------------------------------------------------------------------------------------------------------------------
# A third of the silos misbehave

PROTECTIONS: dict[str, dict[str, Any]] = {
    "gate": {},
    "gate, norm bound": {"gate.norm": "observed"},
    "gate, clip to median norm": {"aggregation.clip_median": 1.0},
    "gate, trimmed mean .3": {"aggregation.kind": "trimmed", "aggregation.trim": 0.3},
    "gate, median": {"aggregation.kind": "median"},
    "gate, clip, trimmed mean .3": {
        "aggregation.clip_median": 1.0,
        "aggregation.kind": "trimmed",
        "aggregation.trim": 0.3,
    },
}
SPLITS = {"different classes (5 of 10 each)": 5, "all classes": 10}


def _one(settings: dict[str, Any], seed: int, bad: bool, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    recipe = api.recipe("quickstart", {"gate.outlier": 0, **settings}, seed=seed)  # each protection by itself
    experiment = build(recipe, seed)
    federation = Faulty(experiment.federation, BAD, seed, kinds=kinds) if bad else experiment.federation
    accuracies, largest, refused, joined = [], 0.0, 0, []
    try:
        steps = loop.steps(
            experiment.server, experiment.theta, experiment.task.examples, federation, evaluate=experiment.task.test
        )
        for record, clients, _ in steps:
            accuracies.append(record.accuracy)
            largest = max(largest, float(np.nanmax(clients.update_norm)))
            refused += sum(status == "refused" for status in clients.status)
            joined.append(record.joined)
        ended = None
    except RunError as error:
        ended = str(error)
    return {
        "accuracy": float(np.mean(accuracies[-10:])) if ended is None else None,
        "best": max(accuracies, default=None),
        "rounds": len(accuracies),
        "ended": ended,
        "largest_norm": largest,
        "refused": refused,
        "participation": float(np.mean(joined)) / 10 if joined else None,
    }


def faults(smoke: bool) -> dict[str, Any]:
    rounds, seeds = (4, [0]) if smoke else (200, [0, 1, 2])
    out: dict[str, Any] = {
        "rounds": rounds,
        "seeds": seeds,
        "silos": 10,
        "misbehaving": list(BAD),
        "local": LIGHT,
        "splits": {},
    }
    for split, classes in SPLITS.items():
        base = {
            "rounds": rounds,
            **LIGHT,
            "task.classes_per_client": classes,
            "mechanism.name": "fedavg",
            "participation.rule": "always",
        }
        rows: dict[str, Any] = {}
        bounds: dict[int, float] = {}
        for name in PROTECTIONS:
            for bad in (False, True):
                results = []
                for seed in seeds:
                    extra = dict(PROTECTIONS[name])
                    if extra.get("gate.norm") == "observed":  # what an operator would read off a clean run's records
                        extra["gate.norm"] = 1.5 * bounds[seed]
                    result = _one({**base, **extra}, seed, bad)
                    if name == "gate" and not bad:
                        bounds[seed] = result["largest_norm"]
                    results.append(result)
                key = "faulty" if bad else "clean"
                rows.setdefault(name, {})[key] = _mean_std([r["accuracy"] for r in results]) | {
                    "refused_per_round": float(np.mean([r["refused"] for r in results])) / rounds
                }
                print(split, "|", name, "|", key, rows[name][key], flush=True)
        unprotected = [_one({**base, "gate.on": False}, seed, True) for seed in seeds]
        rows["none"] = {
            "faulty": {"ended": [r["ended"] for r in unprotected], "rounds": [r["rounds"] for r in unprotected]}
        }
        out["splits"][split] = rows
    # The same faults under FedUCA with its own rule, where silos also judge by Eq. 2.
    rows = {}
    for name in ("gate", "gate, clip to median norm", "gate, median"):
        for bad in (False, True):
            results = [_one({"rounds": rounds, **LIGHT, **PROTECTIONS[name]}, seed, bad) for seed in seeds]
            rows.setdefault(name, {})["faulty" if bad else "clean"] = _mean_std([r["accuracy"] for r in results]) | {
                "participation": float(np.mean([r["participation"] for r in results]))
            }
        print("FedUCA |", name, rows[name], flush=True)
    out["feduca_eq2_different_classes"] = rows
    return out


def attack(smoke: bool) -> dict[str, Any]:
    """The same three silos push the other way in *every* round: their update with the opposite sign, ten times as long."""
    rounds, seeds = (3, [0]) if smoke else (200, [0, 1])
    base = {"rounds": rounds, **LIGHT, "mechanism.name": "fedavg", "participation.rule": "always"}
    rows: dict[str, Any] = {}
    for name in ("gate", "gate, clip to median norm", "gate, median", "gate, clip, trimmed mean .3"):
        for split, classes in SPLITS.items():
            settings = {**base, **PROTECTIONS[name], "task.classes_per_client": classes}
            results = [_one(settings, seed, True, ("reversed",)) for seed in seeds]
            accuracy = [r["accuracy"] for r in results if r["accuracy"] is not None]
            rows.setdefault(name, {})[split] = {
                "accuracy": _mean_std(accuracy) if accuracy else None,
                "ended": [r["ended"] for r in results],
                "refused_per_round": float(np.mean([r["refused"] / max(1, r["rounds"]) for r in results])),
            }
            print("attack |", name, "|", split, rows[name][split], flush=True)
    return {"rounds": rounds, "seeds": seeds, "kinds": ["reversed"], "rows": rows}


# ---------------------------------------------------------------------------------------------------------------------
# What a curve and a threshold reveal

BLURS: dict[str, dict[str, float]] = {
    "exact": {},
    "round .02": {"reporting.round": 0.02},
    "round .05": {"reporting.round": 0.05},
    "round .1": {"reporting.round": 0.1},
    "noise .02": {"reporting.noise": 0.02},
    "noise .05": {"reporting.noise": 0.05},
    "noise .1": {"reporting.noise": 0.1},
}


def _disclosed(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """One quickstart run: what the server saw, and the truth about every silo's labels."""
    recipe = api.recipe("quickstart", settings, seed=seed)
    experiment = build(recipe, seed)
    federation = Recording(experiment.federation)
    items = list(
        loop.steps(
            experiment.server, experiment.theta, experiment.task.examples, federation, evaluate=experiment.task.test
        )
    )
    task: Any = experiment.task
    labels = task.pool.y.cpu().numpy()
    counts = np.stack([np.bincount(labels[silo.rows["train"]], minlength=10) for silo in task.members])
    told = np.stack([np.column_stack([r.zeta, r.gamma]) for r in federation.reports])  # [T, N, 4]
    first = federation.reports[0]
    bias = np.asarray(first.theta[:, -10:]) - np.asarray(
        experiment.theta[-10:]
    )  # round 1, everybody joins: output biases
    return {
        "told": told,
        "shares": counts / counts.sum(1, keepdims=True),
        "bias": bias,
        "participation": float(np.mean([record.participation for record, _, _ in items])),
        "accuracy": float(np.mean([record.accuracy for record, _, _ in items[-10:]])),
    }


def _same_group(features: np.ndarray, groups: np.ndarray) -> float:
    """Leave one silo out: is its nearest neighbour among the others of its own class group?"""
    scaled = (features - features.mean(0)) / np.maximum(features.std(0), 1e-9)
    distance = np.linalg.norm(scaled[:, None] - scaled[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    return float((groups[distance.argmin(1)] == groups).mean())


def _entropy(shares: np.ndarray) -> np.ndarray:
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return -(shares * logs).sum(1)


def disclosure(smoke: bool) -> dict[str, Any]:
    """How well the server guesses a silo's labels from (a, b, c, gamma), exact or blurred."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.model_selection import GroupKFold, cross_val_predict

    seeds, rounds = (range(3), 4) if smoke else (range(8), 30)
    out: dict[str, Any] = {"seeds": len(seeds), "rounds": rounds, "chance_same_group": 4 / 9, "options": {}}
    for name, blur in BLURS.items():
        runs = [_disclosed({"rounds": rounds, **blur}, seed) for seed in seeds]
        groups = [run["shares"][:, run["shares"][0] > 0].sum(1) > 0.5 for run in runs]  # with silo 0's classes, or not
        one = [_same_group(run["told"][-1], g) for run, g in zip(runs, groups)]
        every = [_same_group(run["told"].transpose(1, 0, 2).reshape(10, -1), g) for run, g in zip(runs, groups)]
        average = [_same_group(run["told"].mean(0), g) for run, g in zip(runs, groups)]
        # The shape of a silo's own label distribution, learnt on other federations and applied to this one.
        told = np.concatenate([run["told"].mean(0) for run in runs])
        truth = np.concatenate([_entropy(run["shares"]) for run in runs])
        which = np.repeat(np.arange(len(runs)), 10)
        folds = GroupKFold(min(4, len(runs)))
        guess = cross_val_predict(RandomForestRegressor(200, random_state=0), told, truth, groups=which, cv=folds)
        r2 = 1 - ((truth - guess) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()
        out["options"][name] = {
            "same_group_one_round": _mean_std(one),
            "same_group_mean_of_rounds": _mean_std(average),
            "same_group_all_rounds": _mean_std(every),
            "label_entropy_r2": float(r2),
            "participation": _mean_std([run["participation"] for run in runs]),
            "accuracy": _mean_std([run["accuracy"] for run in runs]),
        }
        if name == "exact":
            out["same_group_from_first_model"] = _mean_std(
                [_same_group(run["bias"], g) for run, g in zip(runs, groups)]
            )
        print(name, out["options"][name], flush=True)
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints


def checkpoints(smoke: bool) -> dict[str, Any]:
    """Seconds of a run with a checkpoint every round and with one at its end only, side by side; and of one by its size."""
    import torch

    pairs = 1 if smoke else 5
    rounds = 3 if smoke else 30
    seconds: dict[str, list[float]] = {"every round": [], "last round only": []}
    for _ in range(pairs):
        for name, every in (("every round", 0), ("last round only", 1e9)):
            with tempfile.TemporaryDirectory(dir=".") as out:
                began = time.perf_counter()
                feduca.run("quickstart", {"checkpoint.every_s": every}, rounds=rounds, out=out)
                seconds[name].append(time.perf_counter() - began)
    sizes = {}
    for megabytes in (1,) if smoke else (1, 10, 100, 1000):
        tree = {"own": torch.zeros(megabytes * 2**20 // 4)}
        with tempfile.TemporaryDirectory(dir=".") as folder:
            path = Path(folder)
            times = []
            for i in range(3):
                began = time.perf_counter()
                last = checkpoint.write(path, i, tree)
                times.append(time.perf_counter() - began)
            began = time.perf_counter()
            checkpoint.read(last)
            sizes[f"{megabytes} MiB"] = {
                "write_s": float(np.median(times)), "read_s": time.perf_counter() - began
            }  # fmt: skip
    middle = {name: float(np.median(values)) for name, values in seconds.items()}
    return {
        "quickstart_rounds": rounds,
        "pairs": pairs,
        "seconds": middle,
        "ratio": middle["every round"] / middle["last round only"],
        "by_size": sizes,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Plausibility


def plausibility(smoke: bool) -> dict[str, Any]:
    """How often honest silos are flagged, and how often a silo that inflates its threshold is."""
    seeds, rounds = ([0], 4) if smoke else (range(5), 30)
    out: dict[str, Any] = {"seeds": len(seeds), "rounds": rounds, "flagged_share": {}}
    for share in (0.0, 0.05, 0.1, 0.2):
        settings = {"reporting.kind": "inflate", "reporting.share": share, "reporting.clients": [3], "rounds": rounds}
        liar, honest = [], []
        for seed in seeds:
            result = feduca.run("quickstart", settings, seed=seed)
            flags = np.array([[bool(text) for text in record["advice"] or [""] * 10] for record in result.clients])
            liar.append(flags[:, 3].mean())
            honest.append(np.delete(flags, 3, axis=1).mean())
        out["flagged_share"][str(share)] = {"the liar": float(np.mean(liar)), "the others": float(np.mean(honest))}
        print(share, out["flagged_share"][str(share)], flush=True)
    return out


# ---------------------------------------------------------------------------------------------------------------------
# One silo alone

SIZES = (24, 40, 60, 6000)  # rows of silos whose updates are as unequal as honest ones get
USELESS = (None, 18.0, 5.6e6)  # lengths of a useless update


def _unequal_silos(folder: Path) -> Path:
    """Tables of ten features and three classes, each silo with a rule of its own near the common one."""
    rng = np.random.default_rng(1)
    common = rng.normal(size=(10, 3))
    for k, n in enumerate(SIZES):
        x = rng.normal(size=(n, 10))
        y = (x @ (common + 0.5 * rng.normal(size=common.shape)) + 0.3 * rng.normal(size=(n, 3))).argmax(1)
        rows = [",".join([f"f{j}" for j in range(10)] + ["label", "split"])]
        for i, (values, label) in enumerate(zip(x, y)):
            part = ("train", "train", "validation", "test")[i % 4]
            rows.append(",".join([*(f"{value:.5f}" for value in values), str(label), part]))
        (folder / f"silo-{k}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def _longest(recipe: Any) -> float:
    """The largest update of an honest run, as a multiple of what the others' make usual (gate.outlier compares that)."""
    from feduca.trust.outliers import Outliers

    class Watching(Outliers):
        seen = 0.0
        now = np.zeros(0)

        def shorten(self, history: Any, examples: Any, asked: Any, reports: Any, lengths: Any) -> Any:
            Watching.now = np.zeros(len(examples))
            Watching.now[reports.clients] = np.where(reports.joined, lengths, 0.0)
            return super().shorten(history, examples, asked, reports, lengths)

        def right(self, level: Any, counts: Any, sent: Any) -> Any:
            usual = super().right(level, counts, sent)
            Watching.seen = max(Watching.seen, float(np.max(Watching.now[sent] / usual[sent], initial=0.0)))
            return usual

    experiment = build(recipe, recipe.seeds[0])
    server = dataclasses.replace(experiment.server, outliers=Watching(1e9))
    for _ in loop.steps(server, experiment.theta, experiment.task.examples, experiment.federation):
        pass
    return Watching.seen


class _Useless:
    """A federation whose last silo sends an update of this length in a drawn direction from some round on."""

    def __init__(self, inner: Any, length: float, since: int) -> None:
        self._inner, self._length, self._since, self.silos = inner, length, since, inner.silos

    def exchange(self, asked: Any) -> Any:
        reports = self._inner.exchange(asked)
        if asked.round >= self._since and reports.joined[-1]:
            draw = np.random.default_rng(asked.round).normal(size=len(asked.theta))
            reports.theta[-1] = asked.theta + asked.theta.new_tensor(self._length * draw / np.linalg.norm(draw))
        return reports


def outliers(smoke: bool) -> dict[str, Any]:
    """How long honest updates are beside the others', and what one silo of three does to the model."""
    rounds, start = (3, 2) if smoke else (30, 21)
    honest: dict[str, dict[str, float]] = {"quickstart": {}, "unequal silos": {}}
    with tempfile.TemporaryDirectory() as folder:
        data = str(_unequal_silos(Path(folder)))
        for cell in cells(api.recipe("quickstart"))[: 2 if smoke else None]:
            recipe, name = cell.recipe.with_settings({"rounds": rounds}), cell.label
            honest["quickstart"][name] = _longest(recipe)
            unequal = [recipe.with_settings({"task.data": data, "local.lr": lr}) for lr in (0.1, 0.01)]
            honest["unequal silos"][name] = max(map(_longest, unequal))
            print(name, [values[name] for values in honest.values()], flush=True)
    attacked: dict[str, Any] = {}
    for length in USELESS:
        for factor in (0.0, 5.0):
            ends = []
            for seed in [0] if smoke else [0, 1, 2]:
                settings = {"task.clients": 3, "task.classes_per_client": 10, "rounds": rounds, "gate.outlier": factor}
                settings |= {"mechanism.name": "fedavg", "participation.rule": "always"}
                ends.append(_end(api.recipe({}, settings, seed=seed), length, start))
            name = "none" if length is None else f"{length:g}"
            attacked.setdefault(name, {})["bound" if factor else "off"] = _mean_std(ends)
            print(name, factor, ends, flush=True)
    return {"rounds": rounds, "since": start, "sizes": list(SIZES), "honest": honest, "attacked": attacked}


def _end(recipe: Any, length: float | None, since: int) -> float:
    """Test accuracy after the last round, where the last silo sends a useless update of this length."""
    experiment = build(recipe, recipe.seeds[0])
    task, inner = experiment.task, experiment.federation
    federation = inner if length is None else _Useless(inner, length, since)
    steps = loop.steps(experiment.server, experiment.theta, task.examples, federation, evaluate=task.test)
    return [record.accuracy for record, _, _ in steps][-1]


NATURAL = ("heart", "randhie", "vowel", "azpro", "insteval")  # those that are quick, with their settings in `real`
RULES = ("forced", "fedavg, Eq. 1", "feduca-fresh, Eq. 2")


def natural(smoke: bool) -> dict[str, Any]:
    """The same where nature dealt the silos: honest runs with and without the bound, and one silo that sends nonsense."""
    keep = {"data": NATURAL[2:3] if smoke else NATURAL, "method": RULES}
    return _bounded(cells(api.recipe("real"), keep), {"seeds": [0], "alone": False}, RULES[0], smoke)


def images(smoke: bool) -> dict[str, Any]:
    """The same on the paper's split of CIFAR-10; wants a GPU."""
    methods = ("forced", "fedavg", "feduca")
    found = cells(api.recipe("table1"), {"data": ["cifar10"], "split": ["0.5,1.0"], "method": methods}, smoke)
    here = {} if smoke else {"engine.device": "cuda", "engine.precision": "bf16"}
    return _bounded(found, {"seeds": [0], **here}, methods[0], smoke)


def _bounded(found: Sequence[Cell], settings: dict[str, Any], attacked_one: str, smoke: bool) -> dict[str, Any]:
    """Honest runs with and without the bound, and under one method a silo that sends nonsense."""
    rounds, start = (3, 2) if smoke else (30, 21)
    honest: dict[str, Any] = {}
    attacked: dict[str, Any] = {}
    for cell in found:
        data, method = cell.labels["data"], cell.labels["method"]
        bound = cell.recipe.with_settings({"rounds": rounds, **settings})
        off = bound.with_settings({"gate.outlier": 0.0})
        row: dict[str, float] = {
            "off": _end(off, None, start),
            "bound": _end(bound, None, start),
            "longest": _longest(bound),
        }
        honest.setdefault(data, {})[method] = row
        print(data, method, row, flush=True)
        if method == attacked_one:
            for length in filter(None, USELESS):
                row = {"off": _end(off, length, start), "bound": _end(bound, length, start)}
                attacked.setdefault(data, {})[f"{length:g}"] = row
                print(data, length, row, flush=True)
    return {"rounds": rounds, "since": start, "honest": honest, "attacked": attacked}


PARTS = {
    "faults": faults,
    "outliers": outliers,
    "natural": natural,
    "images": images,
    "attack": attack,
    "disclosure": disclosure,
    "checkpoints": checkpoints,
    "plausibility": plausibility,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="all", choices=[*PARTS, "all", "tables"])
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.part == "tables":
        from robustness_tables import tables  # beside this file

        tables(json.loads(RESULT.read_text(encoding="utf-8")))
        return
    for part in PARTS if args.part == "all" else [args.part]:
        began = time.perf_counter()
        result = PARTS[part](args.smoke)
        result["took_s"] = time.perf_counter() - began
        if not args.smoke:
            RESULT.parent.mkdir(exist_ok=True)
            whole = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
            versions = {"feduca": environment()["feduca"], "torch": environment()["packages"]["torch"]}
            whole[part] = result | {"command": f"python benchmarks/robustness.py {part}", "versions": versions}
            RESULT.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
