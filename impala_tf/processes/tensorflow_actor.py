"""The parts of an actor that need TensorFlow: a network of its own, and gradients."""

from __future__ import annotations

import numpy as np

from impala_tf.actor.actor import Push
from impala_tf.agents.agent import agent_here
from impala_tf.agents.policy import OwnNetwork
from impala_tf.config import Config, algorithm
from impala_tf.learner.actor_gradients import GradientSender, sent_specs
from impala_tf.processes.tensorflow_startup import start_xla, use_one_cpu_thread
from impala_tf.transport import ActorClient
from impala_tf.types import EnvironmentSpec


class TensorFlowActor:
    """The agent of an actor, computed by TensorFlow.

    Args:
      config: the run's config.
      spec: the level's specification.

    Attributes:
      sent_specs: what the actor sends to its learner.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec) -> None:
        use_one_cpu_thread()
        start_xla()
        self._config = config
        self._spec = spec
        self._agent = agent_here(config.agent, spec)
        self.sent_specs = sent_specs(self._agent, spec, config)

    def network(self, seed: int, epsilons: np.ndarray | None) -> OwnNetwork:
        """Returns the network that chooses actions; see `agents.policy.OwnNetwork`."""
        num_envs = self._config.process.envs_per_actor
        return OwnNetwork(self._agent, self._spec, num_envs, seed, epsilons)

    def push(self, client: ActorClient) -> Push:
        """Returns the function that sends unrolls or, for some algorithms, their gradients."""
        if algorithm(self._config.loss.algorithm).actors_send == "unrolls":
            return client.push
        return GradientSender(client.push, self._agent, self._spec, self._config).push
