"""One silo cannot destroy the model: updates far longer than the others' are shortened, and honest ones left alone to the bit."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import feduca
from feduca.core import rounds as loop
from feduca.core.aggregation import Weighted, middle, norms
from feduca.core.messages import silent
from feduca.errors import ConfigError
from feduca.flower import client_app
from feduca.flower.server import Settings, serve
from feduca.recipes.build import build
from feduca.recipes.schema import load
from feduca.trust.outliers import MORE, Outliers
from feduca.types import DECLINED, JOINED, Announcements, LocalSpec
from local_grid import LocalGrid, Node
from numpy_task import NumpyApp

EQUAL = np.array([10, 10, 10, 10])


def asked(n):
    one = np.full(n, 1 / n)
    return Announcements("run", 1, np.arange(n), np.zeros(4), one, one, np.ones(1), LocalSpec())


def reports(*lengths):
    """Updates along the first axis; None declines."""
    n = len(lengths)
    theta = np.zeros((n, 4))
    theta[:, 0] = [x or 0.0 for x in lengths]
    status = [DECLINED if x is None else JOINED for x in lengths]
    return replace(silent(asked(n), JOINED, "", 3), status=status, theta=theta)


def shorten(history, *lengths, examples=EQUAL):
    n = len(lengths)
    told = np.array([np.nan if x is None else x for x in lengths])
    history, after, said = Outliers().shorten(history, examples[:n], asked(n), reports(*lengths), told)
    return history, after.theta[:, 0].tolist(), said


def test_by_hand():
    history, taken, said = shorten({}, 1.0, 1.5, 2.0, 18.0)
    assert taken == [1.0, 1.5, 2.0, 2.0]  # the upper quartile of three is the longest
    assert said[:3] == [""] * 3
    assert (
        said[3]
        == "its update is 9 times as long as the others'; it was shortened to 2, as long as the others' (gate.outlier)"
    )
    assert history["lengths"][:, -1].tolist() == taken
    history, taken, said = shorten(history, 1.0, None, 1.0, 28.0)
    assert taken == [
        1.0,
        0.0,
        1.0,
        2.0,
    ]  # what the second silo sent last time still counts, and no more than it sends now
    assert said[3].startswith("its update is 14 times as long as its own usual; it was shortened to 2, ")


def test_nobody_vouches_for_itself_by_growing():
    """Just inside the bound, round after round: never beyond a constant multiple of the others'."""
    history, length = {}, 1.0
    for _ in range(30):
        history, taken, _ = shorten(history, 1.0, 1.0, 1.0, length := min(length * 4.9, 1e6))
        assert taken[3] <= 5.0


def test_a_tiny_update_binds_nobody():
    assert shorten({}, 1.0, 1.0, 1e-9)[1] == [1.0, 1.0, 1e-9]


def test_two_of_ten_do_not_vouch_for_each_other():
    lengths = [1.0] * 8 + [100.0, 100.0]
    assert shorten({}, *lengths, examples=np.full(10, 5))[1] == [1.0] * 10


def test_nobody_to_compare_with():
    assert shorten({}, 5.0, None, None)[1] == [5.0, 0.0, 0.0]


def test_who_has_more_examples_takes_more_steps():
    examples = np.array([20, 20, 2000])
    assert shorten({}, 1.0, 1.0, 100.0, examples=examples)[1] == [1.0, 1.0, 100.0]
    taken = shorten({}, 1.0, 1.0, 1000.0, examples=examples)[1]
    assert taken == [1.0, 1.0, pytest.approx(MORE)]  # and may say so to some extent only


def test_unlike_itself_alone_is_pointed_out_and_left_alone():
    history, _, _ = shorten({}, 1.0, 0.01, 1.0)
    _, taken, said = shorten(history, 1.0, 0.1, 1.0)
    assert taken == [1.0, 0.1, 1.0]
    assert said == ["", "its update is 10 times as long as its own usual", ""]


def test_of_two_lengths_the_smaller_is_the_middle():
    assert middle(np.array([1.0, 18.0])) == 1.0
    assert middle(np.array([1.0, 2.0, 18.0])) == 2.0
    assert middle(np.array([])) == 0.0
    delta = np.diag([1.0, 18.0])
    clipped = Weighted(clip_median=1.0).clipped(delta, np.ones(2, bool))
    assert norms(clipped).tolist() == [1.0, 1.0]  # one of two bad ones does not set the bound


def test_the_option_is_checked_and_names_no_run():
    with pytest.raises(ConfigError, match=r"gate.outlier is 0\.5: .*give 1 or more, or 0 for never"):
        load({}, {"gate.outlier": 0.5})
    assert load({}, {"gate.outlier": 5.0}).hash() == load({}).hash() != load({}, {"gate.outlier": 0}).hash()


# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Attacked:
    """A federation whose last silo sends an update of this length in a useless direction, from some round on."""

    inner: object
    length: float
    since: int

    @property
    def silos(self):
        return self.inner.silos

    def exchange(self, asked):
        reports = self.inner.exchange(asked)
        if asked.round >= self.since and reports.joined[-1]:
            draw = np.random.default_rng(asked.round).normal(size=len(asked.theta))
            bad = self.length * draw / np.linalg.norm(draw)
            reports.theta[-1] = asked.theta + asked.theta.new_tensor(bad)
        return reports


def simulated(length, outlier, rule="always", since=9):
    settings = {"task.clients": 3, "task.classes_per_client": 10, "rounds": 12, "gate.outlier": outlier}
    settings |= {"mechanism.name": "fedavg", "participation.rule": rule}
    experiment = build(load({}, settings), 0)
    federation = Attacked(experiment.federation, length, since) if length else experiment.federation
    task = experiment.task
    return list(loop.steps(experiment.server, experiment.theta, task.examples, federation, evaluate=task.test))


@pytest.mark.parametrize("length", [18.0, 5.6e6])
def test_one_of_three_in_a_simulation(length):
    honest, bound, unbound = (simulated(*how)[-1][0].accuracy for how in ((None, 5.0), (length, 5.0), (length, 0.0)))
    assert bound > honest - 0.06
    assert unbound < honest - 0.2
    record = simulated(length, 5.0)[-1][1]
    assert record.advice[:2] == ["", ""]
    assert "times as long as its own usual; it was shortened to" in record.advice[2]
    assert record.update_norm[2] == pytest.approx(length, rel=1e-3)  # as received


def test_honest_runs_are_the_same_to_the_bit():
    for rule in ("always", "accuracy"):
        with_it, without = simulated(None, 5.0, rule), simulated(None, 0.0, rule)
        assert all(np.array_equal(a[2].theta, b[2].theta) for a, b in zip(with_it, without))
        assert not any(clients.advice for _, clients, _ in with_it)


def test_the_committed_runs_on_natural_silos_are_the_same_with_the_bound_and_bounded_under_attack():
    """What docs/robustness.md says below its table."""
    result = Path(__file__).parents[3] / "benchmarks" / "results" / "robustness.json"
    found = json.loads(result.read_text(encoding="utf-8"))["natural"]
    assert all(row["off"] == row["bound"] for rows in found["honest"].values() for row in rows.values())
    for data, rows in found["attacked"].items():
        honest = found["honest"][data]["forced"]["off"]
        assert all(row["bound"] > honest - 0.01 for row in rows.values())
        assert all(row["off"] < row["bound"] - 0.04 for row in rows.values())


APP = NumpyApp(
    load(
        {"name": "t", "rounds": 4, "local": {"epochs": 2, "batch_size": 5}, "task": {"clients": 3}},
        {"mechanism.name": "fedavg", "participation.rule": "always"},
    )
)


@pytest.mark.parametrize("length", [18.0, 5.6e6])
def test_one_of_three_behind_a_grid(length, tmp_path):
    flower = client_app(APP)
    nodes = {k: Node(flower, {"silo": f"silo-{k}", "folder": str(tmp_path / f"{k}")}) for k in range(3)}

    def tamper(asked, reply):
        if "theta" in reply.content and dict(asked.content["announcement"])["round"] >= 3:
            theta = asked.content["theta"]["theta"].numpy()
            bad = np.full(theta.shape, length / np.sqrt(theta.size))
            reply.content["theta"] = ArrayRecord({"theta": Array((theta + bad).astype(theta.dtype))})
        return reply

    nodes[2].tamper = tamper
    path = serve(APP, LocalGrid(nodes), Settings(silos=3, out=str(tmp_path / "runs")))
    clients = [json.loads(line) for line in (path / "clients.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["advice"] for record in clients[:2]] == [None, None]
    assert all("times as long as its own usual; it was shortened" in record["advice"][2] for record in clients[2:])
    honest = max(x for record in clients for x in record["update_norm"][:2])
    theta = [feduca.runs.checkpoint.read(p).state.theta for p in feduca.runs.checkpoint.existing(path / "checkpoint")]
    assert np.linalg.norm(theta[0] - theta[1]) <= 3 * honest
