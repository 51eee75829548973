"""The actor: steps a vector of environments with one batched inference a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import tensorflow as tf

from impala_tf import agents, frame_stack
from impala_tf.types import (
    AgentOutput,
    EnvironmentSpec,
    EnvOutput,
    Episode,
    Nest,
    Unroll,
)


class Stream(Protocol):
    """N environments (see `environments.stream.EnvStream`)."""

    def reset(self) -> EnvOutput: ...  # noqa: D102
    def step(self, actions: np.ndarray) -> EnvOutput: ...  # noqa: D102
    def pop_episodes(self) -> list[Episode]: ...  # noqa: D102


class Learner(Protocol):
    """Who the actor works for (see `transport.ActorClient`)."""

    def parameters(self, newer_than: int) -> tuple[int, list[np.ndarray]] | None:
        """Returns (version, arrays in the agent's variable order), or None if nothing is newer."""

    def push(self, unroll: Unroll, episodes: list[Episode], agent_steps_per_s: float) -> None:
        """Takes an unroll; the arrays may be reused when it returns."""


class UnrollBuffer:
    """Arrays of one unroll, filled step by step and reused.

    Args:
      specs: an Unroll of tf.TensorSpec without the leading dimension.
      num_envs: N.
      stacked_frames: K; 0 where observations are stored whole.
    """

    def __init__(self, specs: Unroll, num_envs: int, stacked_frames: int) -> None:
        def empty(spec: tf.TensorSpec) -> np.ndarray:
            return np.empty((num_envs, *spec.shape), spec.dtype.as_numpy_dtype)

        self._env_outputs = EnvOutput(*map(empty, specs.env_outputs))
        self._agent_outputs = AgentOutput(*map(empty, specs.agent_outputs))
        self._stacked_frames = stacked_frames
        self._version = np.empty((num_envs,), np.int64)

    def record_env(self, t: int, env_output: EnvOutput) -> None:
        """Stores what the agent sees at step t of 0..T."""
        for array, value in zip(self._env_outputs[:-2], env_output[:-2], strict=True):
            array[:, t] = value
        self._env_outputs.last_action[:, t] = env_output.last_action
        frames, shown = self._env_outputs.observation, env_output.observation
        if not self._stacked_frames:
            frames[:, t] = shown
        elif t == 0:
            frames[:, : self._stacked_frames] = shown
        else:
            frames[:, self._stacked_frames - 1 + t] = frame_stack.newest(shown)

    def record_agent(self, t: int, agent_output: AgentOutput) -> None:
        """Stores what the agent answers at step t of 0..T - 1."""
        for array, value in zip(self._agent_outputs, agent_output, strict=True):
            array[:, t] = value

    def unroll(self, version: int, core_state: Nest) -> Unroll:
        """Returns the filled arrays, not a copy."""
        self._version.fill(version)
        return Unroll(self._version, core_state, self._env_outputs, self._agent_outputs)


def compile_act(
    agent: agents.Agent, spec: EnvironmentSpec, num_envs: int, seed: int
) -> Callable[[EnvOutput, Nest], tuple[AgentOutput, Nest]]:
    """Returns the compiled step: what N environments show -> sampled answers, next core state."""
    generator = tf.random.Generator.from_seed(seed)

    @tf.function(input_signature=step_signature(agent, spec, num_envs))
    def act(env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        network_output, core_state = agent.step(as_seen(env_output, spec), core_state)
        logits = network_output.policy_logits
        return AgentOutput(agents.sample_actions(logits, generator), logits), core_state

    concrete = act.get_concrete_function()

    def step(env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        # Called with tensors, the concrete function need not look at what it is given, which would
        # be a third of a step.
        return concrete(EnvOutput(*map(tf.constant, env_output)), core_state)

    return step


def as_seen(env_output: EnvOutput, spec: EnvironmentSpec) -> EnvOutput:
    """Returns a step with its observation as the agent sees it, channels last."""
    if not spec.stacked_frames:
        return env_output
    return env_output._replace(observation=frame_stack.to_channels_last(env_output.observation))


def step_signature(
    agent: agents.Agent, spec: EnvironmentSpec, num_envs: int
) -> tuple[EnvOutput, Nest]:
    """Returns the tf.TensorSpecs of a step of N environments and of the core state before it."""
    shape = spec.observation_shape
    if spec.stacked_frames:  # environments put the stack first
        shape = (shape[-1], *shape[:-1])
    flag = tf.TensorSpec((num_envs,), tf.bool)
    env_output = EnvOutput(
        reward=tf.TensorSpec((num_envs,), tf.float32),
        terminated=flag,
        truncated=flag,
        autoreset=flag,
        episode_start=flag,
        observation=tf.TensorSpec((num_envs, *shape), spec.observation_dtype),
        last_action=tf.TensorSpec((num_envs,), tf.int32),
    )
    state = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), agent.initial_state(num_envs)
    )
    return env_output, state


class Actor:
    """Steps N environments and sends unrolls of T decisions.

    Args:
      agent: its variables are overwritten with the learner's parameters.
      stream: the environments.
      learner: where parameters come from and unrolls go.
      spec: of the level.
      num_envs: N.
      unroll_length: T.
      seed: of the actions drawn.
    """

    def __init__(
        self,
        agent: agents.Agent,
        stream: Stream,
        learner: Learner,
        spec: EnvironmentSpec,
        num_envs: int,
        unroll_length: int,
        seed: int,
    ) -> None:
        self._agent = agent
        self._stream = stream
        self._learner = learner
        self._num_envs = num_envs
        self._unroll_length = unroll_length
        self._act = compile_act(agent, spec, num_envs, seed)
        specs = agents.unroll_specs(agent, spec, unroll_length)
        self._buffer = UnrollBuffer(specs, num_envs, spec.stacked_frames)
        self._version = -1

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Acts until told to stop; what the learner raises (the run is over) passes through."""
        env_output = self._stream.reset()
        core_state = self._agent.initial_state(self._num_envs)
        rate = 0.0
        while not should_stop():
            self._refresh_parameters()
            started = time.monotonic()
            unroll, env_output, core_state = self._unroll(env_output, core_state)
            self._learner.push(unroll, self._stream.pop_episodes(), rate)
            # The wait inside push counts: this is the rate that the run gets from this actor.
            rate = self._num_envs * self._unroll_length / (time.monotonic() - started)

    def _refresh_parameters(self) -> None:
        newer = self._learner.parameters(newer_than=self._version)
        if newer is None:
            return
        self._version, arrays = newer
        for variable, array in zip(self._agent.trainable_variables, arrays, strict=True):
            variable.assign(array)

    def _unroll(self, env_output: EnvOutput, core_state: Nest) -> tuple[Unroll, EnvOutput, Nest]:
        """Returns T decisions, and the step and core state that the next unroll begins with."""
        core_state_before = tf.nest.map_structure(lambda t: t.numpy(), core_state)
        for t in range(self._unroll_length):
            self._buffer.record_env(t, env_output)
            answer, core_state = self._act(env_output, core_state)
            agent_output = AgentOutput(answer.action.numpy(), answer.policy_logits.numpy())
            self._buffer.record_agent(t, agent_output)
            env_output = self._stream.step(agent_output.action)
        # The step after the last decision: it bootstraps here and is step 0 of the next unroll.
        self._buffer.record_env(self._unroll_length, env_output)
        return self._buffer.unroll(self._version, core_state_before), env_output, core_state
