"""What counts as heard of silos in a round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feduca.core import heard
from feduca.core.messages import silent
from feduca.types import ABSENT, DECLINED, JOINED, REFUSED, Announcements, LocalSpec


@pytest.mark.parametrize(("all_tell", "told"), [(True, [1, 2, None, None]), (False, [1, None, None, None])])
def test_a_refused_silo_says_nothing_of_the_announced_model(all_tell, told):
    """Without standing a silo is sent an older model: what it measured is not about the one that was announced."""
    one = np.full(4, 0.25)
    asked = Announcements("r", 1, np.arange(4), np.zeros(3), one, one, np.ones(1), LocalSpec())
    reports = replace(silent(asked, JOINED, "", 3), status=[JOINED, DECLINED, REFUSED, ABSENT])
    seen = reports.measurements
    loss = np.array([1.0, 2.0, 3.0, np.nan])
    reports = replace(reports, measurements=replace(seen, global_=replace(seen.global_, loss=loss)))
    found = heard.validation_loss(reports, 4, all_tell)
    assert [None if np.isnan(x) else x for x in found] == told
