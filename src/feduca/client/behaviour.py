"""How clients behave: everything of a recipe that is the client's business, as one value."""

from __future__ import annotations

from dataclasses import dataclass, replace

from feduca.client.conduct import Conduct
from feduca.client.offers import Offer
from feduca.client.outside import Outside
from feduca.client.participation import ParticipationRule
from feduca.client.personal import Nothing, Personal
from feduca.client.privacy import Privacy
from feduca.client.reporting import ReportingPolicy, Truthful
from feduca.core.share import Share
from feduca.types import Needs, UtilityFamily


@dataclass(frozen=True)
class Behaviour:
    """The rule, the offer, the utility, and the rest of what a client step needs to be told."""

    rule: ParticipationRule
    offer: Offer
    family: UtilityFamily
    seed: int
    train_from: str = "offer"  # or "consensus": an accepted offer is deployed, training starts from the shared model
    reporting: ReportingPolicy = Truthful()
    decide_by: str = "reported"  # or "true": the threshold an inflating client decides by
    threshold: str = "previous-weight"  # or "local-baseline", "own-accuracy"
    realised: bool = False  # Eq. 2 judges the model that came instead of the last curve
    average: int = 1  # so many last thresholds whose mean is the threshold
    decliners: str = "all"  # what they tell the server; or "curve", "silent"
    metric: str = "accuracy"  # or "loss"
    nodes: int = 8  # forward passes a fit costs
    check: int = 21  # points of the denser grid that R^2 is computed on
    check_every: int = 1  # rounds between two such checks; 0 = never
    leave_out: str = "local"  # or "contributed": the own model taken out of theta
    tolerance: float = 1e-6
    needs: Needs = Needs()  # the mechanism's and the user's (diagnostics); the rule's and the offer's are added
    untouched: bool = False  # silos have a test part that no decision sees
    outside: Outside | None = None  # what offers have to beat, kept alive; None: the model a silo has now
    conduct: Conduct = Conduct()  # honest work, or some way of shirking it
    personal: Personal = Nothing()  # what the method keeps on the client beside the shared model
    share: Share | None = None  # what of a model travels; None: everything
    privacy: Privacy | None = None  # how single examples are hidden; None: they are not
    record_points: bool = False  # send the measured utilities along with the fit, for the report
    keep_curves: bool = False  # in rounds with a check send them, and the losses at the same places

    @property
    def all_needs(self) -> Needs:
        needs = self.needs | self.rule.needs | self.offer.needs
        if self.outside is None:
            return needs
        # A rule that compares with the model alone compares with the outside option instead.
        return replace(needs, alone=self.needs.alone or self.outside.alone)
