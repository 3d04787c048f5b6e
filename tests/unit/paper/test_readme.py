"""The first pages' figures are the committed summaries' figures, and nothing in them is left to fill in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from paper import real_page
from paper.headline import TARGETS, block, first, table
from paper.page import filled, read

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs/results.md").read_text()


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README


@pytest.mark.parametrize("page", TARGETS)
def test_the_first_tables_are_what_the_summaries_say(page):
    """Else: python -m paper.headline."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- table " in text
    assert filled(text, lambda name: block(ROOT / "results", name)) == text


def test_the_demo_table_is_the_committed_one():
    page = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    for row in json.loads((ROOT / "results/tailored.json").read_text()):
        (line,) = [line for line in page.splitlines() if line.startswith(row["method"] + "  ")]
        keys = ("accuracy", "alone", "better_off", *(["participation"] if row["rule"] != "never" else []))
        figures = [f"{100 * row[key]:.1f}" for key in keys]
        assert set(figures) <= set(line.removeprefix(row["method"]).split())


def test_the_first_screen_says_it_in_five_rows_and_short_sentences():
    """What stands before "What it is": few numbers a sentence, one picture, the table, the command."""
    screen = README.split("## What it is")[0]
    assert screen.count("\n| ") == 6  # a head and five rows
    assert (screen.count("!["), screen.count("make demo")) == (1, 1)
    assert README.index("make demo") < README.index("make test")
    for part in re.split(r"<!-- table.*?<!-- end -->|```.*?```|\]\([^)]*\)", README, flags=re.DOTALL):
        for sentence in re.split(r"(?<=[.?!])\s", part):
            assert len(re.findall(r"\d[\d.,]*", sentence)) <= 2, sentence


def test_the_first_table_is_counted_by_hand():
    rows = first(ROOT / "results")
    cells = [c for c in json.loads((ROOT / "results/offers.json").read_text()) if c["labels"]["study"] == "main"]
    ours = [c for c in cells if c["method"] == "stack, everybody trains" and c["data"] in ("cifar10", "fmnist")]
    papers = rows["**our offer: each its own mixture**"][1]
    assert papers.deployed == pytest.approx(np.mean([c["deployed_test_mean"] for c in ours]))
    assert papers.better == pytest.approx(np.mean([c["better_off_share"] for c in ours]))
    assert papers.worst == pytest.approx(min(c["gain_worst"] for c in ours))
    natural = [c for c in json.loads((ROOT / "results/real.json").read_text()) if c["study"] == "main"]
    sets = real_page.everywhere(real_page.rows(ROOT / "results", "main"))
    forced = {c["data"]: c for c in natural if c["method"] == "forced" and c["data"] in sets}
    alone = {c["data"]: np.array(c["deployed_test"], float) for c in natural if c["method"] == "alone"}
    gains = {data: np.array(c["deployed_test"], float) - alone[data] for data, c in forced.items()}
    found = rows["forced in (FedAvg)"][0]
    assert found.worst == pytest.approx(min(each.mean(axis=0).min() for each in gains.values()))
    assert found.better == pytest.approx(np.mean([(each.mean(axis=0) > 1e-9).mean() for each in gains.values()]))
    (stack,) = (row for row in real_page.rows(ROOT / "results", "main").items() if row[0] == "stack")
    inside = np.mean([stack[1][name].participation_mean for name in gains])
    assert f"{100 * inside:.0f} % of the natural ones" in RESULTS
    assert f"Natural silos: {['no', 'six', 'seven', 'eight'][max(0, len(sets) - 5)]} data sets" in RESULTS
    assert 0.5 < rows["**our offer: each its own mixture**"][0].better < 0.6  # README: nearly half gain nothing


def test_the_long_table_is_the_committed_one():
    summaries = read(ROOT / "results")
    assert table(summaries) in RESULTS
    feduca = next(
        c for c in summaries["table1"] if c["labels"] == {"data": "cifar10", "split": "0.5,1.0", "method": "feduca"}
    )
    row = next(line for line in RESULTS.splitlines() if line.startswith("| FedUCA lagged"))
    assert f"| {100 * feduca['accuracy_mean']:.1f} ± {100 * feduca['accuracy_std']:.1f} (66.9)" in row


def test_the_promise_of_offers_is_the_committed_one():
    cells = [c for c in json.loads((ROOT / "results/offers.json").read_text()) if c["study"] == "main"]
    text = " ".join(RESULTS.split())

    def both(data, method, key):
        splits = [c for c in cells if c["data"] == data and c["method"] == method]
        assert [c["split"] for c in splits] == ["0.5,1.0", "1.0,1.0"]
        return " and ".join(f"{100 * c[key]:.0f}" for c in splits)

    for data, name in (("cifar10", "CIFAR-10"), ("fmnist", "Fashion-MNIST")):
        kept, fedavg = (both(data, m, "participation_mean") for m in ("best-mixture, from consensus", "fedavg"))
        assert f"{kept} % of the silos on {name} (FedAvg in that study: {fedavg})" in text
        assert f"{both(data, 'best-mixture, from consensus', 'better_off_share')} % on {name}" in text
    ours = [c for c in cells if c["method"] == "best-mixture, from consensus" and c["data"] in ("cifar10", "fmnist")]
    assert all(abs(c["accuracy_mean"] - c["ceiling_accuracy_mean"]) < 0.005 for c in ours)
    worst = min(c["gain_worst"] for c in ours)
    assert f"The worst-off of 120 silos loses {-100 * worst:.1f} points" in text
    many = {c["method"]: f"{100 * c['deployed_test_mean']:.1f}" for c in cells if c["data"] == "cifar100"}
    best, alone, forced = (many[m] for m in ("best-mixture, from consensus", "local", "forced"))
    assert f"models that are {best} % accurate on such data. They have {alone} alone, and {forced} with" in text


def test_the_gpu_seconds_are_the_committed_ones():
    gpu = json.loads((ROOT / "benchmarks/results/gpu.json").read_text())
    for key in ("cifar10_feduca_s", "cifar10_fedavg_s", "fmnist_feduca_s"):
        assert f"{gpu[key]:.1f} s" in RESULTS


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
    seconds = ("cifar10_feduca_s", "cifar10_fedavg_s", "cifar10_offers_s", "fmnist_feduca_s", "lockstep_21_runs_s")
    assert all(f"{gpu[key]:.1f} s" in page for key in seconds)
    assert f"{gpu['peak_mb']:.0f} MiB" in page
    assert f"{gpu['memory']['examples_mb']:.0f} MiB of examples" in page
    assert f"a factor of {gpu['lockstep_speedup']:.2f}" in page
    for key in ("overhead", "offers_overhead", "best_mixture_overhead"):
        assert f"{100 * gpu[key]:.0f} % over FedAvg" in page


@pytest.mark.parametrize("name", ["real.md", real_page.BESIDE])
def test_the_pages_on_real_silos_are_what_their_summary_says(name):
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert filled(page, lambda table: real_page.block(ROOT / "results", table)) == page


def test_what_is_said_of_real_silos_is_what_their_summary_says():
    found = real_page.rows(ROOT / "results", "main")
    assert real_page.everywhere(found) == list(real_page.SETS)
    beside = [m for m in found if "stack" in m or "outside option" in m]
    trains = [m for m in beside if "every 5" not in m and "best kept" not in m]
    assert all(cell.worse_share == 0 for method in trains for cell in found[method].values())
    stacks = {
        (m, n): cell.loss_worse_share * cell.clients for m in trains if "stack" in m for n, cell in found[m].items()
    }
    left = {(n, m): round(count) for (m, n), count in stacks.items() if count}
    local, error = real_page.RECOMMENDED, "stack, everybody trains, one standard error"
    assert {n for n, _ in left} == {"star", "insteval"}
    assert (left["insteval", local], left["insteval", error]) == (1, 2)
    assert all(left["star", m] == 1 for m in trains if m not in (local, error) and "stack" in m)
    gains = {name: cell.gain_mean for name, cell in found[local].items()}
    assert round(100 * gains.pop("insteval"), 2) == -0.01
    assert min(gains.values()) > 0
    assert found["stack"]["vowel"].gain_mean == min(c.gain_mean for c in found["stack"].values()) > -0.0005
    mean = {m: np.mean([cell.gain_mean for cell in cells.values()]) for m, cells in found.items()}
    assert max(mean, key=mean.__getitem__) == local
    cells = json.loads((ROOT / "results/offers.json").read_text())
    deployed = {c["method"]: c["deployed_test_mean"] for c in cells if (c["study"], c["data"], c["split"]) == (
        "main", "cifar10", "0.5,1.0")}  # fmt: skip
    said = [f"{100 * deployed[m]:.1f}" for m in ("best-mixture, from consensus", "stack, everybody trains")]
    assert f"CIFAR-10 {said[0]} against {said[1]} %" in (ROOT / "docs/real.md").read_text(encoding="utf-8")


def test_flambys_protocol_and_the_price_are_the_committed_ones():
    from benchmarks import natural

    found = json.loads(natural.RESULT.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / real_page.BESIDE).read_text(encoding="utf-8")
    for name, made in natural.TABLES.items():
        assert f"<!-- table: {name} -->\n{made(found[name])}\n<!-- end -->" in page
    parts, ours, theirs = (found["flamby"][key] for key in ("sizes", "rows", "published"))
    apart = np.subtract(ours["FedAvg"], theirs["FLamby: FedAvg"]) * parts["test"]  # patients
    assert np.abs(apart).round(1).tolist().count([0] * 4) == 4
    assert np.abs(apart).sum() == pytest.approx(1, abs=0.02)
    assert (np.mean(ours["FedAvg"], 0) < np.mean(ours["each centre alone"], 0)).all()
    price = found["cost"]["tasks"][natural.IMAGES]
    assert price["stack, everybody trains"]["ratio"] < 2.05
    assert price["stack, private every 5"]["ratio"] < 1.3
    assert set(found["cost"]["models"].values()) == {2, 3}


def test_every_family_of_gpu_kernels_earns_its_lines():
    from benchmarks import kernels

    found = json.loads(kernels.SUMMARY.read_text(encoding="utf-8"))
    assert kernels.table(found) in kernels.DOCUMENT.read_text(encoding="utf-8")
    gains: dict[str, float] = {}
    for seen in found["models"].values():
        for family, told in seen["gain"].items():
            gains[family] = max(told["gain"], gains.get(family, 0))
    there = {path.stem for path in (ROOT / "src/feduca/tasks/engines/gpu").glob("*_kernels.py")}
    assert there <= set(gains)  # none without a measurement
    assert min(gains.values()) >= 1.3


def test_how_far_sittings_are_apart_is_what_their_files_say():
    page = " ".join((ROOT / "docs/findings.md").read_text().split())
    benched = json.loads((ROOT / "benchmarks/results/gpu.json").read_text())["lockstep_accuracies"]
    first, again = (
        {
            c["method"]: c
            for c in json.loads((ROOT / name).read_text())
            if (c["data"], c["split"]) == ("cifar10", "0.5,1.0")
        }
        for name in ("results/table1.json", "results/again/table1.json")
    )
    table = {m: c["accuracies"] for m, c in first.items()}
    apart = _apart(benched, table)
    assert f"the {len(apart)} accuracies differ by {_quadratic(apart.values()):.1f} points" in page
    feduca, others = (max(abs(d) for (m, _), d in apart.items() if (m == "feduca") == one) for one in (True, False))
    assert f"FedUCA's by {feduca:.1f} at most, everybody else's by {others:.1f}" in page
    repeated = {m: c["accuracies"] for m, c in again.items()}
    means = [100 * np.mean(found["feduca"]) for found in (table, benched, repeated)]
    assert f"is {means[0]:.1f} in one and {means[1]:.1f} in the other" in page
    assert f"FedUCA's mean is {means[2]:.1f}" in page

    apart = _apart(repeated, table)
    furthest = max(apart, key=lambda one: abs(apart[one]))
    assert furthest == ("incfl", 1)
    rest = [d for one, d in apart.items() if one != furthest]
    said = f"Of the {len(apart)} that were run once more, {len(rest)} differ by {_quadratic(rest):.1f} points"
    assert f"{said} in the quadratic mean and {max(map(abs, rest)):.1f} at most" in page
    assert repeated["fedprox"] == table["fedprox"]
    assert f"{100 * table['incfl'][1]:.1f} % in the table, {100 * repeated['incfl'][1]:.1f} when run again" in page
    assert f"{100 * again['incfl']['participations'][1]:.1f} % in over its rounds" in page
    kept = [f"{100 * c['incfl']['participation_mean']:.0f}" for c in (again, first)]
    reached = [f"{100 * c['incfl']['accuracy_mean']:.1f}" for c in (again, first)]
    assert f"IncFL keeps {kept[0]} % of the silos this time and reaches {reached[0]} % on average" in page
    assert f"the table has {kept[1]} and {reached[1]}" in page


def _apart(one, other):
    """Points between two sittings, by method and seed."""
    return {(m, i): 100 * (a - b) for m in one for i, (a, b) in enumerate(zip(one[m], other[m], strict=True))}


def _quadratic(values):
    return np.sqrt(np.mean(np.square(list(values))))


def test_what_it_costs_is_what_the_summary_says():
    page = " ".join((ROOT / "docs/findings.md").read_text().split())
    cost = {c["method"]: c for c in json.loads((ROOT / "results/cost.json").read_text())}
    slower, memory = (
        {m: cost[m][key] / cost["fedavg"][key] - 1 for m in cost} for key in ("seconds", "peak_mb")
    )  # over FedAvg
    assert f"FedUCA takes {100 * slower['feduca']:.0f} % more time than FedAvg" in page
    assert f"as long ({100 * slower['uniform']:.0f} %)" in page
    curves = cost["uniform"]["seconds"] / cost["forced"]["seconds"] - 1
    assert f"under Eq. 2 take {100 * curves:.0f} % more than everybody forced in" in page
    assert f"it takes {100 * cost['feduca']['seconds_allocate'] / cost['feduca']['seconds']:.1f} %" in page
    seconds = " and ".join(f"{cost[m]['seconds']:.1f}" for m in ("feduca", "fedavg"))
    assert f"(`results/cost.json`) the two took {seconds} s" in (ROOT / "docs/speed.md").read_text()
    more = cost["feduca"]["peak_mb"] - cost["fedavg"]["peak_mb"]
    assert f"ours has {more:.0f} MB more" in page
    assert all(f"Their {100 * memory[m]:.1f} % are one such step" in page for m in ("fedprox", "aaggff"))
