"""What the paper says about who participates: levels per method, collapse, and whether the weights are what keeps clients."""

from __future__ import annotations

from collections.abc import Iterable

from feduca.reproduce import paper
from feduca.reproduce.claims.judging import (
    BASELINES,
    COLUMNS,
    DATA,
    FAILS,
    HOLDS,
    NAMES,
    TEXT,
    Cell,
    Claim,
    Summaries,
    Verdict,
    block,
    columns,
    curve,
    entry,
    find,
    from_runs,
    need,
    pct,
    place,
    rivals,
    seeds,
    share,
    share_noise,
    study,
    table,
)
from feduca.reproduce.tables import known

COLLAPSED = ("fedavg", "fedprox", "aaggff")
RULES = {"Eq. 1": "accuracy", "Eq. 2": "utility"}  # as a summary names them


def _beside(summaries: Summaries, data: str, split: str) -> str:
    control = find(summaries, study(data), data=data, split=split, method="random")
    return "" if control is None else f"; random weights under the same rule keep {pct(share(control))}"


def _low(data: str, split: str, method: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, data, split, method)
        return Verdict(HOLDS if share(cell) < paper.COLLAPSED else FAILS, f"ours {pct(share(cell))}{seeds(cell)}")

    text = f"{NAMES[method]} keeps fewer than 12 % of the clients on {DATA[data]} ({split})"
    return from_runs("Section 4, results", text, "participation under 12 %", judge)


def _level(data: str, split: str, method: str, where: str) -> Claim:
    theirs = paper.PARTICIPATION[data, split, method]

    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, data, split, method)
        word = HOLDS if abs(share(cell) - theirs) <= 0.05 else FAILS
        beside = _beside(summaries, data, split) if method == "feduca" else ""
        return Verdict(word, f"ours {pct(share(cell))}{beside}{seeds(cell)}")

    text = f"{NAMES[method]} keeps {pct(theirs)} of the clients on {place(data, split)}"
    return from_runs(where, text, "the paper's figure", judge)


def _range(data: str, split: str) -> Claim:
    low, high = paper.FEDUCA_PARTICIPATION

    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, data, split, "feduca")
        word = HOLDS if low - 0.05 <= share(cell) <= high + 0.05 else FAILS
        return Verdict(word, f"ours {pct(share(cell))}{_beside(summaries, data, split)}{seeds(cell)}")

    text = f"FedUCA keeps 51 to 54 % of the clients on {DATA[data]} ({split})"
    return from_runs("Section 4, results", text, "within five points of that range", judge)


def _keeps_most(ours: Cell, others: Iterable[Cell]) -> Verdict:
    """Clearly more than the best of the others."""
    rival = max(others, key=share)
    word = HOLDS if share(ours) - share(rival) > share_noise(ours, rival) else FAILS
    return Verdict(
        word, f"{pct(share(ours))} against {pct(share(rival))} ({NAMES[rival['method']]}){seeds(ours, rival)}"
    )


def _more(data: str, split: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        feduca = table(summaries, data, split, "feduca")
        return _keeps_most(feduca, (table(summaries, data, split, method) for method in rivals(data)))

    text = f"FedUCA keeps more clients than any baseline on {place(data, split)}"
    where = "Section 4, results" if data != "20news" else "Appendix, text"
    return from_runs(where, text, "clearly above the best", judge)


def _mitigates(split: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        incfl = table(summaries, "cifar10", split, "incfl")
        return _keeps_most(incfl, (table(summaries, "cifar10", split, method) for method in COLLAPSED))

    text = f"IncFL keeps more clients than FedAvg, FedProx and AAggFF-S on CIFAR-10 ({split})"
    return from_runs("Section 4, results", text, "clearly above the best of the three", judge)


def _plateau(summaries: Summaries) -> Verdict:
    rounds = curve(table(summaries, "cifar10", "1.0,1.0", "incfl"), "participation_by_round")
    middle, last = block(rounds, 41, 70).mean, block(rounds, 71, 100).mean
    return Verdict(HOLDS if abs(last - middle) <= 0.05 else FAILS, f"rounds 41-70 {pct(middle)}, 71-100 {pct(last)}")


def _collapse(method: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        cell = table(summaries, "cifar10", "0.5,1.0", method)
        rounds = curve(cell, "participation_by_round")
        early, late = block(rounds, 2, 10).mean, block(rounds, 71, 100).mean
        word = HOLDS if late < paper.COLLAPSED and late <= early + share_noise(cell) else FAILS
        return Verdict(word, f"rounds 2-10 {pct(early)}, 71-100 {pct(late)}{seeds(cell)}")

    text = f"once clients reject the first averages, {NAMES[method]} does not get them back (CIFAR-10)"
    criterion = "under 12 % in the last thirty rounds, and not clearly above rounds 2-10"
    return from_runs("Section 4, results", text, criterion, judge)


def _sustained(summaries: Summaries) -> Verdict:
    falls = {}
    for name, (feduca,) in columns(summaries, "feduca"):
        rounds = curve(feduca, "participation_by_round")
        falls[name] = block(rounds, 71, 100).mean - block(rounds, 11, 40).mean
    listed = ", ".join(f"{name} {100 * fall:+.1f}" for name, fall in falls.items())
    word = HOLDS if all(fall >= -0.05 for fall in falls.values()) else FAILS
    return Verdict(word, f"rounds 71-100 minus 11-40, in points: {listed}")


def _never_empty(summaries: Summaries) -> Verdict:
    least = {}
    for name, (feduca,) in columns(summaries, "feduca"):
        one = 1 / (feduca.get("clients") or paper.CLIENTS.get(feduca["data"]) or entry(feduca, "clients"))
        least[name] = (min(known(curve(feduca, "participation_by_round"))), one)
    listed = ", ".join(f"{name} {pct(low)}" for name, (low, _) in least.items())
    word = HOLDS if all(low >= one - 1e-4 for low, one in least.values()) else FAILS
    return Verdict(word, f"least participation of a round, mean over seeds: {listed}")


def _single_vector(summaries: Summaries) -> Verdict:
    kept = {name: share(cell) for name, (cell,) in columns(summaries, "uniform")}
    listed = ", ".join(f"{name} {pct(value)}" for name, value in kept.items())
    word = HOLDS if all(value < 0.95 for value in kept.values()) else FAILS
    why = f"constant uniform weights under Eq. 2 keep: {listed}"
    known = "; unchanged weights meet every threshold gamma_k = u_k(alpha_k) (docs/theory.md)"
    return Verdict(word, why + (known if word == FAILS else ""))


def _weights_keep(summaries: Summaries) -> Verdict:
    ahead = {}
    for name, (feduca, uniform, random) in columns(summaries, "feduca", "uniform", "random"):
        ahead[name] = (share(feduca), share(uniform), share(random), share_noise(feduca, uniform, random))
    listed = ", ".join(
        f"{name} {100 * f:.0f} / {100 * u:.0f} / {100 * r:.0f} %" for name, (f, u, r, _) in ahead.items()
    )
    word = HOLDS if all(f - max(u, r) > clear for f, u, r, clear in ahead.values()) else FAILS
    return Verdict(word, f"FedUCA / constant uniform / random weights: {listed}")


def _rational(summaries: Summaries) -> Verdict:
    found = {}
    for name, (feduca, uniform) in columns(summaries, "feduca", "uniform"):
        found[name] = (entry(feduca, "eq1_share"), entry(uniform, "eq1_share"), share_noise(feduca, uniform))
    listed = ", ".join(f"{name} {100 * f:.0f} against {100 * u:.0f} %" for name, (f, u, _) in found.items())
    word = HOLDS if all(f - u > clear for f, u, clear in found.values()) else FAILS
    return Verdict(word, f"Eq. 1 would hold, FedUCA against constant uniform weights: {listed}")


def _same_rule(data: str, rule: str) -> Claim:
    def judge(summaries: Summaries) -> Verdict:
        feduca, *others = (
            need(summaries, "rules", data=data, rule=RULES[rule], method=method) for method in ("feduca", *BASELINES)
        )
        return _keeps_most(feduca, others)

    text = f"with identical participation dynamics ({rule} for everybody) FedUCA keeps the most clients on {DATA[data]}"
    return from_runs("Section 4, baselines", text, "clearly above the best baseline", judge)


CLAIMS = [
    *(_low(data, split, m) for data in ("cifar10", "cifar100") for split in paper.SPLITS for m in COLLAPSED),
    _level("cifar10", "1.0,1.0", "incfl", "Section 4, results"),
    from_runs(
        "Section 4, results",
        "IncFL's participation plateaus on CIFAR-10 (1.0,1.0)",
        "rounds 71-100 within five points of 41-70",
        _plateau,
    ),
    *(_mitigates(split) for split in paper.SPLITS),
    *(_collapse(method) for method in COLLAPSED),
    *(_range(*column) for column in COLUMNS),
    *(_more(*column) for column in [*COLUMNS, TEXT]),
    *(_level(*TEXT, method, "Appendix, table on text") for method in NAMES if (*TEXT, method) in paper.PARTICIPATION),
    from_runs(
        "Section 4, results",
        "FedUCA sustains its participation",
        "rounds 71-100 at most five points below rounds 11-40, in every column run",
        _sustained,
    ),
    from_runs(
        "Section 3.3, fallback",
        "no round of FedUCA is without participants",
        "every round has one client in N, mean over seeds, in every column run",
        _never_empty,
    ),
    from_runs(
        "Sections 1 and 3.3",
        "a single fixed weight vector cannot meet the thresholds of all clients at once",
        "constant uniform weights under Eq. 2 keep fewer than 95 %, in every column run",
        _single_vector,
    ),
    from_runs(
        "Sections 1 and 4",
        "optimising the weights is what keeps clients in",
        "FedUCA keeps clearly more than constant uniform and than random weights under the same rule, in every column run",
        _weights_keep,
    ),
    from_runs(
        "Sections 1 and 4",
        "FedUCA's weights satisfy the clients' own test, that the shared model beats theirs (Eq. 1)",
        "Eq. 1 would hold clearly more often than with constant uniform weights, in every column run",
        _rational,
    ),
    *(_same_rule(data, rule) for data in ("fmnist", "cifar10") for rule in RULES),
]
