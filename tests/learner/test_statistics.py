"""Running statistics compared with NumPy's."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from impala_tf.agents.torsos import ObservationNormalizer
from impala_tf.learner.moments import Moments, PartStatistics, RunningMoments


def sums(
    values: np.ndarray, mean: tf.Tensor | float = 0.0
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns what `add` takes, in float32: the values are those of a graph."""
    from_mean = tf.constant(values, tf.float32) - mean
    count = tf.constant(values.size, tf.float32)
    return count, tf.reduce_sum(from_mean), tf.reduce_sum(tf.square(from_mean))


def test_running_moments_are_weighted_means_of_the_updates() -> None:
    """Without a start at 0, which would make the first advantages huge."""
    rng = np.random.default_rng(0)
    moments = RunningMoments(decay=0.9)
    assert (float(moments.mean), float(moments.rms), float(moments.std)) == (0, 1, 1)
    batches = [rng.normal(3, 2, size=50).astype(np.float32) for _ in range(5)]
    weights = np.array([0.9**age for age in (4, 3, 2, 1, 0)])
    weights /= weights.sum()
    for values in batches:
        moments.add(*sums(values, moments.mean))
        moments.add(*[tf.constant(0.0)] * 3)  # a group's learners may all be without a batch
    mean = sum(w * v.mean() for w, v in zip(weights, batches, strict=True))
    square = sum(w * np.square(v).mean() for w, v in zip(weights, batches, strict=True))
    assert float(moments.mean) == pytest.approx(mean, rel=1e-4)
    assert float(moments.rms) == pytest.approx(np.sqrt(square), rel=1e-4)
    assert float(moments.std) == pytest.approx(np.sqrt(square - mean**2), rel=1e-4)


def test_the_unit_of_values_does_not_shrink_to_the_noise_of_a_baseline_without_rewards() -> None:
    """With that unit, a reward is hundreds of units away, and its error drowns the policy's."""
    rng = np.random.default_rng(0)
    moments = RunningMoments(decay=0.9)
    for _ in range(50):
        moments.add(*sums(rng.normal(0, 1e-3, 128).astype(np.float32), moments.mean))
    assert float(moments.std) == pytest.approx(0.1)


FAR_FROM_0 = [(1000.0, 1.0), (1000.0, 0.1), (50_000.0, 20.0), (1.7e9, 1e5), (-3e5, 0.5)]


@pytest.mark.parametrize(("mean", "std"), FAR_FROM_0)
def test_the_deviation_of_values_that_are_far_from_0_is_right(mean: float, std: float) -> None:
    """In float32, the difference of two mean squares has no digits of it."""
    rng = np.random.default_rng(3)
    moments = RunningMoments(decay=0.9)
    for _ in range(100):
        values = rng.normal(mean, std, size=500).astype(np.float32)
        moments.add(*sums(values, moments.mean))
    assert float(moments.std) == pytest.approx(std, rel=0.03)
    assert float(moments.mean) == pytest.approx(mean, abs=0.1 * std)
    assert float(moments.rms) == pytest.approx(abs(mean), rel=1e-3)


def add(statistics: PartStatistics, *by_learner: Moments) -> None:
    """Adds the moments of several learners."""
    statistics.add(Moments(*map(tf.stack, zip(*by_learner, strict=True))))


@pytest.mark.parametrize("learners", [1, 3])
def test_observations_that_are_far_from_0_get_deviation_1(learners: int) -> None:
    """Clocks, positions and prices are like that; also if only one of the learners has a batch."""
    rng = np.random.default_rng(4)
    mean, std = np.transpose(FAR_FROM_0)
    normalizer = ObservationNormalizer((len(mean),), "float32")
    statistics = PartStatistics(normalizer)
    seen = rng.normal(mean, std, size=(10, learners, 8, 4, len(mean))).astype(np.float32)
    for arrival in seen:
        add(statistics, *(statistics.moments(tf.constant(part)) for part in arrival))
    rest = [statistics.no_moments()] * (learners - 1)
    alone = rng.normal(mean, std, size=(1, 2, len(mean))).astype(np.float32)
    add(statistics, statistics.moments(tf.constant(alone)), *rest)
    everything = np.concatenate([seen.reshape(-1, len(mean)), alone.reshape(-1, len(mean))])
    found = normalizer(tf.constant(everything), tf.float32).numpy()
    np.testing.assert_allclose(found.std(0), 1, rtol=0.01)
    np.testing.assert_allclose(found.mean(0), 0, atol=0.1)  # -3e5 has no more digits


@pytest.mark.parametrize(
    ("dtype", "unit", "epsilon"), [("uint8", 255.0, 1e-5), ("float32", 1.0, 1e-8)]
)
def test_observations_are_normalised_by_the_moments_of_all_that_were_added(
    dtype: str, unit: float, epsilon: float
) -> None:
    rng = np.random.default_rng(2)
    shape = (3, 4, 2)
    normalizer = ObservationNormalizer(shape, dtype)
    statistics = PartStatistics(normalizer)
    spread = rng.uniform(0, 0.2, shape) * unit
    seen = [
        np.clip(0.5 * unit + spread * rng.normal(size=(5, 2, *shape)), 0, unit).astype(dtype)
        for _ in range(4)
    ]
    add(statistics, statistics.no_moments())  # in a group, at first nobody may have a batch
    np.testing.assert_allclose(normalizer.inverse_std, 1 / unit)
    for steps in seen:
        add(statistics, statistics.moments(tf.constant(steps)))
    add(statistics, statistics.no_moments())
    everything = np.concatenate(seen).reshape(-1, *shape).astype(np.float64)
    expected = (everything - everything.mean(0)) / np.sqrt(everything.var(0) + epsilon * unit**2)
    found = normalizer(tf.constant(everything.astype(dtype)), tf.float32)
    np.testing.assert_allclose(found, np.clip(expected, -5, 5), rtol=1e-2, atol=1e-2)


def vectors_seen(batches: Iterable[npt.ArrayLike]) -> ObservationNormalizer:
    """Returns the normaliser after batches of vectors, each [T, B, N]."""
    observations = [np.asarray(batch, np.float32) for batch in batches]
    normalizer = ObservationNormalizer(observations[0].shape[2:], "float32")
    statistics = PartStatistics(normalizer)
    for steps in observations:
        add(statistics, statistics.moments(tf.constant(steps)))
    return normalizer


def test_a_simulator_that_blew_up_once_does_not_hide_everything_after_it() -> None:
    """The statistics of vectors never forget."""
    rng = np.random.default_rng(6)
    batches = rng.normal(size=(100, 64, 32, 2))
    batches[1, 7, :20, 0] = 1e6
    batches[:, ::3, :, 1] = np.finfo(np.float32).max  # a code for "nothing there"
    seen = vectors_seen(batches)
    assert (np.asarray(seen.inverse_std) > 0.8).all()


def test_numbers_that_grow_in_earnest_are_followed() -> None:
    """At first a constant and a small number, then both a thousand times as far away."""
    rng = np.random.default_rng(8)
    small = rng.normal(size=(100, 20, 32, 2)) * [0, 0.01]
    large = 10 * rng.normal(size=(40, 20, 32, 2))
    seen = vectors_seen([*small, *large])
    np.testing.assert_allclose(seen.inverse_std, 0.1 * np.sqrt(140 / 40), rtol=0.2)
