"""Mechanism, offer, rule, reporting and memory are independent: every combination runs and leaves a sane record."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import feduca
from feduca.mechanisms import registry
from needed import needed
from numpy_task import NumpyTask

RULES = {
    "always": {"participation.rule": "always"},
    "accuracy": {"participation.rule": "accuracy"},
    "ties": {"participation.rule": "accuracy", "participation.ties": "loss"},
    "utility": {"participation.rule": "utility"},
    "baseline": {"participation.rule": "utility", "participation.threshold": "local-baseline"},
    "warm": {"participation.rule": "accuracy", "participation.warm_start": 2},
}
REPORTING = {
    "truthful": {},
    "inflate": {"reporting.kind": "inflate", "reporting.share": 0.1},
    "one": {
        "reporting.kind": "inflate",
        "reporting.share": 0.1,
        "reporting.clients": [1],
        "reporting.decide_by": "true",
    },
}
OFFERS = ("global", "least-concession", "best-mixture")
MEMORIES = ("update", "model", "none")
BASE = {"rounds": 3, "task.clients": 4, "local.epochs": 1, "local.batch_size": 10, "utility.check": 4}


@pytest.mark.parametrize("mechanism", sorted(registry))
@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("rule", RULES)
def test_every_combination_runs(mechanism: str, offer: str, rule: str) -> None:
    task = NumpyTask()
    for reporting, memory in itertools.product(REPORTING.values(), MEMORIES):
        settings = {
            **BASE,
            **needed(mechanism),
            "mechanism.name": mechanism,
            "offer.kind": offer,
            "memory.kind": memory,
        }
        result = feduca.run({}, {**settings, **RULES[rule], **reporting}, task=task)
        assert len(result.rounds) == 3
        assert result.rounds[0]["joined"] == 4  # round 1: nobody has a model of its own
        assert result.accuracy is None if needed(mechanism) else 0 < result.accuracy <= 1
        assert 0 < result.summary["deployed"] <= 1
        assert np.isfinite(result.theta).all()
        for record in result.clients:
            assert set(record["status"]) <= {"joined", "declined"}
            assert all(reason for reason in record["reason"])
        if rule == "always":
            assert result.participation == 1
        if offer == "global":
            assert all(c == 0 for record in result.clients for c in record["concession"])
