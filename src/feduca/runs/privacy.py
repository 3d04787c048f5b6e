"""What silos have spent of their privacy budgets, and what their secrecy cost, as sentences: for the console and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feduca.client.privacy import SPENT
from feduca.core.records import UNRELEASED

Number = float | None


def spent(client: Mapping[str, Any]) -> Sequence[Number] | None:
    """The epsilon of every silo after a recorded round; None where nothing was hidden."""
    return (client.get("noted") or {}).get("epsilon")


def sentence(epsilons: Sequence[Number] | None, reasons: Sequence[str], budget: Any) -> str:
    """Of the last round; empty where nothing was hidden."""
    known = [e for e in epsilons or [] if e is not None]
    if not known:
        return ""
    least, most = f"{min(known):.3g}", f"{max(known):.3g}"
    each = most if least == most else f"{least} to {most}"
    of = f" of a budget of {budget:g}" if isinstance(budget, int | float) else ""
    done = sum(why == SPENT for why in reasons)
    over = f"; {done} of {len(reasons)} silos have spent theirs and train no more" if done else ""
    return f"privacy: every silo has an epsilon of its own, {each}{of}{over}"


def unreleased(reasons: Sequence[str | None]) -> str:
    """In how many of the rounds that have these reasons secure aggregation released nothing, and why; empty where in none."""
    lost = [why for why in reasons if why and why.startswith(UNRELEASED)]
    if not lost:
        return ""
    return f"no sum was released in {len(lost)} of {len(reasons)} rounds, in the last of them: {why_not(lost[-1])}"


def why_not(reason: str) -> str:
    """The same of one such round, and what helps."""
    why = reason.removeprefix(UNRELEASED).partition(". ")[0].rstrip(".")
    return f"{why}{'; have more silos than privacy.least, so that one may decline' * ('fresh updates' in why)}"
