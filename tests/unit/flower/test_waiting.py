"""Silos that do not work, by their policies (the run waits), their app, or because they are too few: what the server says."""

from __future__ import annotations

import json
import logging
import time
from types import SimpleNamespace

import pytest

from feduca.errors import ConfigError, RunError
from feduca.flower import FedUCAStrategy, check, client_app, federation
from feduca.flower.failures import POLICY, UNAPPROVED
from feduca.flower.federation import WAITS, FlowerFederation, Patience
from feduca.flower.folder import init, read_server
from feduca.flower.operate.seen import Warned
from feduca.flower.register import Register
from feduca.flower.server import Settings, serve
from feduca.recipes.schema import load
from feduca.report.reading import RunReader
from feduca.report.verdict import notices, verdict
from feduca.types import JOINED, REFUSED
from local_grid import LocalGrid, Node
from numpy_task import NumpyTask
from same_run import without_clocks

SILOS = (0, 1, 2)
BASE = {"name": "t", "local": {"epochs": 2, "batch_size": 5}, "task": {"clients": 3}}


class App:
    def __init__(self, rounds):
        self.recipe = load({**BASE, "rounds": rounds})

    def server(self, config):
        return NumpyTask(3)

    def silo(self, name, index, config):
        return NumpyTask(3)


def nodes(app, tmp_path):
    flower = client_app(app)
    for k in SILOS:
        (tmp_path / f"{k}").mkdir(parents=True)
    return {
        10 + k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}, name=f"silo-{k}") for k in SILOS
    }


@pytest.fixture
def brisk(monkeypatch):
    """Pauses of milliseconds, whatever the server asks for; returns what was slept between two looks."""
    pauses: list[float] = []

    class Brisk(Patience):
        def __init__(self, round_s=5.0, silos_s=5.0, closed_s=60.0):
            quick = {"poll_s": 0.01, "stranger_s": 0.02, "policy_s": 0.02, "longest_s": 0.08}
            super().__init__(round_s, silos_s, closed_s=closed_s, **quick)

    def sleep(seconds):
        pauses.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr("feduca.flower.server.Patience", Brisk)
    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(federation, "time", clock)  # this module's alone: other threads sleep, too
    return pauses


def pause(tmp_path, *silos):
    for k in silos:
        (tmp_path / f"{k}" / "veto").write_text("closed for the night")


def asked(message):
    return dict(message.content["announcement"])["round"] if "announcement" in message.content else 0


def closed_in_round(tmp_path, grid, turn, looks):
    """All close when `turn` is announced for the first time; silo-1 is back after so many looks who is there."""
    seen = {"closed": False, "looks": 0, "status": [], "asked": []}

    def tamper(message, reply):
        if (t := asked(message)) == turn - 1 and not seen["closed"]:
            seen["closed"] = True
            pause(tmp_path, *SILOS)
        elif seen["closed"] and not t:
            seen["looks"] += 1
            path = next((tmp_path / "runs").glob("*/*/status.json"))
            seen["status"].append(json.loads(path.read_text()))
            if seen["looks"] == looks:
                (tmp_path / "1" / "veto").unlink()
        if t:
            seen["asked"].append(t)
        return reply

    grid.nodes[12].tamper = tamper  # the last to answer
    return seen


def test_a_round_that_every_silo_declines_by_its_policy_is_asked_again_and_counts_once(tmp_path, brisk, caplog):
    app = App(rounds=4)
    grid = LocalGrid(nodes(app, tmp_path))
    seen = closed_in_round(tmp_path, grid, 3, 6)
    with caplog.at_level(logging.INFO):
        path = serve(app, grid, Settings(silos=3, out=str(tmp_path / "runs")))
    rows = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3, 4]  # all that the recipe asks for
    assert [row["status"] for row in rows[2:]] == [[REFUSED, JOINED, REFUSED]] * 2
    assert seen["asked"] == [1, 2, 3, 3, 4]  # the same number, asked again once
    # Said once in the log, and in the status for as long as it lasts.
    said = [r for r in caplog.records if getattr(r, "event", "") == "waits"]
    assert [r.round for r in said] == [3]
    assert said[0].levelno == logging.WARNING
    assert WAITS in said[0].getMessage()
    assert all(status == {"schema": 2, "state": "running", "reason": WAITS} for status in seen["status"][1:])
    assert json.loads((path / "status.json").read_text())["state"] == "finished"
    assert WAITS in (path / "events.jsonl").read_text()
    looks = [s for s in brisk if s >= 0.02]
    assert looks[:4] == [0.02, 0.04, 0.08, 0.08]  # ever less often, within bounds
    # The server hears the decision, and nothing of the reason.
    for file in path.rglob("*"):
        assert not file.is_file() or b"for the night" not in file.read_bytes()
    log = [json.loads(line) for line in (tmp_path / "1" / "log.jsonl").read_text().splitlines()]
    assert [line["round"] for line in log if line["decision"] == JOINED] == [1, 2, 3, 4]


def test_a_run_that_waited_is_the_same_as_one_that_did_not(tmp_path, brisk):
    """All back at once: models, decisions and records are those of a run in which nobody ever closed."""
    app = App(rounds=4)
    plain = serve(app, LocalGrid(nodes(app, tmp_path / "a")), Settings(silos=3, out=str(tmp_path / "plain")))
    grid, looks = LocalGrid(nodes(app, tmp_path / "b")), []

    def tamper(message, reply):
        if asked(message) == 2 and not looks:
            pause(tmp_path / "b", *SILOS)
            looks.append(0)
        elif not asked(message) and looks:
            looks.append(1)
            if len(looks) == 3:
                for k in SILOS:
                    (tmp_path / "b" / f"{k}" / "veto").unlink()
        return reply

    grid.nodes[12].tamper = tamper
    path = serve(app, grid, Settings(silos=3, out=str(tmp_path / "shut")))
    assert len(looks) >= 3
    assert without_clocks(path) == without_clocks(plain)


def test_a_server_that_dies_while_it_waits_goes_on_with_the_same_round(tmp_path, brisk):
    app = App(rounds=3)
    grid = LocalGrid(nodes(app, tmp_path))
    seen = closed_in_round(tmp_path, grid, 2, 99)
    inner = grid.nodes[12].tamper

    def dies(message, reply):
        if seen["looks"] == 2:
            raise KeyboardInterrupt
        return inner(message, reply)

    grid.nodes[12].tamper = dies
    settings = Settings(silos=3, out=str(tmp_path / "runs"))
    with pytest.raises(KeyboardInterrupt):
        serve(app, grid, settings)
    path = next((tmp_path / "runs").glob("*/*/status.json")).parent
    assert json.loads((path / "status.json").read_text())["state"] == "interrupted"
    for k in SILOS:
        (tmp_path / f"{k}" / "veto").unlink()
    grid.nodes[12].tamper = lambda message, reply: reply
    serve(app, grid, settings)
    rows = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert REFUSED not in rows[1]["status"]


def test_nobody_is_waited_for_without_end(tmp_path, brisk):
    app = App(rounds=3)
    grid = LocalGrid(nodes(app, tmp_path))
    closed_in_round(tmp_path, grid, 2, 99)
    settings = Settings(silos=3, out=str(tmp_path / "runs"), silos_timeout=0.1, policy_timeout=0.5)
    with pytest.raises(
        RunError, match=r"round 2: every silo has declined by its policy for 0.5 s \(policy-timeout\); ask"
    ):
        serve(app, grid, settings)
    for place in (tmp_path / "runs").glob("*/*"):
        assert json.loads((place / "status.json").read_text())["state"] == "failed"
    with pytest.raises(
        RunError, match=r"these came: none; silo-0 \(node 10\) was turned away: declined: policy; silo-1"
    ):
        serve(app, grid, Settings(silos=3, out=str(tmp_path / "other"), silos_timeout=0.1, policy_timeout=0.5))


def test_what_silos_decide_by_their_data_is_a_round(tmp_path, brisk):
    """With a rule of their own they answer the same words, and have worked: nothing to wait for, and no second question."""
    app = App(rounds=3)
    (tmp_path / "policy.toml").write_text('rule = "never"\n')
    path = serve(app, LocalGrid(nodes(app, tmp_path)), Settings(silos=3, out=str(tmp_path / "runs")))
    rows = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert [row["reason"] for row in rows[1:]] == [[POLICY] * 3] * 2
    assert WAITS not in (path / "events.jsonl").read_text()
    log = (tmp_path / "1" / "log.jsonl").read_text()
    assert "asked again" not in log


def test_one_that_fails_or_leaves_is_no_reason_to_wait(tmp_path, brisk):
    app = App(rounds=3)
    grid = LocalGrid(nodes(app, tmp_path))

    def fails(message, reply):
        if asked(message) == 1:
            pause(tmp_path, 1, 2)
        if asked(message) > 1:
            raise RuntimeError("its disk is full")
        return reply

    def raising(message, context, inner=grid.nodes[10].app):
        fails(message, None)
        return inner(message, context)

    grid.nodes[10].app = raising  # type: ignore[assignment]
    path = serve(app, grid, Settings(silos=3, out=str(tmp_path / "runs")))
    rows = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows[1:]] == [["absent", REFUSED, REFUSED]] * 2
    assert WAITS not in (path / "events.jsonl").read_text()


def test_all_leave_while_the_run_waits(tmp_path, brisk):
    app = App(rounds=3)
    grid = LocalGrid(nodes(app, tmp_path))
    seen = closed_in_round(tmp_path, grid, 2, 99)
    inner = grid.nodes[12].tamper

    def leave(message, reply):
        if seen["looks"] == 2:
            for k in SILOS:
                (tmp_path / f"{k}" / "leave").write_text("erase")
        return inner(message, reply)

    grid.nodes[12].tamper = leave
    with pytest.raises(RunError, match="0 of at least 1 silos are connected"):  # as ever where nobody is left
        serve(app, grid, Settings(silos=3, out=str(tmp_path / "runs"), silos_timeout=1.0))
    path = next((tmp_path / "runs").glob("*/*/silos.json"))
    assert all(one["left"] and one["erased"] for one in json.loads(path.read_text())["silos"])


class Unfamiliar:
    """A silo's app until its operator has approved it."""

    def __init__(self, inner, until):
        self.inner, self.left = inner, until

    def __call__(self, message, context):
        from flwr.app import Error, Message

        self.left -= 1
        return (
            self.inner(message, context)
            if self.left < 0
            else Message(Error(code=203, reason=UNAPPROVED), reply_to=message)
        )


def test_before_the_first_round_silos_that_decline_are_waited_for_beyond_the_timeout(tmp_path, brisk, caplog):
    app = App(rounds=2)
    grid = LocalGrid(nodes(app, tmp_path))
    pause(tmp_path, 0, 1)
    grid.nodes[12].app = Unfamiliar(grid.nodes[12].app, 40)  # type: ignore[assignment]
    with caplog.at_level(logging.INFO):
        path = serve(app, grid, Settings(silos=3, out=str(tmp_path / "runs"), silos_timeout=0.1))
    assert json.loads((path / "silos.json").read_text())["silos"][0]["name"] == "silo-2"
    said = [r.getMessage() for r in caplog.records]
    assert sum(WAITS in text for text in said) == 1
    assert said.count(f"silo-0 (node 10) takes no part: {POLICY}") == 1  # not at every look
    assert said.count(f"silo-2 (node 12) takes no part: {UNAPPROVED}") == 1


def test_before_the_first_round_it_is_said_as_soon_as_everybody_is_out(tmp_path, brisk):
    """Not when `silos_timeout` is over, ten minutes later."""
    app = App(rounds=2)
    grid = LocalGrid(nodes(app, tmp_path))
    pause(tmp_path, 0, 1, 2)
    told: list[str] = []

    def waiting(why):
        told.append(why)
        for k in range(3) if why else ():
            (tmp_path / f"{k}" / "veto").unlink()

    federation = FlowerFederation(
        grid, Register(), run="r", recipe=app.recipe.hash(), size=4, curve=3,
        patience=Patience(silos_s=60.0, poll_s=0.01, stranger_s=0.05), waiting=waiting,
    )  # fmt: skip
    federation.gather(3)
    assert told == [WAITS, ""]


def test_who_was_turned_away_is_named_where_too_few_came(tmp_path):
    good = nodes(App(rounds=9), tmp_path)
    met = FlowerFederation(
        LocalGrid(good), Register(), run="r", recipe="another", size=4, curve=3,
        patience=Patience(silos_s=0.3, poll_s=0.01, stranger_s=0.05),
    )  # fmt: skip
    with pytest.raises(
        RunError, match=r"these came: none; silo-0 \(node 10\) was turned away: it runs recipe \w+, the"
    ):
        met.gather(3)
    assert len([event for event in met.events if "silo-0" in event]) == 1


# An app that cannot do what its recipe says, and too few silos for a sum ---------------------------------------------


def test_differential_privacy_with_an_app_that_cannot_is_refused_before_the_first_round(tmp_path, brisk, caplog):
    """By the silo's own name and the class of the error; its words stay in the silo's log."""
    app = App(rounds=2)
    private = {
        "privacy.dp": "records",
        "privacy.epsilon": 3.0,
        "mechanism.name": "fedavg",
        "participation.rule": "always",
    }
    app.recipe = app.recipe.with_settings(private)
    with pytest.raises(
        RunError, match=r"none; silo-0 \(node 10\) was turned away: it answered with an error: ConfigError"
    ):
        serve(app, LocalGrid(nodes(app, tmp_path)), Settings(silos=3, out=str(tmp_path / "runs"), silos_timeout=0.5))
    assert not list((tmp_path / "runs").rglob("rounds.jsonl"))  # not one round
    said = [(r.levelname, r.silo, r.event) for r in caplog.records if hasattr(r, "silo")]
    assert said == [("WARNING", f"silo-{k}", "turned-away") for k in SILOS]  # once each
    assert "has no method `train_private`" in (tmp_path / "1" / "log.jsonl").read_text()
    with pytest.raises(ConfigError, match=r"privacy.dp is 'records', but `fit` is the app's own training"):
        FedUCAStrategy(app.recipe)


def test_three_silos_whose_sums_need_three_are_warned_and_a_refusal_is_said_once(tmp_path, caplog):
    from tests.unit.flower import test_secure as secure

    settings = {**secure.ON, "task.clients": 3, "rounds": 5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure, "N", 3)
        place = secure.Place(tmp_path, settings)

        def fails(message, context, inner=place.grid.nodes[12].app):
            if asked(message) > 2:
                raise RuntimeError("its disk is full")
            return inner(message, context)

        place.grid.nodes[12].app = fails  # type: ignore[assignment]
        path = place.serve(silos=3)
    said = [r.getMessage() for r in caplog.records if getattr(r, "event", "") == "no-sum"]
    assert len(said) == 2
    assert said[0].startswith("3 silos, and a sum needs 3 fresh updates (privacy.least)")
    why = "2 fresh updates that matter, and a sum needs 3 (privacy.least); have more silos than privacy.least"
    assert said[1] == f"round 3: no sum was released: {why}, so that one may decline"
    wanted = f"No sum was released in 3 of 5 rounds, in the last of them: {why}, so that one may decline."
    run = RunReader(path).run
    assert wanted in verdict(run)
    assert wanted in notices(run)
    found = {f.what: f for f in check._server(read_server(tmp_path / "d" / "server"))}
    assert not found["secure aggregation"].ok
    assert found["secure aggregation"].optional


def test_a_terminal_is_told_each_warning_of_the_app_once(tmp_path):
    server = read_server(init(tmp_path / "d", load(BASE), [f"silo-{k}" for k in SILOS]))
    path = server.path / "log.jsonl"

    def write(**line):
        with path.open("a") as file:
            file.write(json.dumps({"time": "", "level": "warning", "from": "app", "event": "absent", **line}) + "\n")

    write(silo="silo-1", round=1, text="round 1: of an earlier run")
    warned = Warned(server)
    for turn in (2, 3):
        write(silo="silo-1", round=turn, text=f"round {turn}: silo-1 absent: failed: RunError, line {turn} of its log")
        write(silo="silo-2", round=turn, text=f"round {turn}: silo-2 absent: its node is not connected")
    write(level="info", event="round", round=3, text="round 3 of 9")
    write(**{"from": "front"}, event="turned-away", text="of no concern to the run")
    write(event="waits", round=4, text="round 4 waits")
    with path.open("a") as file:
        file.write("[1]\n{broken\n")
    assert list(warned.new()) == [
        "round 2: silo-1 absent: failed: RunError, line 2 of its log",
        "round 2: silo-2 absent: its node is not connected",
        "round 4 waits",
    ]
    write(silo="silo-1", round=5, text="round 5: silo-1 absent: no answer within 9 s")
    assert list(warned.new()) == ["round 5: silo-1 absent: no answer within 9 s"]
