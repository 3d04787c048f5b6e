"""The gate: every kind of bad report is refused with its reason, and nobody else notices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feduca.client.behaviour import Behaviour
from feduca.client.offers import Global
from feduca.client.participation import Always
from feduca.client.reporting import Inflate
from feduca.core import messages
from feduca.core import rounds as loop
from feduca.core.memory import memories
from feduca.core.rounds import Server
from feduca.core.utility import Quadratic
from feduca.errors import RunError
from feduca.federation import Faulty, InProcess
from feduca.mechanisms import FedAvg, FedUCA
from feduca.trust import gate as doors
from feduca.trust.gate import Gate
from feduca.trust.plausibility import Plausibility
from feduca.types import LocalSpec, Needs
from numpy_task import NumpyTask

FAMILY = Quadratic()
CURVE = Needs(curve=True)


@pytest.fixture(scope="module")
def scene():
    """A federation of four after one round: server, state, announcements and honest reports of round 2."""
    task = NumpyTask()
    server = Server(FedUCA(n_s=2), memories["update"], FAMILY, LocalSpec(epochs=1), 5, seed=1, run="run-1")
    federation = InProcess(task, Behaviour(Always(), Global(), FAMILY, seed=1, needs=CURVE))
    state = loop.begin(server, task.init(0), task.examples)
    state, _ = loop.advance(server, state, federation.exchange(loop.announce(server, state)))
    asked = loop.announce(server, state)
    return server, state, asked, federation.exchange(asked)


def admit(scene, reports, **options):
    return Gate(**options).admit(scene[2], reports, FAMILY, CURVE)


def changed(reports, row, **values):
    """Reports with one client's row changed."""
    new = {}
    for name, value in values.items():
        old = getattr(reports, name)
        column = list(old) if isinstance(old, list | tuple) else old.copy()
        column[row] = value
        new[name] = column
    return replace(reports, **new)


def test_honest_reports_pass_untouched(scene):
    reports = scene[3]
    admitted = admit(scene, reports)
    assert list(admitted.reports.status) == ["joined"] * 4
    assert admitted.reports.theta is reports.theta
    assert list(admitted.advice) == [""] * 4
    assert admitted.norms == pytest.approx(np.linalg.norm(scene[2].theta - reports.theta, axis=1))


BAD_ROWS = {
    "nan model": ({"theta": np.nan}, "not finite"),
    "infinite model": ({"theta": np.inf}, "not finite"),
    "overflowing model": ({"theta": 1e200}, "too large"),
    "nan threshold": ({"gamma": np.nan}, "threshold gamma is nan"),
    "infinite threshold": ({"gamma": np.inf}, "threshold gamma is inf"),
    "convex curve": ({"zeta": [-1.0, 0.5, 0.5]}, "a = -1.0 must be positive"),
    "nan curve": ({"zeta": [0.1, np.nan, 0.5]}, "b = nan is not a finite number"),
    "huge curve": ({"zeta": [1e200, 0, 0]}, "cannot be computed with"),
    "unknown status": ({"status": "root"}, "status is 'root'"),
    "no status": ({"status": None}, "status is None"),
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_one_bad_row_is_refused_and_the_others_are_as_they_were(scene, what):
    server, state, _, reports = scene
    values, reason = BAD_ROWS[what]
    admitted = admit(scene, changed(reports, 2, **values)).reports
    assert list(admitted.status) == ["joined", "joined", "refused", "joined"]
    assert reason in admitted.reason[2]
    assert admitted.reason[2].startswith("refused: ")
    # The round then equals, bit for bit, one in which silo 2 had sent nothing at all.
    gone = changed(reports, 2, status="absent", gamma=np.nan, zeta=np.nan, theta=0.0)
    after, _ = loop.advance(server, state, admitted)
    silent, _ = loop.advance(server, state, admit(scene, gone).reports)
    for name in ("theta", "remembered", "gamma", "zeta", "last_joined"):
        assert np.array_equal(getattr(after, name), getattr(silent, name), equal_nan=True), name
    assert after.last_joined[2] == state.last_joined[2]
    assert np.array_equal(after.remembered[2], state.remembered[2])


BAD_WHOLES = {
    "not reports": (lambda r: {"theta": 1}, "not reports"),
    "nothing": (lambda r: None, "not reports"),
    "another round": (lambda r: replace(r, round=1), "for round 1, this is 2"),
    "no round": (lambda r: replace(r, round="2"), "for round '2'"),
    "float clients": (lambda r: replace(r, clients=r.clients * 1.0), "not a list of indices"),
    "short status": (lambda r: replace(r, status=r.status[:2]), "status is not a list of 4"),
    "a model too few": (lambda r: replace(r, theta=r.theta[:3]), r"shape (3, 4), expected (4, 4)"),
    "longer models": (lambda r: replace(r, theta=np.zeros((4, 9))), "shape (4, 9)"),
    "other dtype": (lambda r: replace(r, theta=r.theta.astype(np.float32)), "float32, expected float64"),
    "words as models": (lambda r: replace(r, theta="weights"), "the models are str"),
    "complex gamma": (lambda r: replace(r, gamma=r.gamma.astype(complex)), "gamma is an array"),
    "two numbers a curve": (lambda r: replace(r, zeta=r.zeta[:, :2]), "zeta is an array of shape (4, 2)"),
    "no measurements": (lambda r: replace(r, measurements=None), "measurements are None"),
    "short column": (lambda r: replace(r, measurements=replace(r.measurements, r2=np.zeros(1))), "measurement r2"),
    "points at no places": (lambda r: pointed(r, values=np.zeros((4, 2))), "measured points"),
    "more places than points": (lambda r: pointed(r, places=np.zeros((4, 2)), values=np.zeros((4, 3))), "measured points"),
    "losses alone": (lambda r: pointed(r, losses=np.zeros((4, 2))), "measured points"),
    "fewer losses": (
        lambda r: pointed(r, places=np.zeros((4, 2)), values=np.zeros((4, 2)), losses=np.zeros((4, 1))),
        "measured points",
    ),
    "traps": (lambda r: replace(r, measurements=replace(r.measurements, own=Trap())), "cannot be read (ZeroDivisionError)"),
}  # fmt: skip


def pointed(reports, **points):
    """Reports with measured points."""
    return replace(reports, measurements=replace(reports.measurements, points=points))


class Trap:
    """Raises whenever it is looked at."""

    def __getattr__(self, name):
        raise ZeroDivisionError


@pytest.mark.parametrize("what", BAD_WHOLES)
def test_misshapen_answers_are_refused_as_a_whole(scene, what):
    spoil, reason = BAD_WHOLES[what]
    admitted = admit(scene, spoil(scene[3])).reports
    assert list(admitted.status) == ["refused"] * 4
    assert all(reason in why for why in admitted.reason), admitted.reason[0]
    after, _ = loop.advance(scene[0], scene[1], admitted)
    assert np.array_equal(after.gamma, scene[1].gamma)


def test_strangers_and_doubles_are_not_heard(scene):
    double = replace(scene[3], clients=np.array([0, 1, 1, 99]))
    admitted = admit(scene, double).reports
    assert list(admitted.clients) == [0]


def test_the_others_keep_their_measured_points(scene):
    places, values = np.tile([0.0, 0.5, 1.0], (4, 1)), np.arange(12.0).reshape(4, 3)
    reports = changed(pointed(scene[3], places=places, values=values), 2, theta=np.nan)
    for kept in (admit(scene, reports), admit(scene, replace(reports, clients=np.array([0, 1, 99, 3])))):
        points = kept.reports.measurements.points
        others = kept.reports.clients != 2
        assert np.array_equal(points["places"][others], places[[0, 1, 3]])
        assert np.array_equal(points["values"][others], values[[0, 1, 3]])
        assert np.isnan(points["values"][~others]).all()


def test_norm_bound_and_observed_norms(scene):
    lengths = admit(scene, scene[3]).norms
    bound = float(np.sort(lengths)[2] + 1e-9)
    admitted = admit(scene, scene[3], norm=bound)
    assert sorted(admitted.reports.status) == ["joined"] * 3 + ["refused"]
    assert "gate.norm" in admitted.reports.reason[int(np.argmax(lengths))]
    assert np.array_equal(admitted.norms, lengths)  # recorded, refused or not


def test_a_threshold_nobody_can_meet_is_advice(scene):
    admitted = admit(scene, changed(scene[3], 1, gamma=1.5))
    assert admitted.reports.status[1] == "joined"
    assert admitted.advice[1] == "threshold 1.5 is outside the range of accuracy, 0 to 1"
    loss = Gate().admit(scene[2], changed(scene[3], 1, gamma=0.5), FAMILY, CURVE, metric="loss")
    assert "largest negative loss" in loss.advice[1]


def test_a_mechanism_that_needs_the_training_loss_gets_one(scene):
    admitted = Gate().admit(scene[2], scene[3], FAMILY, Needs(train_loss=True))
    assert all("training loss is nan" in why for why in admitted.reports.reason)


def test_when_every_model_is_lost_the_run_stops_with_advice(scene):
    with pytest.raises(RunError, match=r"round 2: every silo's model is no longer finite; lower local\.lr"):
        admit(scene, replace(scene[3], theta=scene[3].theta * np.nan))


def test_a_silos_words_are_shortened_and_in_one_line(scene):
    admitted = admit(scene, changed(scene[3], 0, reason="a\n\x1b[31m" + "x" * 10_000)).reports
    assert len(admitted.reason[0]) == doors.LONGEST
    assert admitted.reason[0].isprintable()


# One silo's message


def message(scene, client=1, **changes):
    asked, reports = scene[2], scene[3]
    raw = {
        "run": asked.run,
        "round": asked.round,
        "client": client,
        "status": "joined",
        "reason": "likes it",
        "theta": reports.theta[client].copy(),
        "gamma": float(reports.gamma[client]),
        "zeta": reports.zeta[client].tolist(),
        "measurements": {"own.accuracy": 0.5, "examples": 27, "capped": False, "test.own": 0.25},
    }
    return {k: v for k, v in {**raw, **changes}.items() if v is not ...}


def test_messages_become_the_reports_they_describe(scene):
    asked, reports = scene[2], scene[3]
    rows = [doors.read(message(scene, k), asked, k, FAMILY) for k in range(4)]
    together = messages.together(rows, asked.round, asked.theta, FAMILY.size)
    assert np.array_equal(together.theta, reports.theta)
    assert np.array_equal(together.zeta, reports.zeta)
    assert np.array_equal(together.gamma, reports.gamma)
    assert list(together.measurements.examples) == [27] * 4
    assert list(together.measurements.test["own"]) == [0.25] * 4
    assert np.isnan(together.measurements.r2).all()
    admitted = admit(scene, together).reports
    assert list(admitted.status) == ["joined"] * 4
    after, _ = loop.advance(scene[0], scene[1], admitted)
    want, _ = loop.advance(scene[0], scene[1], reports)
    assert np.array_equal(after.theta, want.theta)


BAD_MESSAGES = {
    "not a mapping": (lambda m: [1, 2], "not a mapping"),
    "unknown field": (lambda m: {**m, "exec": "rm"}, "unknown field 'exec'"),
    "missing field": (lambda m: {k: v for k, v in m.items() if k != "gamma"}, "'gamma' is missing"),
    "another run": (lambda m: {**m, "run": "other"}, "for run 'other'"),
    "another round": (lambda m: {**m, "round": 7}, "round is 7, expected 2"),
    "another's name": (lambda m: {**m, "client": 3}, "client is 3, expected 1"),
    "true is not 1": (lambda m: {**m, "client": True}, "client is True"),
    "bad status": (lambda m: {**m, "status": "absent"}, "status is 'absent'"),
    "list as model": (lambda m: {**m, "theta": [0.0] * 4}, "theta is a list"),
    "object array": (lambda m: {**m, "theta": np.array([None] * 4)}, "theta is of object"),
    "short model": (lambda m: {**m, "theta": m["theta"][:2]}, "theta has shape (2,)"),
    "no model": (lambda m: {**m, "theta": None}, "theta is None"),
    "declines with model": (lambda m: {**m, "status": "declined"}, "declines and sends a model"),
    "gamma as text": (lambda m: {**m, "gamma": "0.5"}, "gamma is '0.5'"),
    "huge integer": (lambda m: {**m, "gamma": 10**400}, "gamma is"),
    "zeta of two": (lambda m: {**m, "zeta": [1, 2]}, "not 3 numbers"),
    "measurements as list": (lambda m: {**m, "measurements": []}, "not a mapping"),
    "unknown measurement": (lambda m: {**m, "measurements": {"x": 1}}, "unknown measurement 'x'"),
    "word as measurement": (lambda m: {**m, "measurements": {"r2": "good"}}, "measurement r2 is 'good'"),
    "endless reason": (lambda m: {**m, "reason": "x" * 2001}, "2001 characters is too long"),
    "infinite gamma": (lambda m: {**m, "gamma": np.inf}, "infinite"),
    "curve alone": (lambda m: {**m, "gamma": None}, "a curve without a threshold"),
    "points alone": (lambda m: {**m, "measurements": {"points.values": [1.0]}}, "not as many values as places"),
    "losses alone": (lambda m: {**m, "measurements": {"points.losses": [1.0]}}, "not as many values as places"),
    "points as text": (lambda m: {**m, "measurements": {"points.places": "0.5"}}, "points.places is '0.5'"),
    "endless points": (lambda m: {**m, "measurements": {"points.places": [0.5] * 1001}}, "not up to 1000 numbers"),
    "negative examples": (lambda m: {**m, "measurements": {"examples": -5}}, "measurement examples is -5"),
}


def test_odd_points_of_one_silo_leave_the_others_alone(scene):
    """Losses are optional: a silo that sends some, of another length, must not decide the shape of everybody's points."""
    _, _, asked = scene[:3]
    few = {"points.places": [0.5] * 3, "points.values": [0.5] * 3}
    for odd in (few | {"points.losses": [0.5] * 3}, few):
        rows = []
        for k in range(len(asked.clients)):
            told = {"points.places": [0.1] * 5, "points.values": [0.2] * 5} if k != 1 else odd
            raw = message(scene) | {"client": int(asked.clients[k]), "measurements": told}
            rows.append(doors.read(raw, asked, int(asked.clients[k]), FAMILY))
        assert all(list(row.status) == ["joined"] for row in rows)
        whole = messages.together(rows, asked.round, asked.theta, FAMILY.size)
        assert "refused" not in admit(scene, whole).reports.status
        points = whole.measurements.points
        assert {column.shape for column in points.values()} == {(len(rows), 5)}
        assert np.isnan(points["values"][1]).all()
        assert (points["values"][[0, 2]] == 0.2).all()


@pytest.mark.parametrize("what", BAD_MESSAGES)
def test_bad_messages_are_refused(scene, what):
    spoil, reason = BAD_MESSAGES[what]
    row = doors.read(spoil(message(scene)), scene[2], 1, FAMILY)
    assert list(row.status) == ["refused"]
    assert reason in row.reason[0], row.reason[0]
    assert list(row.clients) == [1]
    assert np.isnan(row.gamma).all()


# In the loop


USUAL = Gate()


def play(reporting=None, gate=USUAL, plausibility=None, faults=None, rounds=12, clients=6):
    task = NumpyTask(clients)
    mechanism = FedUCA(n_s=2) if plausibility else FedAvg()
    server = Server(
        mechanism, memories["update"], FAMILY, LocalSpec(epochs=1), rounds, seed=1, gate=gate, plausibility=plausibility
    )
    how = Behaviour(Always(), Global(), FAMILY, seed=1, needs=CURVE, **({"reporting": reporting} if reporting else {}))
    federation = InProcess(task, how)
    if faults:
        federation = Faulty(federation, seed=5, **faults)
    return list(loop.steps(server, task.init(0), task.examples, federation, evaluate=task.test))


def test_faults_are_put_in_and_refused():
    items = play(faults={"who": [0, 3], "kinds": ["nan"]})
    for _, clients, state in items:
        assert [status == "refused" for status in clients.status] == [k in (0, 3) for k in range(6)]
        assert state.last_joined[0] == 0
    with pytest.raises(RunError, match="no longer finite"):
        play(faults={"who": [0, 3], "kinds": ["nan"]}, gate=None)


def test_an_inflated_demand_is_flagged_and_refused_when_asked():
    honest = play(plausibility=Plausibility())
    assert all(clients.advice is None for _, clients, _ in honest)
    liar = Inflate(0.3, (2,))
    items = play(reporting=liar, plausibility=Plausibility())
    flagged = [[bool(text) for text in clients.advice or [""] * 6] for _, clients, _ in items]
    assert sum(row[2] for row in flagged) >= 10
    assert not any(any(row[:2]) or any(row[3:]) for row in flagged)
    assert all(record.joined == 6 for record, _, _ in items)  # advice, not exclusion
    items = play(reporting=liar, plausibility=Plausibility(exclude=True))
    assert any(clients.status[2] == "refused" and "implausible" in clients.reason[2] for _, clients, _ in items)


class Rosy:
    """Silo 4 claims a curve half a point above what it measures, with the threshold to match."""

    def report(self, gamma, zeta, clients, round=0):
        rosy = np.where(clients == 4, 0.5, 0.0)
        return gamma + rosy, zeta + rosy[:, None] * np.array([0, 0, 1.0])


def test_a_rosy_curve_is_flagged_by_what_follows():
    items = play(reporting=Rosy(), plausibility=Plausibility(window=6))
    last = items[-1][1].advice
    assert last is not None
    assert "off by" in last[4]
    assert [bool(text) for text in last] == [False] * 4 + [True, False]


def test_what_decliners_need_not_tell_is_not_missed(scene):
    """A silent decliner is admitted where the protocol has it so; a participant owes everything all the same."""
    nothing = {"gamma": np.nan, "zeta": np.full(3, np.nan)}
    for row, status in ((0, "declined"), (1, "joined")):
        reports = changed(scene[3], row, status=status, **nothing)
        if status == "declined":
            reports = replace(reports, theta=np.where(np.arange(4)[:, None] == row, 0.0, reports.theta))
        for told in ("all", "curve", "silent"):
            admitted = admit(scene, reports, decliners=told).reports.status[row]
            assert admitted == ("declined" if (status, told) == ("declined", "silent") else "refused")
    losses = Needs(train_loss=True)
    reports = replace(scene[3], status=["declined", "joined", "joined", "joined"])
    for told in ("all", "curve", "silent"):
        found = Gate(decliners=told).admit(scene[2], reports, FAMILY, losses).reports
        assert found.status == ["refused" if told == "all" else "declined", "refused", "refused", "refused"]
