"""How well curves fit, from the records of runs: the distribution of R^2, and a few measured curves chosen by rule.

Curves are there where the recipe keeps them (`utility.keep_curves`). The rule: of the first run, in the first, the middle and the
last round with a check, the silos whose fit is best, median and worst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feduca.core.records import mean
from feduca.core.utility import A_FLOOR, family, r_squared
from feduca.runs.directory import RunResult
from feduca.types import ABSENT, NOT_ASKED, UtilityFamily

GOOD = 0.8  # the R^2 that the share of good fits is counted from


def fits(results: Sequence[RunResult]) -> dict[str, float | None] | None:
    """R^2 over all checked fits of all seeds: quartiles and shares; None where no fit was checked."""
    r2, flat, capped, straight = [], [], [], []
    for result in results:
        quadratic = result.config["utility"]["family"] == "quadratic"
        for record in _checked(result):
            for k, zeta in enumerate(record["zeta"]):
                if zeta is None or None in zeta or record["status"][k] in (ABSENT, NOT_ASKED):
                    continue
                flat.append(record["r2"][k] is None)
                capped.append(bool(record["capped"][k]))
                straight.append(quadratic and zeta[0] <= A_FLOOR)
                r2 += [] if flat[-1] else [record["r2"][k]]
    if not r2:
        return None
    low, middle, high = (float(q) for q in np.quantile(r2, [0.25, 0.5, 0.75]))
    return {
        "fits": len(flat),
        "mean": mean(r2),
        "quarter": low,
        "median": middle,
        "three_quarters": high,
        "above": float(np.mean(np.array(r2) > GOOD)),  # of those with an R^2
        "flat": float(np.mean(flat)),  # the metric did not move along the path: R^2 undefined
        "straight": float(np.mean(straight)),  # the least-squares parabola was not concave: a at its floor
        "capped": float(np.mean(capped)),  # the weight was too close to 1 for a leave-one-out model
        "loss_median": _loss_median(results),
    }


def curves(result: RunResult) -> dict[str, Any] | None:
    """Representative curves of a run: measured utility and loss on the grid, with the fitted parameters of both."""
    kept = [r for r in _checked(result) if _is_kept(r) and any(value is not None for value in _fitted(r))]
    if not kept:
        return None
    config = result.config["utility"]
    chosen = {r["round"]: r for r in (kept[0], kept[len(kept) // 2], kept[-1])}
    fit = family(config["family"])
    shown = [
        _curve(record, k, which, fit, config["nodes"])
        for record in chosen.values()
        for which, k in _representatives(_fitted(record)).items()
    ]
    places = kept[0]["utility_points"]["places"][config["nodes"] :]
    return {
        "seed": result.seed,
        "family": config["family"],
        "metric": config["metric"],
        "grid": [round(place, 6) for place in places],
        "shown": shown,
    }


def _fitted(record: Mapping[str, Any]) -> list[float | None]:
    """R^2 silo by silo; None also where a loss is missing or beyond bounds."""
    losses = record["utility_points"]["losses"]
    return [r2 if row is not None and None not in row else None for r2, row in zip(record["r2"], losses)]


def _curve(record: Mapping[str, Any], k: int, which: str, fit: UtilityFamily, nodes: int) -> dict[str, Any]:
    points = record["utility_points"]
    grid, loss = np.array(points["places"][nodes:]), np.array(points["losses"][k][nodes:])
    zeta, r2 = _loss_fit(fit, grid, loss[None])
    return {
        "round": record["round"],
        "silo": k,
        "which": which,
        "r2": record["r2"][k],
        "zeta": record["zeta"][k],
        "utility": points["values"][k][nodes:],
        "loss": [float(f"{value:.6g}") for value in loss],
        "loss_zeta": zeta[0].tolist(),  # of minus the loss, fitted to the grid itself
        "loss_r2": None if np.isnan(r2[0]) else float(r2[0]),
    }


def _representatives(r2: Sequence[float | None]) -> dict[str, int]:
    """The best, the median and the worst of the fits that have an R^2; fewer names where they are the same silo."""
    order = sorted((value, k) for k, value in enumerate(r2) if value is not None)
    found: dict[str, int] = {}
    for which, (_, k) in (("best", order[-1]), ("median", order[(len(order) - 1) // 2]), ("worst", order[0])):
        if k not in found.values():
            found[which] = k
    return found


def _loss_fit(fit: UtilityFamily, grid: np.ndarray, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    zeta = fit.fit(grid, -loss, np.full(len(grid), 1 / len(grid)))
    return zeta, r_squared(fit, zeta, grid, -loss)


def _loss_median(results: Sequence[RunResult]) -> float | None:
    """The median R^2 of concave fits to minus the loss, over all kept curves."""
    found: list[float] = []
    for result in results:
        fit, nodes = family(result.config["utility"]["family"]), result.config["utility"]["nodes"]
        for record in filter(_is_kept, _checked(result)):
            points = record["utility_points"]
            whole = [row[nodes:] for row in points["losses"] if row is not None and None not in row]
            if whole:
                found += _loss_fit(fit, np.array(points["places"][nodes:]), np.array(whole))[1].tolist()
    known = [value for value in found if np.isfinite(value)]
    return float(np.median(known)) if known else None


def _checked(result: RunResult) -> list[Mapping[str, Any]]:
    """The rounds in which R^2 was computed on a grid denser than the fit."""
    every = result.config["utility"]["check_every"]
    return [r for r in result.clients if every > 0 and (r["round"] - 1) % every == 0]


def _is_kept(record: Mapping[str, Any]) -> bool:
    return "losses" in (record.get("utility_points") or {})
