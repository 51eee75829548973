"""Gradients on levels whose observations hold a text: most words are read more than once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import Agent, agent_of, unroll_specs
from impala_tf.agents.torsos import LanguageTorso
from impala_tf.config import Config
from impala_tf.learner.actor_gradients import GradientSender, sent_specs
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.transport import NestCodec
from impala_tf.types import ActorReport, ObservationSpec, Unroll
from tests.helpers.learners import Kept
from tests.helpers.losses import compute
from tests.helpers.samples import randomize, resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

B, T = 4, 5
PARTS = {"where": ObservationSpec("vector", (3,)), "mission": ObservationSpec("text", (6,))}
SPEC = vector_spec()._replace(observation=PARTS)


def config(**flags: Any) -> Config:
    usual = {
        "batch_size": B,
        "unroll_length": T,
        "envs_per_actor": B,
        "gradients_clipping": 0.5,
        "advantage_scaling": "none",
        "loss_reduction": "sum",
    }
    return resolved_config(**{**usual, **flags})


def agent_and_unrolls() -> tuple[Agent, Unroll]:
    """Returns an agent, and unrolls whose texts are of the words 0 to 2."""
    agent = agent_of(config().agent, SPEC)
    randomize(agent)
    return agent, random_unrolls(unroll_specs(agent, SPEC, T), B)


def whole_gradient(agent: Agent, unrolls: Unroll, settings: Config) -> list[np.ndarray]:
    """Returns the gradient of the summed loss, the slices of each word added up by NumPy."""
    env_outputs, answers = tf.nest.map_structure(
        lambda a: tf.constant(np.swapaxes(a, 0, 1)), (unrolls.env_outputs, unrolls.agent_outputs)
    )
    with tf.GradientTape() as tape:
        outputs, _ = agent.unroll(env_outputs, unrolls.core_state)
        total = compute(outputs, env_outputs, answers, settings.loss).total
    return [_added_up(each) for each in tape.gradient(total, agent.trainable_variables)]


def _added_up(gradient: tf.Tensor | tf.IndexedSlices) -> np.ndarray:
    if not isinstance(gradient, tf.IndexedSlices):
        return np.asarray(gradient)
    whole = np.zeros(gradient.dense_shape.numpy(), np.float32)
    np.add.at(whole, gradient.indices.numpy(), gradient.values.numpy())
    return whole


def test_an_actor_of_a3c_sends_the_whole_gradient() -> None:
    agent, unrolls = agent_and_unrolls()
    settings, learner = config(algorithm="a3c", batch_size=None), Kept()
    GradientSender(learner.push, agent, SPEC, settings).push(unrolls, [], ActorReport())
    (sent,) = learner.sent
    for mine, expected in zip(
        sent.gradients, whole_gradient(agent, unrolls, settings), strict=True
    ):
        np.testing.assert_allclose(mine[0], expected, rtol=1e-3, atol=1e-4)
    NestCodec(sent_specs(agent, SPEC, settings)).encode(sent)  # it fits the wire


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_norm_is_that_of_the_whole_gradient(
    micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipping is wrong if the slices of a word that is read twice count one by one."""
    agent, unrolls = agent_and_unrolls()
    monkeypatch.setattr(configs, "micro_batches", lambda config: micro_batches)
    settings = config()
    norm = np.sqrt(sum(np.square(each).sum() for each in whole_gradient(agent, unrolls, settings)))
    learner = Learner(agent, SPEC, settings, LearnerGroup())
    stats = learner.update(tf.nest.map_structure(tf.constant, unrolls))
    assert stats is not None
    assert stats.gradient_norm == pytest.approx(norm, rel=1e-4)


def test_a_text_that_repeats_is_read_once_with_the_same_result() -> None:
    """What the learner computes has to be what actors computed step by step, and its gradient."""
    agent, unrolls = agent_and_unrolls()
    env_outputs = tf.nest.map_structure(
        lambda a: tf.constant(np.swapaxes(a, 0, 1)), unrolls.env_outputs
    )
    whole, _ = agent.unroll(env_outputs, unrolls.core_state)
    for t in range(T + 1):
        step = tf.nest.map_structure(lambda a, t=t: a[t], env_outputs)
        answer, _ = agent.step(step, unrolls.core_state)
        np.testing.assert_allclose(whole.baseline[t], answer.baseline, rtol=1e-5, atol=1e-6)
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
