"""`feduca compare`: its rows, over seeds and in lockstep, and what a setting makes of their labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import FAST, feduca
from feduca import api
from feduca.analysis.judging import figures, overlap
from feduca.recipes.schema import load, parse_setting
from feduca.studies.cells import relabelled

pytestmark = pytest.mark.usefixtures("own_folder")


def test_compare_prints_every_row(capsys):
    code, out, _ = feduca("compare", "quickstart", *FAST, capsys=capsys)
    assert code == 0
    for label in (
        "FedAvg, Eq. 1",
        "FedAvg-WS",
        "FedUCA fresh, Eq. 2",
        "FedUCA lagged",
        "uniform",
        "random",
        "least concession",
    ):
        assert label in out
    assert "everybody forced in" in out
    assert len(out.splitlines()) == 15  # two lines of headings
    rows = json.loads(feduca("compare", "quickstart", *FAST, "--json", capsys=capsys)[1])
    assert {"method", "mechanism", "rule", "offer", "accuracy", "participation", "seconds"} <= set(rows[0])


def test_compare_over_seeds_gives_mean_and_spread(capsys):
    code, out, _ = feduca("compare", "quickstart", *FAST, "--set", "seeds=[0, 1]", "--json", capsys=capsys)
    assert code == 0
    row = json.loads(out)[0]
    assert row["seeds"] == [0, 1]
    singles = [json.loads(Path(d, "status.json").read_text())["summary"]["accuracy"] for d in row["run_dirs"]]
    assert row["accuracy"] == pytest.approx(sum(singles) / 2)
    assert row["accuracy_std"] == pytest.approx(abs(singles[0] - singles[1]) / 2**0.5)


def test_compare_over_seeds_pools_who_is_better_off(capsys):
    """As `reproduce` does: answers of all seeds are judged together, shares are not averaged."""
    settings = ["seeds=[0, 1]", "alone=true", "task.test_share=0.5", "compare=[]"]
    args = [*FAST, *(part for text in settings for part in ("--set", text))]
    (row,) = json.loads(feduca("compare", "quickstart", *args, "--json", capsys=capsys)[1])
    ends = [json.loads(Path(d, "clients.jsonl").read_text().splitlines()[-1])["paired"] for d in row["run_dirs"]]
    task = load("quickstart", {"task.test_share": 0.5}).plain()["task"]
    expected = figures(ends, overlap(2, task["validation_share"] * 0.5))
    assert {key: row[key] for key in expected} == expected
    assert "surely" in feduca("compare", "quickstart", *args, capsys=capsys)[1]


def test_compare_in_lockstep_prints_the_same_rows(capsys):
    args = ["compare", "quickstart", *FAST, "--set", "seeds=[0, 1]", "--json"]
    plain = json.loads(feduca(*args, "--out", "plain", capsys=capsys)[1])
    _, out, err = feduca(*args, "--out", "together", "--lockstep", "4", capsys=capsys)
    how = {"seconds", "run_dir", "run_dirs", "peak_mb"}
    assert [{k: v for k, v in row.items() if k not in how} for row in json.loads(out)] == [
        {k: v for k, v in row.items() if k not in how} for row in plain
    ]
    assert "seed 0 and 3 more: round " in err


def test_compare_says_which_rows_a_setting_does_not_reach(capsys):
    err = feduca("compare", "quickstart", *FAST, "--set", "participation.ties=loss", capsys=capsys)[2]
    assert (
        "--set participation.ties=loss does not reach the row 'least concession, Eq. 1, ties by loss', the row 'the"
        in err
    )
    assert "does not reach" not in feduca("compare", "quickstart", *FAST, capsys=capsys)[2]


def test_compare_says_which_rows_have_another_mechanism(capsys):
    told = feduca("compare", "quickstart", *FAST, "--json", "--set", "mechanism.beta=examples", capsys=capsys)
    rows = [row["method"] for row in json.loads(told[1])]
    changed = [label for label in rows if label.endswith(", mechanism.beta=examples")]
    assert len(changed) == 3
    assert all(label.startswith("FedUCA") for label in changed)
    assert "--set mechanism.beta=examples reaches 3 of 13 rows; those with another mechanism start from" in told[2]
    assert "own defaults: FedAvg, Eq. 1, FedAvg-WS, Eq. 1, uniform, Eq. 2" in told[2]


def test_compare_says_how_many_are_still_in(capsys):
    out = feduca("compare", "quickstart", *FAST, "--set", "participation.quits=1", capsys=capsys)[1]
    assert out.splitlines()[1].split()[-4:] == ["%", "in", "%", "seconds"]
    assert "Eq. 1  still" in out.splitlines()[0]
    assert "still in" not in feduca("compare", "quickstart", *FAST, capsys=capsys)[1]


def test_a_row_that_a_setting_makes_another_says_so_in_its_label(capsys):
    rows = json.loads(
        feduca("compare", "quickstart", *FAST, "--json", "--set", "offer.kind=best-mixture", capsys=capsys)[1]
    )
    changed = {row["method"]: row["offer"] for row in rows if row["method"].endswith(", offer.kind=best-mixture")}
    assert "FedAvg, Eq. 1, offer.kind=best-mixture" in changed
    assert set(changed.values()) == {"best-mixture"}
    offers = {row["method"]: row["offer"] for row in rows if row["method"] not in changed}
    assert offers["least concession, Eq. 1"] == "least-concession"
    assert {label for label, kind in offers.items() if kind == "best-mixture"} == {"best mixture, Eq. 1"}
    plain = json.loads(
        feduca("compare", "quickstart", *FAST, "--json", "--set", "task.test_share=0.5", capsys=capsys)[1]
    )
    assert not [row for row in plain if "test_share" in row["method"]]  # no row is about it


def labels(*settings: str) -> list[str]:
    """Of the quickstart's rows, those that a change is written into."""
    before = api.recipe("quickstart")
    after = api.recipe("quickstart", dict(map(parse_setting, settings)))
    rows = relabelled(before, after, {parse_setting(text)[0]: text for text in settings})
    assert len(rows) == len(before.compare)
    return [row.label for row, old in zip(rows, before.compare) if row.label != old.label]


def test_only_what_a_setting_changes_has_it_in_its_label():
    consensus = "offer.train_from=consensus"  # means nothing to rows that offer the shared model
    assert labels(consensus) == [
        f"{row}, {consensus}"
        for row in ("least concession, Eq. 1", "least concession, Eq. 1, ties by loss", "best mixture, Eq. 1")
    ]
    assert labels("mechanism.name=feduca") == []  # the recipe's own
    assert labels("participation.ties=loss", "participation.ties=strict") == []
    lagged = labels("mechanism.schedule=lagged")  # one row sets it, others have no schedule
    assert lagged == [f"FedUCA fresh, Eq. {k}, mechanism.schedule=lagged" for k in (2, 1)]


def test_a_table_with_axes_refuses_what_its_labels_are_about(capsys, tmp_path):
    axis = '[[axes]]\nname = "method"\nvalues = [{ label = "avg", set = { "mechanism.name" = "fedavg" } }, { label = "uca" }]\n'
    (tmp_path / "own.toml").write_text(f'extends = "quickstart"\ncompare = []\n{axis}')
    code, _, err = feduca("compare", "own.toml", *FAST, "--set", "mechanism.name=fedprox", capsys=capsys)
    assert code == 2
    assert "--set mechanism.name=fedprox: a table's axis is about it, and 'uca' would not be what it says" in err


def test_a_setting_for_some_rows_leaves_the_others_alone(capsys):
    code, out, err = feduca("compare", "quickstart", *FAST, "--set", "offer.margin=0.01", capsys=capsys)
    assert code == 0, err  # the best mixture has no use for it, the least concession has
    assert "best mixture" in out


def test_who_is_better_off_than_alone_is_printed(capsys):
    judged = [*FAST, "--set", "alone=true", "--set", "task.test_share=0.5"]
    code, out, err = feduca("run", *judged, "--json", capsys=capsys)
    row = json.loads(out)
    code, out, err = feduca("run", *judged, capsys=capsys)  # read back
    assert code == 0, err
    line = next(line for line in out.splitlines() if line.startswith("deployed "))
    assert (
        f"against {100 * row['alone']:.1f} % alone on untouched data: {10 * row['better_off']:.0f} of 10 silos" in line
    )
    assert line.endswith(f"worst {row['gain_worst_silo']} {100 * row['gain_worst']:+.1f}")
    code, out, err = feduca("compare", *judged, capsys=capsys)
    assert code == 0, err
    assert "deployed  alone  better" in out.splitlines()[0]
    assert [line.split("  ")[0] for line in out.splitlines()[2:]] == [
        "alone", "free to leave", "forced in", "FedUCA", "tailored"
    ]  # fmt: skip
    assert max(map(len, out.splitlines())) <= 80
    assert "See it: feduca report runs/tailored" in err
    code, out, err = feduca("compare", "quickstart", *FAST, capsys=capsys)
    assert "better off" not in out
