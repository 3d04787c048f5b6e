"""A silo's policy against servers, recipes, settings and approved apps that heed nothing of it: what leaves is looked at."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from typer.testing import CliRunner

from feduca.cli.main import app as cli
from feduca.flower import approval, client_app, codec, consent
from feduca.flower import policy as policies
from feduca.flower.store import SiloStore
from numpy_task import NumpyApp, NumpyTask
from supernode import MODEL, WORD, announcement, only_the_decision, thief, training


def feduca(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)


def honest(node, **settings):
    return client_app(NumpyApp(node.recipe.with_settings(settings), 2))


MESSAGES = [
    (announcement(1, np.zeros(4)), "train"),
    (codec.hello_request("run-1"), "query"),
    (
        RecordDict(
            {
                "config": ConfigRecord({"veto": False, "hours": "always"}),
                "arrays": ArrayRecord({"a": Array(np.ones(3))}),
            }
        ),
        "evaluate",
    ),
    (RecordDict({"policy": ConfigRecord({"veto": False, "approve": False})}), "query.policy"),
    (RecordDict(), "train.unlock"),
]


def test_without_a_policy_all_is_as_ever(node):
    sent = node.ask(training(1), thief)
    assert MODEL in sent
    assert len(node.reached) == 1


@pytest.mark.parametrize("how", ["policy", "pause", "leave", "erase", "hours", "rounds"])
@pytest.mark.parametrize(("content", "kind"), MESSAGES)
def test_a_veto_is_obeyed_whatever_is_sent(node, how, content, kind):
    """No app code sees the message, its model is not even fetched, and one fixed text leaves."""
    yesterday = policies.DAYS[(dt.datetime.now().weekday() + 3) % 7]
    if how in ("pause", "leave", "erase"):
        arguments = {"pause": ["pause"], "leave": ["leave", "--yes"], "erase": ["leave", "--yes", "--erase"]}[how]
        assert feduca("silo", *arguments, node.silo, "--reason", WORD).exit_code == 0
    else:
        node.policy({"policy": "veto = true", "hours": f'hours = ["{yesterday}"]', "rounds": "rounds = 0"}[how])
    sent = node.ask(content, thief, kind, **{"veto": False, "policy.veto": False, "rounds": 10**6})
    assert only_the_decision(sent)
    assert (b"for good" in sent) is (how in ("leave", "erase"))
    assert (b"to be forgotten" in sent) is (how == "erase")
    assert node.reached == []
    assert node.fetched == 0
    assert not (node.silo / "state" / "ledger.json").exists()
    assert "declined" in node.log
    assert how not in ("pause", "leave", "erase") or WORD in node.log
    told = [json.loads(line) for line in (node.silo / "state" / "sent.jsonl").read_text().splitlines()]
    assert [line["what"] for line in told] == ["decision"]


def test_what_leaves_is_the_same_for_every_reason(node):
    """The server cannot tell a veto from closed hours or a budget that is spent: the bytes of the error are the same."""
    said = []
    for text in ("veto = true", "rounds = 0", f'hours = ["{policies.DAYS[(dt.datetime.now().weekday() + 3) % 7]}"]'):
        node.policy(text)
        sent = node.ask(training(1), thief)
        said.append((len(sent), sent.count(b"declined: policy\n")))  # what differs is the message's number and time
    assert set(said) == {(said[0][0], 1)}
    assert said[0][0] < 1000


def test_to_be_asked_who_one_is_uses_up_no_round(node):
    """So a server that waits for silos may ask again and again; whoever is kept out declines that, too."""
    node.policy("rounds = 1")
    for _ in range(5):
        assert b"hello" in node.ask(codec.hello_request("run-1"), honest(node), "query")
    assert SiloStore(node.silo / "state").worked == 0
    assert MODEL in node.ask(training(1), thief)
    assert only_the_decision(node.ask(codec.hello_request("run-1"), honest(node), "query"))
    assert only_the_decision(node.ask(training(2), thief))
    assert SiloStore(node.silo / "state").worked == 1


def test_a_pause_during_a_round_keeps_its_work_in(node):
    def slow(message, context):
        (node.silo / "state" / "veto").write_text("audit")
        return thief(message, context)

    assert only_the_decision(node.ask(training(1), slow))
    assert "what the app had worked stays here" in node.log


def test_rounds_are_counted_here_whatever_the_server_calls_them(node):
    node.policy("rounds = 2")
    assert MODEL in node.ask(training(1), thief)
    assert MODEL in node.ask(training(1, "another-run"), thief, run=8)
    for turn, run in ((1, "run-1"), (1, "a-third"), (3, "run-1")):
        assert only_the_decision(node.ask(training(turn, run), thief, run=9))
    assert only_the_decision(node.ask(announcement(1, np.zeros(4)), thief, "query"))  # nor what kind of message it is
    assert len(node.reached) == 2
    node.policy("rounds = 3")  # changed between rounds, it holds from the next message on
    assert MODEL in node.ask(training(4), thief)
    assert only_the_decision(node.ask(training(5), thief))
    (node.silo / "state" / "ledger.json").write_text("{}")
    with pytest.raises(SystemExit), stopped():
        node.ask(training(6), thief)


class stopped:
    """The signal that ends a SuperNode, caught; so that a test can see it."""

    def __enter__(self):
        import signal

        self._old, self.heard = signal.signal(signal.SIGTERM, lambda *_: None), True

    def __exit__(self, *why):
        import signal

        signal.signal(signal.SIGTERM, self._old)


@pytest.mark.parametrize(
    "text", ["veto = 1", "vetoo = true", "rounds = -1", "hours = ['never']", "= 3", "\x00", "epsilon = 'x'"]
)
def test_a_policy_that_is_wrong_stops_the_silo(node, text, caplog):
    node.policy(text)
    with pytest.raises(SystemExit), stopped():
        node.ask(training(1), thief)
    said = [record.getMessage() for record in caplog.records if "this silo stops" in record.getMessage()]
    assert len(said) == 1
    assert "policy.toml" in said[0]
    assert "\n" not in said[0]
    assert node.reached == []


LURES = [
    {"participation.rule": "always"},
    {"participation.rule": "always", "participation.warm_start": 100},
    {"participation.rule": "utility", "participation.tolerance": 1e6},
]


@pytest.mark.parametrize("settings", LURES)
@pytest.mark.parametrize("text", ['rule = "never"', "least_gain = 0.9", 'rule = "always"\nleast_gain = 0.9'])
def test_a_recipe_cannot_override_the_rule(node, settings, text):
    """The server's settings say that the silo joins; its own policy says no, and that is all the server hears."""
    node.policy(text)
    app = honest(node, **settings)
    first = node.ask(training(1), app)  # no model of its own yet: as under every rule
    assert b"joined" in first
    for turn in (2, 3):
        sent = node.ask(training(turn), app)
        assert only_the_decision(sent)  # no word of why
        assert len(sent) < 1000
    lines = [json.loads(line) for line in node.log.splitlines()]
    assert lines[-1]["decision"] == "declined"
    if "least_gain" in text and "never" not in text:
        assert "gain over alone" in lines[-1]["reason"]
        assert np.isfinite(lines[-1]["gain"])


def test_a_server_cannot_begin_again_under_another_name(node):
    """Whoever has no model joins under every rule: else a new name for a run, or its round 1 again, would be a way around."""
    node.policy('rule = "never"')
    app = honest(node, **{"participation.rule": "always"})
    assert b"joined" in node.ask(training(1), app)
    for content in (
        announcement(1, np.ones(4)),
        announcement(1, np.zeros(4), "run-2"),
        announcement(1, np.zeros(4), "run-3"),
    ):
        sent = node.ask(content, app)
        assert b"declined: policy" in sent
        assert b"theta" not in sent


def test_an_approved_app_that_goes_around_is_caught_on_the_way_out(node):
    """It never asks the silo's own code, so there is no judgement under this policy to show for what it sends."""
    node.policy('rule = "accuracy"')
    assert only_the_decision(node.ask(training(1), thief))
    app = honest(node)
    assert b"joined" in node.ask(training(1), app)

    def flips(message, context):
        app(message, context)
        return thief(message, context)

    assert only_the_decision(node.ask(announcement(2, np.full(4, -50.0)), flips))
    assert "has not judged: nothing of it left" in node.log

    def hides(message, context):  # no array, but as long as one
        return Message(RecordDict({"report": ConfigRecord({"text": WORD * 10_000})}), reply_to=message)

    assert only_the_decision(node.ask(training(3), hides))


def test_a_least_gain_lets_a_better_offer_in(node):
    """The measure that never declines; and the alone model's scores stay here."""
    node.policy("least_gain = -1")
    app = honest(node, **{"participation.rule": "always"})
    for turn in (1, 2, 3):
        sent = node.ask(training(turn), app)
        assert b"joined" in sent
        assert b"policy" not in sent
    assert all("gain" in json.loads(line) for line in node.log.splitlines()[1:])


def test_settings_wait_for_approval_as_a_difference(node):
    """Before the first round of a run, and before new settings; of those that are not approved an app sees nothing."""
    node.policy("approve = true")
    seen = []

    def app(message, context):
        seen.append(dict(context.run_config))
        return thief(message, context)

    ask = lambda turn, run="run-1", flower=7, **more: node.ask(training(turn, run), app, run=flower, **more)  # noqa: E731
    assert only_the_decision(node.ask(codec.hello_request("run-1"), app, "query"))
    assert only_the_decision(ask(1))
    shown = CliRunner().invoke(cli, ["silo", "approve", str(node.silo)], input="n\n")
    assert "+rounds = 9" in shown.output
    assert "+run-1" in shown.output
    assert only_the_decision(ask(1))  # it said no
    assert feduca("silo", "approve", node.silo, "--yes").exit_code == 0
    assert MODEL in ask(1)
    assert MODEL in ask(2)
    # Another run, other settings, other training: each waits anew.
    assert only_the_decision(ask(1, "run-2"))
    assert feduca("silo", "approve", node.silo, "--yes").exit_code == 0
    assert MODEL in ask(1, "run-2")
    assert only_the_decision(ask(3, flower=8, quorum=2))
    assert "+quorum = 2" in feduca("silo", "approve", node.silo, "--yes").output
    assert MODEL in ask(3, flower=8, quorum=2)
    assert only_the_decision(ask(1, "run-2", flower=9))  # the other settings' approval has ended
    assert only_the_decision(node.ask(training(4, epochs=500), app, run=8, quorum=2))
    assert "asks for local.epochs = 500, and 2 was approved" in node.log
    # What changes from run to run on the server's disk is no setting, and no app sees it.
    before = len(seen)
    assert MODEL in ask(5, flower=10, quorum=2, out="/smuggled", folder="/smuggled", again=True)
    assert "smuggled" not in json.dumps(seen[before:])


def test_a_runs_name_cannot_move_the_terminal(node):
    node.policy("approve = true")
    assert only_the_decision(node.ask(codec.hello_request("run\x1b[2J\u202e"), thief, "query"))
    out = feduca("silo", "approve", node.silo, "--yes").output + feduca("silo", "status", node.silo).output
    assert "run\\x1b[2J" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_a_new_app_waits_with_its_settings(node):
    node.policy("approve = true")
    (node.code / "deployed.py").write_text((node.code / "deployed.py").read_text() + "# new\n")
    bundle = approval.bundle(node.code)
    assert only_the_decision(node.ask(training(1), thief, bundle=bundle))
    assert "waits for your approval: an app" in feduca("silo", "status", node.silo).output
    assert "+# new" in feduca("deploy", "approve", node.silo, "--yes").output
    assert only_the_decision(node.ask(training(1), thief, bundle=bundle))
    assert consent.waiting(node.silo) is not None
    assert feduca("silo", "approve", node.silo, "--yes").exit_code == 0
    assert MODEL in node.ask(training(1), thief, bundle=bundle)


def test_hours():
    def at(text, *when):
        return policies.Window.of(text).holds(dt.datetime(2026, 11, *when))  # the 2nd is a Monday

    assert at("Mon-Fri 19:00-07:00", 2, 19, 0)
    assert at("Mon-Fri 19:00-07:00", 7, 6, 59)  # Saturday morning, of Friday's night
    assert not at("Mon-Fri 19:00-07:00", 2, 6, 59)
    assert not at("Mon-Fri 19:00-07:00", 7, 19, 0)
    assert at("Sat,Sun", 8, 23, 59)
    assert not at("sat-sun", 9, 0, 0)
    assert at("Fri-Mon", 8, 12, 0)
    assert at("22:00-24:00", 3, 23, 59)
    for wrong in ("", "Someday", "25:00-26:00", "10:00-10:00", "10:99-11:00", "Mon Tue"):
        with pytest.raises(ValueError, match="no time"):
            policies.Window.of(wrong)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("threshold = 'local-baseline'", "option of rule = 'utility'"),
        ("rule = 'loss'\nconfidence = 0.9", "option of rule = 'accuracy'"),
        ("rule = 'mine'", "rule is 'mine'"),
        ("[rules]\nveto = true", "unknown key 'rules'"),
        ("examples = 0", "examples is 0"),
        ("hours = []", "hours is"),
        ("least_gain = nan", "least_gain is"),
    ],
)
def test_a_policy_is_strict(tmp_path, text, complaint):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(policies.ConfigError, match=complaint) as caught:
        policies.read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/policy.toml: ")


def test_a_link_is_no_policy(tmp_path):
    (tmp_path / "real").write_text("veto = false")
    (tmp_path / "policy.toml").symlink_to(tmp_path / "real")
    with pytest.raises(policies.ConfigError.__mro__[1], match="is a link"):
        policies.read(tmp_path)


def test_a_quota_is_a_fixed_sample_and_what_the_server_is_told(node):
    from feduca.tasks import build_task

    task = build_task(data="digits", clients=3, max_examples=300, seed=0, model="logistic")
    less = policies.limited(task, 7)
    assert list(less.examples) == [7, 7, 7]
    for before, after in zip(task.members, less.members):  # type: ignore[attr-defined]
        assert set(after.rows["train"]) < set(before.rows["train"])
        assert list(after.rows["validation"]) == list(before.rows["validation"])
    again, fewer = policies.limited(task, 7), policies.limited(task, 5)
    assert [list(m.rows["train"]) for m in again.members] == [list(m.rows["train"]) for m in less.members]  # type: ignore[attr-defined]
    assert all(set(f.rows["train"]) < set(m.rows["train"]) for f, m in zip(fewer.members, less.members))  # type: ignore[attr-defined]

    node.policy("examples = 7")  # an app that cannot says so to its operator, and trains on nothing
    sent = node.ask(training(1), honest(node))
    assert b"ConfigError, line 1 of its log" in sent
    assert "has no limited(most)" in node.log

    class Able(NumpyTask):
        def limited(self, most):
            less = Able(2)
            if self.honest:
                less.examples = np.minimum(self.examples, most)
            return less

        honest = True

    class Limits(NumpyApp):
        def silo(self, name, index, config):
            return Able(2)

    app = client_app(Limits(node.recipe, 2))
    assert b"joined" in node.ask(training(1), app)
    assert codec.read_hello(app(Message(codec.hello_request("run-1"), 1, "query"), node.context).content).examples == 7
    Able.honest = False
    assert b"ConfigError, line" in node.ask(training(2), app)
