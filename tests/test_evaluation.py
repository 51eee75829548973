"""Playing whole games with what was trained, and what is said of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.agent import make_agent
from impala_tf.agents.policy import compile_policy
from impala_tf.config import EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.observations import layout_of
from impala_tf.evaluation import play
from impala_tf.types import AgentOutput, EnvOutput, Episode, Nest

CARTPOLE = EnvironmentConfig(level_name="CartPole-v1")
PONG = EnvironmentConfig(
    level_name="PongNoFrameskip-v4", max_episode_frames=60, noop_max=3, width=24, height=20
)
SCRIPTED = EnvironmentConfig(level_name="tests.worlds:Scripted-v0")


class Played(BatchedEnvironment):
    """A stream that remembers what it showed and which actions it was told."""

    def __init__(self, env: EnvironmentConfig, num_envs: int) -> None:
        super().__init__(suites.make(env, num_envs, seed=5))
        self.shown: list[EnvOutput] = []
        self.actions: list[np.ndarray] = []

    def reset(self) -> EnvOutput:
        self.shown.append(copy.deepcopy(super().reset()))
        return self.shown[-1]

    def step(self, actions: np.ndarray) -> EnvOutput:
        self.actions.append(actions.copy())
        self.shown.append(copy.deepcopy(super().step(actions)))
        return self.shown[-1]


def always_0(env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
    num_envs = len(env_output.reward)
    return AgentOutput(tf.zeros(num_envs, tf.int32), tf.zeros((num_envs, 2))), core_state


class Lengths:
    """N environments that reward a step with 1; game k of environment n lasts lengths[n] steps."""

    def __init__(self, *lengths: int) -> None:
        self._lengths = np.array(lengths)
        self.steps = 0

    def _output(self, reward: np.ndarray, ended: np.ndarray, fresh: np.ndarray) -> EnvOutput:
        nowhere = np.zeros_like(ended)
        return EnvOutput(
            reward=reward.astype(np.float32),
            terminated=ended,
            truncated=nowhere,
            autoreset=fresh,
            episode_start=fresh,
            observation=np.zeros((len(ended), 1), np.float32),
            last_action=np.zeros(len(ended), np.int32),
        )

    def reset(self) -> EnvOutput:
        self._at = np.zeros_like(self._lengths)
        everywhere = np.ones(len(self._lengths), np.bool_)
        return self._output(np.zeros(len(self._lengths)), ~everywhere, everywhere)

    def step(self, actions: np.ndarray) -> EnvOutput:
        self.steps += 1
        fresh = self._at == self._lengths
        self._at = np.where(fresh, 0, self._at + 1)
        return self._output(~fresh, self._at == self._lengths, fresh)


def games(steps: Iterator[Episode | None]) -> list[Episode]:
    return [episode for episode in steps if episode is not None]


def test_every_environment_plays_its_share() -> None:
    """Taking whichever games end first would report the short ones: the lost ones, often."""
    stream = Lengths(2, 9, 4)
    found = games(play.play(always_0, (), stream, num_envs=3, num_episodes=8))
    assert sorted(found) == [Episode(2.0, 2)] * 3 + [Episode(4.0, 4)] * 2 + [Episode(9.0, 9)] * 3
    # As long as the slowest share, with a reset after each game, and not a step longer.
    assert stream.steps == 3 * (9 + 1)


@pytest.mark.parametrize(("num_envs", "num_episodes"), [(1, 1), (1, 3), (2, 1), (3, 3), (2, 5)])
def test_as_many_games_as_asked_for(num_envs: int, num_episodes: int) -> None:
    stream = Lengths(*range(3, 3 + num_envs))
    found = games(play.play(always_0, (), stream, num_envs, num_episodes))
    assert len(found) == num_episodes


def test_returns_and_lengths_are_the_games_own() -> None:
    """Cut, lost or both; rewards 1, 2, 3, ... over 3, 2 and 4 steps. A reset is no step."""
    stream = Played(SCRIPTED, num_envs=1)
    found = games(play.play(always_0, (), stream, 1, 4))
    stream.close()
    assert found == [Episode(6.0, 3), Episode(3.0, 2), Episode(10.0, 4), Episode(6.0, 3)]


def test_what_is_reported_is_what_training_reports() -> None:
    """The same games, counted by the actors' way of counting: scores can be compared."""
    stream = Played(CARTPOLE, num_envs=1)
    agent = make_agent("MLPAgent", suites.spec(CARTPOLE))
    act = compile_policy(agent, suites.spec(CARTPOLE), 1, seed=1)
    found = games(play.play(act, agent.initial_state(1), stream, 1, 5))
    assert found == stream.pop_episodes()
    stream.close()


@pytest.mark.parametrize(
    ("env", "agent_name"),
    [(CARTPOLE, "MLPLSTMAgent"), (PONG, "ResNetLSTMAgent")],
    ids=["vector", "stacked frames"],
)
def test_greedy_games_take_the_likeliest_action_of_the_agents_own_memory(
    env: EnvironmentConfig, agent_name: str
) -> None:
    """An evaluation that loses the core state, or swaps channels, plays worse than training."""
    spec = suites.spec(env)
    agent = make_agent(agent_name, spec)
    rng = np.random.default_rng(1)
    for variable in agent.trainable_variables:
        variable.assign(0.3 * rng.normal(size=variable.shape))
    act = compile_policy(agent, spec, 2, seed=1, choice="greedy")
    stream = Played(env, num_envs=2)
    assert len(games(play.play(act, agent.initial_state(2), stream, 2, 2))) == 2
    stream.close()
    state = agent.initial_state(2)
    for shown, actions in zip(stream.shown, stream.actions, strict=False):
        seen = layout_of(spec).to_network(tf.nest.map_structure(tf.constant, shown))
        outputs, state = agent.step(seen, state)
        np.testing.assert_array_equal(actions, np.argmax(outputs.policy_logits, axis=-1))
    assert len(stream.actions) >= 8
    assert len({tuple(actions) for actions in stream.actions}) > 1


def test_sampled_games_follow_the_policy_and_the_seed() -> None:
    """--test_policy=sampled must not be greedy in disguise, and --seed must repeat it."""
    spec = suites.spec(CARTPOLE)
    agent = make_agent("MLPAgent", spec)

    def played(choice: Literal["greedy", "sampled"], seed: int) -> list[list[int]]:
        act = compile_policy(agent, spec, 2, seed, choice)
        stream = Played(CARTPOLE, num_envs=2)
        games(play.play(act, agent.initial_state(2), stream, 2, 2))
        stream.close()
        return [actions.tolist() for actions in stream.actions]

    assert played("sampled", 1) == played("sampled", 1)
    assert played("sampled", 1) != played("sampled", 2)
    assert played("greedy", 1) == played("greedy", 2)
    assert played("greedy", 1) != played("sampled", 1)


def test_each_step_can_be_filmed() -> None:
    """A video shows None after None: the game from first to last picture, none of the next one."""
    stream = Lengths(4)
    filmed = []
    for episode in play.play(always_0, (), stream, 1, 1):
        filmed.append(stream.steps if episode is None else episode)
    assert filmed == [0, 1, 2, 3, 4, Episode(4.0, 4)]


def test_summary() -> None:
    found = play.summary([Episode(1.0, 10), Episode(2.0, 20), Episode(6.0, 30)])
    assert found == {
        "num_episodes": 3,
        "mean": 3.0,
        "median": 2.0,
        "std": pytest.approx(7.0**0.5),  # of the sample: (4 + 1 + 9) / 2
        "min": 1.0,
        "max": 6.0,
        "episode_returns": [1.0, 2.0, 6.0],
        "episode_lengths": [10, 20, 30],
    }


def test_summary_of_one_game_has_no_spread() -> None:
    assert play.summary([Episode(5.0, 1)])["std"] == 0.0
