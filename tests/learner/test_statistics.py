"""Running statistics compared with NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_tf.agents.normalization import ObservationNormalizer
from impala_tf.learner.statistics import PartStatistics, RunningMoments, ValueNormalizer


def sums(values: np.ndarray) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    found = (values.size, values.sum(), np.square(values).sum())
    return tf.constant(found[0], tf.float32), tf.constant(found[1]), tf.constant(found[2])


def test_running_moments_are_weighted_means_of_the_updates() -> None:
    """Without a start at 0, which would make the first advantages huge."""
    rng = np.random.default_rng(0)
    moments = RunningMoments(decay=0.9)
    assert (float(moments.mean), float(moments.rms), float(moments.std)) == (0, 1, 1)
    batches = [rng.normal(3, 2, size=50).astype(np.float32) for _ in range(5)]
    weights = np.array([0.9**age for age in (4, 3, 2, 1, 0)])
    weights /= weights.sum()
    for values in batches:
        moments.add(*sums(values))
    mean = sum(w * v.mean() for w, v in zip(weights, batches, strict=True))
    square = sum(w * np.square(v).mean() for w, v in zip(weights, batches, strict=True))
    assert float(moments.mean) == pytest.approx(mean, rel=1e-4)
    assert float(moments.rms) == pytest.approx(np.sqrt(square), rel=1e-4)
    assert float(moments.std) == pytest.approx(np.sqrt(square - mean**2), rel=1e-4)


def test_an_update_of_no_values_changes_nothing() -> None:
    """A group's learners may all be without a batch."""
    moments = RunningMoments(decay=0.9)
    moments.add(*sums(np.array([2.0, 4.0], np.float32)))
    before = [variable.numpy() for variable in moments.variables]
    moments.add(*[tf.constant(0.0)] * 3)
    for variable, value in zip(moments.variables, before, strict=True):
        assert variable.numpy() == value


def test_values_stay_what_they_were_when_their_statistics_change() -> None:
    """PopArt: otherwise every change of the scale would throw the baseline off."""
    layer = snt.Linear(1)
    inputs = tf.random.stateless_normal((8, 5), (1, 2))
    layer(inputs)
    normalizer = ValueNormalizer()
    rng = np.random.default_rng(1)
    normalizer.add(*sums(rng.normal(10, 5, 100).astype(np.float32)), layer)
    before = normalizer.values(layer(inputs)).numpy()
    normalizer.add(*sums(rng.normal(500, 90, 100).astype(np.float32)), layer)
    np.testing.assert_allclose(normalizer.values(layer(inputs)), before, rtol=1e-4, atol=1e-3)
    assert float(normalizer.std) > 50


@pytest.mark.parametrize(("dtype", "unit"), [("uint8", 255.0), ("float32", 1.0)])
def test_observations_are_normalised_by_the_moments_of_all_that_were_added(
    dtype: str, unit: float
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
    statistics.add(statistics.no_sums())  # in a group, at first nobody may have a batch
    np.testing.assert_allclose(normalizer.inverse_std, 1 / unit)
    for steps in seen:
        statistics.add(statistics.sums(tf.constant(steps)))
    statistics.add(statistics.no_sums())
    everything = np.concatenate(seen).reshape(-1, *shape).astype(np.float64)
    expected = (everything - everything.mean(0)) / np.sqrt(everything.var(0) + 1e-5 * unit**2)
    found = normalizer(tf.constant(everything.astype(dtype)), tf.float32)
    np.testing.assert_allclose(found, np.clip(expected, -5, 5), rtol=1e-2, atol=1e-2)


def test_before_the_first_observation_images_are_scaled_to_one() -> None:
    normalizer = ObservationNormalizer((1, 1, 2), "uint8")
    found = normalizer(tf.constant([[[[0, 255]]]], tf.uint8), tf.float32)
    np.testing.assert_allclose(found.numpy().ravel(), [0, 1], rtol=1e-6)
    assert not any(variable.trainable for variable in normalizer.variables)


def test_what_is_far_from_the_mean_is_clipped() -> None:
    """A pixel that never changed in the first steps may change later."""
    normalizer = ObservationNormalizer((1,), "float32")
    normalizer.set(tf.constant([2.0]), tf.constant([0.0]))
    found = normalizer(tf.constant([[2.0], [100.0], [-100.0]]), tf.float32)
    np.testing.assert_allclose(found.numpy().ravel(), [0, 5, -5], atol=1e-6)
