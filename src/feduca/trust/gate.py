"""The server's gate: what a report must be before it is believed (it stands between the exchange and the aggregation).

Two doors, one after the other:

    read(raw, asked, client)   one silo's decoded message, of whatever shape: schema, run, round, identity, types and sizes
                               (`parse` is the same check for a transport that wants an exception, as Flower's codec does)
    Gate.admit(asked, reports) all reports of a round, from any federation: round, identity, shape, dtype, finite values, the
                               norm of the update, curve and threshold inside the family's domain

A report that fails either counts as absent for this round, with the reason recorded; the others' reports are not touched.
Nothing a silo sends raises an exception here. What is odd but harmless is let through with advice in the record.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feduca.core.aggregation import norms
from feduca.core.arrays import like, select, zeros
from feduca.core.messages import KINDS, NAMES, columns, measurements, models, silenced, silent, unmeasured
from feduca.errors import RunError
from feduca.types import (
    ABSENT,
    DECLINED,
    JOINED,
    LEFT,
    REFUSED,
    Announcements,
    Array,
    Floats,
    Measurements,
    Needs,
    Reports,
    UtilityFamily,
)

LARGEST = 1e9  # of a curve's parameters and of a threshold: beyond it double precision cannot tell utilities apart
MOST = 16  # numbers of a method's own
LONGEST = 300  # characters of a silo's reason that go into the record
LONGEST_SENT = 2000  # characters of a reason at all
LONGEST_ROW = 1000  # places at which a utility is measured

_FIELDS = {"run", "round", "client", "status", "reason", "theta", "gamma", "zeta", "measurements"}
_TESTS = ("test.deployed", "test.own", "test.global", "test.alone")
_POINTS = ("points.places", "points.values", "points.losses")  # the last where whole curves are kept
_NOTED = (
    "noted.trainings",
    "noted.epsilon",
    *(f"noted.weight_{of}" for of in ("shared", "completed", "tuned", "private")),
)
_PAIRED = ("examples", "gained", "lost", "loss_gain", "loss_variance")  # what is deployed against the model alone
_MEASUREMENTS = {*NAMES, *_TESTS, *(f"test.paired_{name}" for name in _PAIRED), *_POINTS, *_NOTED}
_TOLD = re.compile(r"told\.\w{1,40}", re.ASCII)  # a method's own numbers


class Malformed(RunError):
    """A message that is not what was asked for; the text says what is wrong with it."""


@dataclass(frozen=True)
class Admitted:
    """A round's reports after the gate, with what it saw: all `[K]`."""

    reports: Reports
    norms: Floats  # of the updates, also of refused ones; NaN where none was sent
    advice: Sequence[str]  # "" where there is nothing to say


@dataclass(frozen=True)
class Gate:
    """What is refused. `norm` bounds the length of an update `theta - theta_k`; 0 = no bound.

    `decliners` is what the protocol has them tell (recipes/tables.py): what they need not send is not missed.
    """

    norm: float = 0.0
    decliners: str = "all"

    def admit(
        self, asked: Announcements, reports: object, family: UtilityFamily, needs: Needs, metric: str = "accuracy"
    ) -> Admitted:
        """The reports with every unacceptable one turned into a refusal."""
        fault = _misshapen(asked, reports, family)
        if fault is not None or not isinstance(reports, Reports):
            k = len(asked.clients)
            return Admitted(silent(asked, REFUSED, f"refused: {fault}", family.size), np.full(k, np.nan), [""] * k)
        reports = _known(asked, reports)
        k = len(reports.clients)
        sent = reports.joined
        length = np.where(sent, _lengths(asked, reports), np.nan)
        curve = ~np.isnan(reports.gamma) | ~np.isnan(reports.zeta).all(1)
        asked_loss = needs.train_loss & (sent | (self.decliners == "all"))
        asked_curve = curve | (needs.curve & (sent | (self.decliners != "silent")))
        refusals, advice, dead = [""] * k, [""] * k, 0
        for row in range(k):
            status = reports.status[row]
            if status in (ABSENT, REFUSED) or (status == LEFT and not curve[row]):
                continue
            if status not in (JOINED, DECLINED, LEFT):
                refusals[row] = f"status is {_seen(status)}, not joined, declined, left, absent or refused"
            elif sent[row] and not math.isfinite(length[row]):
                refusals[row], dead = "the model is not finite, or too large to add up", dead + 1
            elif sent[row] and 0 < self.norm < length[row]:
                refusals[row] = f"the update's norm {length[row]:.6g} is above the bound {self.norm:.6g} (gate.norm)"
            elif asked_loss[row] and not abs(reports.measurements.train_loss[row]) <= LARGEST:
                seen = reports.measurements.train_loss[row]
                refusals[row] = f"the training loss is {seen}, and the mechanism needs it"
            elif wild := [name for name, column in reports.measurements.told.items() if abs(column[row]) > LARGEST]:
                refusals[row] = f"{wild[0]} is {reports.measurements.told[wild[0]][row]}, too large to compute with"
            elif asked_curve[row]:
                refusals[row] = _bad_curve(reports.zeta[row], float(reports.gamma[row]), family)
                if not refusals[row]:
                    advice[row] = _odd_threshold(float(reports.gamma[row]), metric)
        if dead == k == len(asked.clients) > 0:
            raise RunError(
                f"round {asked.round}: every silo's model is no longer finite; lower local.lr, set local.clip, or use an"
                " offer that stays closer to the shared model"
            )
        return Admitted(refuse(asked, reports, refusals), length, advice)


def refuse(asked: Announcements, reports: Reports, refusals: Sequence[str]) -> Reports:
    """Turn the reports with a complaint into refusals, and clean whatever is not used, so that nothing of it goes any further."""
    bad = np.array([bool(text) for text in refusals], dtype=bool)
    unheard = bad | np.array([status in (ABSENT, REFUSED) for status in reports.status], dtype=bool)
    status = [REFUSED if no else word for no, word in zip(bad, reports.status)]
    reason = [f"refused: {text}" if text else _plain(why) for text, why in zip(refusals, reports.reason)]
    joined = np.array([word == JOINED for word in status], dtype=bool)
    theta = reports.theta
    if not joined.all():
        theta = select(joined, theta, zeros(asked.theta, *theta.shape))
    if not unheard.any():
        return replace(reports, status=status, reason=reason, theta=theta)
    return replace(
        reports,
        status=status,
        reason=reason,
        theta=theta,
        gamma=np.where(unheard, np.nan, reports.gamma),
        zeta=np.where(unheard[:, None], np.nan, reports.zeta),
        measurements=silenced(reports.measurements, unheard),
    )


# ---------------------------------------------------------------------------------------------------------------------
# One silo's message


def read(raw: object, asked: Announcements, client: int, family: UtilityFamily) -> Reports:
    """One client's decoded message as reports of one row; a refusal with its reason where it is not what was asked for.

    `client` is who the transport says this is; `parse` says what a message is.
    """
    one = replace(asked, clients=np.array([client]))
    try:
        return parse(raw, one, family.size)
    except Malformed as error:
        return silent(one, REFUSED, f"refused: {error}", family.size)


def parse(raw: object, asked: Announcements, curve: int) -> Reports:
    """One client's decoded message as reports of one row; Malformed where it is not what was asked of this one client.

    A message is a mapping with `run`, `round`, `client`, `status` (joined, declined, left, or refused by its operator), `reason`,
    `theta` (only when joined; a numpy array of the announced model's shape and dtype), `gamma`, `zeta` of `curve` numbers, and
    `measurements`: a mapping from names such as `own.accuracy` to numbers (rows of them for `points.`).
    """
    try:
        fault, values = _parsed(raw, asked, int(asked.clients[0]), curve)
    except Exception as error:  # objects that raise when they are looked at
        fault, values = f"the message cannot be read ({type(error).__name__})", {}
    if fault:
        raise Malformed(fault)
    theta = zeros(asked.theta, 1, len(asked.theta))
    if values["theta"] is not None:
        theta[0] = like(asked.theta, values["theta"])
    return Reports(
        asked.round,
        asked.clients,
        [values["status"]],
        [values["reason"]],
        theta,
        np.array([values["gamma"]]),
        np.array([values["zeta"]]).reshape(1, curve),
        measurements({**unmeasured(1), **values["measurements"]}),
    )


def _parsed(raw: object, asked: Announcements, client: int, curve: int) -> tuple[str, dict[str, Any]]:
    """What is wrong with a message, or its values."""
    if not isinstance(raw, Mapping):
        return f"the message is {_seen(raw)}, not a mapping", {}
    if strangers := [key for key in raw if not isinstance(key, str) or key not in _FIELDS]:
        return f"unknown field {_seen(strangers[0])}", {}
    if missing := sorted({"run", "round", "client", "status", "gamma", "zeta"} - raw.keys()):
        return f"the field {missing[0]!r} is missing", {}
    if raw["run"] != asked.run:
        return f"it is for run {_seen(raw['run'])}, this is {asked.run!r}", {}
    for name, want in (("round", asked.round), ("client", client)):
        if not _is_integer(raw[name]) or int(raw[name]) != want:
            return f"{name} is {_seen(raw[name])}, expected {want}", {}
    status = raw["status"]
    if not isinstance(status, str) or status not in (JOINED, DECLINED, LEFT, REFUSED):
        return f"status is {_seen(status)}, not joined, declined, left or refused", {}
    reason = raw.get("reason", "")
    if not isinstance(reason, str):
        return f"reason is {_seen(reason)}, not text", {}
    if len(reason) > LONGEST_SENT:
        return f"a reason of {len(reason)} characters is too long, at most {LONGEST_SENT} are read", {}
    theta = raw.get("theta")
    if status == JOINED:
        if fault := _bad_model(theta, asked.theta):
            return fault, {}
    elif theta is not None:
        return "it declines and sends a model all the same", {}
    gamma, zeta = _number(raw["gamma"]), _numbers(raw["zeta"], curve)
    if gamma is None:
        return f"gamma is {_seen(raw['gamma'])}, not a number", {}
    if zeta is None:
        return f"zeta is {_seen(raw['zeta'])}, not {curve} numbers", {}
    if any(map(math.isinf, (gamma, *zeta))):
        return "threshold or curve is infinite", {}
    if math.isnan(gamma) is all(map(math.isfinite, zeta)):
        return "a threshold without a curve, or a curve without a threshold", {}
    given = raw.get("measurements", {})
    if not isinstance(given, Mapping):
        return f"measurements are {_seen(given)}, not a mapping", {}
    if len(given) > len(_MEASUREMENTS) + MOST:
        return f"{len(given)} measurements are too many", {}
    measured = {}
    for name, value in given.items():
        if not isinstance(name, str) or not (name in _MEASUREMENTS or _TOLD.fullmatch(name)):
            return f"unknown measurement {_seen(name)}", {}
        if name in _POINTS:
            row = _numbers(value, len(value)) if isinstance(value, list | tuple | np.ndarray) else None
            if row is None or len(row) > LONGEST_ROW:
                return f"{name} is {_seen(value)}, not up to {LONGEST_ROW} numbers", {}
            measured[name] = np.array([row], float)
            continue
        number = _number(value)
        if number is None or (KINDS.get(name) is int and not 0 <= number < 2**53):
            return f"measurement {name} is {_seen(value)}, not a number that can be", {}
        measured[name] = np.array([number == 1 if name == "capped" else number], KINDS.get(name, float))
    rows = [measured[name].shape for name in _POINTS if name in measured]
    if (rows and not measured.keys() >= set(_POINTS[:2])) or len(set(rows)) > 1:
        return "measured points are not as many values as places", {}
    values = {"status": status, "reason": reason, "theta": theta if status == JOINED else None}
    return "", values | {"gamma": gamma, "zeta": zeta, "measurements": measured}


def _bad_model(theta: Any, wanted: Array) -> str:
    if not isinstance(theta, np.ndarray):  # what a codec delivers
        return f"theta is {_seen(theta)}, not an array"
    if tuple(theta.shape) != tuple(wanted.shape):
        return f"theta has shape {theta.shape}, expected {tuple(wanted.shape)}"
    if _dtype(theta) != _dtype(wanted):
        return f"theta is of {_dtype(theta)[:40]}, expected {_dtype(wanted)}"
    return ""


def _dtype(x: Any) -> str:
    """The name of a dtype, the same for numpy and torch."""
    return str(x.dtype).removeprefix("torch.")


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    """A real number as a float (None means undefined, like NaN); nothing else."""
    if value is None:
        return math.nan
    if isinstance(value, np.ndarray | np.generic):
        value = value.item() if value.size == 1 and value.dtype.kind in "biuf" else "no"
    if not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _numbers(value: Any, size: int) -> list[float] | None:
    if value is None:
        return [math.nan] * size
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.dtype.kind in "biuf" and value.ndim == 1 else "no"
    if not isinstance(value, list | tuple) or len(value) != size:
        return None
    found = [_number(item) for item in value]
    return None if any(item is None for item in found) else [item for item in found if item is not None]


# ---------------------------------------------------------------------------------------------------------------------
# All reports of a round


def _misshapen(asked: Announcements, reports: object, family: UtilityFamily) -> str | None:
    """What makes the reports as a whole unusable: nothing can be told apart then, so all are refused."""
    if not isinstance(reports, Reports):
        return f"the answer is {_seen(reports)}, not reports"
    try:
        if not _is_integer(reports.round) or reports.round != asked.round:
            return f"the reports are for round {_seen(reports.round)}, this is {asked.round}"
        clients = reports.clients
        if not isinstance(clients, np.ndarray) or clients.ndim != 1 or clients.dtype.kind not in "iu":
            return f"clients are {_seen(clients)}, not a list of indices"
        k, size = len(clients), len(asked.theta)
        for name in ("status", "reason"):
            words = getattr(reports, name)
            if not isinstance(words, list | tuple) or len(words) != k:
                return f"{name} is not a list of {k} words"
        theta = reports.theta
        if hasattr(theta, "new_zeros") is not hasattr(asked.theta, "new_zeros") or not hasattr(theta, "shape"):
            return f"the models are {type(theta).__name__}, expected {type(asked.theta).__name__}"
        if tuple(theta.shape) != (k, size):
            return f"the models have shape {tuple(theta.shape)}, expected {(k, size)}"
        if theta.dtype != asked.theta.dtype:
            return f"the models are of {_dtype(theta)}, expected {_dtype(asked.theta)}"
        for name, value, shape in (("gamma", reports.gamma, (k,)), ("zeta", reports.zeta, (k, family.size))):
            if not _is_floats(value, shape):
                return f"{name} is {_seen(value)}, expected floats of shape {shape}"
        m = reports.measurements
        if not isinstance(m, Measurements):
            return f"measurements are {_seen(m)}"
        for name, value in columns(replace(m, points={})).items():
            if not isinstance(value, np.ndarray) or value.shape != (k,) or value.dtype.kind not in "biuf":
                return f"the measurement {name} is {_seen(value)}, expected {k} numbers"
        if m.points and not _is_points(m.points, k):
            return f"the measured points are {_seen(m.points)}, expected places and as many values for {k} silos"
    except Exception as error:  # objects that raise when they are looked at
        return f"the reports cannot be read ({type(error).__name__})"
    return None


def _known(asked: Announcements, reports: Reports) -> Reports:
    """Only clients that were asked, once each: who answers under another's name is heard under neither."""
    clients = reports.clients
    values, counts = np.unique(clients, return_counts=True)
    keep = np.isin(clients, asked.clients) & np.isin(clients, values[counts == 1])
    if keep.all():
        return reports
    index = np.flatnonzero(keep)
    return replace(
        reports,
        clients=clients[index],
        status=[reports.status[int(i)] for i in index],
        reason=[reports.reason[int(i)] for i in index],
        theta=reports.theta[index],
        gamma=reports.gamma[index],
        zeta=reports.zeta[index],
        measurements=measurements({name: column[index] for name, column in columns(reports.measurements).items()}),
    )


def _lengths(asked: Announcements, reports: Reports) -> Floats:
    with np.errstate(all="ignore"):  # overflow and NaN are the answer here
        return norms(models(asked, reports.clients) - reports.theta)


def _bad_curve(zeta: Floats, gamma: float, family: UtilityFamily) -> str:
    if not math.isfinite(gamma):
        return f"the threshold gamma is {gamma}, not a finite number"
    complaint = family.problem(zeta[None])
    if complaint is not None:
        return complaint.removeprefix("client 0: ")
    largest = max(float(np.abs(zeta).max()), abs(gamma))
    return (
        f"a curve or threshold of size {largest:.3g} cannot be computed with (above {LARGEST:.0e})"
        if largest > LARGEST
        else ""
    )


def _odd_threshold(gamma: float, metric: str) -> str:
    """Advice, no refusal: a demand that no model can meet is the silo's own choice."""
    if metric == "accuracy" and not 0 <= gamma <= 1:
        return f"threshold {gamma:.6g} is outside the range of accuracy, 0 to 1"
    if metric == "loss" and gamma > 0:
        return f"threshold {gamma:.6g} is above 0, the largest negative loss"
    return ""


def _is_floats(value: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(value, np.ndarray) and value.shape == shape and value.dtype.kind == "f"


def _is_points(points: Mapping[str, Any], k: int) -> bool:
    places = points.get("places")
    if set(points) - {"losses"} != {"places", "values"} or not isinstance(places, np.ndarray) or places.ndim != 2:
        return False
    return all(_is_floats(column, (k, places.shape[1])) for column in points.values())


def _plain(text: Any) -> str:
    """A silo's own words, short and in one line: they go into the record and onto the screen."""
    if not isinstance(text, str):
        return ""
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST])


def _seen(value: Any) -> str:
    """A value from a stranger, short enough for a message."""
    if value is None or isinstance(value, bool | str | int | float):
        text = repr(value[:60] if isinstance(value, str) else value)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        text = f"an array of shape {value.shape} and {value.dtype}"
    else:
        text = f"a {type(value).__name__}"
    return _plain(text if len(text) <= 90 else text[:87] + "...")
