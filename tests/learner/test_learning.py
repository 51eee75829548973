"""Many updates improve the policy, which no test of a single part can show."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from impala_tf.agents.distributions import Categorical
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.types import AgentOutput, EnvOutput, Unroll
from tests.helpers.agents import make_agent
from tests.helpers.samples import resolved_config, vector_spec

T = 4


def test_the_agent_learns_which_action_is_rewarded() -> None:
    """The observation shows the right action; its reward comes one step later."""
    spec = vector_spec(size=3, num_actions=3)
    settings = resolved_config(
        batch_size=16,
        unroll_length=T,
        discounting=0.0,
        learning_rate=0.01,
        total_environment_frames=1_000_000,
    )
    tf.random.set_seed(0)
    agent = make_agent("MLPAgent", spec)
    learner = Learner(agent, spec, settings, LearnerGroup())
    rng = np.random.default_rng(0)
    unroll = tf.function(agent.unroll, autograph=False)
    generator = tf.random.Generator.from_seed(1)
    paid: list[float] = []
    for _ in range(40):
        best = rng.integers(0, 3, (16, T + 1))
        never = np.zeros((16, T + 1), np.bool_)
        env_outputs = EnvOutput(
            reward=tf.zeros((16, T + 1)),
            terminated=tf.constant(never),
            truncated=tf.constant(never),
            autoreset=tf.constant(never),
            episode_start=tf.constant(never),
            observation=tf.one_hot(best, 3),
            last_action=tf.zeros((16, T + 1), tf.int32),
        )
        logits = unroll(env_outputs, ())[0].policy_logits[:, :T]
        actions = Categorical(3).sample(tf.reshape(logits, (-1, 3)), generator)
        actions = tf.reshape(actions, (16, T))
        reward = np.zeros((16, T + 1), np.float32)
        reward[:, 1:] = actions.numpy() == best[:, :T]
        learner.update(
            Unroll(
                parameter_version=tf.fill([16], tf.constant(learner.learner_updates, tf.int64)),
                core_state=(),
                env_outputs=env_outputs._replace(reward=tf.constant(reward)),
                agent_outputs=AgentOutput(actions, logits),
                level=tf.zeros(16, tf.int32),
            ),
        )
        paid.append(reward[:, 1:].mean())
    assert paid[0] < 0.6  # chance is 1 / 3
    assert np.mean(paid[-5:]) > 0.9
