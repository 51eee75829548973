"""An actor in real environments, with a learner that only records what it receives."""

from __future__ import annotations

import copy
import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tree

from impala_tf.actor.acting import OwnActing
from impala_tf.actor.actor import Actor, UnrollBuffer
from impala_tf.agents.agent import Agent
from impala_tf.agents.policy import OwnNetwork
from impala_tf.config import EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.observations import layout_of
from impala_tf.types import ActorReport, EnvironmentSpec, EnvOutput, Episode, Nest, Unroll
from tests.helpers.agents import make_agent
from tests.helpers.games import environment_of

pytestmark = pytest.mark.xdist_group("actor")

T, UNROLLS = 5, 8

# Games of a few steps, so that they start and end everywhere in an unroll.
PONG = EnvironmentConfig(
    level_name="PongNoFrameskip-v4", max_episode_frames=30, noop_max=5, width=24, height=20
)
CARTPOLE = EnvironmentConfig(level_name="CartPole-v1")
PICTURES = EnvironmentConfig(level_name="tests.helpers.worlds:Pictures-v0")


class Spy:
    """An environment that records what it showed and which actions it received."""

    restarts = 0

    def __init__(self, env: EnvironmentConfig, num_envs: int) -> None:
        self._environment = environment_of(env, num_envs, 3)
        self.close = self._environment.close
        self.shown: list[EnvOutput] = []
        self.actions: list[np.ndarray] = []

    def reset(self) -> EnvOutput:
        return self._show(self._environment.reset())

    def step(self, actions: np.ndarray) -> EnvOutput:
        self.actions.append(actions.copy())
        return self._show(self._environment.step(actions))

    def pop_episodes(self) -> list[Episode]:
        return self._environment.pop_episodes()

    def _show(self, env_output: EnvOutput) -> EnvOutput:
        self.shown.append(copy.deepcopy(env_output))
        return env_output


class FakeLearner:
    """Answers parameter requests from a script, and copies what is pushed."""

    def __init__(self, script: list[tuple[int, list[np.ndarray]] | None]) -> None:
        self._script = iter(script)
        self.asked: list[int] = []
        self.unrolls: list[Unroll] = []
        self.episodes: list[list[Episode]] = []
        self.reports: list[ActorReport] = []

    def fetch_parameters(self, known_version: int) -> tuple[int, list[np.ndarray]] | None:
        self.asked.append(known_version)
        return next(self._script)

    def push(self, unroll: Unroll, episodes: list[Episode], report: ActorReport) -> None:
        self.unrolls.append(copy.deepcopy(unroll))
        self.episodes.append(episodes)
        self.reports.append(report)


class Played(NamedTuple):
    spec: EnvironmentSpec
    agent_name: str
    num_envs: int
    learner: FakeLearner
    environment: Spy


def parameters(agent: Agent, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [0.1 * rng.normal(size=v.shape).astype(np.float32) for v in agent.trainable_variables]


def play(env: EnvironmentConfig, agent_name: str, num_envs: int, **options: Any) -> Played:
    """Acts for UNROLLS unrolls; there are new parameters before the first, third and sixth."""
    spec = suites.spec(env)
    agent = make_agent(agent_name, spec)
    script = {
        0: (3, parameters(agent, 3)),
        2: (4, parameters(agent, 4)),
        5: (9, parameters(agent, 9)),
    }
    learner = FakeLearner([script.get(unroll) for unroll in range(UNROLLS)])
    environment = Spy(env, num_envs)
    try:
        acting = OwnActing(OwnNetwork(agent, spec, num_envs, 7), learner.fetch_parameters)
        buffer = UnrollBuffer(agent.interface, spec, T, np.zeros(num_envs, np.int32))
        actor = Actor(agent.interface, acting, environment, buffer, learner.push, **options)
        actor.run(lambda: len(learner.unrolls) == UNROLLS)
    finally:
        environment.close()
    return Played(spec, agent_name, num_envs, learner, environment)


@pytest.fixture(
    scope="module",
    params=[
        (PONG, "ResNetLSTMAgent", 2),
        (CARTPOLE, "MLPLSTMAgent", 3),
        (PICTURES, "ImpoolaAgent", 1),
    ],
    ids=lambda param: f"{param[0].level_name}-{param[1]}",
)
def played(request: pytest.FixtureRequest) -> Played:
    return play(*request.param)


def observations(played: Played, unroll: Unroll) -> np.ndarray:
    """Returns an unroll's observations as the learner sees them, [T + 1, N, ...]."""
    env_outputs = tree.map_structure(tf.constant, unroll.env_outputs)
    return layout_of(played.spec).time_major(env_outputs).observation.numpy()


def as_seen(step: EnvOutput, spec: EnvironmentSpec) -> EnvOutput:
    """Returns a step as the network sees it."""
    return layout_of(spec).to_network(tree.map_structure(tf.constant, step))


def test_unrolls_contain_every_step_in_order(played: Played) -> None:
    """A step that is lost, doubled or shifted between unrolls would teach wrong consequences."""
    shown = played.environment.shown
    assert len(shown) == UNROLLS * T + 1
    assert sum(step.autoreset.any() for step in shown[1:]) >= 2
    for k, unroll in enumerate(played.learner.unrolls):
        seen = observations(played, unroll)
        # T + 1 steps from k * T: the last one is also the first of the next unroll.
        for t, step in enumerate(shown[k * T : (k + 1) * T + 1]):
            for name in EnvOutput._fields:
                if name != "observation":
                    recorded = getattr(unroll.env_outputs, name)[:, t]
                    assert recorded.dtype == getattr(step, name).dtype
                    np.testing.assert_array_equal(recorded, getattr(step, name), name)
            np.testing.assert_array_equal(seen[t], as_seen(step, played.spec).observation)


def test_recorded_actions_are_those_that_the_environments_received(played: Played) -> None:
    """Learning from other actions would be noise, and nothing would crash."""
    taken = iter(played.environment.actions)
    for unroll in played.learner.unrolls:
        for t in range(T):
            action = unroll.agent_outputs.action[:, t]
            np.testing.assert_array_equal(action, next(taken))
            np.testing.assert_array_equal(unroll.env_outputs.last_action[:, t + 1], action)
    assert next(taken, None) is None
    assert len({tuple(actions) for actions in played.environment.actions}) > 1


def test_behaviour_policy_and_core_state_can_be_recomputed(played: Played) -> None:
    """V-trace needs the logits of the parameters that were used."""
    agent = make_agent(played.agent_name, played.spec)
    state = agent.initial_state(played.num_envs)
    step = agent.step
    for k, unroll in enumerate(played.learner.unrolls):
        version = 9 if k >= 5 else 4 if k >= 2 else 3
        np.testing.assert_array_equal(unroll.parameter_version, [version] * played.num_envs)
        assign(agent, parameters(agent, version))
        assert_close(unroll.core_state, state)
        for t in range(T):
            seen = as_seen(played.environment.shown[k * T + t], played.spec)
            outputs, state = step(tf.nest.map_structure(tf.constant, seen), state)
            assert_close(unroll.agent_outputs.policy_logits[:, t], outputs.policy_logits)


def assign(agent: Agent, arrays: list[np.ndarray]) -> None:
    for variable, array in zip(agent.trainable_variables, arrays, strict=True):
        variable.assign(array)


def assert_close(got: Nest, expected: Nest) -> None:
    tf.nest.assert_same_structure(got, expected)
    for one, other in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_newer_parameters_are_requested_once_per_unroll(played: Played) -> None:
    """More often costs network traffic; less often makes the parameters staler."""
    assert played.learner.asked == [-1, 3, 3, 4, 4, 4, 9, 9]


def test_every_episode_is_reported_once(played: Played) -> None:
    """Otherwise the curve of returns would be wrong."""
    reported = list(itertools.chain(*played.learner.episodes))
    expected = []
    for n in range(played.num_envs):
        rewards: list[float] = []
        for step in played.environment.shown[1:]:
            if not step.autoreset[n]:
                rewards.append(float(step.reward[n]))
            if step.terminated[n] or step.truncated[n]:
                expected.append(Episode(sum(rewards), len(rewards), n))
                rewards = []
    assert sorted(reported) == sorted(expected)
    assert len(expected) >= 2


def test_every_unroll_reports_how_fast_the_previous_one_was(played: Played) -> None:
    """`impala cluster status` shows it."""
    first, *others = played.learner.reports
    assert first == ActorReport()
    assert all(each.agent_steps_per_s > 0 for each in others)
    assert all(each.environment_fraction > 0 < each.inference_fraction for each in others)


def test_every_step_of_the_environments_is_a_sign_of_life() -> None:
    """An unroll of a slow level may take minutes."""
    lives: list[None] = []
    play(CARTPOLE, "MLPAgent", 1, on_step=lambda: lives.append(None))
    assert len(lives) == UNROLLS * T
