"""How an actor chooses actions: with its own network, or by asking its learner."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tree

from impala_tf.agents.interface import AgentInterface, array_specs
from impala_tf.environments.observations import layout_of
from impala_tf.transport import NestCodec
from impala_tf.types import AgentOutput, ArraySpec, EnvironmentSpec, EnvOutput, Nest

_POLL_S = 0.01  # between requests for new parameters in a synchronous run
_MOST = 10.0  # the longest wait, as a multiple of the patience

FetchParameters = Callable[[int], tuple[int, list[Any]] | None]
"""Takes the version that the actor has, -1 if none. Returns the newest version and its arrays in
the agent's variable order, or None if the actor has that version already. See
`ActorClient.fetch_parameters`."""
Infer = Callable[[int, Sequence[bytes], int], tuple[int, Sequence[bytes]]]
"""Takes N, an encoded question, and a version that is too old to answer it, -1 for none. Returns
the version that answered, and the encoded answer. See `ActorClient.infer`."""


class Acting(abc.ABC):
    """Chooses actions for N environments.

    Attributes:
      parameter_version: the oldest version that chose actions of this unroll; -1 before the first.
    """

    parameter_version = -1

    @abc.abstractmethod
    def begin_unroll(self, should_stop: Callable[[], bool]) -> None:
        """Prepares for an unroll. In a synchronous run, it gets newer parameters than the last."""

    @abc.abstractmethod
    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Returns the answer (NumPy arrays [N, ...]) and the core state after the step.

        Args:
          env_output: NumPy arrays [N, ...].
          core_state: float32 [N, ...] before the step, as returned for the previous step.
        """


class Network(Protocol):
    """Chooses actions for N environments with the parameters it was given."""

    def set_parameters(self, arrays: list[Any]) -> None:
        """Replaces the parameters by fetched ones, in the agent's variable order."""

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Returns an answer, as `Acting.answer` does."""


class OwnActing(Acting):
    """Acts with its own network.

    Args:
      network: the network, which receives the learner's parameters.
      fetch_parameters: gets them from the learner.
      waits: whether every unroll is made with newer parameters than the last one.
      patience_s: how long to wait for newer parameters, in seconds; twice the duration of the
        last update if that is longer, but at most 10 times this. Then the actor continues with the
        parameters that it has: another actor is lost, and the remaining ones must fill the batch.
    """

    def __init__(
        self,
        network: Network,
        fetch_parameters: FetchParameters,
        waits: bool = False,
        patience_s: float = 60.0,
    ) -> None:
        self._network = network
        self._fetch_parameters = fetch_parameters
        self._waits = waits
        self._patience_s = patience_s
        self._last_wait_s = 0.0
        # When the wait for the next parameters began, possibly several unrolls ago.
        self._began: float | None = None

    def begin_unroll(self, should_stop: Callable[[], bool]) -> None:
        """Fetches newer parameters; a synchronous run waits for them."""
        self._began = self._began or time.monotonic()
        fetched = self._fetch_parameters(self.parameter_version)
        # While an actor is lost, updates take longer, and so the waits grow, but not forever.
        longest_s = _MOST * self._patience_s
        patience_s = min(max(self._patience_s, 2.0 * self._last_wait_s), longest_s)
        deadline = time.monotonic() + patience_s
        while fetched is None and self._waits and time.monotonic() < deadline and not should_stop():
            time.sleep(_POLL_S)
            fetched = self._fetch_parameters(self.parameter_version)
        if fetched is not None:
            if self.parameter_version >= 0:  # the first wait was for the learner to start
                self._last_wait_s = time.monotonic() - self._began
            self._began = None
            self.parameter_version, arrays = fetched
            self._network.set_parameters(arrays)

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Returns the network's answer."""
        return self._network.answer(env_output, core_state)


class Codecs:
    """Encodings of an actor's questions to its learner and of the answers, for N environments.

    Args:
      interface: the agent's interface.
      spec: the level's specification.

    Attributes:
      question: encodes (EnvOutput, core state before the step).
      answer: encodes (AgentOutput, core state after it).
    """

    def __init__(self, interface: AgentInterface, spec: EnvironmentSpec) -> None:
        def without_first_dimension(nest: Nest) -> Nest:
            return tree.map_structure(lambda array: ArraySpec(array.shape[1:], array.dtype), nest)

        # A codec's specs have no leading N.
        unroll = array_specs(interface, spec, 1)
        env_output = without_first_dimension(layout_of(spec).step_specs(1))  # [N, ...] with N = 1
        agent_output = without_first_dimension(unroll.agent_outputs)  # [T, ...] with T = 1
        self.question = NestCodec((env_output, unroll.core_state))
        self.answer = NestCodec((agent_output, unroll.core_state))


class LearnerActing(Acting):
    """Acts with the newest parameters of the learner, which computes for all of its actors.

    Args:
      infer: asks the learner.
      codecs: encode the questions and decode the answers.
      waits: whether every unroll begins with newer parameters than the last one did.
    """

    def __init__(self, infer: Infer, codecs: Codecs, waits: bool = False) -> None:
        self._infer = infer
        self._codecs = codecs
        self._waits = waits
        self._is_first = True

    def begin_unroll(self, should_stop: Callable[[], bool]) -> None:
        """Marks the next answer as the first one of an unroll."""
        self._is_first = True

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Asks the learner; in a synchronous run, the first step waits for the next update."""
        known_version = self.parameter_version if self._waits and self._is_first else -1
        num_envs, question = self._codecs.question.encode((env_output, core_state))
        version, tensors = self._infer(num_envs, question, known_version)
        if self._is_first:
            self.parameter_version, self._is_first = version, False
        answer: tuple[AgentOutput, Nest] = self._codecs.answer.decode(num_envs, tensors)
        return answer
