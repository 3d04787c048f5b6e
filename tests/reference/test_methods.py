"""Methods against other people's implementations, on tiny fixed problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from feduca.core.aggregation import Weighted
from feduca.mechanisms import AAggFF, FedAvg, FedProx, QFedAvg
from feduca.mechanisms.aaggff import leader, response
from feduca.tasks import build_task
from feduca.types import Allocation, LocalSpec, Round

N, P = 4, 6
RNG = np.random.default_rng(7)
THETA = RNG.normal(size=P)
MODELS = THETA + 0.3 * RNG.normal(size=(N, P))
LOSSES = np.array([0.4, 1.1, 2.3, 0.9])
EXAMPLES = np.array([10, 30, 25, 35])


def seen(**changes) -> Round:
    n = len(changes.get("examples", EXAMPLES))
    base = Round(
        round=1,
        joined=np.ones(n, bool),
        active=np.ones(n, bool),
        gamma=np.full(n, np.nan),
        zeta=np.full((n, 3), np.nan),
        examples=EXAMPLES,
        train_loss=LOSSES,
        delta=THETA - MODELS,
        previous=Allocation(np.full(n, 1 / n), "initial"),
    )
    return replace(base, **changes)


def ours(mechanism) -> np.ndarray:
    state, _ = mechanism.init(EXAMPLES, 0)
    _, allocation = mechanism.allocate(state, seen(), 0)
    everybody, nobody = np.ones(N, bool), np.zeros(N)
    delta = THETA - MODELS
    return Weighted().next(THETA, allocation.alpha, delta, nobody, 0 * delta, everybody, P)[0]


class Reply:
    """As much of a Flower message as its strategies look at; a real one wants a running server."""

    def __init__(self, content):
        self.content = content

    def has_error(self):
        return False


def flower_replies():
    """What N clients would send to a Flower server: their model, its number of examples, and a training loss."""
    from flwr.app import ArrayRecord, MetricRecord, RecordDict

    replies = []
    for k in range(N):
        metrics = MetricRecord({"num-examples": int(EXAMPLES[k]), "train_loss": float(LOSSES[k])})
        replies.append(Reply(RecordDict({"arrays": ArrayRecord([MODELS[k].copy()]), "metrics": metrics})))
    return replies


def test_fedavg_equals_flowers():
    strategy = pytest.importorskip("flwr.serverapp.strategy").FedAvg()
    arrays, _ = strategy.aggregate_train(1, flower_replies())
    assert ours(FedAvg(beta="examples")) == pytest.approx(arrays.to_numpy_ndarrays()[0], abs=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 5.0])
def test_q_fedavg_equals_flowers(q):
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    from flwr.app import ArrayRecord

    strategy = strategies.QFedAvg(client_learning_rate=0.05, q=q)
    strategy.current_arrays = ArrayRecord([THETA.copy()])
    arrays, _ = strategy.aggregate_train(1, flower_replies())
    assert ours(QFedAvg(q=q, eta_c=0.05)) == pytest.approx(arrays.to_numpy_ndarrays()[0], abs=1e-6)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_fedprox_equals_autograd_of_its_stated_objective(engine, mu):
    """One epoch of full-batch gradient descent on f + (mu/2) ||theta_k - theta||^2, written out with autograd."""
    task = build_task(data="digits", clients=2, model="logistic", seed=0, engine=engine)
    spec = FedProx(mu=mu).local(LocalSpec(epochs=6, batch_size=10_000, lr=0.2))
    theta = task.init(0)
    clients = np.arange(2)
    got = task.train(theta.expand(2, -1), clients, spec, 1, 0, anchor=theta)
    for k in clients:
        rows = torch.as_tensor(task.members[k].rows["train"])
        x, y = task.pool.examples(rows), task.pool.targets(rows)
        w = theta.clone()
        for _ in range(6):
            w = w.detach().requires_grad_()
            outputs = torch.func.functional_call(task.make(), task.layout.unpack(w), (x,))
            loss = torch.nn.functional.cross_entropy(outputs, y) + mu / 2 * (w - theta).square().sum()
            (grad,) = torch.autograd.grad(loss, w)
            w = w - 0.2 * grad
        assert got[k].numpy() == pytest.approx(w.detach().numpy(), abs=1e-6)


def cvxpy_decision(linear_terms, decisions, a, b):
    """AAggFF-S as stated: every past gradient and decision explicitly, no accumulated matrices."""
    import cvxpy as cp

    p = cp.Variable(len(decisions[0]))
    cost = a / 2 * cp.sum_squares(p)
    for g, past in zip(linear_terms, decisions):
        cost += g @ p + b / 2 * cp.square(g @ (p - past))
    cp.Problem(cp.Minimize(cost), [p >= 0, cp.sum(p) == 1]).solve(
        solver="OSQP", eps_abs=1e-12, eps_rel=1e-12, max_iter=500_000, polishing=True
    )
    return p.value


@pytest.mark.parametrize("cdf", ["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"])
def test_aaggff_equals_a_direct_cvxpy_solution(cdf):
    mechanism = AAggFF(cdf=cdf)
    rng = np.random.default_rng(3)
    state, first = mechanism.init(EXAMPLES, 0)
    p, gradients, decisions = first.alpha, [], []
    for t in range(1, 6):
        F = rng.exponential(size=N) * np.array([1, 2, 4, 0.2])
        v = response(F / F.mean(), cdf) / N
        assert ((v >= 0) & (v <= 1 / N)).all()
        gradients.append(-v / (1 + p @ v))
        decisions.append(p)
        state, allocation = mechanism.allocate(state, seen(round=t, train_loss=F), 0)
        p = allocation.alpha
        assert p == pytest.approx(cvxpy_decision(gradients, decisions, 4.0, N / 4), abs=1e-6)


def test_aaggff_on_the_simplex_boundary():
    """A weight that is pushed out of the simplex is exactly what the constraint inside the QP must catch."""
    linear, quadratic = np.array([3.0, -2.0, 0.1]), np.diag([1.0, 2.0, 0.5])
    p = leader(linear, quadratic)
    grid = [np.array([i, j, 200 - i - j]) / 200 for i in range(201) for j in range(201 - i)]
    worth = [linear @ g + g @ quadratic @ g / 2 for g in grid]
    assert p == pytest.approx(grid[int(np.argmin(worth))], abs=0.005)
    assert p[0] == pytest.approx(0, abs=1e-8)
    slope = linear + quadratic @ p  # equal on the support, larger outside it
    assert slope[1] == pytest.approx(slope[2], abs=1e-6) or min(p[1:]) < 1e-8
    assert slope[0] > slope[1]
