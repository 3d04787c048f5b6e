"""Which reading is the paper's: the score, who goes on, who wins, and what claims say of other readings."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import feduca
from feduca.core import rounds as loop
from feduca.federation import InProcess, Recording
from feduca.recipes.build import behaviour_of, make_server
from feduca.studies.cell_summary import CellSummary
from feduca.studies.execute import plan
from numpy_task import NumpyTask
from paper import findings_page
from paper import readings_page as page
from paper.claims import CLAIMS, register
from paper.claims.compare import FAILS, NONE, UNDER, UNTESTED
from paper.claims.readings import tried, with_readings
from paper.page import filled, read

ROOT = Path(__file__).parents[3]
RESULTS = read(ROOT / "results")
PAPERS = dict(page.PRINTED) | {"n_s = 10": 0.53, "delta = 0.1": 0.4, "delta = 10": 0.52, "delta = 100": 0.5}
FLAT = dict.fromkeys(PAPERS, 0.5)


def cell(study, name, share, accuracy=0.8318, split="0.5,1.0", spread=0.01, **labels):
    """A cell of the search as `summarise` writes it, of three seeds."""
    data = "fmnist" if study in ("fmnist", "mixtures", "screening") else "cifar10"
    placed = {"split": split} if data == "cifar10" else {}
    shares = [share - spread, share, share + spread]
    return {
        "labels": {"study": study, **placed, **labels, "cell": name},
        "data": data, "split": split, "method": "feduca", "study": study, "mechanism": "feduca", "rule": "utility",
        "clients": 10, "rounds": 100, "seeds": [0, 1, 2], "split_seed": 0, "n_s": 5, "schedule": "lagged",
        "accuracies": [accuracy] * 3, "accuracy_mean": accuracy, "accuracy_std": 0.01,
        "participations": shares, "participation_mean": share, "device": "cpu", "precision": "fp32",
    }  # fmt: skip


def reading(shares, accuracy=0.8318, study="fmnist", split="0.5,1.0", spread=0.01, **labels):
    """All cells of one reading; what is not said of it is today's."""
    labels = dict(page.TODAY) | labels if study not in ("mixtures", "cifar10-mixtures") else labels
    return [cell(study, name, share, accuracy, split, spread, **labels) for name, share in shares.items()]


def of(*groups):
    return [CellSummary.of(one) for group in groups for one in group]


def test_the_score_by_hand():
    """Off by 0 in all but n_s = 1 (by 12 points) and +10 % (by 6): 18 / 6 = 3; accuracy 5 off, two beyond the free three."""
    shares = dict(page.PRINTED) | {"n_s = 1": 0.41, "inflated by 10 %": 0.073}
    (one,) = page.readings(of(reading(shares, 0.8318 - 0.05)), "fmnist")
    assert one.distance() == pytest.approx(0.03)
    assert one.accuracy_off() == pytest.approx(-0.05)
    assert one.score() == pytest.approx(0.05)
    assert one.orders == 5
    assert one.seeds == [0, 1, 2]
    assert one.distance(2) == pytest.approx(
        (4 * 0.01 + 0.13 + 0.07) / 6
    )  # the third seed keeps a point more everywhere
    (near,) = page.readings(of(reading(shares, 0.8318 + 0.029)), "fmnist")
    assert near.score() == near.distance()
    (flat,) = page.readings(of(reading(FLAT)), "fmnist")
    assert flat.orders == 0


def test_a_reading_without_all_scored_cells_is_not_ranked():
    shares = {name: share for name, share in page.PRINTED.items() if name != "delta = 1000"}
    assert page.readings(of(reading(shares)), "fmnist") == []


def test_four_go_on_at_most_two_of_a_kind_and_todays():
    def off(by, **labels):
        return reading({name: share + by for name, share in page.PRINTED.items()}, **labels)

    groups = [
        off(0.01, check="realised", schedule="fresh"),
        off(0.02, check="realised", schedule="lagged"),
        off(0.03, check="realised", schedule="one-alpha"),  # the third of its kind
        off(0.04, threshold="own-accuracy"),
        off(0.05, study="mixtures", base="b", change="epsilon 0.01"),
        off(0.06, threshold="local-baseline"),
        off(0.30),
    ]
    chosen = page.finalists(of(*groups))
    assert [round(100 * one.distance()) for one in chosen] == [1, 2, 4, 5, 30]
    assert page.is_today(chosen[-1])
    lines = page.going_on(of(*groups)).splitlines()
    assert (
        "--only study=cifar10 --only check=realised --only threshold=previous-weight --only schedule=fresh" in lines[1]
    )
    assert "--only study=cifar10-mixtures --only base=b --only 'change=epsilon 0.01'" in lines[4]


def test_the_best_of_one_seed_and_todays_are_run_with_all():
    def of_one_seed(by, **labels):
        found = reading({name: share + by for name, share in page.PRINTED.items()}, spread=0.0, **labels)
        one = {"seeds": [0]}
        return [{**c, **one, "participations": c["participations"][:1], "accuracies": [0.8318]} for c in found]

    changes = [of_one_seed(k / 1000, study="mixtures", base="b", change=f"{k}") for k in range(1, page.FIRST)]
    assert page.again(of(*changes)) == []  # one is still to come
    chosen = page.again(of(*changes, of_one_seed(0.3)))
    assert [dict(one.labels).get("change") for one in chosen] == [*(str(k) for k in range(1, page.AGAIN + 1)), None]
    assert page.is_today(chosen[-1])
    # The second pass changes nothing of who is in it, and only those with all seeds go on.
    more = reading({name: share + 0.2 for name, share in page.PRINTED.items()}, study="mixtures", base="b", change="1")
    more = [{**c, "participations": [c["participation_mean"] - 0.199, 0.9, 0.9]} for c in more]
    later = of(more, *changes[1:], of_one_seed(0.3))
    assert [one.labels for one in page.again(later)] == [one.labels for one in chosen]
    assert [dict(one.labels)["change"] for one in page.finalists(later)] == ["1"]
    assert "--only study=mixtures --only base=b --only change=1 " in page.second_pass(later)


def test_who_judges_the_model_that_came_does_not_see_what_was_announced():
    """With `realised`, `announce-next` is `lagged`: the search runs it once."""
    changes = {"participation.check": "realised", "rounds": 4, "local.epochs": 1, "task.hidden": [8]}
    found = [
        [
            (record.joined, state.theta.tolist())
            for record, clients, state in feduca.iterate("quickstart", {**changes, "mechanism.schedule": schedule})
        ]
        for schedule in ("lagged", "announce-next")
    ]
    assert found[0] == found[1]
    assert 0 < sum(joined for joined, _ in found[0]) < 40


def test_the_commands_choose_cells_that_there_are():
    for part, labels in (
        ("cifar10", dict(page.TODAY)),
        ("cifar10-mixtures", {"base": "fitted, previous-weight, lagged", "change": "epsilon 0.01"}),
    ):
        keep = {"study": [part], **{k: [v] for k, v in labels.items()}}
        cells = plan("readings", keep=keep)
        assert len(cells) == 22
        assert {one.labels["cell"] for one in cells} == set(PAPERS)
        assert all(one.recipe.task.split_seed == 0 and len(one.recipe.seeds) == 3 for one in cells)


def test_cells_of_the_search_are_what_their_labels_say():
    found = plan("readings", keep={"study": ["fmnist"]})
    assert len({one.recipe.hash() for one in found}) == len(found) == 48 * 7
    for one in found:
        p, m, said = one.recipe.participation, one.recipe.mechanism, one.labels
        assert (p.check, p.threshold, m["schedule"], m["start"]) == tuple(said[k] for k in page.TODAY)
        assert one.recipe.task.data == "fmnist"
        assert (said["cell"] == "n_s = 1") == (m["n_s"] == 1)
        assert (said["cell"] == "delta = 0.01") == (m["delta"] == 0.01)
        assert (said["cell"] == "inflated by 10 %") == (one.recipe.reporting.share == 0.1)
    today = [one for one in found if {k: one.labels[k] for k in page.TODAY} == page.TODAY]
    assert len(today) == 7  # which are the paper recipes' own, but for the shared split
    part = plan("readings", keep={"study": ["mixtures"], "change": ["silent decliners"]})
    assert {one.recipe.reporting.decliners for one in part} == {"silent"}


def test_a_reading_wins_if_it_is_clearly_nearer():
    def cifar(by, spread=0.01, accuracy=0.6689, **labels):
        shares = {name: share + by for name, share in PAPERS.items()}
        return reading(shares, accuracy, "cifar10", spread=spread, **labels)

    todays = cifar(0.14)
    assert page.winner(of(todays)) is None
    won = page.winner(of(todays, cifar(0.05, check="realised")))
    assert won is not None
    assert won.called == "realised, previous-weight, lagged, random"
    assert "clearly nearer" in page.verdict(of(todays, cifar(0.05, check="realised")))
    assert "still farther off" in page.verdict(of(todays, cifar(0.09, check="realised")))
    near = cifar(0.13, check="realised")
    for one, shift in zip(near, (0.2, -0.2) * 9):  # seeds that disagree about it
        one["participations"] = [
            one["participation_mean"] + shift,
            one["participation_mean"],
            one["participation_mean"],
        ]
    assert page.winner(of(todays, near)) is None
    assert "No reading is clearly nearer" in page.verdict(of(todays, near))
    assert (
        page.winner(of(todays, cifar(0.05, accuracy=0.50, check="realised"))) is None
    )  # 14 points of accuracy too few


@pytest.mark.parametrize("name", ["which-reading.md", "which-reading-tables.md", "which-reading-mixtures.md"])
def test_the_committed_pages_are_what_the_summaries_say(name):
    text = (ROOT / "docs" / name).read_text()
    assert filled(text, lambda name: page.block(ROOT / "results", name)) == text  # else: python -m paper.readings_page


def test_every_table_can_be_written(tmp_path):
    baselines = [
        {**cell("baselines", "", 0.3), "data": "fmnist", "method": m, "accuracy_mean": 0.5,
         "labels": {"study": "baselines", "decliners": d, "memory": "model", "split": "0.5,1.0", "method": m}}
        for d in ("all", "curve") for m in ("fedavg", "aaggff")
    ]  # fmt: skip
    controls = [
        {**cell("controls", "", 0.3), "labels": {"study": "controls", "check": c, "threshold": "t", "weights": w}}
        for c in ("fitted", "realised") for w in ("uniform", "random")
    ]  # fmt: skip
    everything = [
        *controls,
        *reading(page.PRINTED),
        *reading(page.PRINTED, study="mixtures", base="b", change="c"),
        *(one for split in ("0.5,1.0", "1.0,1.0") for one in reading(PAPERS, 0.66, "cifar10", split)),
        *baselines,
    ]
    (tmp_path / "readings.json").write_text(json.dumps(everything))
    parts = ("fmnist", "mixtures", "baselines", "controls", "cifar10", "cifar10-mixtures", "screening")
    for name in ("printed", "going-on", "unexplained", *parts):
        text = page.block(tmp_path, name)
        assert page.NOT_YET not in text or name in ("cifar10-mixtures", "screening")
    assert "| 1 (today's) |" in page.block(tmp_path, "fmnist")
    assert "no reading has won yet" in page.block(tmp_path / "nowhere", "verdict")


# ---------------------------------------------------------------------------------------------------------------------
# Claims

DELTA = next(claim for claim in CLAIMS if claim.text.startswith("participation is about 30 % at delta = 0.01"))


def judged(*groups):
    summaries = {**RESULTS, "readings": [one for group in groups for one in group]}
    return {claim.text: with_readings(claim, summaries, tried(summaries)) for claim in CLAIMS}


def test_without_other_readings_verdicts_are_as_they_were():
    plain = {**RESULTS, "readings": reading(page.PRINTED)}  # of Fashion-MNIST: no place in the claims about CIFAR-10
    assert tried(plain) == {}
    for claim in CLAIMS:
        assert with_readings(claim, plain, {}) == claim.judge(RESULTS)
    text = "\n".join(register(plain).values())
    assert UNDER not in text
    assert NONE not in text


def test_a_claim_that_fails_says_under_which_readings_it_holds_or_was_tried():
    papers = reading(PAPERS, 0.6689, "cifar10", check="realised")
    flat = reading(FLAT, 0.6689, "cifar10", threshold="own-accuracy")
    assert DELTA.judge(RESULTS).word == FAILS
    found = judged(papers, flat)
    assert found[DELTA.text].word == UNDER
    assert found[DELTA.text].why.endswith("; holds under realised, previous-weight, lagged, random")
    none = judged(flat)[DELTA.text]
    assert none.word == NONE
    assert none.why.endswith("; tried under fitted, own-accuracy, lagged, random")
    text = register({**RESULTS, "readings": [*papers, *flat]})["claims"]
    assert f"| {UNDER} | {NONE} |" in text.splitlines()[4]
    assert "which-reading.md" in text


def test_other_readings_bear_on_no_other_claims():
    """Claims about other data, about baselines alone and about proofs are as before, and so are all that do not fail."""
    found = judged(reading(PAPERS, 0.6689, "cifar10", check="realised"))
    for claim in CLAIMS:
        before, after = claim.judge(RESULTS), found[claim.text]
        if (
            before.word != FAILS
            or "CIFAR-100" in claim.text
            or "F-MNIST" in claim.text
            or "Newsgroups" in claim.text
            or claim.text.startswith(("FedAvg keeps", "FedProx keeps", "AAggFF-S keeps"))
        ):
            assert after == before, claim.text
    assert {verdict.word for verdict in found.values()} >= {UNDER, FAILS, UNTESTED}


def test_readings_share_a_split_and_pair_with_each_other_alone():
    summaries = {**RESULTS, "readings": reading(PAPERS, 0.6689, "cifar10")}
    ((ours, without),) = tried(summaries).values()
    assert ours["delta"][0]["seeds"] == [1000, 1001, 1002]
    assert [c["labels"] for c in ours["table1"] if c["method"] == "feduca"] == [
        {"data": "cifar10", "split": "0.5,1.0", "method": "feduca"}
    ]
    assert {c["data"] for c in ours["table1"]} == {"cifar10"}
    assert all(c["mechanism"] != "feduca" for c in without["table1"])


# ---------------------------------------------------------------------------------------------------------------------
# The period of two


def test_the_table_of_the_findings_is_what_the_summaries_say():
    text = (ROOT / "docs/findings.md").read_text()
    assert filled(text, lambda name: findings_page.period(RESULTS)) == text  # else: python -m paper.findings_page
    table1 = {(c["data"], c["split"], c["method"]): c for c in RESULTS["table1"]}
    lagged = [findings_page.succession(c)[1] for (_, _, method), c in table1.items() if method == "feduca"]
    others = [
        findings_page.succession(c)[1] for (_, _, method), c in table1.items() if method in ("feduca-fresh", "random")
    ]
    assert max(lagged) < -0.6 < min(others)
    assert f"between {min(others):.2f} and {max(others):+.2f}" in text
    one = next(c for c in RESULTS["strategies"] if c["labels"]["n_s"] == "1" and c["data"] == "cifar100")
    shares = one["participation_by_round"][findings_page.FROM :]
    assert all(a + b == pytest.approx(1, abs=1e-6) for a, b in itertools.pairwise(shares))


def test_lagged_weights_are_two_chains():
    """The weights of round t are solved to be worth what those of t - 2 are, and judged against those of t - 1."""
    task = NumpyTask()
    recipe = feduca.recipe({}, {"mechanism.schedule": "lagged", "mechanism.n_s": 1, "rounds": 12, "local.epochs": 1})
    recipe = recipe.with_settings({"task.clients": 4})
    server, how = make_server(recipe, 0, task), behaviour_of(recipe, 0, task)
    federation = Recording(InProcess(task, how))
    items = list(loop.steps(server, task.init(0), task.examples, federation))
    solved = [state.pending.alpha for _, _, state in items]
    for t in range(2, 12):
        report, satisfied = federation.reports[t], items[t][2].pending
        before = solved[t - 2]  # what went into the model that round t's reports are about
        assert items[t - 1][2].announced.alpha == pytest.approx(before)
        at = server.family.value(report.zeta, before)
        assert report.gamma == pytest.approx(at)
        assert (server.family.value(report.zeta, satisfied.alpha) >= report.gamma - 1e-5).all()
