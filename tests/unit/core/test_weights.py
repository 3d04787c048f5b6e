"""A mechanism's weights are checked where the loop takes them: one line that says whose, when and what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import feduca
from feduca import mechanisms
from feduca.errors import RunError

EVEN = np.full(10, 0.1)
FAULTS = {
    "short": (np.full(9, 1 / 9), "weights of shape (9,); give a numpy array with one for each of the 10 silos"),
    "listed": ([0.1] * 10, "weights as list; give a numpy array with one for each of the 10 silos"),
    "nan": (np.where(np.arange(10) == 3, np.nan, 0.1), "the weight nan (number 4 of 10); weights must be finite"),
    "negative": (np.r_[EVEN[:8], 0.5, -0.3], "the weight -0.3 (number 10 of 10); weights must be 0 or more"),
    "twice": (2 * EVEN, "weights that sum to 2, not to 1; divide by their sum (or say scaled = True if it is meant)"),
}


@dataclass(frozen=True)
class Faulty:
    """Even weights up to round `good`, then a fault."""

    fault: str = "short"
    good: int = 1

    needs = feduca.Needs()
    schedule = "fresh"

    def local(self, spec):
        return spec

    def init(self, examples, seed):
        return None, self._weights(0)

    def allocate(self, state, round, seed):
        return state, self._weights(round.round)

    def _weights(self, round: int) -> Any:
        return feduca.Allocation(EVEN if round <= self.good else FAULTS[self.fault][0], "test")


@dataclass(frozen=True)
class Bare(Faulty):
    def allocate(self, state, round, seed):
        return EVEN


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(mechanisms.registry, "_registered", {})
    mechanisms.register("faulty", Faulty)
    mechanisms.register("bare", Bare)


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_weights_end_the_run_in_one_line(fault):
    with pytest.raises(RunError) as seen:
        feduca.run("quickstart", {"mechanism.name": "faulty", "mechanism.fault": fault}, rounds=3)
    assert str(seen.value) == f"the mechanism 'faulty' in round 2 gave {FAULTS[fault][1]}"


def test_the_first_weights_are_checked_too():
    with pytest.raises(RunError, match=r"^the mechanism 'faulty' for round 1 \(init\) gave weights of shape \(9,\);"):
        feduca.run("quickstart", {"mechanism.name": "faulty", "mechanism.good": -1}, rounds=1)


def test_what_is_no_allocation_is_said():
    with pytest.raises(
        RunError, match=r"'bare' in round 1 returned ndarray; return its state and a feduca.Allocation$"
    ):
        feduca.run("quickstart", {"mechanism.name": "bare"}, rounds=1)


def test_weights_with_a_step_in_them_are_declared():
    assert {name for name, cls in mechanisms.registry.items() if getattr(cls, "scaled", False)} == {"incfl", "qfedavg"}
