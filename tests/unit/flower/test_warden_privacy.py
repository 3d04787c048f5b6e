"""A silo's bounds on epsilon, over a recipe and over all runs, which no server and no app gets around."""

from __future__ import annotations

import numpy as np
import pytest

from feduca.flower import approval
from feduca.flower import policy as policies
from feduca.flower.app import OneSilo
from feduca.flower.silo import respond
from feduca.flower.store import SiloStore
from feduca.recipes.build import behaviour_of
from feduca.types import Announcements, LocalSpec
from numpy_task import NumpyTask
from supernode import MODEL, only_the_decision, thief, training


def dp(node, text):
    """The server's app with a [privacy] table in its recipe, approved."""
    path = node.code / "recipe.toml"
    path.write_text(path.read_text().partition("\n[privacy")[0] + "\n" + text)
    content = approval.bundle(node.code)
    approval.approve(node.silo, content)


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", False),
        ('[privacy]\ndp = "records"\nepsilon = 8.0\n', False),
        ('[privacy]\ndp = "records"\nepsilon = 3.0\n', False),  # at a delta that nobody knows before the app runs
        ('[privacy]\ndp = "records"\nepsilon = 3.0\ndelta = 1e-4\n', True),
        ('[privacy]\ndp = "records"\nepsilon = 8.0\ndelta = 1e-4\n', False),
        ('[privacy]\ndp = "off"\nepsilon = 1.0\n', False),
        ("[privacy]\nepsilon = 1.0\n", False),
        ("[privacy]\ndp = true\nepsilon = 1.0\n", False),
        ('[privacy]\ndp = "records"\n', False),
        ('[privacy]\ndp = "records"\nepsilon = nan\n', False),
        ('[privacy]\ndp = "records"\nepsilon = "1"\n', False),
        ('[privacy]\ndp = "records"\nepsilon = 1.0\ndelta = 0.9\n', False),  # an epsilon that promises nothing
        ('[privacy]\ndp = "records"\nepsilon = 1.0\ndelta = nan\n', False),
        ('[privacy]\ndp = "records"\nepsilon = 1.0\ndelta = "small"\n', False),
        ('[privacy]\ndp = "records"\nepsilon = 1.0\ndelta = 1e-6\ndecisions = "noisy"\n', True),
        ('[privacy]\ndp = "records"\nepsilon = 1.0\ndelta = 1e-6\ndecisions = "exact"\n', False),
    ],
)
def test_epsilon_is_a_bound_on_the_recipe(node, text, passes):
    dp(node, text)
    node.policy("epsilon = 3.0")
    sent = node.ask(training(1), thief, run=21)
    assert (MODEL in sent) is passes
    assert passes or only_the_decision(sent)


def test_epsilon_is_a_bound_on_all_runs_together(node):
    """Else a server would only have to begin again."""
    dp(node, '[privacy]\ndp = "records"\nepsilon = 2.0\ndelta = 1e-5\n')
    node.policy("epsilon = 5.0")
    assert MODEL in node.ask(training(1, "run-1"), thief)
    assert MODEL in node.ask(training(2, "run-1"), thief)
    assert MODEL in node.ask(training(1, "run-2"), thief, run=8)
    assert only_the_decision(node.ask(training(1, "run-3"), thief, run=9))
    assert "may spend epsilon 2 beside 4 of other runs" in node.log
    assert MODEL in node.ask(training(3, "run-1"), thief)


def test_under_a_budget_no_round_is_answered_twice(node):
    """Asked something else in a round, a silo goes back to the memory before it, which knows nothing of what was spent."""
    task = OneSilo(NumpyTask(2), "silo-0")
    store, how = SiloStore(node.silo / "state"), behaviour_of(node.recipe, 0, NumpyTask(2))

    def ask(theta):
        one = np.array([0.3])
        asked = Announcements("run-1", 1, np.array([0]), theta, one, one, np.ones(1), LocalSpec(2, 5))
        return respond("silo-0", store, task, how, asked, policies.Policy(epsilon=3.0)).report

    assert ask(np.zeros(4)).status[0] == "joined"
    assert ask(np.zeros(4)).status[0] == "joined"  # the same answer
    again = ask(np.ones(4))
    assert (again.status[0], again.reason[0]) == ("refused", "declined: policy")
    assert not again.theta.any()


def test_the_apps_own_recipe_is_held_to_epsilon_too(node):
    """It need not be the recipe.toml beside it."""
    with pytest.raises(policies.ConfigError, match="has no differential privacy"):
        policies.behave(node.recipe, 0, NumpyTask(2), policies.Policy(epsilon=3.0))


PRIVATE = {
    "mechanism.name": "fedavg",
    "participation.rule": "always",
    "privacy.dp": "records",
    "privacy.epsilon": 3.0,
}


def test_a_delta_that_would_follow_from_the_examples_is_refused(node):
    """Unset, delta is 1 / (10 n): a bound on epsilon alone would promise little."""
    task, bound = NumpyTask(2), policies.Policy(epsilon=3.0)
    with pytest.raises(policies.ConfigError, match=r"delta open, .* with privacy\.delta = 0\.0001 or less") as refused:
        policies.behave(node.recipe.with_settings(PRIVATE), 0, task, bound)
    assert "\n" not in str(refused.value)
    small = node.recipe.with_settings({**PRIVATE, "privacy.delta": 1e-5})
    assert policies.behave(small, 0, task, bound).privacy.delta == 1e-5
    assert policies.behave(node.recipe.with_settings(PRIVATE), 0, task, policies.Policy()).privacy.delta is None


def never(message, context):
    raise AssertionError("the app runs")


def test_an_open_delta_and_a_least_gain_beside_privacy_are_refused_before_the_app(node):
    """Not by what the app makes of its recipe: nothing of it runs."""
    for text, policy, why in (
        ("epsilon = 3.0\n", "epsilon = 3.0", "leaves privacy.delta open"),
        ("epsilon = 3.0\ndelta = 1e-5\n", "least_gain = -1", "no privacy budget pays for"),
        ("epsilon = 3.0\ndelta = 1e-5\n", "least_gain = 0.1\nepsilon = 3.0", "no privacy budget pays for"),
    ):
        dp(node, '[privacy]\ndp = "records"\n' + text)
        node.policy(policy)
        assert only_the_decision(node.ask(training(1), never, run=30))
        assert why in node.log.splitlines()[-1]


@pytest.mark.parametrize("least", [-1.0, 0.0, 0.1])
def test_a_least_gain_beside_privacy_is_refused(node, least):
    """It decides by exact counts of validation examples, round by round, and nothing is paid for that."""
    with pytest.raises(policies.ConfigError, match=r"no privacy budget pays for; .* leave it out"):
        policies.behave(node.recipe.with_settings(PRIVATE), 0, NumpyTask(2), policies.Policy(least_gain=least))
