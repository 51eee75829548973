"""What observations are normalised with, and that agents of many levels share no trace of it."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.torsos import ObservationNormalizer


def test_agents_of_many_levels_do_not_make_tensorflow_warn(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It warns where one function is traced again and again, as for `load` of five levels."""
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    with caplog.at_level(logging.WARNING, "tensorflow"):
        for size in range(101, 110):
            normalizer = ObservationNormalizer((size,), "float32")
            normalizer.set(tf.fill((size,), 1.0), tf.fill((size,), 4.0))
            seen = normalizer(tf.constant([[5.0] * size, [99.0] * size]), tf.float32)
            np.testing.assert_allclose(seen[:, 0], [2.0, 10.0], rtol=1e-5)
    assert "retracing" not in caplog.text
