"""The learner's side of acting without TensorFlow."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from impala_tf.agents.agent import Agent
from impala_tf.learner.conversion import ConversionError, convert
from impala_tf.transport import NoNetwork
from impala_tf.types import EnvironmentSpec


class NetworkService:
    """Converts the network once for each number of environments, in a thread of its own.

    Args:
      agent: used by this alone; its variables are overwritten.
      spec: the level's specification.
    """

    def __init__(self, agent: Agent, spec: EnvironmentSpec) -> None:
        self._agent = agent
        self._spec = spec
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="convert")
        self._networks: dict[int, Future[bytes]] = {}

    def network(self, num_envs: int) -> Future[bytes]:
        """Returns the network for N environments; see `transport.Networks`. Call it in one thread.

        Fails with NoNetwork if LiteRT cannot compute it.
        """
        if num_envs not in self._networks:
            self._networks[num_envs] = self._thread.submit(self._convert, num_envs)
        return self._networks[num_envs]

    def _convert(self, num_envs: int) -> bytes:
        try:
            return convert(self._agent, self._spec, num_envs).to_bytes()
        except ConversionError as error:
            raise NoNetwork(str(error)) from error
