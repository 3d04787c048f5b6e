"""Reporting policies by hand, and the audit end to end on a small federation."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import feduca
from feduca.analysis import audit
from feduca.analysis.audit import Game, Outcome, Plan
from feduca.cli.main import app
from feduca.client.reporting import Inflate, Understate
from feduca.core.utility import Quadratic, Spline
from feduca.errors import ConfigError, InputError
from numpy_task import NumpyTask

CLIENTS = np.arange(3)
GAMMA = np.array([0.5, 0.8, -0.4])
ZETA = np.array([[1.0, 0.5, 0.4], [2.0, 1.0, 0.7], [1.0, 0.2, -0.5]])


def test_inflating_by_shares_of_their_own():
    gamma, zeta = Inflate((0.1, 0.0, 0.5)).report(GAMMA, ZETA, CLIENTS)
    assert gamma == pytest.approx([0.55, 0.8, -0.2])
    assert zeta is ZETA
    some, _ = Inflate((0.1, 0.2, 0.5)).report(GAMMA[[2]], ZETA[[2]], np.array([2]))  # one silo on its own machine
    assert some == pytest.approx([-0.2])


@pytest.mark.parametrize("family", [Quadratic(), Spline()])
def test_understating_lowers_the_whole_curve_and_keeps_it_concave(family):
    r = np.linspace(0, 1, 9)
    zeta = family.fit(r, np.array([0.3 + r - r**2, 0.6 + 0 * r, -0.8 + 0.3 * r]), np.full(9, 1 / 9))
    gamma = family.value(zeta, np.full(3, 0.2))
    same, lower = Understate(0.1, clients=(0, 2)).report(gamma, zeta, CLIENTS)
    assert np.array_equal(same, gamma)
    places = np.repeat(r[:, None], 3, axis=1)
    true, told = family.value(zeta, places), family.value(lower, places)
    assert told[:, [0, 2]] == pytest.approx((true - 0.1 * np.abs(true))[:, [0, 2]], abs=1e-9)
    assert told[:, 1] == pytest.approx(true[:, 1])
    assert family.problem(lower) is None


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"reporting.kind": "inflate", "reporting.share": [0.1, 0.2]},
            "lists 2 silos; give one share for each of the 10",
        ),
        ({"reporting.kind": "understate", "reporting.share": 1.0}, r"is 1\.0; understating takes shares"),
    ],
)
def test_shares_are_checked(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        feduca.recipe({}, settings)


@pytest.mark.parametrize(
    ("how", "complaint"),
    [({"seeds": ()}, "--seeds is 0"), ({"sweeps": 0}, "--sweeps is 0"), ({"grid": (0.1, 0.2)}, "give 0")],
)
def test_a_plan_is_checked(how, complaint):
    with pytest.raises(InputError, match=complaint):
        Plan(**how)


def test_a_grid_is_parsed():
    assert audit.parse_grid("0.1,0,0.05") == (0.0, 0.05, 0.1)
    with pytest.raises(InputError, match="--grid is '0,a'"):
        audit.parse_grid("0,a")


class Scripted(Game):
    """A game whose payoffs are given, so that best responses can be checked without a single run."""

    def profile(self, shares):
        self.known[tuple(shares)] = None
        worth = [self.task(k, tuple(shares)) for k in range(len(shares))]
        return Outcome(worth, worth, worth, 0.5, 0.5)

    def play(self, **reporting):
        return self.profile([0.0] * self.recipe.task.clients)


def responses(worth, clients=2, **plan):
    game = Scripted(feduca.recipe({}, {"task.clients": clients}), 0, worth, {})
    return audit._best_responses(game, Plan(seeds=(0,), **plan), lambda line: None)


def test_best_responses_stop_where_nobody_gains():
    found = responses(lambda k, shares: 0.5 - shares[k])  # inflating only hurts
    assert (found["settled"], found["moves"], found["sweeps"], found["profile"]) == (True, 0, 1, [0.0, 0.0])


def test_best_responses_find_a_dominant_lie():
    found = responses(lambda k, shares: 0.5 + shares[k])
    assert (found["settled"], found["moves"], found["sweeps"], found["profile"]) == (True, 2, 2, [0.1, 0.1])


def test_gains_below_the_least_are_not_worth_a_lie():
    found = responses(lambda k, shares: 0.5 + 0.04 * shares[k])  # four thousandths at the most
    assert found["moves"] == 0


def test_best_responses_notice_a_cycle():
    def pennies(k, shares):  # one wants to match, the other wants to differ
        same = shares[0] == shares[1]
        return float(same if k == 1 else not same)

    found = responses(pennies, grid=(0.0, 0.1), sweeps=9)
    assert not found["settled"]
    assert found["cycle"]
    assert found["sweeps"] < 9


def test_the_audit_end_to_end(monkeypatch):
    monkeypatch.setattr(audit, "make_task", lambda recipe, seed: NumpyTask(3, seed))
    recipe = feduca.recipe({}, {"rounds": 4, "task.clients": 3, "local.epochs": 1, "utility.check_every": 0})
    found = audit.audit(recipe, Plan(seeds=(0, 1), deviators=2, grid=(0.0, 0.1), sweeps=2))
    json.dumps(found, allow_nan=False)
    assert [row["share"] for row in found["everybody"]] == [0.0, 0.05, 0.1]
    assert len(found["alone"]) == 2 * 2 * 2
    assert all(row["cases"] == 4 for row in found["alone"])
    # What a lone deviator gains is measured against the truthful run of the same seed.
    truth = feduca.run(recipe, seed=0, task=NumpyTask(3, 0))
    lied = feduca.run(
        recipe,
        {"reporting.kind": "inflate", "reporting.share": 0.1, "reporting.clients": [0]},
        seed=0,
        task=NumpyTask(3, 0),
    )
    game = Game(recipe, 0, NumpyTask(3, 0), {})
    change = audit.outcome(lied).weight[0] - audit.outcome(truth).weight[0]
    assert game.play(kind="inflate", share=0.1, clients=[0]).weight[0] - game.play().weight[0] == pytest.approx(change)
    assert change != 0
    text = audit.text(found)
    assert "one silo alone" in text
    assert text.splitlines()[-1].startswith("Verdict: ")


def test_the_lone_deviators_are_some_of_the_silos():
    assert list(audit.lone(None, 10)) == [0, 1, 2, 3, 4]
    assert list(audit.lone(None, 3)) == list(audit.lone(3, 3)) == [0, 1, 2]
    with pytest.raises(InputError, match="--deviators is 4; choose 1 to 3, the silos of this recipe"):
        audit.lone(4, 3)


def test_words_follow_the_numbers():
    gain, noise, loss = (audit.spread(values) for values in ([0.02, 0.03, 0.02], [0.02, -0.03, 0.0], [-0.02, -0.03]))
    assert audit._word(gain) == "gains"
    assert audit._word(noise) == "neither gains nor loses on average"
    assert audit._word(loss, plural=True) == "lose"
    assert audit._word(audit.spread([0.5])) == "neither gains nor loses on average"  # one case proves nothing


@pytest.mark.slow
def test_the_command(tmp_path):
    args = ["audit", "--rounds", "2", "--seeds", "1", "--deviators", "1", "--sweeps", "1", "--grid", "0,0.1", "--json"]
    shown = CliRunner().invoke(app, args, catch_exceptions=False)
    found = json.loads(shown.stdout)
    assert found["recipe"] == "quickstart"
    assert found["verdict"][-1].startswith("Verdict: ")
    assert "everybody inflates by 5%: done" in shown.stderr
