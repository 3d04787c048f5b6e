"""The reproduction page: every study with its own columns, nothing empty, and what stands committed is what the code writes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from feduca.recipes.schema import parse_setting
from feduca.studies.execute import STUDIES, parse_only, plan
from paper.commands import ON_GPU, commands, not_run, to_run
from paper.page import BEYOND, pages, read
from paper.tables import markdown, table

ROOT = Path(__file__).parents[3]
SUMMARIES = read(ROOT / "results")


def page(summaries):
    """All pages as one text."""
    return "\n".join(pages(summaries).values())


def cell(labels, **known):
    """A cell of a summary with a little of everything."""
    blank = {
        "data": "cifar10", "split": "0.5,1.0", "method": "feduca", "labels": labels,
        "mechanism": "feduca", "study": "main", "rule": "utility",
        "memory": "update", "rounds": 100, "seeds": [0], "accuracy_mean": 0.5, "accuracy_std": None,
        "participation_mean": 0.4, "paper_accuracy": None, "paper_participation": None, "eq1_share": 0.3, "r2": None,
        "jensen": None, "discrepancy": None, "discrepancy_bound_expected": None, "seconds": 10.0, "peak_mb": None,
        "device": "cpu", "precision": "fp32", "config_hash": "0", "commit": "abc", "clients": 10, "n_s": 5,
    }  # fmt: skip
    return blank | known


def test_the_committed_pages_are_what_the_summaries_say():
    """Else: python -m paper.page."""
    found = pages(SUMMARIES)
    for path, text in found.items():
        assert (ROOT / "docs" / path).read_text() == text, path
    assert {f"paper/{path.name}" for path in (ROOT / "docs/paper").iterdir()} == set(found) - {"reproduction.md"}


def test_every_study_has_its_page_or_is_said_to_be_missing():
    found = pages(SUMMARIES)
    (missing,) = re.findall(r"No committed summary: (.*)\.", found["reproduction.md"]) or [""]
    for name in set(STUDIES) - set(BEYOND):
        assert (f"paper/{name}.md" in found) != (name in missing.split(", ")), name
        assert f"](paper/{name}.md)" in found["reproduction.md"] or name in missing


def test_every_page_is_in_the_list_of_pages():
    found = pages(SUMMARIES)
    for path in set(found) - {"reproduction.md"}:
        assert f"\n{path.removesuffix('.md')}\n" in found["reproduction.md"], path


def test_no_column_is_empty():
    for block in re.findall(r"(?:^\|.*\n)+", page(SUMMARIES), re.MULTILINE):
        rows = [line.strip("|\n").split(" | ") for line in block.splitlines()[2:]]
        for column in zip(*rows):
            assert any(value.strip() != "-" for value in column)
    assert (
        markdown(["a", "b", "c"], [["x", "-", "1"], ["y", "-", "-"]], 1)
        == "| a | c |\n|---|---:|\n| x | 1 |\n| y | - |"
    )


def test_views_show_the_runs_of_the_study_they_view():
    section = pages({"delta": SUMMARIES["delta"]})["paper/jensen.md"]
    assert "$ feduca reproduce delta --device cuda --set engine.precision=bf16" in section
    assert "| 0.5 | 1.67 | 2.48 |" in section


def test_the_command_names_the_precision_and_old_cells_stay_silent():
    fast = cell({"delta": "1"}, device="H200", precision="bf16", seeds=[0])
    old = cell({"delta": "10"}, seeds=[0, 1, 2])  # the recipe's
    del old["precision"]
    text = page({"delta": [fast, old]})
    assert "$ feduca reproduce delta --only delta=1 --device cuda --set engine.precision=bf16 --set seeds=[0]\n" in text
    assert "$ feduca reproduce delta --only delta=10\n" in text
    assert "cpu, commit abc" in text


def test_cost_is_over_fedavg_and_beside_the_papers():
    cells = [cell({"method": "fedavg"}), cell({"method": "feduca"}, seconds=12.0, peak_mb=812.4)]
    lines = table("cost", cells).splitlines()
    assert lines[0] == "| method | seconds | over FedAvg, % | paper | peak MB | paper's seconds | paper's MB |"
    assert lines[-1] == "| feduca | 12.0 | +20.0 | +21.6 | 812 | 5575 | 5654 |"


def test_a_model_without_the_papers_weights_says_so_in_its_row():
    scratch = {"data": "cifar100", "model": "resnet18", "weights": "from scratch (no ImageNet weights found)"}
    labels = {"data": "cifar100", "split": "0.5,1.0", "method": "feduca"}
    for name in ("table1", "participation"):
        assert "cifar100, from scratch" in table(name, [cell(labels, **scratch)])
        assert "scratch" not in table(name, [cell(labels, **scratch | {"weights": "ImageNet (torchvision)"})])
        ours = table(name, [cell(labels, **scratch | {"weights": "global.safetensors (0123456789ab)"})])
        assert "cifar100, from other weights" in ours
        assert "scratch" not in table(name, [cell(labels, **scratch | {"model": "cnn", "weights": "from scratch"})])


def test_rules_stand_side_by_side():
    cells = [
        cell({"data": "fmnist", "rule": rule, "method": "fedavg"}, participation_mean=share)
        for rule, share in (("Eq. 1", 0.1), ("Eq. 2", 0.9))
    ]
    lines = table("rules", cells).splitlines()
    assert len(lines) == 3
    assert "Eq. 1: participation % | Eq. 2: participation %" in lines[0]
    assert "| 10.0 | 90.0 |" in lines[2]


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        (
            "strategies",
            {"data": "cifar10", "n_s": "1", "schedule": "lagged"},
            "| 50.0 | 63.8 | -13.8 | 40.0 | 29.0 | +11.0 |",
        ),
        ("misreporting", {"inflation": "5"}, "| 5 | 50.0 | 63.9 | -13.9 | 40.0 | 40.0 | +0.0 |"),
    ],
)
def test_ours_stand_beside_the_papers(name, labels, expected):
    assert expected in table(name, [cell(labels)])


def test_sentences_hold_for_every_study():
    """No study without something computed to say, and none that breaks on a single cell."""
    text = page({"misreporting": [cell({"inflation": "0"}), cell({"inflation": "10"}, participation_mean=0.1)]})
    assert "+10 %: participation -30.0 points, accuracy +0.0 points" in text
    for name in set(STUDIES) - {"splits", *BEYOND}:
        labels = {"data": "cifar10", "split": "0.5,1.0", "method": "feduca", "n_s": "1", "rule": "Eq. 1", "delta": "1"}
        assert f"paper/{name}.md" in pages({name: [cell(labels)]})


def test_a_table_stands_under_the_command_that_gives_it():
    planned = plan("rules")
    cells = [{"labels": dict(c.labels), "seeds": c.recipe.seeds, "device": "cpu"} for c in planned]
    assert commands("rules", cells) == ["feduca reproduce rules"]
    assert not_run("rules", cells) == ""
    half = [cell | {"device": "H", "precision": "bf16"} for cell in cells if cell["labels"]["data"] == "cifar10"]
    line = "feduca reproduce rules --only data=cifar10 --device cuda --set engine.precision=bf16"
    assert commands("rules", half) == [line]
    assert not_run("rules", half) == "Not run yet: data fmnist (18 of 36 cells)."
    assert commands("rules", half[1:]) == [f"{line}  # 17 of its 18 cells"]
    assert not_run("rules", half[1:]) == (
        "Not run yet: data fmnist; data cifar10, rule Eq. 1, method fedavg (19 of 36 cells)."
    )
    assert not_run("rules", half[1:10] + half[11:]).endswith("; 2 other cells (20 of 36 cells).")  # no block
    assert not_run("rules", cells[1:10] + cells[11:]) == "Not run yet: 2 of 36 cells."
    one = [cell | {"seeds": [7]} for cell in half if cell["labels"]["rule"] == "Eq. 1"]
    assert commands("rules", one) == [
        "feduca reproduce rules --only data=cifar10 --only 'rule=Eq. 1' --device cuda --set engine.precision=bf16"
        " --set seeds=[7]"
    ]


def test_a_part_of_a_study_stands_under_its_own():
    part = plan("offers", keep={"study": ["quitting"]})
    cells = [{"labels": dict(c.labels), "seeds": c.recipe.seeds, "device": "cpu"} for c in part]
    assert commands("offers", cells, "quitting") == ["feduca reproduce offers --only study=quitting"]
    fewer = [cell for cell in cells if cell["labels"]["data"] == "fmnist"]
    assert commands("offers", fewer, "quitting") == ["feduca reproduce offers --only study=quitting --only data=fmnist"]
    assert not_run("offers", fewer, "quitting").startswith("Not run yet: data cifar10 (")


def test_what_is_still_to_run_stands_under_the_command_that_runs_it():
    """Missing cells and single seeds with --fill; cells that do not say what claims ask of them without."""
    full = [
        cell(dict(one.labels), seeds=[0, 1, 2], participations=[0.5] * 3, joined_least=1, jensen_short={})
        for one in plan("delta")
    ]
    assert to_run("delta", full) == []
    assert to_run("delta", full[1:]) == [f"feduca reproduce delta --only delta=0.01 {ON_GPU} --fill"]
    assert to_run("delta", [one | {"seeds": [0]} for one in full]) == [f"feduca reproduce delta {ON_GPU} --fill"]
    older = [full[0] | {"jensen_short": None}, *full[1:]]
    assert to_run("delta", older) == [f"feduca reproduce delta --only delta=0.01 {ON_GPU}"]
    table1 = [
        cell(dict(one.labels), method=one.labels["method"], seeds=[0, 1, 2], participations=[0.5] * 3, joined_least=1)
        for one in plan("table1")
    ]
    (line,) = to_run("table1", [one | {"promise_error": 0.1} for one in table1 if one["labels"]["data"] != "cifar100"])
    assert line == f"feduca reproduce table1 --only data=cifar100 {ON_GPU} --fill"
    (line,) = to_run("table1", table1)
    assert line == f"feduca reproduce table1 --only method=feduca {ON_GPU}"  # which say nothing of promises


def test_commands_of_the_page_are_commands():
    """Every line under "Still to run" names a study and cells of it that there are."""
    section = pages(SUMMARIES)["paper/to-run.md"]
    lines = [line for line in section.splitlines() if line.startswith("$ feduca reproduce")]
    assert lines
    for line in lines:
        words = shlex.split(line)
        only = parse_only([words[i + 1] for i, word in enumerate(words) if word == "--only"])
        settings = dict(parse_setting(words[i + 1]) for i, word in enumerate(words) if word == "--set")
        assert plan(words[3], keep=only, settings=settings)
