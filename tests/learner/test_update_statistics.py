"""The learner's update with statistics and the other algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.agents.torsos import ObservationNormalizer
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import PIXEL_STATISTICS_STEPS, Learner
from tests.helpers.agents import make_agent
from tests.helpers.learners import SPEC, B, GroupOf, T, batch, config, sent
from tests.helpers.samples import image_spec
from tests.helpers.unrolls import random_unrolls


@pytest.mark.parametrize(
    ("agent_name", "algorithm"), [("MLPLSTMAgent", "impala"), ("MLPAgent", "ppo")]
)
def test_a_run_with_all_statistics_continues_from_its_variables_and_counters(
    agent_name: str, algorithm: str
) -> None:
    settings = config(
        agent_name=agent_name,
        algorithm=algorithm,
        observation_normalization="elementwise",
        advantage_scaling="rms",
        value_normalization="running",
        optimizer="adam",
        learning_rate_schedule="kl",
        minibatches=1,
    )
    first, second = (
        Learner(agent_of(settings.agent, SPEC), SPEC, settings, LearnerGroup()) for _ in range(2)
    )
    for seed in range(3):
        first.update(batch(first.agent, seed))
    assert first.agent.observation_normalizer.mean.numpy().any()
    pairs = zip(first.parameters_and_slots(), second.parameters_and_slots(), strict=True)
    for mine, theirs in pairs:
        theirs.assign(mine)
    second.restore_counters(first.counters())
    assert second.learning_rate == first.learning_rate
    for seed in range(3, 6):
        first.update(batch(first.agent, seed))
        second.update(batch(first.agent, seed))
    for got, expected in zip(second.parameters(), first.parameters(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def after_one_batch(**flags: Any) -> tuple[Learner, ObservationNormalizer, np.ndarray]:
    """Returns a learner that has used a batch twice, its normaliser, and what the batch showed."""
    settings = config(observation_normalization="elementwise", updates_per_batch=2, **flags)
    learner = Learner(agent_of(settings.agent, SPEC), SPEC, settings, LearnerGroup())
    unrolls = batch(learner.agent)
    learner.update(unrolls)
    normalizer = learner.agent.observation_normalizer
    assert normalizer is not None
    return learner, normalizer, unrolls.env_outputs.observation.numpy()[:, :-1].reshape(-1, 3)


@pytest.mark.parametrize(
    "flags",
    [
        {"algorithm": "impala"},
        {"algorithm": "ppo", "minibatches": 3},  # the first minibatch alone is a part of them
        {"algorithm": "dqn", "agent_name": "MLPAgent", "replay_start_steps": 10**5},  # yet to learn
    ],
    ids=lambda flags: flags["algorithm"],
)
def test_vectors_are_counted_once_each_to_the_end_of_a_run(flags: dict[str, Any]) -> None:
    """A robot that has learned to run meets speeds that it never had at the start."""
    learner, normalizer, seen = after_one_batch(**flags)
    np.testing.assert_allclose(normalizer.mean, seen.mean(0), rtol=1e-4)
    std = np.sqrt(seen.var(0) + 1e-5)
    np.testing.assert_allclose(1 / normalizer.inverse_std.numpy(), std, rtol=1e-3)
    counters = {**learner.counters(), "agent_steps": PIXEL_STATISTICS_STEPS}
    learner.restore_counters(counters)
    later = batch(learner.agent, seed=5)
    learner.update(later)
    both = np.concatenate([seen, later.env_outputs.observation.numpy()[:, :-1].reshape(-1, 3)])
    np.testing.assert_allclose(normalizer.mean, both.mean(0), rtol=1e-3)


@pytest.mark.parametrize("steps", [0, PIXEL_STATISTICS_STEPS])
def test_only_the_first_pixels_are_counted(steps: int) -> None:
    spec = image_spec((36, 36, 1))
    settings = config(agent_name="NatureAgent", observation_normalization="elementwise")
    learner = Learner(agent_of(settings.agent, spec), spec, settings, LearnerGroup())
    learner.restore_counters({**learner.counters(), "agent_steps": steps})
    unrolls = random_unrolls(unroll_specs(learner.agent, spec, T), B, 0)
    learner.update(tf.nest.map_structure(tf.constant, unrolls))
    normalizer = learner.agent.observation_normalizer
    assert normalizer is not None
    assert np.any(normalizer.mean.numpy()) == (steps == 0)


def test_an_update_without_any_batch_does_not_change_the_kl_schedule() -> None:
    """No data is no divergence: a stalled minute must not change the learning rate."""
    agent = make_agent("MLPAgent", SPEC)
    settings = config(learning_rate_schedule="kl")
    group = GroupOf(sent(agent, 1, scale=0.0))
    learner = Learner(agent, SPEC, settings, group)  # type: ignore[arg-type]
    before = learner.learning_rate
    learner.update(None, [None, None])
    assert learner.learning_rate == before
    learner.update(batch(agent), [B * T, None])
    assert learner.learning_rate != before
