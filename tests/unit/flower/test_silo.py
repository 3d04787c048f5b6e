"""The silo's disk, its operator's wishes, and the server's caution, without processes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord

from feduca.core.messages import together
from feduca.errors import DataError, InputError, RunError
from feduca.flower import client_app, codec
from feduca.flower.app import OneSilo
from feduca.flower.federation import FlowerFederation, Patience
from feduca.flower.register import Member, Register
from feduca.flower.server import Settings, serve
from feduca.flower.silo import respond
from feduca.flower.store import SiloStore
from feduca.recipes.build import behaviour_of, make_behaviour
from feduca.recipes.schema import load
from feduca.runs.rollback import roll_back
from feduca.types import ABSENT, DECLINED, JOINED, LEFT, REFUSED, Announcements, LocalSpec
from local_grid import LocalGrid, Node
from numpy_task import NumpyApp, NumpyTask

BASE = {"name": "t", "rounds": 4, "local": {"epochs": 2, "batch_size": 5}, "task": {"clients": 3}}


def app_of(**settings):
    return NumpyApp(load(BASE, settings))


def nodes(app, tmp_path, **changes):
    flower = client_app(app)
    return {
        10 + k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}, name=f"silo-{k}", **changes)
        for k in range(3)
    }


def asked(round, theta, run="run-1", client=1, alpha=0.3):
    one = np.array([alpha])
    return Announcements(run, round, np.array([client]), theta, one, one, np.ones(1), LocalSpec(2, 5))


@pytest.fixture
def silo(tmp_path):
    task = OneSilo(NumpyTask(3), "silo-1")
    how = make_behaviour(load(BASE), 0)
    store = SiloStore(tmp_path / "silo")
    return store, lambda message: respond("silo-1", store, task, how, message).report


def models(report):
    return report.theta.tolist(), report.gamma.tolist(), report.zeta.tolist(), list(report.status)


def test_asked_again_a_silo_gives_the_same_answer(silo):
    store, ask = silo
    theta = np.zeros(4)
    ask(asked(1, theta))
    first = ask(asked(2, theta + 0.1))
    assert models(ask(asked(2, theta + 0.1))) == models(first)
    assert "asked again" in (store.folder / "log.jsonl").read_text().splitlines()[-1]
    # Another question in the same round is answered from the memory before it, not from the one after.
    other = ask(asked(2, theta + 0.2))
    assert models(other) != models(first)
    assert models(ask(asked(2, theta + 0.1))) == models(first)


def test_a_round_that_is_over_is_refused(silo):
    store, ask = silo
    for t in (1, 2, 3):
        ask(asked(t, np.zeros(4)))
    assert store.rounds("run-1") == [2, 3]  # the last two are kept
    with pytest.raises(RunError, match="already answered round 3"):
        ask(asked(1, np.zeros(4)))
    assert ask(asked(1, np.zeros(4), run="run-2")).status[0] == JOINED  # another run starts afresh


def test_a_silo_that_comes_later_starts_its_model_alone_where_the_run_began(tmp_path):
    task = OneSilo(NumpyTask(3), "silo-1")
    how = behaviour_of(load(BASE, {"alone": True, "task.test_share": 0.5}), 0, task)
    store = SiloStore(tmp_path / "silo")
    theta = np.full(4, -3.0)  # federated for six rounds
    test = respond("silo-1", store, task, how, asked(7, theta)).report.measurements.test
    assert test["alone"] == task.evaluate(task.init(0)[None], np.array([0]), "test").accuracy
    assert test["global"] != test["alone"]
    alone = store.load("run-1", 7, theta).memory.extra["alone"]
    assert np.array_equal(alone, task.train(task.init(0)[None], np.array([1]), asked(7, theta).local, 7, 0))


def test_half_a_file_is_never_seen(silo):
    store, ask = silo
    ask(asked(1, np.zeros(4)))
    path = store._path("run-1", 1)
    (path.with_suffix(".part99")).write_bytes(path.read_bytes()[:50])  # a silo that died while writing
    assert store.rounds("run-1") == [1]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="damaged"):
        ask(asked(2, np.zeros(4)))


def test_the_operator_has_the_last_word(silo):
    store, ask = silo
    ask(asked(1, np.zeros(4)))
    (store.folder / "veto").write_text("audit in progress\n")
    report = ask(asked(2, np.zeros(4)))
    assert (report.status[0], report.reason[0]) == (REFUSED, "declined: policy")
    assert report.measurements.examples[0] == 0  # not even how many it has
    assert "audit in progress" in (store.folder / "log.jsonl").read_text()  # for its operator alone
    assert np.isnan(report.gamma).all()
    assert store.rounds("run-1") == [1]  # nothing was trained
    (store.folder / "veto").unlink()
    assert ask(asked(2, np.zeros(4))).status[0] in (JOINED, DECLINED)
    said = [json.loads(line)["decision"] for line in (store.folder / "log.jsonl").read_text().splitlines()]
    assert said[:2] == [JOINED, REFUSED]


def test_names_of_runs_cannot_leave_the_folder(silo):
    _, ask = silo
    for name in ("../elsewhere", "", ".hidden", "a/b"):
        with pytest.raises(InputError, match="not the name of a run"):
            ask(asked(1, np.zeros(4), run=name))


def test_a_silo_leaves_for_good_and_the_others_go_on(tmp_path):
    app = app_of(rounds=5)
    (tmp_path / "1").mkdir()

    def tamper(message, reply):
        if "announcement" in message.content and message.content["announcement"]["round"] == 2:
            (tmp_path / "1" / "leave").write_text("merged with another hospital")
        return reply

    grid = LocalGrid(nodes(app, tmp_path))
    grid.nodes[12].tamper = tamper  # the last to answer
    path = serve(app, grid, Settings(silos=3, out=str(tmp_path / "runs")))
    rows = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert rows[2]["reason"][1] == "left for good"
    assert [row["status"][1] for row in rows[2:]] == [LEFT, LEFT, LEFT]
    assert all(row["alpha"][1] == 0 for row in rows[3:])
    assert json.loads((path / "silos.json").read_text())["silos"][1]["left"]
    assert all(np.isclose(sum(row["alpha"]), 1) for row in rows)

    # Who has left is not waited for when the run goes on, though the server was told of three.
    roll_back(path, path.name, 3)
    del grid.nodes[11]
    serve(app, grid, Settings(silos=3, out=str(tmp_path / "runs"), silos_timeout=600.0))
    assert len((path / "rounds.jsonl").read_text().splitlines()) == 5
    assert "silos came within" not in (path / "events.jsonl").read_text()


@pytest.mark.parametrize(("when", "word"), [(2, "erase"), (5, "erase: we closed"), (2, "keep what you have")])
def test_what_a_leaver_sent_is_erased_if_it_asks(tmp_path, when, word):
    """From the next checkpoint on, also in the last round; no file keeps an older one. The run itself is the same."""
    from feduca.runs import checkpoint

    app = app_of(rounds=5)
    (tmp_path / "1").mkdir()

    def tamper(message, reply):
        if "announcement" in message.content and message.content["announcement"]["round"] == when - 1:
            (tmp_path / "1" / "leave").write_text(word)
        return reply

    grid = LocalGrid(nodes(app, tmp_path))
    grid.nodes[12].tamper = tamper  # the last to answer
    path = serve(app, grid, Settings(silos=3, out=str(tmp_path / "runs")))
    seen = [checkpoint.read(found, np.zeros(4)).state for found in checkpoint.existing(path / "checkpoint")]
    erased = word.startswith("erase")
    assert (len(seen) == 1) is (erased and when == 5)  # older ones, if any, are of later rounds
    for state in seen:
        assert bool(state.remembered[1].any()) is not erased
        assert bool(np.isfinite(state.zeta[1]).any()) is not erased
        assert state.remembered[0].any()
        assert bool(state.last_joined[1] == 0) is erased
    rows = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert [row["status"][1] for row in rows[when - 1 :]] == [LEFT] * (6 - when)


def test_a_silo_comes_later_and_one_comes_back_under_another_number(tmp_path):
    app = app_of(rounds=6)
    all_nodes = nodes(app, tmp_path)
    grid = LocalGrid({key: all_nodes[key] for key in (10, 11)})

    def tamper(message, reply):
        t = message.content["announcement"]["round"] if "announcement" in message.content else 0
        if t == 2:
            grid.nodes[12] = all_nodes[12]  # the third silo's node appears
        if t == 4 and 11 in grid.nodes:
            grid.nodes[99] = grid.nodes.pop(11)  # restarted without authentication: a new number
        return reply

    all_nodes[10].tamper = tamper
    path = serve(app, grid, Settings(silos=2, out=str(tmp_path / "runs"), round_timeout=1.0))
    rows = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert [len(row["status"]) for row in rows] == [2, 2, 2, 3, 3, 3]  # met beside round 3
    assert rows[3]["status"][2] == JOINED
    assert [row["status"][1] == ABSENT for row in rows] == [False, False, False, True, True, False]
    members = json.loads((path / "silos.json").read_text())["silos"]
    assert [member["name"] for member in members] == ["silo-0", "silo-1", "silo-2"]
    assert members[1]["node"] == 99


def test_a_server_that_dies_goes_on_where_it_was(tmp_path):
    """The server is stopped in every round once; the run equals one that was never stopped."""
    from same_run import without_clocks

    app = app_of(rounds=4)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = serve(app, LocalGrid(nodes(app, tmp_path / "a")), Settings(silos=3, out=str(tmp_path / "plain")))
    died = []

    def tamper(message, reply):
        t = message.content["announcement"]["round"] if "announcement" in message.content else 0
        if t and t not in died:
            died.append(t)
            raise KeyboardInterrupt  # after the silo trained, before the server heard of it
        return reply

    shaky = nodes(app, tmp_path / "b")
    shaky[12].tamper = tamper
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            serve(app, LocalGrid(shaky), Settings(silos=3, out=str(tmp_path / "shaky")))
    path = serve(app, LocalGrid(shaky), Settings(silos=3, out=str(tmp_path / "shaky")))
    assert died == [1, 2, 3, 4]
    assert without_clocks(path) == without_clocks(plain)
    assert (path / "events.jsonl").read_text().count("going on after round") == 3  # round 1 had no checkpoint yet


def federation(grid, register=None, size=4, **patience):
    return FlowerFederation(
        grid, register or Register(), run="run-1", recipe=app_of().recipe.hash(), size=size, curve=3,
        patience=Patience(**{"silos_s": 1.0, "poll_s": 0.01, **patience}),
    )  # fmt: skip


def test_strangers_are_turned_away(tmp_path):
    app, other = app_of(), app_of(rounds=9)
    good = nodes(app, tmp_path)
    good[20] = Node(client_app(app), {"silo": "silo-0", "folder": str(tmp_path / "x")}, name="silo-7")
    good[21] = Node(client_app(app), {"silo": "silo-1", "folder": str(tmp_path / "x")})
    good[22] = Node(client_app(other), {"silo": "silo-1", "folder": str(tmp_path / "x")})
    good[23] = Node(client_app(app), {"silo": "nobody", "folder": str(tmp_path / "x")})
    good[24] = Node(client_app(app), {})
    met = federation(LocalGrid(good))
    met.gather(9)  # waits its second, then goes on with those that belong
    assert met.silos == ("silo-0", "silo-1", "silo-2")
    said = "\n".join(met.events)
    for text in ("holds the key of 'silo-7'", "which another node already is", "it runs recipe", "lacks its silo's name",
                 "it answered with an error: ConfigError, line 1 of its log"):  # fmt: skip
        assert text in said
    assert "no data of silo 'nobody'" not in said  # for its operator, not for the server
    assert "no data of silo 'nobody'" in (tmp_path / "x" / "log.jsonl").read_text()


def test_the_server_hears_nothing_of_the_data(tmp_path):
    patient = "Mrs Example, born 1950-01-01, in /srv/clinic/north.csv"

    class Reads(NumpyApp):
        def silo(self, name, index, config):
            if name == "silo-1":
                raise DataError(patient)
            return NumpyTask(3)

    app = Reads(load(BASE))
    flower = client_app(app)
    met = federation(
        LocalGrid({k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}) for k in range(3)})
    )
    met.gather(3)
    assert met.silos == ("silo-0", "silo-2")
    said = "\n".join(met.events)
    assert "it answered with an error: DataError, line 1 of its log" in said
    assert "Mrs" not in said
    assert "/srv" not in said
    assert patient in (tmp_path / "1" / "log.jsonl").read_text()


def test_too_few_silos_stop_the_run_with_advice(tmp_path):
    with pytest.raises(RunError, match=r"3 silos were expected within 1 s, these came: none; start the others"):
        federation(LocalGrid({})).gather(3)
    register = Register(None, [Member("silo-0", 10, 5)])
    with pytest.raises(RunError, match=r"round 2: 0 of at least 1 silos are connected"):
        federation(LocalGrid({}), register).exchange(asked(2, np.zeros(4), client=0))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"protocol": 2}, "protocol 2 meets protocol 1"),
        ({"run": "another"}, "run 'another'"),
        ({"client": 0}, "client is 0, expected 1"),
        ({"body": "not json"}, "damaged"),
        ({"body": '{"words": {}, "numbers": {}}'}, "damaged"),
        ({"body": "x" * 1_000_001}, "at most 1000000 are read"),
        ({"status": "declined"}, "sends a model all the same"),
    ],
)
def test_reports_are_measured_before_they_are_believed(silo, change, complaint):
    _, ask = silo
    content = codec.report(ask(asked(1, np.zeros(4))), "run-1", "silo-1")
    content["report"] = type(content["report"])({**content["report"], **change})
    with pytest.raises(codec.ProtocolError, match=complaint):
        codec.read_report(content, asked(1, np.zeros(4)), "silo-1", 3)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("gamma", [float("inf")], "infinite"),
        ("gamma", [float("nan")], "a curve without a threshold"),
        ("zeta", [[1.0, 2.0]], "not 3 numbers"),
        ("examples", [3, 4], "not one number"),
        ("r2", ["high"], "r2 is 'high', not a number"),
        ("examples", [-1], "examples is -1"),
        ("points.values", [[1.0, 2.0]], "not as many values as places"),
        ("points.else", [[1.0, 2.0]], "unknown measurement 'points.else'"),
        ("surprise", [1.0], "unknown measurement 'surprise'"),
    ],
)
def test_numbers_are_measured_too(silo, name, value, complaint):
    _, ask = silo
    content = codec.report(ask(asked(1, np.zeros(4))), "run-1", "silo-1")
    body = json.loads(content["report"]["body"])
    body["numbers"][name] = value
    content["report"]["body"] = json.dumps(body)
    with pytest.raises(codec.ProtocolError, match=complaint):
        codec.read_report(content, asked(1, np.zeros(4)), "silo-1", 3)


def test_points_at_other_places_than_most_are_left_out(silo):
    _, ask = silo
    one = ask(asked(1, np.zeros(4)))
    parts = [replace(one, measurements=replace(one.measurements, points=points(m))) for m in (2, 3, 3)]
    shown = together(parts, 1, np.zeros(4), 3).measurements.points
    assert shown["values"].shape == (3, 3)
    assert np.isnan(shown["values"][0]).all()
    assert np.array_equal(shown["places"][1:], np.ones((2, 3)))


def points(m):
    return {"places": np.ones((1, m)), "values": np.ones((1, m))}


def test_settings_are_checked():
    assert Settings.of({"silos": 3, "round-timeout": 20}).round_timeout == 20.0
    for config, complaint in (
        ({"silos": "three"}, "silos is 'three'"),
        ({"quorum": 0}, "quorum is 0"),
        ({"round-timeout": -1.0}, "round-timeout is -1.0"),
        ({"patience": -1}, "patience is -1"),
    ):
        with pytest.raises(InputError, match=complaint):
            Settings.of(config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", -1), ("epochs", 0), ("epochs", 2.0), ("epochs", True), ("epochs", 2**63), ("epochs", "1"),
        ("batch_size", 0), ("batch_size", -5), ("batch_size", 10**10), ("lr", -0.1), ("lr", float("nan")),
        ("lr", float("inf")), ("lr", 10**400), ("lr", None), ("weight_decay", -1.0), ("clip", -1.0), ("prox", -1.0),
        ("prox", [1.0]), ("momentum", float("nan")), ("bound", float("-inf")), ("augment", 1), ("optimiser", "lbfgs"),
        ("optimiser", ["sgd"]), ("objective", "mine"), ("objective", None), ("objective", {}),
    ],
)  # fmt: skip
def test_local_training_that_is_none_is_refused_on_arrival(name, value):
    """What a silo's privacy costs is reckoned from it: fewer than no epochs would give budget back."""
    message = codec.announcement(asked(1, np.zeros(4)), "silo-1")
    assert codec.read_announcement(message, "silo-1", 4).local == LocalSpec(2, 5)
    told = dict(message["announcement"])
    told["local"] = json.dumps({**json.loads(told["local"]), name: value})
    message["announcement"] = ConfigRecord(told)
    with pytest.raises(codec.ProtocolError, match=rf"asks for local\.{name} = .*; it has to be") as refused:
        codec.read_announcement(message, "silo-1", 4)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", '{"steps": -1}', "{"])
def test_damaged_local_training_is_refused_on_arrival(text):
    message = codec.announcement(asked(1, np.zeros(4)), "silo-1")
    message["announcement"] = ConfigRecord({**dict(message["announcement"]), "local": text})
    with pytest.raises(codec.ProtocolError, match="the announcement is damaged"):
        codec.read_announcement(message, "silo-1", 4)
