"""Who is better off than alone, with errors: the tests against scipy's, and what is said of too few examples."""

import numpy as np
import pytest
from scipy import stats

from feduca.analysis.judging import COLUMNS, FIGURES, LEVEL, Paired, accuracy, figures, holm, log_loss, overlap, pooled
from feduca.runs.summary import over_seeds


def seen(*silos):
    """Silos as (examples, gained, lost, loss gain, variance)."""
    return Paired(*(np.array(column, float) for column in zip(*silos)))


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (5, 0), (7, 2), (3, 3), (20, 41), (100, 60)])
def test_accuracy_is_judged_by_mcnemars_exact_test(gained, lost):
    p = accuracy(seen((300, gained, lost, 0.1, 1))).p[0]
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert p == pytest.approx(expected, rel=1e-12)


def test_log_loss_is_judged_by_the_paired_t_test():
    rng = np.random.default_rng(0)
    for shift in (-0.2, 0.0, 0.3):
        alone, deployed = rng.normal(size=40) + shift, rng.normal(size=40)
        gains = alone - deployed
        found = log_loss(seen((40, 0, 0, gains.mean(), gains.var())))
        assert found.p[0] == pytest.approx(stats.ttest_rel(alone, deployed).pvalue, rel=1e-9)


def test_p_values_are_corrected_for_the_number_of_silos():
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.9, 0.8])).tolist() == [1, 1]
    one = seen((100, 12, 2, 0, 1))
    assert accuracy(one).verdicts == ("better",)
    ten = seen(*[(100, 12, 2, 0, 1)], *[(100, 5, 5, 0, 1)] * 9)
    assert accuracy(ten).verdicts[0] == "undecided"
    assert accuracy(ten).p[0] == pytest.approx(10 * accuracy(one).p[0])


def test_a_dozen_examples_decide_nothing_and_are_not_called_worse():
    found = accuracy(seen((12, 0, 4, -0.1, 1), (12, 0, 0, 0.001, 0.01), (12, 0, 0, 0, 0), (4000, 40, 38, 0, 1)))
    assert found.verdicts == ("undecided", "undecided", "same", "same")  # the third deploys its model alone
    assert found.gain[0] == pytest.approx(-1 / 3)
    assert found.share("worse") == 0
    assert found.share("undecided") == 0.5


def test_better_and_worse_are_said_where_the_data_say_so():
    found = accuracy(seen((500, 60, 10, 0, 1), (500, 10, 60, 0, 1), (np.nan,) * 5))
    assert found.verdicts == ("better", "worse", "")
    assert found.share("better") == 0.5
    found = log_loss(seen((500, 0, 0, 0.3, 1), (500, 0, 0, -0.3, 1), (1, 0, 0, 5.0, 0)))
    assert found.verdicts == ("better", "worse", "undecided")


def test_runs_are_pooled_as_if_all_their_examples_were_one_list():
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=n) for n in (10, 30, 25)]
    runs = [seen((len(gains), 3, 1, gains.mean(), gains.var())) for gains in parts]
    whole = np.concatenate(parts)
    both = pooled(runs)
    assert (both.examples[0], both.gained[0], both.lost[0]) == (65, 9, 3)
    assert both.loss_gain[0] == pytest.approx(whole.mean())
    assert both.loss_variance[0] == pytest.approx(whole.var())
    halved = pooled(runs, 2.0)
    assert (halved.examples[0], halved.gained[0]) == (32.5, 4.5)
    assert halved.loss_gain[0] == both.loss_gain[0]


def test_an_example_in_many_untouched_parts_counts_once():
    assert overlap(1, 0.25) == 1
    assert overlap(5, 0.25) == 2
    assert overlap(5, 1.0) == 5  # the same part every time
    run = seen((80, 10, 4, 0.05, 1))
    same = pooled([run] * 5, overlap(5, 1.0))
    for name in COLUMNS:
        np.testing.assert_allclose(getattr(same, name), getattr(run, name))


def test_nobody_is_called_better_or_worse_by_luck_more_often_than_the_level_says():
    """Two equally good models: in 400 federations of 20 silos, hardly one in twenty has any verdict but same or undecided."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(400):
        disagreements = rng.binomial(60, 0.3, 20)
        gained = rng.binomial(disagreements, 0.5)
        found = accuracy(seen(*[(60, b, d - b, 0, 1) for b, d in zip(gained, disagreements)]))
        wrong += bool({"better", "worse"} & set(found.verdicts))
    assert wrong / 400 < LEVEL


def test_a_summary_has_shares_by_accuracy_and_by_loss():
    columns = {
        "examples": [500, 12],
        "gained": [60, 1],
        "lost": [10, 2],
        "loss_gain": [0.3, 0.0],
        "loss_variance": [1, 1],
    }
    said = figures([columns])
    assert (said["better_share"], said["undecided_share"]) == (0.5, 0.5)
    assert (said["loss_better_share"], said["loss_undecided_share"]) == (0.5, 0.5)
    assert said["loss_gain_mean"] == pytest.approx(0.15)
    assert figures([{name: [None, None] for name in columns}]) == {}
    assert Paired.of(columns).columns()["gained"] == [60, 1]


def test_seeds_that_cannot_tell_alone_can_tell_together():
    """Seven answers better and none worse is nothing among ten silos; four times that is something."""
    columns = {"examples": [60] * 10, "gained": [7] + [0] * 9, "lost": [0] * 10, "loss_gain": [0.1] + [0.0] * 9}
    columns["loss_variance"] = [1.0] + [0.0] * 9
    row = {"seed": 0, "accuracy": 0.5, "run_dir": None, **figures([columns])}
    assert row["better_share"] == 0
    task = {"validation_share": 0.3, "test_share": 0.5}
    row = {**row, "left": {}, "gain_worst": None}
    together = over_seeds([row] * 4, [columns] * 4, task)
    assert together["better_share"] == 0.1
    assert together == over_seeds([row] * 4, [columns] * 4, task | {"split_seed": None})
    assert (
        over_seeds([row] * 4, [columns] * 4, task | {"split_seed": 3})["better_share"] == 0
    )  # always the same examples
    assert not FIGURES & over_seeds([row] * 4, [columns] * 3 + [None], task).keys()  # a run that does not know
    fewer = {name: values[:9] for name, values in columns.items()}
    assert not FIGURES & over_seeds([row] * 2, [columns, fewer], task).keys()
    assert over_seeds([row], [columns], task) == row
    assert figures([columns]).keys() == FIGURES


def test_what_cannot_be_is_not_judged():
    good = {
        "examples": [50, 50, 50],
        "gained": [9, -1, 40],
        "lost": [0, 3, 40],
        "loss_gain": [0, 0, 0.0],
        "loss_variance": [1, 1, 1],
    }
    assert accuracy(Paired.of(good)).verdicts == ("better", "", "")
    assert log_loss(Paired.of({**good, "loss_gain": [1e300, 0, 0]})).verdicts == ("", "", "")
