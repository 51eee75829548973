"""DQN's targets, its gradient step, and how often it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.algorithms.dqn.buffer import Sample
from impala_tf.algorithms.dqn.step import QStats, double_q_targets, huber, of_actions
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from tests.helpers.samples import resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

B, T, A = 4, 5, 3
SPEC = vector_spec(num_actions=A)


def learner_of(**flags: Any) -> Learner:
    usual = {
        "preset": "tuned", "algorithm": "dqn", "batch_size": B, "unroll_length": T,
        "replay_start_steps": 0, "replay_batch_size": 8, "replay_ratio": 0.1,
        "replay_capacity": 1000,
    }  # fmt: skip
    config = resolved_config(**{**usual, **flags})
    tf.random.set_seed(0)
    return Learner(agent_of(config.agent, SPEC), SPEC, config, LearnerGroup())


def arrive(learner: Learner, seed: int, reward_scale: float = 1.0) -> QStats | None:
    unrolls = random_unrolls(unroll_specs(learner.agent, SPEC, T), B, seed)
    scaled = unrolls.env_outputs._replace(reward=reward_scale * unrolls.env_outputs.reward)
    unrolls = unrolls._replace(env_outputs=scaled, td_errors=np.abs(unrolls.td_errors))
    return learner.update(tf.nest.map_structure(tf.constant, unrolls))


def test_targets_are_those_of_double_q_learning() -> None:
    """The network chooses the next action, the target network says what it is worth."""
    rng = np.random.default_rng(0)
    next_q, next_target = rng.normal(size=(2, 50, A)).astype(np.float32)
    returns, discounts = rng.normal(size=(2, 50)).astype(np.float32)
    found = double_q_targets(returns, discounts, next_q, next_target)
    for b in range(50):
        best = max(range(A), key=next_q[b].__getitem__)
        target = returns[b] + discounts[b] * next_target[b, best]
        assert float(found[b]) == pytest.approx(target, abs=1e-5)


def test_gradients_are_clipped_errors_and_flow_through_q_alone() -> None:
    q, next_q, next_target = (tf.constant([[0.0, 1.0]] * 2) for _ in range(3))
    with tf.GradientTape() as tape:
        tape.watch([q, next_q, next_target])
        targets = double_q_targets(tf.constant([0.5, 8.0]), tf.zeros(2), next_q, next_target)
        errors = targets - of_actions(q, tf.constant([0, 1]))
        loss = tf.reduce_sum(huber(errors))
    assert errors.numpy().tolist() == [0.5, 7.0]
    assert float(loss) == 0.5 * 0.5**2 + 6.5
    gradients = tape.gradient(loss, [q, next_q, next_target])
    np.testing.assert_allclose(gradients[0], [[-0.5, 0.0], [0.0, -1.0]])
    assert gradients[1:] == [None, None]


@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.125, 0.33])
def test_the_ratio_of_gradient_steps_to_agent_steps_is_held(ratio: float) -> None:
    learner = learner_of(replay_ratio=ratio)
    for seed in range(20):
        arrive(learner, seed)
        assert abs(learner.learner_updates - ratio * (seed + 1) * B * T) < 1 + 1e-9


def test_nothing_is_learned_before_the_replay_has_enough() -> None:
    learner = learner_of(replay_start_steps=3 * B * T)
    before = [each.numpy() for each in learner.agent.trainable_variables]
    assert [arrive(learner, seed) for seed in range(2)] == [None, None]
    assert learner.uses.missing_steps == B * T
    for mine, old in zip(learner.agent.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(mine, old)
    assert learner.agent_steps > 0, "frames count from the first one on"
    assert arrive(learner, 2) is not None
    assert learner.learner_updates == 2


def test_what_was_learned_from_gets_a_new_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(replay_ratio=1 / (B * T))
    replay, draw = learner.uses.replay, learner.uses.replay.draw
    drawn: list[np.ndarray] = []
    learned: list[tuple[np.ndarray, np.ndarray]] = []

    def noted_draw(batch_size: int) -> tuple[np.ndarray, Sample]:
        indices, sample = draw(batch_size)
        drawn.append(indices)
        return indices, sample

    monkeypatch.setattr(replay, "draw", noted_draw)
    monkeypatch.setattr(replay, "set_errors", lambda *noted: learned.append(noted))
    arrive(learner, 0)
    sent = random_unrolls(unroll_specs(learner.agent, SPEC, T), B, 0).td_errors.ravel()
    ((indices, errors),) = learned
    np.testing.assert_array_equal([indices], drawn)
    assert not np.isclose(np.abs(errors), np.abs(sent[indices])).any(), "the actors' own errors"


def test_the_target_network_follows_at_its_interval() -> None:
    learner = learner_of(target_update_interval=3, replay_ratio=1 / (B * T))
    target = learner.trackables()["target_agent"]
    equal = []
    for seed in range(6):
        arrive(learner, seed)
        pairs = zip(target.variables, learner.agent.variables, strict=True)
        equal.append(all(np.array_equal(t.numpy(), v.numpy()) for t, v in pairs))
    assert equal == [False, False, True, False, False, True]


def test_values_are_learned_in_the_unit_of_their_targets() -> None:
    """Returns of hundreds are learned as fast as returns of one: the loss does not grow."""
    learner = learner_of(value_normalization="running", reward_clipping="none")
    raw = learner_of(value_normalization="none", reward_clipping="none")
    for seed in range(3):
        stats, raw_stats = (arrive(each, seed, reward_scale=300.0) for each in (learner, raw))
    assert float(learner.agent.q_heads.std) > 100.0
    assert float(raw.agent.q_heads.std) == 1.0
    assert stats is not None
    assert raw_stats is not None
    assert stats.loss_total < 2.0 < 50.0 < raw_stats.loss_total
    assert "value_moments" in learner.trackables()
