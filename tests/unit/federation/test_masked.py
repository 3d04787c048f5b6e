"""Secure aggregation in the round loop: the same models as without it, and nothing released of fewer than three."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import feduca
from feduca.core import rounds as loop
from feduca.errors import ConfigError, RunError
from feduca.federation import Faulty
from feduca.federation.faults import DropsOut
from feduca.federation.masked import MaskedSilos
from feduca.privacy.protocol import complaint, threshold
from feduca.privacy.server import Unreleased
from feduca.recipes.build import behaviour_of, build, make_task, masked
from feduca.recipes.schema import load
from feduca.runs import checkpoint
from feduca.types import Reports

ON = {"privacy.secure_aggregation": True}
EQ1 = {"mechanism.name": "fedavg", "participation.rule": "accuracy"}
ALWAYS = {**EQ1, "participation.rule": "always"}
STAYS = {**EQ1, "offer.kind": "best-mixture"}
STACK = {
    "mechanism.name": "fedavg",
    "participation.rule": "loss",
    "participation.against": "outside",
    "offer.kind": "stack",
}


class Unmasked(MaskedSilos):
    """The same sums without a single mask: what the protocol has to equal bit by bit."""

    def _session(self, asked, clients, weights, made):
        fates = [self._drops(asked.round, int(k)) for k in clients]
        counted, silent = np.array([fate != "masking" for fate in fates]), np.array([bool(fate) for fate in fates])
        if not counted.all():  # then whoever is silent afterwards is left out as well
            counted = ~silent
        for weighed in (weights, weights[counted]):
            if why := complaint(list(weighed), 3):
                raise Unreleased(why)
        if (~silent).sum() < threshold(len(fates)):
            raise Unreleased("too few")
        changes = [x - self._last[k] if k in self._last else x for k, x in zip(clients.tolist(), made)]
        return sum((x for x, yes in zip(changes, counted) if yes), np.zeros_like(made[0])), counted


@pytest.fixture(scope="module")
def task():
    return make_task(load("quickstart"), 0)


def run(task, settings, rounds=6, *, around=lambda federation: federation, drops=None, kind=MaskedSilos):
    """States and records of a run; `around` wraps the silos, `drops` says who drops out in mid-session."""
    recipe = load("quickstart", {"gate.outlier": 0.0, "rounds": rounds, **settings})
    experiment = build(recipe, 0, task)
    federation = experiment.federation
    if recipe.privacy.secure_aggregation:
        more = {} if drops is None else {"drops": drops}
        federation = masked(recipe, around(federation._federation), task.parameters, **more)
        federation.__class__ = kind
    else:
        federation = around(federation)
    return list(loop.steps(experiment.server, experiment.theta, task.examples, federation, evaluate=task.test))


def theta(steps):
    return np.asarray(steps[-1][2].theta)


@pytest.mark.parametrize("settings", [ALWAYS, STAYS, STACK, {**ALWAYS, "memory.kind": "none"}])
def test_the_shared_model_is_the_plain_runs(task, settings):
    plain, secure = run(task, settings), run(task, {**settings, **ON})
    for (a, _, before), (b, _, after) in zip(plain, secure):
        assert np.abs(np.asarray(before.theta) - np.asarray(after.theta)).max() < 2e-6
        assert a.joined == b.joined
        assert b.accuracy == pytest.approx(a.accuracy, abs=0.001)
    if settings is STAYS:
        assert min(record.joined for record, *_ in secure) < 10, "nobody refused"


def test_refusals_and_absent_silos_change_nothing_of_that(task):
    """Ten rounds of the quickstart with silos that refuse, and others that are silent at random."""

    def around(federation):
        return Faulty(federation, range(10), 3, kinds=("absent",), rate=0.2)

    plain, secure = (run(task, s, 10, around=around) for s in (STAYS, {**STAYS, **ON}))
    silent = sum(word == "absent" for _, clients, _ in secure for word in clients.status)
    declined = sum(word == "declined" for _, clients, _ in secure for word in clients.status)
    assert silent > 5
    assert declined > 0
    for (a, _, _), (b, _, _) in zip(plain, secure):
        assert abs(a.accuracy - b.accuracy) <= 0.001


@pytest.mark.parametrize("settings", [{}, {"mechanism.schedule": "lagged"}, STAYS])
def test_sums_are_bit_equal_to_unmasked_ones_with_silos_that_drop_out(task, settings):
    """FedUCA's weights act on fresh updates; one in ten silos drops out in mid-session."""
    drops = DropsOut(1, 0.1)
    secure = run(task, {**settings, **ON}, 8, drops=drops)
    plain = run(task, {**settings, **ON}, 8, drops=drops, kind=Unmasked)
    lost = [clients.advice for _, clients, _ in secure]
    assert any("dropped out" in str(words) for words in lost)
    assert any(record.reason == "" or "No sum" not in record.reason for record, *_ in secure)
    for (_, _, a), (_, _, b) in zip(secure, plain):
        assert (np.asarray(a.theta) == np.asarray(b.theta)).all()
        assert (a.contributed == b.contributed).all()


def test_a_silo_keeps_its_weight_until_it_joins_again(task):
    steps = run(task, {**STAYS, **ON, "mechanism.name": "random"}, 8)
    for (_, _, before), (_, _, after) in pairwise(steps):
        stayed = after.last_joined < after.round - 1
        assert (after.formed.alpha[stayed] == before.formed.alpha[stayed]).all()
    assert stayed.any()


class OnlyTwo:
    """Silos of which two join from round 2 on."""

    def __init__(self, federation):
        self.silos, self._federation = federation.silos, federation

    def exchange(self, asked) -> Reports:
        reports = self._federation.exchange(asked)
        if asked.round == 1:
            return reports
        status = [word if k < 2 else "declined" for k, word in enumerate(reports.status)]
        return replace(reports, status=status)

    def snapshot(self):
        return self._federation.snapshot()

    def restore(self, arrays):
        self._federation.restore(arrays)


def test_two_fresh_updates_release_nothing_and_it_is_said(task):
    steps = run(task, {**ALWAYS, **ON}, 3, around=OnlyTwo)
    first, second = steps[0][2], steps[1][2]
    assert (first.contributed == second.contributed).all()
    assert (second.last_joined == 1).all()
    assert (np.asarray(first.theta) == np.asarray(second.theta)).all()
    record, clients, _ = steps[1]
    assert record.joined == 2
    assert "No sum was released: 2 fresh updates" in record.reason
    assert "not counted this time" in clients.advice[0]
    assert not clients.advice[5]


def test_a_resumed_run_is_bit_equal(task, tmp_path):
    recipe = load("quickstart", {**STAYS, **ON, "rounds": 6})

    def go(state=None, arrays=None, rounds=6):
        experiment = build(load("quickstart", {**STAYS, **ON, "rounds": rounds}), 0, task)
        if arrays:
            experiment.federation.restore(arrays)
        first = experiment.theta, task.examples, experiment.federation
        steps = list(loop.steps(replace(experiment.server, run="r"), *first, state=state))
        return steps[-1][2], experiment.federation

    whole, _ = go()
    half, federation = go(rounds=3)
    path = checkpoint.write(tmp_path, 3, checkpoint.Checkpoint(recipe.hash(), half, federation.snapshot()))
    read = checkpoint.read(path)
    resumed, _ = go(read.state, read.clients)
    assert (np.asarray(whole.theta) == np.asarray(resumed.theta)).all()
    assert (whole.contributed == resumed.contributed).all()


def test_the_bound_shortens_what_a_silo_sends(task):
    """As the server's own clipping does where it sees updates."""
    plain = run(task, {**ALWAYS, "aggregation.clip": 0.05}, 3)
    secure = run(task, {**ALWAYS, **ON, "privacy.bound": 0.05}, 3)
    free = run(task, {**ALWAYS, **ON}, 3)
    assert np.abs(theta(plain) - theta(secure)).max() < 1e-6
    assert np.abs(theta(plain) - theta(free)).max() > 1e-3


def test_no_update_has_a_length(task):
    for _, clients, state in run(task, {**STAYS, **ON}, 2):
        assert np.isnan(clients.update_norm).all()
        assert state.remembered.shape[1] == 0


def test_a_mechanism_that_looks_at_updates_learns_nothing(task):
    """What the server hands to a mechanism of somebody's own is no number."""
    seen = []
    experiment = build(load("quickstart", {**EQ1, **ON, "rounds": 1}), 0, task)
    fedavg = experiment.server.mechanism

    class Looks(type(fedavg)):
        def allocate(self, state, round, seed):
            seen.append(np.asarray(round.delta))
            return super().allocate(state, round, seed)

    server = replace(experiment.server, mechanism=Looks())
    list(loop.steps(server, experiment.theta, task.examples, experiment.federation))
    assert np.isnan(seen[0]).all()


def test_a_federation_without_the_protocol_is_refused(task):
    experiment = build(load("quickstart", {**EQ1, **ON, "rounds": 1}), 0, task)
    with pytest.raises(RunError, match="sent no sum"):
        list(loop.steps(experiment.server, experiment.theta, task.examples, experiment.federation._federation))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"gate.outlier": 5.0}, "privacy.bound"),
        ({"gate.norm": 1.0}, "privacy.bound"),
        ({"aggregation.clip": 1.0}, "privacy.bound"),
        ({"aggregation.clip_median": 2.0}, "privacy.bound"),
        ({"aggregation.kind": "median"}, "use 'mean'"),
        ({"aggregation.kind": "trimmed"}, "use 'mean'"),
        ({"standing.kind": "work"}, "use 'off'"),
        ({"memory.kind": "model"}, "use 'update'"),
        *[({"mechanism.name": name}, "use ") for name in ("qfedavg", "scaffold", "feddyn", "fedvarp", "mifa")],
        ({"task.clients": 2}, "privacy.least"),
        ({"cohort.size": 2}, "privacy.least"),
        ({"mechanism.name": "incfl", "mechanism.eta_g": 2.0}, "aggregation.eta_s"),
    ],
)
def test_what_cannot_be_had_with_it_is_refused_in_one_line(settings, names):
    with pytest.raises(ConfigError, match=r"with privacy\.secure_aggregation") as refusal:
        load("quickstart", {**ON, **settings}).single()
    assert names in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_long_updates_are_not_looked_for_where_none_is_seen(task):
    """Unset, the option is off; set to 0 by hand it is the same run. It comes back without secure aggregation."""
    secure, plain = load("quickstart", ON), load("quickstart")
    assert secure.gate.outlier is None
    assert build(secure, 0, task).server.outliers is None
    assert build(plain, 0, task).server.outliers is not None
    assert secure.hash() == load("quickstart", {**ON, "gate.outlier": 0}).hash()
    assert plain.with_settings(ON) == secure
    assert secure.with_settings({"privacy.secure_aggregation": False}).hash() == plain.hash()
    assert plain.hash() != load("quickstart", {"gate.outlier": 0}).hash()
    with pytest.raises(ConfigError, match=r"gate.outlier is 7\.0 with .*; leave it out and let silos shorten"):
        load("quickstart", {**ON, "gate.outlier": 7}).single()
    assert load("quickstart", {**ON, "gate.outlier": 7, "gate.on": False}).outlier == 7


def test_its_options_mean_nothing_without_it():
    for key, value in (("privacy.least", 4), ("privacy.bound", 1.0)):
        with pytest.raises(ConfigError, match=r"set privacy\.secure_aggregation = true"):
            load("quickstart", {key: value}).single()


def test_runs_without_it_keep_their_names():
    assert load("quickstart").hash() == load("quickstart", {"privacy.secure_aggregation": False}).hash()
    assert load("quickstart").hash() != load("quickstart", ON).hash()


def test_a_run_directory_goes_on_and_is_exported(tmp_path):
    settings = {**STAYS, **ON}
    result = feduca.run("quickstart", settings, rounds=2, out=tmp_path)
    assert result.participation > 0
    behaviour_of(load("quickstart", settings), 0, make_task(load("quickstart", settings), 0))
