"""Does what a silo sends come from work? Being different is no fault; sending nothing new is, or what answers to nothing.

Silo k was sent the model x_t and moved it by d_t; when it last took part these were x_s and d_s. Two questions, about k alone:

    new        |d_t without its parts along d_s and x_t - x_s| > NEW |d_t|
    answers    cos(d_t, x_t - x_s), both without their part along d_s, is below -`answer` in the mean over `window` rounds,
               or at least louder than chance, and not above FOLLOWS in the mean

Work is new, since its data are drawn and its model moves on; copies (the model it was sent, an older one, its last update)
are not. And work answers: training goes less far in a direction in which the model has gone already. For training that contracts,
|T(x) - T(y)| <= q |x - y| with q < 1, d = T(x) - x has <d_t - d_s, x_t - x_s> <= -(1 - q) |x_t - x_s|^2 wherever the silo's own
optimum lies: how rare its data are does not enter. Noise, and a direction chosen beforehand, answer to nothing: their cosines are
chance, 1 / sqrt(m) for m numbers. Short training contracts little: its cosines are large, of either sign, and below zero only in
the mean of many. What repeats the model's steps has large ones above zero.

A round without work is a lapse. A round with work takes a lapse back; without standing, a declined one takes a quarter. At
`patience` lapses a silo loses its standing, which is 1 - lapses / (2 patience). It is then sent, by turns, the last two models
that it was sent with standing, which it knows; what it sends is looked at and not counted; by working on them it comes back.
What it has of its own remains.

All of it is computed on sketches: at most LENGTH sums of the trained entries with random signs keep angles and linear dependence.
Short sketches find too many guilty: a cosine of m sums is chance by 1 / sqrt(m), and late in training honest ones are -0.03.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feduca.core.arrays import like, select, zeros
from feduca.core.messages import models
from feduca.core.rng import stream
from feduca.types import ABSENT, REFUSED, Announcements, Array, Bools, Floats, Reports

LENGTH = 65536  # numbers of a sketch
NEW = 1e-3  # copies leave rounding errors, about 1e-6; honest updates some hundredths, those of tiny models less
TINY = 1e-6  # of a model's length: an update no longer than that is none
FREE = 1e-2  # of the way the model has gone, what must lie across the silo's own last update to be answered to
FEWEST = 100  # numbers of a sketch, below which chance answers as loudly as work does
LOUD = 1.8  # times chance: five cosines of noise are louder once in a hundred times
FOLLOWS = 0.1  # mean cosine with which an update goes where the model has just gone
DECLINED = 0.25  # of a lapse is forgotten with a round declined without standing


@dataclass(frozen=True)
class Work:
    patience: int = 3  # lapses that cost a silo its standing
    window: int = 10  # rounds in which an answer is looked for; before half of them are seen nothing is said about it
    answer: float = 0.02  # mean cosine that is an answer

    def judge(
        self,
        history: Mapping[str, Array],
        asked: Announcements,
        reports: Reports,
        claimed: Bools,
        seed: int,
        travels: Bools | None = None,
        parameters: int | None = None,
    ) -> dict[str, Floats]:
        """The new history. `claimed` are those who said that they send an update, admitted or not; `travels` the entries of a
        model that are shared, `parameters` those that are trained.
        """
        clients, n = reports.clients, _silos(history, asked)
        out = limited(history, n) > 0
        sent = models(asked, clients)
        signs = _signs(seed, sent, travels, parameters)
        told, moved = sketch(sent, signs), sketch(reports.theta - sent, signs)
        past = self._past(history, n, told.shape[1])
        for row, k in enumerate(clients):
            if reports.joined[row]:
                self._look({name: column[k : k + 1] for name, column in past.items()}, told[row], moved[row])
            elif claimed[row]:  # refused: as good as nothing
                past["copies"][k] += 1
                past["lapses"][k] = min(past["lapses"][k] + 1, 2 * self.patience)
            elif out[k] and reports.status[row] not in (ABSENT, REFUSED):
                past["lapses"][k] = max(past["lapses"][k] - DECLINED, 0)
        gone = past["lapses"] >= self.patience
        past["since"] = np.where(gone, np.where(past["since"] > 0, past["since"], asked.round), 0.0)
        return {f"work_{name}": column for name, column in past.items()}

    def _past(self, history: Mapping[str, Array], n: int, width: int) -> dict[str, Floats]:
        """What is remembered of every silo; all zeros of one that has only come, and of all where sketches had another length."""
        single = ("lapses", "since", "seen", "copies", "silent", "answered")
        shapes = {**dict.fromkeys(single, ()), "answers": (self.window,), "told": (width,), "moved": (width,)}
        kinds = {name: np.float32 if name in ("told", "moved") else np.float64 for name in shapes}
        past = {
            name: np.array(history.get(f"work_{name}", np.zeros((n, *shape), kinds[name])))
            for name, shape in shapes.items()
        }
        if past["told"].shape[1] != width:
            past |= {name: np.zeros((n, width), np.float32) for name in ("told", "moved")} | {"seen": np.zeros(n)}
        return past

    def _look(self, one: Mapping[str, Floats], told: Floats, moved: Floats) -> None:
        """Judge one silo's update, writing into its row of every column."""
        seen, numbers = one["seen"][0] > 0, int(np.count_nonzero(moved))
        step, last = told - one["told"][0], one["moved"][0].astype(np.float64)
        new = np.linalg.norm(moved) > TINY * np.linalg.norm(told)
        if new and seen:
            across, ahead = _without(moved, last), _without(step, last)
            new = np.linalg.norm(_without(across, ahead)) > NEW * np.linalg.norm(moved)
            if numbers >= FEWEST and np.linalg.norm(ahead) > FREE * np.linalg.norm(step):
                one["answers"][0] = np.append(one["answers"][0, 1:], _cosine(across, ahead))
                one["answered"][0] = min(one["answered"][0] + 1, self.window)
        count = int(one["answered"][0])
        mute = 2 * count >= self.window and self._mute(one["answers"][0, -count:], numbers)
        one["copies"][0] = 0 if new else one["copies"][0] + 1
        one["silent"][0] = one["silent"][0] + 1 if mute else 0
        change = 1.0 if mute or not new else -1.0
        one["lapses"][0] = np.clip(one["lapses"][0] + change, 0, 2 * self.patience)
        one["told"][0], one["moved"][0], one["seen"][0] = told, moved, 1

    def _mute(self, cosines: Floats, numbers: int) -> bool:
        """Whether updates with these cosines, of so many numbers each, answer to nothing."""
        mean, loud = cosines.mean(), np.sqrt((cosines**2).mean() * numbers) > LOUD
        return bool(mean > -self.answer and (mean > FOLLOWS or not loud))

    def standing(self, history: Mapping[str, Array]) -> Floats:
        """Between 0 and 1, of each silo; below 1/2 and at it, it has none."""
        return 1 - np.asarray(history["work_lapses"]) / (2 * self.patience)

    def reasons(self, history: Mapping[str, Array]) -> list[str]:
        """Why silos have no standing; "" for those that have."""
        columns = (np.asarray(history[f"work_{name}"]) for name in ("since", "copies", "silent"))
        return [_why(*numbers) if numbers[0] else "" for numbers in zip(*columns)]


# ---------------------------------------------------------------------------------------------------------------------
# What is sent to whom


def limited(history: Mapping[str, Array], n: int) -> Floats:
    """The round since which each silo has no standing; 0 where it has."""
    return np.asarray(history.get("work_since", np.zeros(n)))


def sent_instead(history: Mapping[str, Array], past: Mapping[str, Array], round: int) -> dict[int, Array]:
    """The models that silos without standing are sent: by turns the last two that they were sent with it."""
    found = {}
    for k, since in enumerate(limited(history, 0)):
        if since:
            turn = str(int(since - (round - since) % 2))
            found[k] = past.get(turn, past[str(int(since))])
    return found


def kept(history: Mapping[str, Array], past: Mapping[str, Array], round: int, theta: Array) -> dict[str, Array]:
    """The models that will have to be sent again: this round's, and those of silos without standing."""
    needed = {str(int(since) - back) for since in limited(history, 0) if since for back in (0, 1)}
    return {name: model for name, model in past.items() if name in needed} | {str(round): theta}


def set_aside(reports: Reports, why: Sequence[str]) -> Reports:
    """The reports without what silos without standing sent; what they measured stays in the record."""
    out = np.array([bool(text) for text in why], bool)
    if not out.any():
        return reports
    seen = reports.measurements
    told = {name: np.where(out, np.nan, values) for name, values in seen.told.items()}
    return replace(
        reports,
        status=[REFUSED if text else word for text, word in zip(why, reports.status)],
        reason=[f"refused: {text}" if text else word for text, word in zip(why, reports.reason)],
        theta=select(out, zeros(reports.theta, *reports.theta.shape), reports.theta),
        gamma=np.where(out, np.nan, reports.gamma),
        zeta=np.where(out[:, None], np.nan, reports.zeta),
        measurements=replace(seen, train_loss=np.where(out, np.nan, seen.train_loss), told=told),
    )


# ---------------------------------------------------------------------------------------------------------------------


def _why(since: float, copies: float, silent: float) -> str:
    if copies:
        return f"sent nothing new for {_rounds(copies)}"
    if silent:
        return f"what it sent has not answered to the model for {_rounds(silent)}"
    return f"lost its standing in round {int(since)}, and has not yet made up for it"


def _rounds(n: float) -> str:
    return f"{int(n)} round{'' if n == 1 else 's'}"


def _silos(history: Mapping[str, Array], asked: Announcements) -> int:
    known = history.get("work_lapses")
    return len(asked.clients) if known is None else len(known)


@functools.lru_cache(maxsize=4)
def _coins(seed: int, size: int) -> Floats:
    """A fair sign for every entry: the same in every round, so drawn once."""
    return np.where(stream(seed, "sketch").random(size) < 0.5, -1.0, 1.0)


def _signs(seed: int, models: Array, travels: Bools | None, parameters: int | None) -> Floats:
    size = models.shape[1]
    signs = _coins(seed, size).copy()
    signs[size if parameters is None else parameters :] = 0
    return signs if travels is None else signs * travels


def sketch(rows: Array, signs: Floats) -> Floats:
    """Each row as at most LENGTH sums of equally many of its entries, with signs: so chance is as loud in all of them."""
    k, size = rows.shape
    if size <= LENGTH:
        return _host(rows * like(rows, signs))
    folds = -(-size // LENGTH)
    whole = zeros(rows, k, folds * -(-size // folds))
    whole[:, :size] = rows * like(rows, signs)
    return _host(whole.reshape(k, folds, -1).sum(1))


def _host(x: Array) -> Floats:
    return np.asarray(x.cpu() if hasattr(x, "cpu") else x, dtype=np.float64)


def _without(x: Floats, along: Floats) -> Floats:
    """`x` without its part along another."""
    square = along @ along
    return x - along * (x @ along / square) if square > 0 else x


def _cosine(x: Floats, y: Floats) -> float:
    length = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / length) if length > 0 else 0.0
