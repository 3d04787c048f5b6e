"""Three hundred damaged run folders per run of the suite: what is read back is right, or something is said."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "fuzz" / "folders.py"
spec = importlib.util.spec_from_file_location("fuzz_folders", SOURCE)
assert spec is not None
assert spec.loader is not None
folders = importlib.util.module_from_spec(spec)
sys.modules["fuzz_folders"] = folders
spec.loader.exec_module(folders)


@pytest.mark.slow
def test_three_hundred_damaged_folders(tmp_path: Path) -> None:
    found, other = folders.victims(tmp_path / "victims")
    seen: Counter[tuple[str, str]] = Counter()
    complaints: list[str] = []
    for seed in range(300):
        counted, said = folders.examine(seed, found, other, tmp_path / "damaged")
        seen += counted
        complaints += said
    assert not complaints, "\n".join(complaints)
    assert seen.total() == 1200
    assert {name for name, _ in seen} == set(folders.READERS)
    assert sum(n for (_, how), n in seen.items() if how == "clear") > 500
    assert sum(n for (_, how), n in seen.items() if how == "right") > 100
