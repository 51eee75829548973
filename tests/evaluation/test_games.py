"""An evaluation plays whole games and summarises them."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.policy import compile_policy
from impala_tf.config import EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.observations import layout_of
from impala_tf.evaluation.games import CutGame, play, summary
from impala_tf.types import AgentOutput, EnvOutput, Episode, Nest
from tests.helpers.agents import make_agent
from tests.helpers.games import environment_of

LEVEL = "Level-v0"
CARTPOLE = EnvironmentConfig(level_name="CartPole-v1")
PONG = EnvironmentConfig(
    level_name="PongNoFrameskip-v4", max_episode_frames=60, noop_max=3, width=24, height=20
)


def always_0(env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
    num_envs = len(env_output.reward)
    return AgentOutput(tf.zeros(num_envs, tf.int32), tf.zeros((num_envs, 2))), core_state


class Lengths:
    """N environments with reward 1 per step; every game of environment n lasts lengths[n] steps."""

    restarts = 0

    def __init__(self, *lengths: int) -> None:
        self._lengths = np.array(lengths)
        self.steps = 0
        self._episodes: list[Episode] = []

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
        ended = self._at == self._lengths
        for n in np.flatnonzero(ended):
            self._episodes.append(Episode(float(self._at[n]), int(self._at[n]), int(n)))
        return self._output(~fresh, ended, fresh)

    def pop_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes


def games(steps: Iterator[Episode | None]) -> list[Episode]:
    return [episode for episode in steps if episode is not None]


def test_every_environment_plays_the_same_number_of_games() -> None:
    """The games that end first are the short ones, so taking those would bias the result."""
    environment = Lengths(2, 9, 4)
    found = games(play(always_0, (), environment, 3, 8, LEVEL))
    played = [Episode(2.0, 2, 0)] * 3 + [Episode(4.0, 4, 2)] * 2 + [Episode(9.0, 9, 1)] * 3
    assert sorted(found) == played
    # It lasts as long as the slowest environment needs, with a reset step between its games.
    assert environment.steps == 3 * 9 + 2


@pytest.mark.parametrize(
    ("env", "agent_name"),
    [(CARTPOLE, "MLPLSTMAgent"), (PONG, "ResNetLSTMAgent")],
    ids=["vector", "stacked frames"],
)
def test_greedy_games_take_the_most_likely_action_and_keep_the_core_state(
    env: EnvironmentConfig, agent_name: str
) -> None:
    """An evaluation that loses the core state or swaps channels would play worse."""
    spec = suites.spec(env)
    agent = make_agent(agent_name, spec)
    rng = np.random.default_rng(1)
    for variable in agent.trainable_variables:
        variable.assign(0.3 * rng.normal(size=variable.shape))
    act = compile_policy(agent, spec, 2, seed=1, choice="greedy")
    played: list[tuple[EnvOutput, np.ndarray]] = []

    def recorded(shown: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        shown = copy.deepcopy(shown)
        answer, core_state = act(shown, core_state)
        played.append((shown, np.array(answer.action)))
        return answer, core_state

    environment = environment_of(env, num_envs=2)
    assert len(games(play(recorded, agent.initial_state(2), environment, 2, 2, LEVEL))) == 2
    environment.close()
    state = agent.initial_state(2)
    for shown, actions in played:
        seen = layout_of(spec).to_network(tf.nest.map_structure(tf.constant, shown))
        outputs, state = agent.step(seen, state)
        np.testing.assert_array_equal(actions, np.argmax(outputs.policy_logits, axis=-1))
    assert len(played) >= 8
    assert len({tuple(actions) for _, actions in played}) > 1


NEVER = 10**9


@pytest.mark.parametrize(
    ("lengths", "num_episodes", "expected", "steps"),
    [
        ((NEVER,), 2, [CutGame(7.0, 7, 0)] * 2, 7 + 7),
        ((7,), 1, [Episode(7.0, 7, 0)], 7),
        ((3, NEVER), 4, [Episode(3.0, 3, 0)] * 2 + [CutGame(7.0, 7, 1)] * 2, 7 + 7),
        # What the other one was playing when a game was cut, 2 steps, does not count.
        ((9, 4), 6, [CutGame(7.0, 7, 0)] * 3 + [Episode(4.0, 4, 1)] * 3, 7 + 7 + 7),
    ],
    ids=str,
)
def test_games_that_do_not_end_are_cut(
    lengths: tuple[int, ...], num_episodes: int, expected: list[Episode], steps: int
) -> None:
    """An evaluation of a level without a time limit would never end, nor would its video."""
    environment, num_envs = Lengths(*lengths), len(lengths)
    found = games(play(always_0, (), environment, num_envs, num_episodes, LEVEL, longest=7))
    found.sort(key=lambda game: game.environment)
    assert found == expected
    assert [type(game) for game in found] == [type(game) for game in expected]
    assert environment.steps == steps


def test_play_yields_once_per_frame_of_a_video() -> None:
    """From the first to the last frame of the game, and no frame of the next one."""
    environment = Lengths(4)
    filmed = []
    for episode in play(always_0, (), environment, 1, 1, LEVEL):
        filmed.append(environment.steps if episode is None else episode)
    assert filmed == [0, 1, 2, 3, 4, Episode(4.0, 4)]


def test_a_summary_has_mean_median_spread_and_every_episode() -> None:
    found = summary([Episode(1.0, 10), Episode(2.0, 20), Episode(6.0, 30)])
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
    assert summary([Episode(5.0, 1)])["std"] == 0.0
