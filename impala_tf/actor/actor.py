"""The actor: steps N environments with one batched inference per step, and sends unrolls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import tree

from impala_tf.actor.acting import Acting
from impala_tf.agents.exploration import QLearning
from impala_tf.agents.interface import AgentInterface, array_specs
from impala_tf.agents.n_step_returns import played_steps
from impala_tf.environments.observations import layout_of
from impala_tf.types import (
    ActorReport,
    AgentOutput,
    ArraySpec,
    EnvironmentSpec,
    EnvOutput,
    Episode,
    Nest,
    Unroll,
)


class Environment(Protocol):
    """N environments (see `environments.batched.BatchedEnvironment`)."""

    restarts: int  # of environments that broke

    def reset(self) -> EnvOutput: ...  # noqa: D102
    def step(self, actions: np.ndarray) -> EnvOutput: ...  # noqa: D102
    def pop_episodes(self) -> list[Episode]: ...  # noqa: D102


Push = Callable[[Unroll, list[Episode], ActorReport], None]
"""Sends an unroll, whose arrays may be overwritten after the call. See `ActorClient.push`."""


class UnrollBuffer:
    """Arrays of one unroll of N environments, filled step by step and reused.

    Args:
      interface: the agent's interface, which says what unrolls consist of.
      spec: the level's specification.
      length: T.
      levels: int32 [N], the level of each environment.

    Attributes:
      length, num_envs: T and N.
    """

    def __init__(
        self, interface: AgentInterface, spec: EnvironmentSpec, length: int, levels: np.ndarray
    ) -> None:
        def empty(spec: ArraySpec) -> np.ndarray:
            return np.empty((len(levels), *spec.shape), spec.dtype)

        specs = array_specs(interface, spec, length)
        self.length, self.num_envs = length, len(levels)
        self._layout = layout_of(spec)
        self._levels = levels
        self._env_outputs = tree.map_structure(empty, specs.env_outputs)
        self._agent_outputs = tree.map_structure(empty, specs.agent_outputs)
        self._parameter_version = np.empty((len(levels),), np.int64)

    def record_env(self, t: int, env_output: EnvOutput) -> None:
        """Stores the environments' output of step t of 0..T."""
        self._layout.record(t, env_output, self._env_outputs)

    def record_agent(self, t: int, agent_output: AgentOutput) -> None:
        """Stores the agent's answer at step t of 0..T - 1."""
        for array, value in zip(self._agent_outputs, agent_output, strict=True):
            array[:, t] = value

    def unroll(self, parameter_version: int, core_state: Nest) -> Unroll:
        """Returns the buffer's own arrays, not copies."""
        self._parameter_version.fill(parameter_version)
        return Unroll(
            self._parameter_version,
            core_state,
            self._env_outputs,
            self._agent_outputs,
            self._levels,
        )


class Actor:
    """Steps N environments and sends unrolls of T decisions.

    Args:
      interface: the agent's interface.
      acting: chooses the actions.
      environment: N environments.
      buffer: records the unrolls.
      push: sends unrolls to the learner.
      q_learning: how an agent with Q-values explores, and how its TD errors are computed.
      on_step: called after every step of the environments.
    """

    def __init__(
        self,
        interface: AgentInterface,
        acting: Acting,
        environment: Environment,
        buffer: UnrollBuffer,
        push: Push,
        q_learning: QLearning | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._interface = interface
        self._acting = acting
        self._environment = environment
        self._buffer = buffer
        self._push = push
        self._q_learning = q_learning
        self._on_step = on_step
        self._environment_s = self._inference_s = 0.0  # in the current unroll

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Acts until `should_stop`. Does not catch the exceptions by which `push` ends a run."""
        env_output = self._environment.reset()
        core_state = self._interface.initial_state(self._buffer.num_envs)
        report = ActorReport()
        while not should_stop():
            started = time.monotonic()
            self._acting.begin_unroll(should_stop)
            unroll, env_output, core_state = self._unroll(env_output, core_state)
            self._push(unroll, self._episodes(), report)
            report = self._report(played_steps(unroll), time.monotonic() - started)

    def _episodes(self) -> list[Episode]:
        episodes = self._environment.pop_episodes()
        return episodes if self._q_learning is None else self._q_learning.reported(episodes)

    def _report(self, num_played: int, elapsed_s: float) -> ActorReport:
        # Includes waits for the learner: this is the rate that the run gets from this actor.
        rate = num_played / elapsed_s
        shares = (self._environment_s / elapsed_s, self._inference_s / elapsed_s)
        self._environment_s = self._inference_s = 0.0
        return ActorReport(rate, *shares, self._environment.restarts)

    def _unroll(self, env_output: EnvOutput, core_state: Nest) -> tuple[Unroll, EnvOutput, Nest]:
        """Returns an unroll, and the step and core state that the next unroll starts with."""
        core_state_before = tree.map_structure(np.asarray, core_state)
        for t in range(self._buffer.length):
            self._buffer.record_env(t, env_output)
            began = time.perf_counter()
            agent_output, core_state = self._acting.answer(env_output, core_state)
            answered = time.perf_counter()
            self._buffer.record_agent(t, agent_output)
            env_output = self._environment.step(agent_output.action)
            self._inference_s += answered - began
            self._environment_s += time.perf_counter() - answered
            self._on_step()
        # The step after the last decision: used for bootstrapping here, and step 0 of the next
        # unroll.
        self._buffer.record_env(self._buffer.length, env_output)
        unroll = self._buffer.unroll(self._acting.parameter_version, core_state_before)
        return self._with_td_errors(unroll, env_output, core_state), env_output, core_state

    def _with_td_errors(self, unroll: Unroll, env_output: EnvOutput, core_state: Nest) -> Unroll:
        if self._q_learning is None:
            return unroll
        if not self._q_learning.sends_errors:  # saves a step of the network
            return self._q_learning.without_td_errors(unroll)
        last_q_values = self._acting.answer(env_output, core_state)[0].policy_logits
        return self._q_learning.with_td_errors(unroll, last_q_values)
