"""Gradients on levels whose observations hold a text: most words are read more than once."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.agents.torsos import LanguageTorso
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.types import ObservationSpec
from tests.helpers.losses import compute
from tests.helpers.samples import randomize, resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

B, T = 4, 5
PARTS = {"where": ObservationSpec("vector", (3,)), "mission": ObservationSpec("text", (6,))}
SPEC = vector_spec()._replace(observation=PARTS)


def added_up(gradient: tf.Tensor | tf.IndexedSlices) -> np.ndarray:
    """Returns a whole gradient: slices of the same word are added up by NumPy."""
    if not isinstance(gradient, tf.IndexedSlices):
        return np.asarray(gradient)
    whole = np.zeros(gradient.dense_shape.numpy(), np.float32)
    np.add.at(whole, gradient.indices.numpy(), gradient.values.numpy())
    return whole


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_norm_is_that_of_the_whole_gradient(
    micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipping is wrong if the slices of a word that is read twice count one by one."""
    config = resolved_config(batch_size=B, unroll_length=T, gradients_clipping=0.5)
    agent = agent_of(config.agent, SPEC)
    randomize(agent)
    unrolls = random_unrolls(unroll_specs(agent, SPEC, T), B)
    env_outputs, answers = tf.nest.map_structure(
        lambda a: tf.constant(np.swapaxes(a, 0, 1)), (unrolls.env_outputs, unrolls.agent_outputs)
    )
    with tf.GradientTape() as tape:
        outputs, _ = agent.unroll(env_outputs, unrolls.core_state)
        total = compute(outputs, env_outputs, answers, config.loss).total
    gradients = map(added_up, tape.gradient(total, agent.trainable_variables))
    norm = np.sqrt(sum(np.square(each).sum() for each in gradients))
    monkeypatch.setattr(configs, "micro_batches", lambda config: micro_batches)
    learner = Learner(agent, SPEC, config, LearnerGroup())
    stats = learner.update(tf.nest.map_structure(tf.constant, unrolls))
    assert stats is not None
    assert stats.gradient_norm == pytest.approx(norm, rel=1e-4)


def test_a_text_that_repeats_is_read_once_with_the_same_result() -> None:
    """What the learner computes has to be what actors computed step by step, and its gradient."""
    torso = LanguageTorso()
    words = tf.constant([[1, 2, 0], [3, 0, 0], [1, 2, 0], [1, 2, 0]])
    weights = tf.constant([[1.0], [2.0], [3.0], [-1.0]])
    found = []
    for read in (torso, torso.of_many):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * read(words))
        gradients = tape.gradient(loss, torso.trainable_variables)
        found.append([loss, *map(tf.convert_to_tensor, gradients)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
