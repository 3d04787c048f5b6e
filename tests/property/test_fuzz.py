"""The fuzz targets of tests/fuzz, by hypothesis (any bytes, shrunk when they fail) and by the thousand (seeded).

Where atheris can be imported the same targets run under its guidance, too.
"""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TARGETS = Path(__file__).parents[1] / "fuzz" / "targets.py"
spec = importlib.util.spec_from_file_location("fuzz_targets", TARGETS)
assert spec is not None
assert spec.loader is not None
targets = importlib.util.module_from_spec(spec)
sys.modules["fuzz_targets"] = targets
spec.loader.exec_module(targets)

bounded = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)  # damaged checkpoints are told about, thousands of times
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", targets.TARGETS)
def test_any_bytes(name):
    @bounded
    @given(st.binary(max_size=200))
    def check(data):
        targets.TARGETS[name](data)

    check()


def thousands(target, count, seed):
    rng = np.random.default_rng(seed)
    return Counter(target(rng.bytes(int(rng.integers(8, 200)))) for _ in range(count))


@pytest.mark.slow
def test_ten_thousand_hostile_reports():
    """No crash, no state changed beyond "refused", each with a reason: the target asserts all of it."""
    seen = thousands(targets.reports, 10_000, seed=1)
    assert seen.total() == 10_000
    assert seen["refused"] > 8_000  # the others had something harmless done to them
    assert seen["joined"] > 100


@pytest.mark.slow
def test_hostile_reports_and_the_program():
    """The same where reports go into the program: whatever the gate lets through, the solver survives."""
    seen = thousands(lambda data: targets.reports(data, "feduca"), 1_000, seed=2)
    assert seen["refused"] > 800
    assert seen["joined"] > 10


@pytest.mark.slow
def test_a_thousand_damaged_checkpoints():
    """A clear error or a checkpoint that was really written, bit for bit; never a traceback, never a wrong resume."""
    seen = thousands(targets.checkpoints, 1_000, seed=3)
    assert set(seen) == {"round 3", "round 2", "refused"}
    assert min(seen.values()) > 50


@pytest.mark.slow
def test_a_thousand_damaged_policies():
    seen = thousands(targets.policies, 1_000, seed=7)
    assert set(seen) == {"accepted", "refused"}
    assert min(seen.values()) > 50


@pytest.mark.slow
def test_a_thousand_damaged_recipes():
    seen = thousands(targets.configs, 1_000, seed=4)
    assert set(seen) == {"accepted", "refused"}
    assert min(seen.values()) > 50


@pytest.mark.slow
def test_hundreds_of_damaged_run_directories():
    seen = thousands(targets.run_directories, 300, seed=5)
    assert seen["read read"] > 10
    assert seen["refused refused"] > 100


@pytest.mark.slow
def test_thousands_of_strange_programs():
    seen = thousands(targets.programs, 3_000, seed=6)
    assert seen["optimal"] > 300
    assert seen["refused"] > 300


@pytest.mark.slow
@pytest.mark.parametrize("name", targets.TARGETS)
def test_atheris(name, tmp_path):
    pytest.importorskip("atheris")
    command = [sys.executable, str(TARGETS), name, "-runs=300", "-max_len=200"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
