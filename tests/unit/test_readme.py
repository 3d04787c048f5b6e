"""README's figures are the committed summaries' figures, and nothing in it is left to fill in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README


@pytest.mark.parametrize(
    "row", json.loads((ROOT / "results/quickstart.json").read_text()), ids=lambda row: row["method"]
)
def test_the_demo_table_is_the_committed_one(row):
    (line,) = [line for line in README.splitlines() if line.startswith(row["method"] + "  ")]
    accuracy, participation, holds = line.removeprefix(row["method"]).split()[:3]
    assert accuracy == f"{100 * row['accuracy']:.1f}"
    assert participation == f"{100 * row['participation']:.1f}"
    assert holds == f"{100 * row['eq1_share']:.1f}"


def test_the_headline_table_is_the_committed_one():
    cells = json.loads((ROOT / "results/table1.json").read_text())
    shown = [c for c in cells if (c["data"], c["split"]) == ("fmnist", "0.5,1.0")]
    lines = [line for line in README.splitlines() if line.startswith("| ") and "±" in line]
    assert len(lines) == len(shown) == 11
    for line, cell in zip(lines, shown):
        accuracy = f"{100 * cell['accuracy_mean']:.1f} ± {100 * cell['accuracy_std']:.1f}"
        assert accuracy in line
        assert line.rstrip(" |").endswith(f"{100 * cell['participation_mean']:.1f}")


def test_the_gpu_seconds_are_the_committed_ones():
    gpu = json.loads((ROOT / "benchmarks/results/gpu.json").read_text())
    for key in ("cifar10_feduca_s", "cifar10_fedavg_s", "fmnist_feduca_s"):
        assert f"{gpu[key]:.1f} s" in README


def test_the_speed_page_says_what_the_committed_benchmarks_say():
    page = (ROOT / "docs/speed.md").read_text()
    cpu = json.loads((ROOT / "benchmarks/results/cpu.json").read_text())
    for key, row in (("vs_sequential", "plain PyTorch"), ("vs_pfl", "pfl"), ("vs_flower_simulation", "Flower")):
        line = next(line for line in page.splitlines() if line.startswith(f"| {row}"))
        assert line.endswith("".join(f" {part[key]:.1f} |" for part in (cpu, *cpu["also"])))
    losses = [
        {k: v / part["final_loss"]["ours"] - 1 for k, v in part["final_loss"].items()} for part in (cpu, *cpu["also"])
    ]
    worst = max(abs(value) for part in losses for value in part.values())
    assert f"within {100 * worst:.0f} % of our training loss" in page
    gpu = json.loads((ROOT / "benchmarks/results/gpu.json").read_text())
    assert all(f"{gpu[key]:.1f} s" in page for key in ("cifar10_feduca_s", "cifar10_fedavg_s", "fmnist_feduca_s"))
