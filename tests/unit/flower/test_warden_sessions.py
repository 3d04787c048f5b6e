"""What a silo's policy lets through of secure aggregation: rounds of approved runs, in so many messages."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from typer.testing import CliRunner

from feduca.cli.main import app as cli
from feduca.flower import codec
from feduca.flower import policy as policies
from supernode import MODEL, announcement, only_the_decision, thief, training


def feduca(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)


def secure(round, step="mask", run="run-1"):
    return RecordDict({"secure": ConfigRecord({"protocol": 1, "run": run, "round": round, "step": step})})


def approved(node):
    """Settings and run-1 are approved."""
    node.policy("approve = true")
    node.ask(training(1), thief)
    assert feduca("silo", "approve", node.silo, "--yes").exit_code == 0


@pytest.mark.parametrize("run", ["dry-run", ""])
def test_a_round_of_no_run_is_not_approved(node, run):
    """The name under which `deploy check` asks who is there opens nothing else."""
    approved(node)
    for kind in ("train", "query", "evaluate", "query.hello"):
        assert only_the_decision(node.ask(training(1, run), thief, kind))
    both = RecordDict({**announcement(1, np.zeros(4), run), "hello": ConfigRecord({"protocol": 1})})
    assert only_the_decision(node.ask(both, thief, "query"))
    assert only_the_decision(node.ask(codec.hello_request(run), thief, "train"))
    assert only_the_decision(node.ask(RecordDict(), thief, "query"))
    assert node.reached == []
    assert MODEL in node.ask(codec.hello_request(run), thief, "query")  # who is there


def test_two_names_for_a_run_are_refused(node):
    """The app reads one record; a silo that looks at another approves what is not there."""
    approved(node)
    good = {"protocol": 1, "run": "run-1", "round": 1}
    for name, words in (
        ("hello", good),
        ("zzz", good),
        ("aaa", {"feduca": json.dumps(good)}),
        ("secure", good),
    ):
        for order in (1, -1):
            two = [*announcement(1, np.zeros(4), "run-2").items(), (name, ConfigRecord(words))][::order]
            assert only_the_decision(node.ask(RecordDict(dict(two)), thief)), (name, order)
    assert "which run it is of" in node.log
    for wrong in (1, 1.5, b"run-1", ["run-1"]):  # which the app would read as a text
        content = announcement(1, np.zeros(4))
        content["announcement"]["run"] = wrong
        assert only_the_decision(node.ask(content, thief))
    unnamed = announcement(1, np.zeros(4))  # the record that the app reads names none
    del unnamed["announcement"]["run"]
    unnamed["other"] = ConfigRecord({"feduca": json.dumps(good)})
    assert only_the_decision(node.ask(unnamed, thief))
    assert node.reached == []
    beside = RecordDict({"config": ConfigRecord({"lr": 0.1, "feduca": json.dumps(good)})})
    assert MODEL in node.ask(beside, thief)


@pytest.mark.parametrize("policy", ["", "rounds = 9"])
def test_a_session_has_only_so_many_messages(node, policy):
    node.policy(policy)
    assert only_the_decision(node.ask(secure(1), thief, "query.secure"))  # no round was asked for
    assert node.fetched == 0
    assert MODEL in node.ask(training(1), thief)
    for _ in range(8):
        assert MODEL in node.ask(secure(1), thief, "query.secure")
    assert only_the_decision(node.ask(secure(1), thief, "query.secure"))
    assert only_the_decision(node.ask(secure(1), thief, "query.secure", run=8))
    assert MODEL in node.ask(training(2), thief)
    assert MODEL in node.ask(secure(2), thief, "query.secure")
    if policy:
        assert only_the_decision(node.ask(secure(1), thief, "query.secure"))  # of a round before
    assert MODEL in node.ask(announcement(3, np.zeros(4)), thief, "evaluate")
    assert only_the_decision(node.ask(secure(3), thief, "query.secure"))  # that was no training
    assert json.loads((node.silo / "state" / "ledger.json").read_text())["worked"] == 3


@pytest.mark.parametrize("policy", ["rounds = 1", "closes"])
def test_the_last_round_ends_with_its_sum(node, policy):
    """A budget that the round has used up, and hours that have ended since, do not break a sum; a word of the operator does."""
    node.policy("rounds = 1")
    assert MODEL in node.ask(training(1), thief)
    if policy == "closes":
        node.policy(f'rounds = 1\nhours = ["{policies.DAYS[(dt.datetime.now().weekday() + 3) % 7]}"]')
    for step in ("mask", "sign", "reveal"):
        assert MODEL in node.ask(secure(1, step), thief, "query.secure")
    assert only_the_decision(node.ask(secure(2), thief, "query.secure"))
    assert only_the_decision(node.ask(training(2), thief))
    (node.silo / "state" / "veto").write_text("audit")
    assert only_the_decision(node.ask(secure(1), thief, "query.secure"))
    (node.silo / "state" / "veto").unlink()
    assert MODEL in node.ask(secure(1), thief, "query.secure")
    node.policy("rounds = 1\nveto = true")
    assert only_the_decision(node.ask(secure(1), thief, "query.secure"))
