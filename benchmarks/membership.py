"""Who was in the training data? Two attacks by a server that sees what silos send, without differential privacy and with it.

    python benchmarks/membership.py [--smoke]
    python benchmarks/membership.py tables

`loss`: in a federation on the digits, an example on which the last model that its silo sent has a small loss is said to have been
trained on (Yeom et al. 2018, arXiv 1709.01604). Right and wrong examples are trained-on and held-out ones of the same silos.
`canary`: one silo trains many times with an example of a wrong label, and as often without it (its place is zeroed out: the
neighbouring data of the accountant). The server adds up, over all rounds, how far the silo's model moved along that example's
gradient (Nasr et al. 2021, arXiv 2101.04535). Advantage is the rate of right alarms minus that of false ones. Thresholds are
chosen on one half and judged on the other. No attack on data under (epsilon, delta) can have more than `most(epsilon, delta)`.
Results go to `benchmarks/results/membership.json`; `tables` puts them into docs/privacy.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta

import feduca
from feduca.client.privacy import Privacy
from feduca.core import rounds as loop
from feduca.recipes.build import build
from feduca.runs.directory import environment
from feduca.runs.files import write_whole
from feduca.tasks.engines import private as engine
from feduca.types import Announcements, Federation, LocalSpec, Reports

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a file, too
from benchmarks.tables import markdown, replace_tables

RESULT = Path(__file__).parent / "results" / "membership.json"
PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"
BUDGETS = (None, 8.0, 3.0, 1.0)
CLIP = 1.0
DIGITS = {
    "task.data": "digits", "task.clients": 10, "task.max_examples": 600, "task.classes_per_client": 10,
    "task.validation_share": 0.5, "task.test_share": 0.5, "task.model": "mlp", "local.epochs": 5,
    "local.batch_size": 10, "local.lr": 0.3, "mechanism.name": "fedavg", "participation.rule": "always",
}  # fmt: skip
ROUNDS = 30
SPEC = LocalSpec(epochs=1, batch_size=15, lr=0.5)  # of the silo with a canary
NOTHING = 1e30  # an example so long that its gradient overflows counts nothing


def most(epsilon: float, delta: float) -> float:
    """The largest advantage that any attack can have (Humphries et al. 2020, arXiv 2010.12112; Kairouz et al. 2015)."""
    return float((np.expm1(epsilon) + 2 * delta) / (np.exp(epsilon) + 1))


def advantage(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """Of saying "inside" where a score is high: the threshold comes from one half, the rates from the other, both ways."""
    rates = []
    for half in (0, 1):
        (one, judged), (other, beside) = [(x[half::2], x[1 - half :: 2]) for x in (inside, outside)]
        places = np.concatenate([one, other])
        gains = [(one >= t).mean() - (other >= t).mean() for t in places]
        best = places[int(np.argmax(gains))]
        rates.append([(judged >= best).sum(), (beside >= best).sum()])
    right, false = np.sum(rates, 0)
    tpr, fpr = right / len(inside), false / len(outside)
    error = 1.96 * np.sqrt(tpr * (1 - tpr) / len(inside) + fpr * (1 - fpr) / len(outside))
    return {"advantage": float(tpr - fpr), "error": float(error), "right": float(tpr), "false": float(fpr)}


def shown(found: dict[str, float], n: int, delta: float) -> float:
    """The epsilon that an attack proves, with 95 % confidence: no mechanism of a smaller one lets it be right so often."""
    least = float(beta.ppf(0.025, found["right"] * n, (1 - found["right"]) * n + 1)) if found["right"] > 0 else 0.0
    false = float(beta.ppf(0.975, found["false"] * n + 1, (1 - found["false"]) * n)) if found["false"] < 1 else 1.0
    return float(np.log(max(1.0, (least - delta) / false)))


# The attack by losses --------------------------------------------------------------------------------------------------


class Overheard:
    """A federation, and what its silos sent last."""

    def __init__(self, federation: Federation) -> None:
        self.silos, self._federation = federation.silos, federation

    def exchange(self, asked: Announcements) -> Reports:
        reports = self._federation.exchange(asked)
        self.sent = np.asarray(reports.theta.clone())  # type: ignore[attr-defined]
        return reports


def by_loss(budget: float | None, seeds: int, rounds: int) -> dict[str, Any]:
    inside, outside, right = [], [], []
    for seed in range(seeds):
        dp = {} if budget is None else {"privacy.dp": "records", "privacy.epsilon": budget, "privacy.clip": CLIP}
        experiment = build(feduca.recipe({"name": "membership", "rounds": rounds}, {**DIGITS, **dp}), seed)
        task, federation = experiment.task, Overheard(experiment.federation)
        for _ in loop.steps(experiment.server, experiment.theta, task.examples, federation):  # type: ignore[arg-type]
            pass
        clients = np.arange(len(task.silos))
        for split, losses in (("train", inside), ("validation", outside), ("test", outside)):
            answers = task.answers(federation.sent, clients, split)
            losses.append(-answers.loss[~np.isnan(answers.loss)])
        right.append(float(np.nanmean(task.answers(federation.sent, clients, "test").right)))
    found = advantage(np.concatenate(inside), np.concatenate(outside))
    numbers = {"inside": sum(map(len, inside)), "outside": sum(map(len, outside))}
    return {"epsilon": budget, **found, **numbers, "accuracy": float(np.mean(right))}


# The attack on a canary --------------------------------------------------------------------------------------------------


@contextmanager
def world(task: Any, present: bool, dp: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The task's first silo with a canary, or with none in its place; gives the canary and its wrong label."""
    rows, pool = task.members[0].rows["train"], task.pool
    row = rows[0]
    x, y = pool.x[row].clone(), pool.y[row].clone()
    wrong = (y + 5) % 10
    pool.y[row] = wrong
    if not present and dp:
        pool.x[row] = NOTHING
    elif not present:
        task.members[0].rows["train"] = rows[1:]
    try:
        yield x, wrong
    finally:  # data sets are kept for the next task that is built
        task.members[0].rows["train"], pool.x[row], pool.y[row] = rows, x, y


def by_canary(budget: float | None, runs: int, rounds: int) -> dict[str, Any]:
    scores = {}
    privacy = None if budget is None else Privacy(epsilon=budget, rounds=rounds, clip=CLIP, noisy=False)
    task: Any = build(feduca.recipe({"name": "canary"}, {**DIGITS, "task.model": "logistic"}), 0).task
    n, who, layout = int(task.examples[0]), np.zeros(runs, int), task.engine.layout
    for present in (True, False):
        theta = torch.as_tensor(np.repeat(np.asarray(task.init(0))[None], runs, 0))
        seeds, score, ones = np.arange(runs) + (runs if present else 0), np.zeros(runs), torch.ones(runs, 1)
        with world(task, present, budget is not None) as (x, y):
            canary = x.expand(runs, 1, *x.shape), y.expand(runs, 1), ones
            for round in range(1, rounds + 1):
                if privacy is None:
                    after = task.train(theta, who, SPEC, round, seeds)
                else:
                    how = privacy.training(SPEC, np.full(runs, n), None)
                    after = task.train_private(theta, who, SPEC, round, seeds, how)
                gradients = engine.summed(task.engine)(layout.unpack(theta), *canary, 1e-6)
                along = 1e6 * layout.pack(dict(zip(layout.names, gradients)))
                score += ((theta - after) * along).sum(1).numpy()
                theta = after
        scores[present] = score
    found = advantage(scores[True], scores[False])
    delta = 1 / (10 * n) if privacy is None else float(privacy.delta_of(np.array([n]), None)[0])
    found |= {"examples": n, "runs": 2 * runs, "delta": delta, "shown": shown(found, runs, delta)}
    if budget is not None and privacy is not None:
        noise = float(privacy.training(SPEC, np.array([n]), None).noise[0])
        found |= {"most": most(budget, delta), "noise": noise}
    return {"epsilon": budget, **found}


def measure(smoke: bool) -> dict[str, Any]:
    seeds, rounds, runs = (1, 2, 40) if smoke else (3, ROUNDS, 1000)
    return {
        "command": "python benchmarks/membership.py",
        "loss": [by_loss(budget, seeds, rounds) for budget in BUDGETS],
        "canary": [by_canary(budget, runs, rounds) for budget in BUDGETS],
        "environment": environment(),
    }


def tables() -> dict[str, str]:
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    rows = [
        ["loss of an example", *(f"{100 * c['advantage']:.0f} +- {100 * c['error']:.0f}" for c in found["loss"])],
        ["a canary", *(f"{100 * c['advantage']:.0f} +- {100 * c['error']:.0f}" for c in found["canary"])],
        ["no attack can have more than", *(f"{100 * c.get('most', 1):.0f}" for c in found["canary"])],
        ["epsilon that the canary proves", *(f"{c['shown']:.1f}" for c in found["canary"])],
    ]
    head = ["advantage, %", *("no noise" if b is None else f"epsilon {b:g}" for b in BUDGETS)]
    return {"membership": markdown(head, rows)}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["tables"])
    parser.add_argument("--smoke", action="store_true", help="small, and nothing is written")
    given = parser.parse_args(arguments)
    if given.what == "tables":
        replace_tables(PAGE, tables())
        return
    found = measure(given.smoke)
    print(json.dumps(found, indent=1))
    if not given.smoke:
        write_whole(RESULT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
