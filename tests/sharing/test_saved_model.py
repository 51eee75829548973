"""An exported SavedModel answers as its agent does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.environments import suites
from impala_tf.environments.observations import layout_of, parts_of
from impala_tf.sharing.saved_model import input_names, write
from impala_tf.types import EnvOutput
from tests.helpers.agents import make_agent
from tests.helpers.games import WORLDS, environment_of, level, pong

LEVELS = {
    "stacked frames": (pong(width=24, height=20, max_episode_frames=60), "ShallowConvNetLSTMAgent"),
    "continuous": (level("Pendulum-v1"), "MLPAgent"),
    "parts": (level(f"{WORLDS}:Everything-v0"), "ShallowConvNetAgent"),
    "odd names of parts": (level(f"{WORLDS}:Goals-v0"), "MLPAgent"),
}


@pytest.mark.parametrize("name", LEVELS)
def test_the_saved_model_answers_as_the_agent_does(name: str, tmp_path: Path) -> None:
    """With its normalisers, its core state and its last action."""
    env, agent_name = LEVELS[name]
    spec = suites.spec(env)
    agent = make_agent(agent_name, spec, observation_normalization="elementwise")
    rng = np.random.default_rng(0)
    for variable in agent.variables:
        variable.assign(np.abs(0.3 * rng.normal(size=variable.shape)))
    write(agent, spec, tmp_path / "export")
    act = tf.saved_model.load(str(tmp_path / "export")).signatures["greedy"]
    environment = environment_of(env, num_envs=3)
    env_output, state = environment.reset(), agent.initial_state(3)
    saved_state = {
        f"core_state_{n}": tf.constant(part) for n, part in enumerate(tf.nest.flatten(state))
    }
    for _ in range(5):
        inputs = {
            input_names(spec.observation)[part]: tf.constant(value)
            for part, value in parts_of(env_output.observation).items()
        }
        for field in ("reward", "last_action", "episode_start"):
            inputs[field] = tf.constant(getattr(env_output, field))
        found = act(**inputs, **saved_state)
        saved_state = {key: found[key] for key in saved_state}
        seen = EnvOutput(*tf.nest.map_structure(tf.constant, tuple(env_output)))
        outputs, state = agent.step(layout_of(spec).to_network(seen), state)
        np.testing.assert_allclose(found["policy_logits"], outputs.policy_logits, rtol=1e-4)
        np.testing.assert_allclose(found["baseline"], outputs.baseline[:, 0], rtol=1e-4)
        action = agent.distribution.mode(outputs.policy_logits).numpy()
        np.testing.assert_allclose(found["action"], action, rtol=1e-4)
        env_output = environment.step(action)
    environment.close()
