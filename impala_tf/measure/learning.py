"""Measures the speed and memory of acting and learning on this machine, with TensorFlow.

Call these in processes of their own (see `in_processes`): they choose TensorFlow's devices and
threads, and peak memory is that of the whole process.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.actor.acting import OwnActing
from impala_tf.actor.actor import Actor
from impala_tf.agents.agent import Agent, agent_here, agent_of, parameter_specs, unroll_specs
from impala_tf.agents.inputs import tensor_specs
from impala_tf.agents.policy import OwnNetwork, compile_policy
from impala_tf.agents.q_learning import QLearning
from impala_tf.config import AgentConfig, Config, cores_here
from impala_tf.environments.observations import layout_of
from impala_tf.learner.actor_gradients import gradient_specs, sent_specs
from impala_tf.learner.conversion import ConversionError, convert
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.machine import certificates
from impala_tf.measure.acting import (
    ONE_THREAD,
    Measured,
    environments_of,
    noise,
    peak_memory_mb,
    rate,
)
from impala_tf.processes import tensorflow_startup
from impala_tf.transport import (
    ActorClient,
    LearnerServer,
    LearnerService,
    NamedSpec,
    NestCodec,
    ParameterStore,
    Pushes,
    RunTerms,
)
from impala_tf.types import ActorReport, EnvironmentSpec, Episode, Sent, Unroll

_PLAYED_UNROLLS = 5


def inference(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures an actor's inference with TensorFlow, without environments.

    Args:
      config: the resolved flags.
      spec: the level's specification.
      seconds: how long to measure.
    """
    tensorflow_startup.use_one_cpu_thread()
    agent, num_envs = _agent(config, spec), config.process.envs_per_actor
    policy = compile_policy(agent, spec, num_envs, config.run.seed)
    env_output = noise(tensor_specs(layout_of(spec).step_specs(num_envs)))
    state = agent.initial_state(num_envs)
    per_s, cores = rate(lambda: policy(env_output, state)[0].action.numpy(), seconds)
    memory, dtype = peak_memory_mb(), agent.torso_dtype
    return Measured(per_s * num_envs, ONE_THREAD, memory, cores, precision=dtype)


def converted(config: Config, spec: EnvironmentSpec) -> tuple[bytes, list[np.ndarray]] | None:
    """Returns the (network, parameters) for actors with LiteRT; None if LiteRT cannot run it."""
    tensorflow_startup.start_xla()
    agent = agent_of(config.agent, spec)
    try:
        model = convert(agent, spec, config.process.envs_per_actor)
    except ConversionError:
        return None
    return model.to_bytes(), [variable.numpy() for variable in agent.variables]


def transport(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures the exchange of unrolls (a3c: gradients) for new parameters.

    Actor and learner are both in this process. The arguments are those of `inference`.
    """
    tensorflow_startup.use_one_cpu_thread()
    num_envs = config.process.envs_per_actor
    agent = _agent(config, spec)
    specs, parameters = sent_specs(agent, spec, config), parameter_specs(agent)
    used = list(range(len(agent.variables)))
    if not configs.actors_use_tensorflow(config):
        with contextlib.suppress(ConversionError):
            used = convert(agent_of(config.agent, spec), spec, num_envs).used
    sent: Sent = noise(gradient_specs(agent), 1)
    if configs.algorithm(config.loss.algorithm).actors_send == "unrolls":
        # Of real games, as their images compress differently.
        sent = played_unroll(config, spec, agent)
    arrays = [variable.numpy() for variable in agent.variables]
    versions = itertools.count()
    with _loopback(specs, parameters, num_envs) as (client, store):

        def exchange() -> None:
            version = next(versions)
            store.publish(version, arrays)
            client.fetch_parameters(version - 1, used)
            client.push(sent)

        per_s, cores = rate(exchange, seconds)
    steps = num_envs * config.optimizer.unroll_length
    bytes_up = sum(map(len, NestCodec(specs).encode(sent)[1])) / steps
    bytes_down = sum(NamedSpec.of(*parameters[index]).nbytes for index in used) / steps
    return Measured(per_s * steps, "CPU", peak_memory_mb(), cores, bytes_up, bytes_down)


def update(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures a learner's gradient steps; agent steps count each time they are learned from.

    For dqn, it puts a batch into the replay and makes the gradient steps that follow. For a3c,
    whose actors compute the gradients, the work is the same. The arguments are those of
    `inference`.

    Raises:
      ConfigError: --device=gpu, but TensorFlow finds no GPU.
    """
    tensorflow_startup.select_device(config.process.device)
    agent = _agent(config, spec)
    if configs.algorithm(config.loss.algorithm).actors_send == "gradients":
        config = configs.replace(config, algorithm="impala")
    config = configs.replace(config, updates_per_batch=1, ring_batches=1, replay_start_steps=0)
    learner = Learner(agent, spec, config, LearnerGroup())
    # Only a run's first updates add images to the statistics of observations.
    learner.agent_steps = AgentConfig().pixel_statistics_steps
    batch_size, length = config.optimizer.batch_size, config.optimizer.unroll_length
    batch = noise(unroll_specs(agent, spec, length), batch_size)
    tensors = tf.nest.map_structure(tf.constant, batch)
    per_s, cores = rate(lambda: learner.update(tensors), seconds)
    gpus = tf.config.get_visible_devices("GPU")
    device = "GPU" if gpus else f"CPU, {cores_here()} cores"
    steps_per_s, memory = per_s * batch_size * length, peak_memory_mb()
    return Measured(steps_per_s, device, memory, cores, precision=agent.torso_dtype)


def _agent(config: Config, spec: EnvironmentSpec) -> Agent:
    tensorflow_startup.start_xla()
    return agent_here(config.agent, spec)


def played_unroll(config: Config, spec: EnvironmentSpec, agent: Agent) -> Unroll:
    """Returns the last of a few unrolls that an actor has played."""
    num_envs = config.process.envs_per_actor
    length = config.optimizer.unroll_length
    environments = environments_of(config)
    collector = _KeptUnrolls([variable.numpy() for variable in agent.variables])
    levels, num_actors = environments.level_indices, config.process.num_actors
    q_learning = QLearning.of(agent.interface, config, spec, levels, 0, num_actors)
    epsilons = None if q_learning is None else q_learning.epsilons
    network = OwnNetwork(agent, spec, num_envs, config.run.seed, epsilons)
    actor = Actor(
        agent.interface,
        OwnActing(network, collector.fetch_parameters),
        environments,
        collector.push,
        spec,
        num_envs,
        length,
        q_learning=q_learning,
    )
    actor.run(lambda: len(collector.unrolls) == _PLAYED_UNROLLS)
    environments.close()
    return collector.unrolls[-1]


class _KeptUnrolls:
    """A learner that keeps all unrolls."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self._arrays = arrays
        self.unrolls: list[Unroll] = []

    def fetch_parameters(self, known_version: int) -> tuple[int, list[np.ndarray]] | None:
        return None if known_version == 0 else (0, self._arrays)

    def push(self, unroll: Unroll, episodes: list[Episode], report: ActorReport) -> None:
        self.unrolls.append(copy.deepcopy(unroll))


@contextlib.contextmanager
def _loopback(
    specs: Sent, parameters: list[tuple[str, tuple[int, ...], str]], num_envs: int
) -> Iterator[tuple[ActorClient, ParameterStore]]:
    """Yields an actor's client, and the parameter store of a learner that drops every unroll."""
    terms = RunTerms(
        run_id="benchmark",
        config_digest="",
        sent_specs=specs,
        parameter_specs=parameters,
        most_episodes=1,
        max_environments=num_envs,
    )
    store = ParameterStore()
    service = LearnerService(Pushes(terms, lambda sent, report: None), store)
    with tempfile.TemporaryDirectory() as folder:
        credentials = Path(folder) / "credentials"
        certificates.create(credentials)
        server = LearnerServer("127.0.0.1:0", credentials, service)
        server.start()
        address = f"127.0.0.1:{server.port}"
        client = ActorClient(address, credentials, "actor-0", specs, "", num_environments=num_envs)
        try:
            client.handshake()
            yield client, store
        finally:
            client.close()
            server.stop(0)
