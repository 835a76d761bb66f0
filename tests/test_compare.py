"""Verdicts: the interval, the four words, what was paired."""

import math

import pytest
import scipy.stats

from engine.expressions import sample_sd
from engine.publishing.compare import prediction_interval, t_interval, t_quantile, verdict_word, welch_interval


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 200])
@pytest.mark.parametrize("probability", [0.9, 0.975, 0.995])
def test_t_quantiles_are_those_of_scipy(freedom, probability):
    assert t_quantile(probability, freedom) == pytest.approx(scipy.stats.t.ppf(probability, freedom), rel=1e-7)


def test_the_interval_is_that_of_scipy():
    values = [0.3, -0.1, 0.4, 0.2, 0.25]
    expected = scipy.stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=scipy.stats.sem(values))
    assert t_interval(values)[1:] == pytest.approx(expected)


def test_one_more_run_falls_into_the_prediction_interval_as_often_as_it_says():
    draws = scipy.stats.norm.rvs(size=(1_500, 6), random_state=7)
    inside = sum(low <= row[5] <= high for row in draws for low, high in [prediction_interval(list(row[:5]))]) / 1_500
    assert abs(inside - 0.95) < 0.023  # four standard errors: one false alarm in 16,000 if the draws were new each time


@pytest.mark.parametrize(
    ("differences", "floor", "word"),
    [
        ([1.0], 0.1, "cannot tell"),
        ([0.0], 0.1, "cannot tell"),
        ([0.0, 0.0, 0.0], 0.1, "identical"),
        ([1.0, 1.1, 0.9], 0.1, "differs"),
        ([-1.0, -1.1, -0.9], 0.1, "differs"),
        ([0.01, -0.01, 0.01, -0.01], 0.1, "no difference seen"),
        ([1.0, -1.0, 0.5, -0.4], 0.1, "cannot tell"),
    ],
)
def test_the_verdict_is_one_of_four_words(differences, floor, word):
    _, low, high = t_interval(differences)
    assert verdict_word(len(differences), low, high, floor) == word


def test_two_independent_samples_get_welchs_interval():
    first, second = [2.1, 2.3, 2.2, 2.25], [2.0, 1.9, 2.2]
    expected = scipy.stats.ttest_ind(second, first, equal_var=False).confidence_interval()
    assert welch_interval(first, second)[1:] == pytest.approx((expected.low, expected.high), rel=1e-6)


@pytest.mark.parametrize("paired", [True, False])
def test_two_equal_arms_are_said_to_differ_one_time_in_twenty(paired):
    """1,500 lessons of five seeds in which the change does nothing: the false-alarm rate of the word "differs"."""
    draws = scipy.stats.norm.rvs(size=(1_500, 2, 5), random_state=11)
    words = []
    for first, second in draws.tolist():
        differences = [b - a for a, b in zip(first, second, strict=True)]
        _, low, high = t_interval(differences) if paired else welch_interval(first, second)
        words.append(verdict_word(5, low, high, sample_sd(first)))
    rate = words.count("differs") / len(words)
    assert 0.027 < rate < 0.073  # 5 % within four standard errors


def test_a_metric_that_does_not_vary_has_infinitely_many_floors(trained):
    from engine.publishing.compare import by_arm, compare
    from engine.runs import finished_runs

    arms = by_arm(finished_runs(trained.recorded))
    same = compare(arms["rare"], arms["straight"], "val_loss")
    assert (same.word, same.mean, same.floors) == ("identical", 0.0, 0.0)
    assert same.paired == ["initial weights", "batch order", "validation tokens"]
    kills = compare(arms["straight"], arms["rare"], "kills")
    assert (kills.mean, kills.floors) == (1.0, math.inf)
