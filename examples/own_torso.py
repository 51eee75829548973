"""A network of one's own: a layer with a skip connection, for levels with vectors.

    cd examples    # Python finds the module in the current folder
    impala train --level_name=CartPole-v1 --agent_name=own_torso:SkipTorso

In Python: impala_tf.train("CartPole-v1", agent=SkipTorso).

A torso is a Sonnet module that is made without arguments. It takes float32 [B, D], or images
[B, H, W, C] scaled to [0, 1], and returns float32 [B, features]. --core=lstm puts an LSTM on it.
"""

from __future__ import annotations

import sonnet as snt
import tensorflow as tf


class SkipTorso(snt.Module):
    """Two layers; the second one sees the observation, too."""

    def __init__(self, units: int = 64) -> None:
        super().__init__(name="skip")
        self._first, self._second = snt.Linear(units), snt.Linear(units)

    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns [B, units] of a batch of observations [B, D]."""
        hidden = tf.tanh(self._first(observation))
        return tf.tanh(self._second(tf.concat([hidden, observation], axis=-1)))
