"""The fused optimizers take the same steps as Sonnet's, which follow the papers' formulas."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_tf.learner.optimizers import make_optimizer
from tests.helpers.samples import resolved_config

_STEPS = 50


def _variables():
    return [tf.Variable(tf.ones((3, 5))), tf.Variable(tf.zeros((4,)))]


def _trained(optimizer, variables):
    """Applies gradients of sizes far below and far above epsilon; returns the variables."""
    rng = np.random.default_rng(1)
    apply = tf.function(lambda given: optimizer.apply(given, variables), autograph=False)
    for size in np.logspace(-8, 1, _STEPS):
        gradients = [tf.constant(size * rng.normal(size=v.shape), tf.float32) for v in variables]
        apply(gradients)
    return [variable.numpy() for variable in variables]


def _sonnet(optimizer, variables):
    optimizer._initialize(variables)
    for mean_square in getattr(optimizer, "ms", ()):
        mean_square.assign(tf.ones_like(mean_square))
    return optimizer


@pytest.mark.parametrize(
    ("flags", "sonnet"),
    [
        (
            {"optimizer": "adam", "epsilon": 1e-5},
            snt.optimizers.Adam(tf.Variable(3e-3), epsilon=1e-5),
        ),
        (
            {"optimizer": "rmsprop", "epsilon": 0.1, "decay": 0.9, "momentum": 0.5},
            snt.optimizers.RMSProp(tf.Variable(3e-3), decay=0.9, momentum=0.5, epsilon=0.1),
        ),
    ],
    ids=["adam", "rmsprop"],
)
def test_the_steps_are_those_of_sonnet(flags, sonnet):
    variables, expected = _variables(), _variables()
    config = resolved_config(**flags).optimizer
    optimizer = make_optimizer(config, tf.Variable(3e-3), variables)
    found = _trained(optimizer, variables)
    for own, other in zip(found, _trained(_sonnet(sonnet, expected), expected), strict=True):
        np.testing.assert_allclose(own, other, rtol=2e-5, atol=1e-7)
    assert not np.allclose(found[0], 1.0, atol=1e-3), "the variables have moved"
    for own, other in zip(optimizer.variables, sonnet.variables, strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=2e-5, atol=1e-12)
