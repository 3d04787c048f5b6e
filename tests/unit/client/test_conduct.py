"""Conduct: silos that withhold, freeload and lie, what it does, and whether it pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import feduca
from feduca import api
from feduca.analysis.audit import Outcome
from feduca.analysis.incentives import METHODS, Claims, incentives, lever, methods_for, sentence
from feduca.client.conduct import KINDS, Conduct, Seen
from feduca.errors import ConfigError, InputError
from feduca.recipes import schema as config
from numpy_task import NumpyTask
from offered import LEAST, SMALL

SHARED, GIVEN, NEW = np.zeros((2, 3)), np.ones((2, 3)), np.full((2, 3), 4.0)


def done(kind, round=1, shared=SHARED, kept=None, who=(1,)):
    """What two silos have and send when those of `who` behave like that, and what they keep."""
    conduct, clients = Conduct(kind, who, after=1, noise=0.0), np.array([0, 1])
    seen = Seen(round, 0, clients, shared, GIVEN, NEW, np.full(2, round > 1), conduct.who(clients), kept or {})
    seen = replace(seen, new=conduct.works(seen))
    return seen.new, conduct.sends(seen), conduct.deed.keeps(seen)


def test_conduct_by_hand():
    sent = {kind: done(kind)[1] for kind in KINDS if kind != "copy"}
    for model in sent.values():
        assert np.array_equal(model[0], NEW[0])  # the honest one
    for kind in ("honest", "refuse", "take", "lapse", "stale", "forge"):  # in the first round, that is
        assert np.array_equal(sent[kind][1], NEW[1])
    assert np.array_equal(sent["withhold"][1], SHARED[1])
    for kind in ("echo", "idle", "replay"):
        assert np.array_equal(sent[kind][1], GIVEN[1])
    for kind in ("noise", "fixed"):
        assert np.linalg.norm(sent[kind][1] - SHARED[1]) == pytest.approx(np.linalg.norm(NEW[1] - SHARED[1]))
        assert np.array_equal(sent[kind], done(kind)[1])
    assert not np.array_equal(sent["noise"][1], done("noise", 2)[1][1])  # a new draw every round
    assert np.array_equal(sent["fixed"][1], done("fixed", 2)[1][1])
    assert np.array_equal(done("idle")[0], [[4, 4, 4], [1, 1, 1]])
    clients = np.array([0, 1])
    assert Conduct("refuse", (1,)).willing(clients).tolist() == [True, False]
    assert Conduct("refuse").willing(clients).tolist() == [False, False]
    assert Conduct("take", (1,)).sly(clients).tolist() == [False, True]


def test_deeds_that_remember_by_hand():
    later = SHARED + 2.0
    assert np.array_equal(done("lapse", 2)[1][1], GIVEN[1])
    kept = done("replay")[2]
    assert np.array_equal(done("replay", 2, later, kept)[1], [[4, 4, 4], [4, 4, 4]])  # 2, and the step from 0 to 2
    kept = done("stale")[2]
    assert np.array_equal(done("stale", 2, later, kept)[1][1], [6, 6, 6])  # 2, and the first update, 4
    assert np.array_equal(done("stale", 2, later, kept)[0][1], GIVEN[1])  # it did not train
    assert done("stale", 2, later, kept)[2]["deed.update"][1].tolist() == [4, 4, 4]
    assert done("forge", 2, later, done("forge")[2])[1][1] == pytest.approx(6 - 0.3 * 2)
    have, sent, _ = done("copy", who=(0, 1))
    assert np.array_equal(have[1], GIVEN[1])
    assert np.array_equal(sent[0], sent[1])
    with pytest.raises(ConfigError, match="no other silo to copy from"):
        done("copy")


def test_who_only_says_that_it_declines_deploys_the_offer():
    settings = {**SMALL, "participation.rule": "always"}
    honest = feduca.run({}, settings, task=NumpyTask())
    sly = feduca.run({}, {**settings, "conduct.kind": "take", "conduct.clients": [0]}, task=NumpyTask())
    assert [record["status"][0] for record in sly.clients] == ["joined"] + ["declined"] * 4
    for record in sly.clients[1:]:
        assert record["test_deployed"][0] == record["test_global"][0]
    assert honest.clients[1]["test_deployed"][0] == honest.clients[1]["test_global"][0]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "honest"])
def test_every_conduct_runs_and_changes_the_outcome(kind):
    settings = {**SMALL, **LEAST, "participation.ties": "loss"}
    honest = feduca.run({}, settings, task=NumpyTask())
    who = [0, 1] if kind == "copy" else [0]
    more = {"conduct.after": 2} if kind == "lapse" else {}
    other = feduca.run({}, {**settings, **more, "conduct.kind": kind, "conduct.clients": who}, task=NumpyTask())
    assert not np.array_equal(honest.theta, other.theta)
    if kind == "refuse":
        assert [record["status"][0] for record in other.clients] == ["joined"] + ["declined"] * 4
    with pytest.raises(ConfigError, match=r"conduct\.clients names silo 7"):
        config.load({}, {"conduct.clients": [7], "task.clients": 4})


def test_a_silo_may_claim_more_than_it_has():
    task = NumpyTask()
    liar = Claims(task, 0)
    assert liar.examples.tolist() == [200, *task.examples[1:].tolist()]
    assert liar.silos == task.silos
    settings = {**SMALL, "mechanism.name": "fedavg", "participation.rule": "always", "mechanism.beta": "examples"}
    weights = [feduca.run({}, settings, task=t).clients[0]["alpha"][0] for t in (task, liar)]
    assert weights[1] > 3 * weights[0]


def test_incentives_on_the_smallest_federation():
    recipe = api.recipe(
        "quickstart", {"rounds": 2, "local.epochs": 1, "task.test_share": 0.5, "task.max_examples": 600}
    )
    found = incentives(recipe, seeds=(0,), deviators=1, deeds=("refuse", "inflate", "claim"))
    assert [(row["method"][:5], row["deed"]) for row in found["rows"]] == [
        ("least", "refuse"), ("least", "claim"), ("least", "refuse"), ("least", "claim"), ("best ", "refuse"), ("best ", "claim"),
        ("FedUC", "refuse"), ("FedUC", "inflate"), ("FedUC", "claim"),
    ]  # fmt: skip
    assert len(found["verdict"]) == 9
    assert all("one case does not tell" in said for said in found["verdict"])
    assert not lever("inflate", {"name": "fedavg", "beta": "uniform"})  # nobody reads the threshold
    assert not lever("claim", {"name": "random"})  # nor counts
    assert not lever("claim", {"name": "mine", "beta": 0.5})
    with pytest.raises(InputError, match=r"set task\.test_share"):
        incentives(api.recipe("quickstart"))
    with pytest.raises(InputError, match="choose 1 to 10"):
        incentives(recipe, deviators=11)


def test_what_a_recipe_chooses_is_audited_beside_methods_that_are_what_their_labels_say():
    assert list(methods_for(api.recipe("quickstart"))) == list(METHODS)
    mine = {
        "mechanism.name": "fedavg", "participation.rule": "accuracy", "offer.kind": "best-mixture",
        "offer.train_from": "consensus", "offer.points": 7, "participation.confidence": 0.9,
    }  # fmt: skip
    own, *ours = methods_for(api.recipe("quickstart", mine)).items()
    assert own[0] == "this recipe (fedavg, accuracy, best-mixture)"
    assert (own[1].offer.points, own[1].participation.confidence) == (7, 0.9)
    assert [label for label, _ in ours] == list(METHODS)
    for label, one in ours:
        assert one.participation.confidence == 0  # Eq. 1 is
        assert one.offer.train_from == ("consensus" if "consensus" in label else "offer")
        assert one.offer.points == (10 if "FedUCA" in label else 7)
    lagged = methods_for(api.recipe("quickstart", {"mechanism.schedule": "lagged"}))
    assert lagged["FedUCA fresh, Eq. 2"].mechanism["schedule"] == "fresh"
    assert "this recipe (feduca, utility, global)" in lagged
    said: list[str] = []
    found = methods_for(api.recipe("quickstart", {"offer.points": 7}), said.append)  # means something to offers only
    assert list(found) == list(METHODS)
    assert said[0].startswith("this recipe (feduca, utility, global): left out, since quickstart: offer.points is 7")


def test_a_lie_is_compared_with_the_truth_under_the_same_weights(monkeypatch):
    """Figures by hand: weights by examples are worth 0.2 to everybody, the claim 0.01 to the liar and -0.03 to the others."""
    few = {"rounds": 1, "task.test_share": 0.5, "task.clients": 3, "task.max_examples": 300}
    recipe = api.recipe("quickstart", few)
    played = []

    def one(chosen, task=None):
        beta, conduct = chosen.mechanism["beta"], chosen.conduct
        played.append((beta, conduct.kind, isinstance(task, Claims)))
        silos = np.full(3, 0.7 if beta == "examples" else 0.5)
        if isinstance(task, Claims):
            silos = silos + np.where(np.arange(3) == task.liar, 0.01, -0.03)
        elif conduct.kind != "honest":
            silos = silos + np.where(np.arange(3) == conduct.clients[0], 0.3, -0.06)
        return Outcome(silos.tolist(), [1 / 3] * 3, [1.0] * 3, 0.5, 1.0)

    monkeypatch.setattr("feduca.analysis.incentives._play", lambda jobs, *_: [one(chosen) for chosen, _ in jobs])
    monkeypatch.setattr("feduca.analysis.incentives.api.run", lambda chosen, seed, task: one(chosen, task))
    monkeypatch.setattr("feduca.analysis.incentives.outcome", lambda ran: ran)
    methods = {"fedavg": recipe.with_settings({"mechanism.name": "fedavg"})}
    found = incentives(recipe, seeds=(0,), deviators=3, methods=methods, deeds=("echo", "claim"))
    rows = {row["deed"]: row for row in found["rows"]}
    assert rows["claim"]["own"]["mean"] == pytest.approx(0.01)
    assert rows["claim"]["others"]["mean"] == pytest.approx(-0.03)
    assert rows["echo"]["own"]["mean"] == pytest.approx(0.3)
    assert rows["echo"]["others"]["mean"] == pytest.approx(-0.06)
    assert played.count(("examples", "honest", False)) == 1  # the truth is played once


def test_a_verdict_needs_two_standard_errors():
    def row(mean, error):
        value = {"mean": mean, "stderr": error}
        base = {"method": "m", "deed": "echo", "gained": 0.5, "lost": 0.5, "cases": 6}
        return {**base, **dict.fromkeys(("own", "others", "accuracy"), value)}

    assert " loses: -3.0 +- 1.0" in sentence(row(-0.03, 0.01))
    assert " gains: +3.0" in sentence(row(0.03, 0.01))
    assert "neither clearly gains nor loses" in sentence(row(-0.03, 0.02))
