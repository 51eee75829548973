"""The statistics of reports, against SciPy's, and how often they are wrong."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from impala_tf.reporting import statistics

FIVE = [3.0, 9.5, 4.0, 7.0, 5.5]
OTHERS = [1.0, 6.0, 2.0, 4.5]


def test_the_interval_of_a_mean_is_scipys() -> None:
    """Both draw at random, so the ends agree within what 2,000 resamples can tell."""
    expected = scipy.stats.bootstrap(
        (FIVE,), np.mean, method="percentile", n_resamples=20_000, rng=1
    ).confidence_interval
    found = statistics.mean_interval(FIVE)
    assert found == pytest.approx(expected, abs=0.25)
    assert found == statistics.mean_interval(FIVE)  # the same runs, the same report


def test_the_probability_of_improvement_is_that_of_mann_and_whitney() -> None:
    found = statistics.compare(FIVE, OTHERS)
    assert found is not None
    u = scipy.stats.mannwhitneyu(FIVE, OTHERS).statistic
    assert found.improvement == pytest.approx(u / (len(FIVE) * len(OTHERS)))

    def improvement(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.mean((x[..., :, None] > y[..., None, :]) + 0.5 * (
            x[..., :, None] == y[..., None, :]), axis=(-1, -2))  # fmt: skip

    expected = scipy.stats.bootstrap(
        (FIVE, OTHERS), improvement, method="percentile", vectorized=True, rng=1
    ).confidence_interval
    assert found.interval == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("second", [OTHERS, [5.0, 5.1, 4.9], [2e3, -1e3, 0.0]])
def test_the_p_value_is_scipys(second: list[float]) -> None:
    found = statistics.compare(FIVE, second)
    expected = scipy.stats.ttest_ind(FIVE, second, equal_var=False).pvalue
    assert found is not None and found.p_value == pytest.approx(expected, rel=1e-4)


def test_seeds_without_any_spread_differ_for_certain_or_not_at_all() -> None:
    """All seeds of CartPole end with 500."""
    for second, p_value in (([500.0] * 3, 1.0), ([9.0] * 3, 0.0)):
        found = statistics.compare([500.0] * 3, second)
        assert found is not None and found.p_value == p_value


@pytest.mark.parametrize("seeds", [4, 8, 12])
def test_the_interquartile_mean_is_rliables_for_multiples_of_four(seeds: int) -> None:
    values = np.random.default_rng(seeds).normal(size=(1, seeds))
    expected = scipy.stats.trim_mean(values[0], proportiontocut=0.25)
    assert statistics.interquartile_mean(values)[0] == pytest.approx(expected)


def test_the_interquartile_mean_of_three_seeds_counts_the_outer_ones_in_part() -> None:
    found = statistics.interquartile_mean(np.array([[100.0, 0.0, 10.0]]))
    assert found[0] == pytest.approx((0.25 * 0 + 10 + 0.25 * 100) / 1.5)


def test_one_seed_has_no_interval_and_two_seeds_name_no_winner() -> None:
    assert statistics.mean_interval([1.0]) is None
    assert statistics.iqm_interval([1.0, 2.0]) is None
    assert statistics.compare([1.0, 1.1], [9.0, 9.1]) is None
    assert statistics.leaders([[1.0, 1.1], [9.0, 9.1]]) == [1, 0]


def test_only_what_chance_cannot_explain_is_no_leader() -> None:
    clearly = [[20.0, 20.5, 19.8], [-20.0, -19.0, -20.4], [19.9, 20.3, 20.2]]
    assert statistics.leaders(clearly) == [2, 0]
    assert statistics.leaders(clearly[:2]) == [0]


def test_chance_alone_seldom_names_a_winner() -> None:
    """Three equal settings with three seeds each, drawn 400 times: 5 % at most would be right."""
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(400, 3, 3))
    named = sum(
        all(
            statistics.welch_p_value(draw[a], draw[b]) <= statistics.ERROR_RATE / 3
            for b in range(3)
            if a != b
        )
        for draw in draws
        for a in [int(np.argmax(draw.mean(axis=1)))]
    )
    assert named / 400 <= statistics.ERROR_RATE
