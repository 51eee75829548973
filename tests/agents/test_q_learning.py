"""Agents with Q-values: their heads, and the errors that actors send with unrolls."""

from __future__ import annotations

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import unroll_specs
from impala_tf.agents.exploration import QLearning
from impala_tf.agents.networks import QHeads
from impala_tf.types import Episode
from tests.helpers.agents import make_agent
from tests.helpers.formulas import n_step_return
from tests.helpers.samples import randomize, resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

A, T, N = 4, 6, 3


def test_dueling_heads_add_the_centred_advantages_to_the_value() -> None:
    heads = QHeads(A, dueling=True, initialization="default")
    features = tf.random.stateless_normal((5, 7), seed=(1, 2))
    heads(features)
    randomize(heads)
    found = heads(features)
    layers = {layer.name: layer for layer in heads.submodules if isinstance(layer, snt.Linear)}

    def stream(name: str) -> tf.Tensor:
        return layers[name](tf.nn.relu(layers[f"{name}_hidden"](features)))

    value, advantages = stream("value"), stream("advantages")
    mean = tf.reduce_mean(advantages, axis=-1, keepdims=True)
    np.testing.assert_allclose(found.policy_logits, value + advantages - mean, rtol=1e-5)
    np.testing.assert_allclose(
        found.baseline[:, 0], tf.reduce_max(found.policy_logits, -1), rtol=1e-6
    )


def test_errors_are_those_of_the_actors_own_q_values() -> None:
    """They are the first priorities of the steps (Ape-X, algorithm 1)."""
    config = resolved_config(algorithm="dqn", n_step=2, discounting=0.9, reward_clipping="none")
    spec = vector_spec(num_actions=A)
    agent = make_agent("MLPAgent", spec, heads="q_values")
    unroll = random_unrolls(unroll_specs(agent, spec, T), N)
    last = np.random.default_rng(1).normal(size=(N, A)).astype(np.float32)
    found = (
        QLearning(config, np.full(N, 0.1), np.zeros(N, int)).with_td_errors(unroll, last).td_errors
    )
    assert found.shape == (N, T) and found.dtype == np.float32
    seen = unroll.agent_outputs.policy_logits
    q_values = np.concatenate([seen, last[:, None]], axis=1)
    for env, t in np.ndindex(N, T):
        target = n_step_return(unroll.env_outputs, env, t, 2, 0.9)
        if target is not None:
            returns, discount, bootstrap = target
            action = unroll.agent_outputs.action[env, t]
            best = returns + discount * q_values[env, bootstrap].max()
            assert found[env, t] == pytest.approx(abs(best - seen[env, t, action]), abs=1e-4)


def test_games_of_curious_environments_are_not_reported() -> None:
    acting = QLearning(resolved_config(algorithm="dqn"), np.array([0.4, 0.01]), np.zeros(2, int))
    games = [Episode(1.0, 10, environment=0), Episode(2.0, 10, environment=1)]
    assert acting.reported(games) == games[1:]
