"""--gradient_compression: whatever their size, gradients survive the way between learners."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.learner.group import Float16Gradients


def gradients(norm: float) -> list[tf.Tensor]:
    """Returns gradients of that global norm; those of the last tensor are small."""
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(30, 20)), rng.normal(size=(7,)), 1e-4 * rng.normal(size=(50,))]
    length = np.linalg.norm(np.concatenate([part.ravel() for part in parts]))
    return [tf.constant(norm * part / length, tf.float32) for part in parts]


def exchanged(compression: Float16Gradients, norm: float) -> list[tf.Tensor]:
    """Returns what two learners with these gradients get as their sum, halved; as one step does."""
    sent = [each + each for each in compression.encode(gradients(norm))]
    mean = [each / 2 for each in compression.decode(sent)]
    compression.follow(tf.linalg.global_norm(mean))
    return mean


@pytest.mark.parametrize("norm", [1e-12, 1e-3, 1.0, 40.0, 1e12])
def test_gradients_keep_three_digits_once_their_norm_is_known(norm: float) -> None:
    compression = Float16Gradients()
    compression.follow(tf.constant(norm))
    for sent, got in zip(gradients(norm), exchanged(compression, norm), strict=True):
        np.testing.assert_allclose(got, sent, rtol=1e-3, atol=1e-8 * norm)


def test_gradients_that_do_not_fit_are_not_finite_and_fit_soon() -> None:
    """The step is skipped then, by all learners; the run has to get out of it by itself."""
    compression = Float16Gradients()
    assert not np.isfinite(exchanged(compression, 1e9)[0]).all()
    for _ in range(3):
        exchanged(compression, 1e9)
    np.testing.assert_allclose(exchanged(compression, 1e9)[0], gradients(1e9)[0], rtol=1e-3)


def test_gradients_may_grow_a_hundredfold_from_step_to_step() -> None:
    compression = Float16Gradients()
    for norm in (1e-3, 0.1, 10.0, 1e3):
        compression.follow(tf.constant(norm / 100))
        np.testing.assert_allclose(exchanged(compression, norm)[0], gradients(norm)[0], rtol=1e-3)


def test_a_gradient_of_zeros_does_no_harm() -> None:
    compression = Float16Gradients()
    compression.follow(tf.constant(0.0))
    np.testing.assert_allclose(exchanged(compression, 1.0)[0], gradients(1.0)[0], rtol=1e-3)


def test_a_step_that_is_nan_for_long_does_not_make_the_unit_infinite() -> None:
    compression = Float16Gradients()
    for _ in range(100):
        compression.follow(tf.constant(float("nan")))
    exchanged(compression, 1.0)
    np.testing.assert_allclose(exchanged(compression, 1.0)[0], gradients(1.0)[0], rtol=1e-2)
