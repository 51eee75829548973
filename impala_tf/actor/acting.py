"""How an actor gets its actions: from a network of its own, or from its learner's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tree

from impala_tf.agents.interface import AgentInterface, array_specs
from impala_tf.environments.observations import layout_of
from impala_tf.transport import NestCodec
from impala_tf.types import AgentOutput, ArraySpec, EnvironmentSpec, EnvOutput, Nest

# How often an actor of a synchronous run asks for new parameters.
_POLL_S = 0.01


class Acting(Protocol):
    """Answers the steps of N environments."""

    @property
    def parameter_version(self) -> int:
        """The oldest version that has answered in this unroll; -1 before the first one."""

    def begin_unroll(self, should_stop: Callable[[], bool]) -> None:
        """Gets ready for an unroll, with newer parameters than in the last one if it must."""

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Returns the answer, NumPy arrays, and the core state after it.

        Args:
          env_output: NumPy arrays [N, ...].
          core_state: [N, ...] before the step, as returned for the step before.
        """


class Parameters(Protocol):
    """Where parameters come from (see `transport.ActorClient`)."""

    def fetch_parameters(self, known_version: int) -> tuple[int, list[np.ndarray]] | None:
        """Returns (parameter_version, arrays in the agent's variable order).

        None if `known_version` is the learner's current version; -1 (none yet) never is.
        """


class Network(Protocol):
    """Answers the steps of N environments with given parameters."""

    def set_parameters(self, arrays: list[np.ndarray]) -> None:
        """Takes new parameters, in the agent's variable order."""

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """See `Acting`."""


class OwnActing:
    """Acts with a network of its own.

    Args:
      network: gets the learner's parameters.
      parameters: where they come from.
      waits: whether every unroll is made with newer parameters than the last one.
      patience_s: how long it waits for them. Then the batch lacks the unrolls of a lost actor, and
        the other actors have to fill it.
    """

    def __init__(
        self,
        network: Network,
        parameters: Parameters,
        waits: bool = False,
        patience_s: float = 60.0,
    ) -> None:
        self._network = network
        self._parameters = parameters
        self._waits = waits
        self._patience_s = patience_s
        self._parameter_version = -1

    @property
    def parameter_version(self) -> int:
        """See `Acting`."""
        return self._parameter_version

    def begin_unroll(self, should_stop: Callable[[], bool]) -> None:
        """See `Acting`."""
        fetched = self._parameters.fetch_parameters(self._parameter_version)
        if fetched is None and self._waits:
            fetched = self._wait(should_stop)
        if fetched is None:
            return
        self._parameter_version, arrays = fetched
        self._network.set_parameters(arrays)

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """See `Acting`."""
        return self._network.answer(env_output, core_state)

    def _wait(self, should_stop: Callable[[], bool]) -> tuple[int, list[np.ndarray]] | None:
        """Returns newer parameters, or None after `patience_s`."""
        deadline = time.monotonic() + self._patience_s
        while time.monotonic() < deadline and not should_stop():
            time.sleep(_POLL_S)
            fetched = self._parameters.fetch_parameters(self._parameter_version)
            if fetched is not None:
                return fetched
        return None


class Codecs(NamedTuple):
    """What an actor asks its learner for actions with, and what it gets; without the leading N."""

    question: NestCodec  # of (EnvOutput, core state before the step)
    answer: NestCodec  # of (AgentOutput, core state after it)


def codecs(interface: AgentInterface, spec: EnvironmentSpec) -> Codecs:
    """Returns the codecs of an agent's questions and answers on a level."""

    def without_n(nest: Nest) -> Nest:
        return tree.map_structure(lambda each: ArraySpec(each.shape[1:], each.dtype), nest)

    step = array_specs(interface, spec, 1)
    env_output = without_n(layout_of(spec).step_specs(1))
    agent_output = without_n(step.agent_outputs)  # [T, ...] with T = 1
    return Codecs(
        NestCodec((env_output, step.core_state)), NestCodec((agent_output, step.core_state))
    )


class Inference(Protocol):
    """Who chooses actions (see `transport.ActorClient`)."""

    def infer(
        self, num_environments: int, tensors: Sequence[bytes], known_version: int
    ) -> tuple[int, Sequence[bytes]]:
        """Returns the parameter_version that chose, and an encoded answer."""


class LearnerActing:
    """Acts with the newest parameters of the learner, which computes for all of its actors.

    Args:
      inference: the learner's.
      codecs: of the agent on the level.
      waits: whether every unroll begins with newer parameters than the last one did.
    """

    def __init__(self, inference: Inference, codecs: Codecs, waits: bool = False) -> None:
        self._inference = inference
        self._codecs = codecs
        self._waits = waits
        self._parameter_version = -1
        self._is_first = True

    @property
    def parameter_version(self) -> int:
        """See `Acting`."""
        return self._parameter_version

    def begin_unroll(self, should_stop: Callable[[], bool]) -> None:
        """See `Acting`."""
        self._is_first = True

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """See `Acting`."""
        known = self._parameter_version if self._waits and self._is_first else -1
        num_envs, question = self._codecs.question.encode((env_output, core_state))
        version, tensors = self._inference.infer(num_envs, question, known)
        if self._is_first:
            self._parameter_version, self._is_first = version, False
        answer: tuple[AgentOutput, Nest] = self._codecs.answer.decode(num_envs, tensors)
        return answer
