"""Rules and offers of one's own, by name: in a recipe, on the command line, in the catalogue."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

import feduca
from command_line import feduca as command
from feduca.client import registry
from feduca.client.offers import at
from feduca.client.participation import Comparison, Decision
from feduca.client.requests import Along
from feduca.core.arrays import repeat
from feduca.errors import ConfigError, RunError

SMALL = {"task.clients": 4, "local.epochs": 1, "utility.check_every": 0, "mechanism.name": "fedavg"}


@dataclass(frozen=True)
class Odd:
    """Silos at odd places stay away after round 1."""

    better: Comparison = Comparison()
    needs = feduca.Needs()

    def decide(self, situation):
        join = np.arange(len(situation.gamma)) % 2 == 0
        return Decision(join, [f"ties {self.better.ties}"] * len(join))


@dataclass(frozen=True)
class HalfWay:
    """The middle."""

    needs = feduca.Needs()

    def of(self, asked):
        k = len(asked.clients)
        middle = np.where(asked.has_own, 0.5, 0.0)
        line = yield Along(repeat(asked.theta, k), asked.own, middle[:, None], asked.clients)
        return at(asked, middle, feduca.Scores(line.accuracy[:, 0], line.loss[:, 0]), np.ones(k, int))


@pytest.fixture(autouse=True)
def _of_this_test_alone(monkeypatch):
    for own in (registry.rules, registry.offers):
        monkeypatch.setattr(own, "_registered", {})


def test_a_rule_decides_and_an_offer_is_made(tmp_path):
    registry.rules.register("odd", Odd)
    registry.offers.register("half-way", HalfWay)
    chosen = {**SMALL, "participation.rule": "odd", "participation.ties": "loss", "offer.kind": "half-way"}
    result = feduca.run("quickstart", chosen, rounds=2, out=tmp_path)
    last = result.clients[-1]
    assert last["status"] == ["joined", "declined", "joined", "declined"]
    assert set(last["reason"]) == {"ties loss"}
    assert last["concession"] == [0.5] * 4
    assert feduca.load(result.run_dir).config["participation"]["rule"] == "odd"
    assert feduca.resume(result.run_dir, rounds=3).clients[-1]["concession"] == [0.5] * 4


def test_what_is_no_rule_is_refused():
    with pytest.raises(ConfigError, match="there is a rule 'always' already"):
        registry.rules.register("always", Odd)
    with pytest.raises(ConfigError, match="not a dataclass; see docs/your-mechanism"):
        registry.offers.register("mine", Odd())
    with pytest.raises(ConfigError, match="the offer registered as 'odd' lacks of"):
        registry.offers.register("odd", Odd)
    with pytest.raises(ConfigError, match=r"participation\.rule is 'odd'"):
        feduca.recipe("quickstart", {"participation.rule": "odd"})


WRONG_DECISIONS = {
    "returned None; its decide returns": lambda n: None,
    "gave join of shape .1,. and type bool; .* each of the 4 silos": lambda n: Decision(np.ones(1, bool), ["yes"] * n),
    "and type float64; give": lambda n: Decision(np.ones(n), ["yes"] * n),
    "gave 1 reasons; give a list with one for each of the 4 silos": lambda n: Decision(np.ones(n, bool), ["yes"]),
    "gave one text": lambda n: Decision(np.ones(n, bool), "yes!"),
}


@pytest.mark.parametrize("said", WRONG_DECISIONS)
@pytest.mark.parametrize("around", [{}, {"participation.quits": 2}])
def test_a_wrong_decision_is_one_line(said, around):
    @dataclass(frozen=True)
    class Mine:
        needs = feduca.Needs()

        def decide(self, situation):
            return WRONG_DECISIONS[said](len(situation.gamma))

    registry.rules.register("mine", Mine)
    with pytest.raises(RunError, match=f"the rule Mine in round 1 .*{said}"):
        feduca.run("quickstart", {**SMALL, **around, "participation.rule": "mine"}, rounds=2)


def _short(asked):
    found = at(asked, np.zeros(len(asked.clients)), asked.global_scores, np.ones(1, int))
    return found
    yield


def _nothing(asked):
    return None
    yield


WRONG_OFFERS = {
    "returned int; its `of` is a coroutine": lambda asked: 3,
    "returned None; return a feduca": _nothing,
    "gave evaluations of shape .1,.; give one for each of the 4 silos": _short,
}


@pytest.mark.parametrize("said", WRONG_OFFERS)
def test_a_wrong_offer_is_one_line(said):
    @dataclass(frozen=True)
    class Mine:
        needs = feduca.Needs()

        def of(self, asked):
            return WRONG_OFFERS[said](asked)

    registry.offers.register("mine", Mine)
    with pytest.raises(RunError, match=f"the offer Mine {said}"):
        feduca.run("quickstart", {**SMALL, "participation.rule": "accuracy", "offer.kind": "mine"}, rounds=2)


FILE = """
from dataclasses import dataclass
import numpy as np
import feduca
from feduca.client import registry
from feduca.client.participation import Decision

@dataclass(frozen=True)
class Nobody:
    "Nobody at all."
    needs = feduca.Needs()
    def decide(self, situation):
        n = len(situation.gamma)
        return Decision(np.zeros(n, bool), ["no"] * n)

registry.rules.register("nobody", Nobody)
"""


def test_from_a_file_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    words = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    run = ["run", "quickstart", "--rounds", "2", "--json", "--import", "mine.py", "--set", "participation.rule=nobody"]
    code, out, err = command(*run, *words, capsys=capsys)
    assert code == 0, err
    assert "registers no mechanism" not in err
    assert json.loads(out)["participation"] == 0.5  # all in round 1, nobody after
    assert "nobody  " in command("list", "rules", "--import", "mine.py", capsys=capsys)[1]
