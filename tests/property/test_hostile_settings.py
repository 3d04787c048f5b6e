"""Three hundred hostile settings: every one gets a clear refusal or a right answer; none a traceback, none hangs."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections import Counter
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("fuzz_settings", Path(__file__).parents[1] / "fuzz" / "settings.py")
assert spec is not None
assert spec.loader is not None
fuzz = importlib.util.module_from_spec(spec)
sys.modules["fuzz_settings"] = fuzz
spec.loader.exec_module(fuzz)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a model that diverges says so
@pytest.mark.parametrize("surface", range(len(fuzz.SURFACES)))
def test_hostile_settings(surface, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logging.disable(logging.WARNING)
    seen: Counter[str] = Counter()
    wrong = []
    for i in range(75):
        seed = i * len(fuzz.SURFACES) + surface
        try:
            seen[fuzz.answer(seed)[1]] += 1
        except Exception as error:
            wrong.append(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
    logging.disable(logging.NOTSET)
    assert wrong == []
    assert seen.total() == 75
    assert seen["clear"] > 20
    assert seen["right"] > 0
