"""Numerical evidence for docs/theory.md: which of the paper's statements hold, and by how much the others miss.

python benchmarks/theory.py            into benchmarks/results/theory.json and docs/theory.md (about a minute)
python benchmarks/theory.py --quick    few samples, printed only
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from feduca.core.theory import (  # noqa: E402
    Constants,
    cohort_and_staleness,
    corrected_terms,
    discrepancy,
    discrepancy_bounds,
    jensen_ceiling,
    jensen_gaps,
    paley_zygmund,
    printed_terms,
)
from feduca.core.utility import Quadratic  # noqa: E402
from feduca.program import allocate, max_participation  # noqa: E402
from feduca.program.instances import draw, strategies_with_sums  # noqa: E402
from tables import markdown, replace_tables  # noqa: E402

N, N_S = 10, 5
DELTAS = (0.01, 0.1, 0.5, 1.0, 10.0, 100.0, 1000.0)
CURVES = Quadratic()


def kkt(samples: int) -> dict:
    """At certified optima: the printed closed form, and the stationarity condition, both in units of utility."""
    closed, stationarity = [], []
    for seed in range(samples):
        p = draw("inflated", N, N_S, seed, delta=1.0)
        A = allocate(**p)
        hard = A.slack > 1e-4
        said = p["s"][:, None] / (p["s"] ** 2).sum() * (p["gamma"] - A.slack)
        closed.append(np.abs(said - CURVES.value(p["zeta"], A.R))[:, hard].max(initial=0.0))
        # xi_k s_i u'(r_ik) = lambda_i + nu_k wherever r_ik > 0: lambda, nu by least squares, residual in the objective's units
        pull = A.slack * p["s"][:, None] * CURVES.slope(p["zeta"], A.R)
        rows, columns = np.nonzero((A.R > 1e-4) & hard)
        if len(rows) == 0:
            continue
        design = np.zeros((len(rows), N_S + N))
        design[np.arange(len(rows)), rows] = 1
        design[np.arange(len(rows)), N_S + columns] = 1
        target = pull[rows, columns]
        fit = np.linalg.lstsq(design, target, rcond=None)[0]
        stationarity.append(np.abs(design @ fit - target).max() / max(np.abs(target).max(), 1e-12))
    return {
        "instances": samples,
        "closed_form_median_error": float(np.median(closed)),
        "closed_form_least_error": float(np.min(closed)),
        "stationarity_worst_relative_residual": float(np.max(stationarity)),
    }


def by_delta(samples: int) -> list[dict]:
    """Jensen's gap, discrepancy and the bound on it, as the concentration grows."""
    rows = []
    for delta in DELTAS:
        gaps, single, pointwise = {"centre": [], "closest": [], "other": []}, [], 0.0
        for seed in range(samples):
            p = draw("previous", N, N_S, seed, delta)
            for selection in ("centre", "closest"):
                A = allocate(**p, selection=selection)
                gaps[selection].append(jensen_gaps(CURVES, p["zeta"], A.R, p["s"]).sum())
                if selection == "centre":
                    single.append(discrepancy(A.alpha))
                    pointwise = max(pointwise, single[-1] / max(discrepancy_bounds(N_S, N, delta, p["s"])[1], 1e-300))
            easy = p["gamma"] - 0.2  # demands that many R meet: an optimal R far from the centre
            rng = np.random.default_rng(seed)
            wild = strategies_with_sums(N_S, N, rng, 2.0)
            start, low, high = np.full((N_S, N), 1 / N), 0.0, 1.0
            for _ in range(30):
                middle = (low + high) / 2
                good = (p["s"] @ CURVES.value(p["zeta"], start + middle * (wild - start)) >= easy).all()
                low, high = (middle, high) if good else (low, middle)
            gaps["other"].append(jensen_gaps(CURVES, p["zeta"], start + low * (wild - start), p["s"]).sum())
        rows.append(
            {
                "delta": delta,
                **{f"gap_{name}": float(np.mean(values)) for name, values in gaps.items()},
                "discrepancy": float(np.mean(single)),
                "expected_bound": discrepancy_bounds(N_S, N, delta)[0],
                "largest_share_of_pointwise_bound": float(pointwise),
            }
        )
    return rows


def probability(samples: int) -> list[dict]:
    """P(J > t) of one client at t = E[J]/2, measured, and three lower bounds on it."""
    rows = []
    base = draw("previous", N, N_S, 0)
    for delta in (0.1, 0.5, 1.0, 10.0):
        rng = np.random.default_rng(1)
        gaps = []
        for _ in range(samples):
            s = rng.dirichlet(np.full(N_S, delta))
            A = allocate(base["zeta"], base["gamma"], s)
            gaps.append(jensen_gaps(CURVES, base["zeta"], A.R, s))
        J = np.array(gaps)[:, np.argmax(np.mean(gaps, axis=0))]
        ceiling = jensen_ceiling(CURVES, base["zeta"], N_S / N)[np.argmax(np.mean(gaps, axis=0))]
        mean, t = J.mean(), J.mean() / 2
        rows.append(
            {
                "delta": delta,
                "mean_gap": float(mean),
                "measured": float((t < J).mean()),
                "second_moment": paley_zygmund(mean, t, second_moment=float((J**2).mean())),
                "ceiling": paley_zygmund(mean, t, ceiling=float(ceiling)),
                "printed_with_M_1": float(mean**2 - t),
                "from_the_proof": float((mean - t) ** 2 / mean**2),
            }
        )
    return rows


def mixtures(samples: int) -> dict:
    """Whom the mixture satisfies, whom its mean satisfies, and whom the best single vector satisfies, of 10."""
    mixed, mean, best, lost = [], [], [], 0
    for seed in range(samples):
        p = draw("inflated", N, N_S, seed)
        A = allocate(**p)
        by_mixture = p["s"] @ CURVES.value(p["zeta"], A.R) >= p["gamma"] - 1e-6
        lost += int((by_mixture & ~A.satisfied).sum())
        mixed.append(by_mixture.sum())
        mean.append(A.satisfied.sum())
        best.append(max_participation(p["zeta"], p["gamma"]).satisfied.sum())
    return {
        "by_mixture": float(np.mean(mixed)),
        "by_its_mean": float(np.mean(mean)),
        "by_the_best_vector": float(np.mean(best)),
        "satisfied_by_a_mixture_but_not_by_its_mean": lost,
    }


def decomposition(samples: int) -> list[dict]:
    """E||d||^2 against E||h||^2 + sigma^2/tau where curvature is negative: the noise of a step moves later gradients."""
    rng = np.random.default_rng(0)
    rows = []
    for tau in (1, 2, 5, 20):
        eta, theta = 0.1, np.full(samples, 0.1)
        noise, exact = np.zeros(samples), np.zeros(samples)
        for _ in range(tau):
            gradient, xi = -theta, rng.normal(0, 1, samples)  # f = -theta^2/2 on the region visited
            noise, exact = noise + xi / tau, exact + gradient / tau
            theta = theta - eta * (gradient + xi)
        rows.append(
            {
                "tau": tau,
                "second_moment_of_d": float(((exact + noise) ** 2).mean()),
                "claimed": float((exact**2).mean() + 1 / tau),
                "twice_both": float(2 * (exact**2).mean() + 2 / tau),
            }
        )
    return rows


def same_round_weights(samples: int) -> dict:
    """E<grad f, sum alpha (d - h)> when weights are fixed before the round, and when they react to its updates."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (samples, N))
    gradient = 1.0
    fixed = np.full((samples, N), 1 / N)
    reacting = np.exp(noise - noise.max(1, keepdims=True))
    reacting /= reacting.sum(1, keepdims=True)
    return {
        "weights_before": float((gradient * (fixed * noise).sum(1)).mean()),
        "weights_after": float((gradient * (reacting * noise).sum(1)).mean()),
    }


def simulation(rounds: int) -> list[dict]:
    """Quadratic clients with noisy local steps and stale updates: measured mean of ||grad f||^2 against both bounds."""
    rows = []
    for n_s in (1, 3, 5):
        rng = np.random.default_rng(n_s)
        d, tau, eta_c, sigma = 3, 4, 0.005, 0.3
        centres = rng.normal(0, 1, (N, d))
        theta, remembered, G = np.full(d, 2.0), np.zeros((N, d)), 0.0
        D0 = 0.5 * ((theta - centres.mean(0)) ** 2).sum()
        gradients, joined, gaps, norms = [], [], [], []
        for t in range(rounds):
            s = rng.dirichlet(np.full(n_s, 0.5))
            R = strategies_with_sums(n_s, N, rng, 1.0) if n_s > 1 else rng.dirichlet(np.ones(N))[None]
            alpha = s @ R
            present = rng.random(N) < (1.0 if t == 0 else 0.5)
            present[rng.integers(N)] = True
            gradients.append(((theta - centres.mean(0)) ** 2).sum())
            for k in np.flatnonzero(present):
                local, total = theta.copy(), np.zeros(d)
                for _ in range(tau):
                    G = max(G, float(((local - centres[k]) ** 2).sum()))
                    step = local - centres[k] + rng.normal(0, sigma / np.sqrt(d), d)
                    local, total = local - eta_c * step, total + step
                remembered[k] = total / tau
            joined.append(present)
            gaps.append(discrepancy(alpha))
            norms.append(float((alpha**2).sum()))
            theta = theta - eta_c * tau * alpha @ remembered
        S, nu = cohort_and_staleness(joined)
        spread = float(((centres - centres.mean(0)) ** 2).sum(1).max())
        constants = Constants(
            1.0,
            sigma**2,
            spread,
            G,
            float(D0),
            eta_c,
            1.0,
            tau,
            rounds,
            N,
            n_s,
            S,
            nu,
            float(np.mean(gaps)),
            float(np.mean(norms)),
        )
        printed, corrected = printed_terms(constants), corrected_terms(constants)
        rows.append(
            {
                "n_s": n_s,
                "smallest_cohort": S,
                "largest_staleness": nu,
                "measured": float(np.mean(gradients)),
                "printed": {**vars(printed), "total": printed.total},
                "corrected": {**vars(corrected), "total": corrected.total},
            }
        )
    return rows


def tables(summary: dict) -> dict[str, str]:
    """The tables of docs/theory.md."""
    kkt_, mix, late = summary["kkt"], summary["mixtures"], summary["same_round_weights"]
    parts = ("init", "agg", "var", "drift", "sys", "total")
    return {
        "kkt": markdown(
            ["over " + str(kkt_["instances"]) + " certified optima", "value"],
            [
                [
                    "closed form: median over optima of the largest error in `u_k(r_k^i)`",
                    f"{kkt_['closed_form_median_error']:.2f}",
                ],
                ["closed form: the same, best optimum", f"{kkt_['closed_form_least_error']:.2f}"],
                ["stationarity: worst relative residual", f"{kkt_['stationarity_worst_relative_residual']:.0e}"],
            ],
        ),
        "delta": markdown(
            [
                "delta",
                "sum of gaps, centre",
                "closest",
                "another optimal R",
                "mean discrepancy",
                "bound",
                "largest share of the pointwise bound",
            ],
            [
                [
                    f"{row['delta']:g}",
                    *(
                        f"{row[key]:.4f}"
                        for key in ("gap_centre", "gap_closest", "gap_other", "discrepancy", "expected_bound")
                    ),
                    f"{row['largest_share_of_pointwise_bound']:.2f}",
                ]
                for row in summary["by_delta"]
            ],
        ),
        "probability": markdown(
            [
                "delta",
                "E[J]",
                "P(J > E[J]/2)",
                "corrected",
                "corrected, with M_J only",
                "printed, M_J = 1",
                "last line of the proof",
            ],
            [
                [
                    f"{row['delta']:g}",
                    f"{row['mean_gap']:.4f}",
                    *(
                        f"{row[key]:.3f}"
                        for key in ("measured", "second_moment", "ceiling", "printed_with_M_1", "from_the_proof")
                    ),
                ]
                for row in summary["probability"]
            ],
        ),
        "mixtures": markdown(
            ["satisfied of 10, mean", "value"],
            [
                ["by the mixture itself", f"{mix['by_mixture']:.2f}"],
                ["by the single vector `R^T s`", f"{mix['by_its_mean']:.2f}"],
                ["by the best single vector", f"{mix['by_the_best_vector']:.2f}"],
                [
                    "satisfied by a mixture but not by its mean (count)",
                    mix["satisfied_by_a_mixture_but_not_by_its_mean"],
                ],
            ],
        ),
        "decomposition": markdown(
            ["tau", "second moment of d", "claimed: that of h, plus sigma^2/tau", "safe: twice that"],
            [
                [row["tau"], *(f"{row[key]:.3f}" for key in ("second_moment_of_d", "claimed", "twice_both"))]
                for row in summary["decomposition"]
            ],
        ),
        "same-round": markdown(
            ["weights", "mean inner product of grad f and the weighted noise"],
            [
                ["fixed before the round", f"{late['weights_before']:.3f}"],
                ["chosen after seeing it", f"{late['weights_after']:.3f}"],
            ],
        ),
        "simulation": markdown(
            ["n_s", "S", "nu_max", "measured", "bound", *parts],
            [
                [row["n_s"], row["smallest_cohort"], row["largest_staleness"], f"{row['measured']:.2f}", form]
                + [f"{row[form][part]:.3g}" for part in parts]
                for row in summary["simulation"]
                for form in ("printed", "corrected")
            ],
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few samples, printed only")
    quick = parser.parse_args().quick
    summary = {
        "kkt": kkt(20 if quick else 200),
        "by_delta": by_delta(20 if quick else 400),
        "probability": probability(100 if quick else 3000),
        "mixtures": mixtures(20 if quick else 500),
        "decomposition": decomposition(10_000 if quick else 2_000_000),
        "same_round_weights": same_round_weights(1_000 if quick else 200_000),
        "simulation": simulation(60 if quick else 400),
    }
    text = json.dumps(summary, indent=1)
    if quick:
        print(text)
        return
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "theory.json").write_text(text + "\n", encoding="utf-8")
    replace_tables(HERE.parent / "docs" / "theory.md", tables(summary))


if __name__ == "__main__":
    main()
