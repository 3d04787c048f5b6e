"""Offers driven by hand along known curves, and the small federation that they are tried in."""

from __future__ import annotations

import numpy as np

from feduca.client.offers import Asked
from feduca.client.participation import Situation
from feduca.client.requests import Along
from feduca.core.utility import Quadratic
from feduca.types import Scores

LEAST = {"mechanism.name": "fedavg", "participation.rule": "accuracy", "offer.kind": "least-concession"}
SMALL = {"rounds": 5, "task.clients": 4, "local.epochs": 1, "local.batch_size": 10}


def scores(values, loss=None) -> Scores:
    values = np.asarray(values, float)
    return Scores(values, -values if loss is None else np.asarray(loss, float))


def search(offer, *curves, n=None, predict=None, loss=None, metric="accuracy"):
    """Drive an offer along curves of c, one client each; returns the offer and every c that was tried, in order."""
    k = len(curves)
    loss = loss or [lambda c, f=f: -f(c) for f in curves]

    def at(c):
        return scores([f(c) for f in curves], [g(c) for g in loss])

    counts = None if n is None else np.full(k, n)
    ends, mine = (at(0.0), at(1.0)), (np.zeros(1), np.ones((k, 1)), np.ones(k, bool))
    asked = Asked(np.arange(k), *mine, *ends, counts, predict, metric)
    steps, tried, answer = offer.of(asked), [], None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as stop:
            return stop.value, tried
        assert isinstance(request, Along)
        tried.append(dict(zip(request.clients.tolist(), request.places.tolist())))
        shape = request.places.shape
        values, losses = np.empty(shape), np.empty(shape)
        for row, client in enumerate(request.clients):
            values[row] = [curves[client](c) for c in request.places[row]]
            losses[row] = [loss[client](c) for c in request.places[row]]
        answer = Scores(values, losses)


def hill(peak, height=0.9, width=1.0):
    return lambda c: height - width * (c - peak) ** 2


def situation(offered, own, alone, extra=None):
    k = len(own)
    return Situation(
        2, scores(own), scores(offered), np.zeros(k), np.zeros((k, 3)), np.zeros(k), Quadratic(), None, scores(alone), extra or {}
    )  # fmt: skip
