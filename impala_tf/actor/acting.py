"""How an actor gets its actions: from a network of its own, or from its learner's."""

from __future__ import annotations

import abc
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tree

from impala_tf.agents.interface import AgentInterface, array_specs
from impala_tf.environments.observations import layout_of
from impala_tf.transport import NestCodec
from impala_tf.types import AgentOutput, ArraySpec, EnvironmentSpec, EnvOutput, Nest

# How often an actor of a synchronous run asks for new parameters.
_POLL_S = 0.01
_MOST = 10.0  # times the patience
_WAITS = 5  # from which it knows how long updates take

FetchParameters = Callable[[int], tuple[int, list[Any]] | None]
"""Takes the version at hand, -1 if there is none. Returns the newest version and its arrays in the
agent's variable order, or None if that is at hand. See `ActorClient.fetch_parameters`."""
Infer = Callable[[int, Sequence[bytes], int], tuple[int, Sequence[bytes]]]
"""Takes N, an encoded question, and the version that must not answer, -1 for none. Returns the
version that answered, and its encoded answer. See `ActorClient.infer`."""


class Acting(abc.ABC):
    """Answers the steps of N environments.

    Attributes:
      parameter_version: the oldest version that has answered in this unroll; -1 before the first.
    """

    parameter_version = -1

    @abc.abstractmethod
    def begin_unroll(self, should_stop: Callable[[], bool]) -> None:
        """Gets ready for an unroll, with newer parameters than in the last one if it must."""

    @abc.abstractmethod
    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Returns the answer, NumPy arrays, and the core state after it.

        Args:
          env_output: NumPy arrays [N, ...].
          core_state: [N, ...] before the step, as returned for the step before.
        """


class Network(Protocol):
    """Answers the steps of N environments with given parameters."""

    def set_parameters(self, arrays: list[Any]) -> None:
        """Takes new parameters as they were fetched, in the agent's variable order."""

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Returns an answer, as `Acting.answer` does."""


class OwnActing(Acting):
    """Acts with a network of its own.

    Args:
      network: gets the learner's parameters.
      fetch_parameters: gets them from the learner.
      waits: whether every unroll is made with newer parameters than the last one.
      patience_s: how long it waits for them, unless updates take half as long or longer: then twice
        as long as they usually take. After that, the batch lacks the unrolls of a lost actor, and
        the other actors have to fill it.
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
        # A wait for a lost actor is longer than others, but it is one among several.
        self._waits_s: deque[float] = deque(maxlen=_WAITS)
        self._began: float | None = None  # to wait for the next parameters, maybe unrolls ago

    def begin_unroll(self, should_stop: Callable[[], bool]) -> None:
        """Fetches newer parameters; in a synchronous run, waits until there are some."""
        self._began = self._began or time.monotonic()
        fetched = self._fetch_parameters(self.parameter_version)
        usual_s = statistics.median(self._waits_s) if self._waits_s else 0.0
        # While an actor is lost, every update waits for its unrolls. Waits must not grow with that.
        most_s = _MOST * self._patience_s
        deadline = time.monotonic() + min(max(self._patience_s, 2.0 * usual_s), most_s)
        while fetched is None and self._waits and time.monotonic() < deadline and not should_stop():
            time.sleep(_POLL_S)
            fetched = self._fetch_parameters(self.parameter_version)
        if fetched is not None:
            if self.parameter_version >= 0:  # before, it waited for the learner to start
                self._waits_s.append(time.monotonic() - self._began)
            self._began = None
            self.parameter_version, arrays = fetched
            self._network.set_parameters(arrays)

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Lets the network answer."""
        return self._network.answer(env_output, core_state)


class Codecs:
    """What an actor asks its learner for actions with, and what it gets; without the leading N.

    Args:
      interface: the agent's interface.
      spec: the level's specification.

    Attributes:
      question: encodes (EnvOutput, core state before the step).
      answer: encodes (AgentOutput, core state after it).
    """

    def __init__(self, interface: AgentInterface, spec: EnvironmentSpec) -> None:
        def without_first(nest: Nest) -> Nest:
            return tree.map_structure(lambda array: ArraySpec(array.shape[1:], array.dtype), nest)

        unroll = array_specs(interface, spec, 1)
        env_output = without_first(layout_of(spec).step_specs(1))  # [N, ...] with N = 1
        agent_output = without_first(unroll.agent_outputs)  # [T, ...] with T = 1
        self.question = NestCodec((env_output, unroll.core_state))
        self.answer = NestCodec((agent_output, unroll.core_state))


class LearnerActing(Acting):
    """Acts with the newest parameters of the learner, which computes for all of its actors.

    Args:
      infer: asks the learner.
      codecs: encode what it is asked and decode its answers.
      waits: whether every unroll begins with newer parameters than the last one did.
    """

    def __init__(self, infer: Infer, codecs: Codecs, waits: bool = False) -> None:
        self._infer = infer
        self._codecs = codecs
        self._waits = waits
        self._is_first = True

    def begin_unroll(self, should_stop: Callable[[], bool]) -> None:
        """Lets the next answer count as the first one of an unroll."""
        self._is_first = True

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Lets the learner answer; in a synchronous run, the first step waits for its update."""
        known_version = self.parameter_version if self._waits and self._is_first else -1
        num_envs, question = self._codecs.question.encode((env_output, core_state))
        version, tensors = self._infer(num_envs, question, known_version)
        if self._is_first:
            self.parameter_version, self._is_first = version, False
        answer: tuple[AgentOutput, Nest] = self._codecs.answer.decode(num_envs, tensors)
        return answer
