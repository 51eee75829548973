"""The actor process."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import time
from pathlib import Path

import numpy as np

from impala_tf import config as configs
from impala_tf.actor.acting import Acting, Codecs, LearnerActing, Network, OwnActing
from impala_tf.actor.actor import Actor, Push, UnrollBuffer
from impala_tf.actor.network import ActingModel, LiteRtPolicy
from impala_tf.agents.exploration import QLearning, epsilons_of
from impala_tf.agents.interface import array_specs, interface_of_config
from impala_tf.agents.sampling import sampler_of
from impala_tf.config import Config, ConfigError, Given
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.guard import STEP_TIMEOUT_S, BrokenTooOftenError, Guard
from impala_tf.environments.infos import InfoMetrics
from impala_tf.environments.observations import layout_of
from impala_tf.machine import process_memory
from impala_tf.machine.process_lifetime import run_interruptibly
from impala_tf.machine.supervision import USELESS
from impala_tf.processes import provenance, tensorflow_startup
from impala_tf.processes.common import begin, credentials_dir, seed_of
from impala_tf.transport import (
    ActorClient,
    ClientClosed,
    HandshakeRefused,
    NoNetwork,
    Route,
    RunOver,
    order_learners,
)
from impala_tf.types import EnvironmentSpec, Sent

HEARTBEATS = "IMPALA_TF_HEARTBEATS"
"""Environment variable: what the names of heartbeats' files begin with; an actor's number follows.
"""
_log = logging.getLogger("impala_tf.actor.actor")


def main(given: Given) -> int:
    """Acts until the learner says that the run is over, or this process is asked to stop.

    Raises:
      ConfigError: flags, credentials or a level that this process or the learner cannot use.
    """
    config, spec, _, stop = begin(given)
    num_actors = _num_actors(given)
    process_memory.use_one_arena()
    interface = interface_of_config(config.agent, spec)
    own = _TensorFlowActor(config, spec) if configs.actors_use_tensorflow(config) else None
    num_envs = config.process.envs_per_actor
    task = config.process.task
    first_seed = seed_of(config.run.seed, "actor", task)
    length = config.optimizer.unroll_length
    specs = array_specs(interface, spec, length) if own is None else own.sent_specs
    beats = os.environ.get(HEARTBEATS)
    heartbeat = Heartbeat(f"{beats}-{task}" if beats else None)
    client = _connect(config, specs)
    client.on_wait = heartbeat.beat
    stop.on_request(client.close)

    names = configs.split(config.run.info_metrics)
    infos = InfoMetrics(names, "" if task else spec.level_name)
    indices = suites.assigned(len(spec.levels), task, num_actors)

    def seed() -> int:  # only after the handshake
        return seed_of_start(first_seed, client.run_steps, client.restarts)

    def seed_of_attempt(attempt: int) -> int:
        return seed_of(seed(), "environment", attempt) if attempt else seed()

    def act() -> None:
        client.handshake()
        actor = Actor(
            interface,
            _acting(config, spec, client, own, seed(), q_learning),
            environment,
            UnrollBuffer(interface, spec, length, levels),
            client.push if own is None else own.push(client),
            q_learning,
            heartbeat.beat,
        )
        _log.info("acting in %d environments of %s", num_envs, spec.level_name)
        actor.run(stop)

    opened = contextlib.ExitStack()
    try:
        if any(part.offsets for part in (spec, *spec.parts)):
            # Only now, as the learner takes seconds to start, and so do environments.
            run_interruptibly(client.handshake)
            spec = provenance.with_offsets(spec, json.loads(client.level))
        environment = BatchedEnvironment(
            lambda: suites.make(config.environment, spec, num_envs, indices=indices),
            seed_of_attempt,
            infos,
            spec.time_limit,
            Guard(spec.levels, STEP_TIMEOUT_S, stop, client.report),
        )
        opened.callback(environment.close)
        stop.install()  # again: environments may have replaced the handlers
        q_learning, levels = None, environment.level_indices
        if interface.has_q_values:
            epsilons = epsilons_of(levels, len(spec.levels), task, num_actors)
            q_learning = QLearning(config, epsilons, levels)
        run_interruptibly(act)
    except HandshakeRefused as refused:
        raise ConfigError(str(refused)) from refused
    except RunOver:
        _log.info("the run is over")
    except BrokenTooOftenError as error:
        _log.error("%s", error)
        return USELESS
    except ClientClosed:
        _log.info("stopped" if stop() else "ended: no learner for too long")
    finally:
        client.close()
        opened.close()
    return 0


def seed_of_start(seed: int, run_steps: int, restarts: int) -> int:
    """Returns the seed for one start of an actor; `seed` itself for the first start in a run.

    With the same seed, the actor of a resumed run, or a restarted actor, would repeat its games.
    """
    if run_steps:
        seed = seed_of(seed, "resumed", run_steps)
    return seed_of(seed, "restarted", restarts) if restarts else seed


def _num_actors(given: Given) -> int:
    """Returns how many actors share the levels; 0 if it is unknown.

    The default of --num_actors, the number of this machine's cores, does not count.
    """
    return len(configs.split(given["actor_hosts"])) or given["num_actors"] or 0


def _acting(
    config: Config,
    spec: EnvironmentSpec,
    client: ActorClient,
    own: _TensorFlowActor | None,
    seed: int,
    q_learning: QLearning | None,
) -> Acting:
    """Returns how this actor gets its actions. `seed` is for sampling."""
    waits = configs.waits_for_updates(config)
    if config.process.inference == "learner":
        interface = interface_of_config(config.agent, spec)
        return LearnerActing(client.infer, Codecs(interface, spec), waits)
    if own is None:
        try:
            model = ActingModel.from_bytes(client.fetch_network(config.process.envs_per_actor))
        except NoNetwork as reason:
            _log.warning("acting with TensorFlow: %s", reason)
            own = _TensorFlowActor(config, spec)
    if own is not None:
        network = own.network(seed, None if q_learning is None else q_learning.epsilons)
        return OwnActing(network, client.fetch_parameters, waits)
    sampler = sampler_of(spec.actions, np.random.default_rng(seed))
    policy = LiteRtPolicy(model, layout_of(spec), sampler)
    fetch = functools.partial(client.fetch_parameters, used=model.used)
    return OwnActing(policy, fetch, waits)


class Heartbeat:
    """Writes the time to a file, by which a health check sees that an actor is working.

    A file of an earlier process is removed. Raises ConfigError: it cannot be written.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._next_s = float("-inf")
        try:
            if self._path is not None:
                self._path.touch()
                self._path.unlink()
        except OSError as error:
            raise ConfigError(f"{HEARTBEATS}: {path}: {error.strerror}") from error

    def beat(self) -> None:
        """Writes the seconds of the monotonic clock, at most once a second. Thread-safe."""
        now_s = time.monotonic()  # it is never adjusted
        if self._path is None or now_s < self._next_s:  # fast levels take 1000 steps a second
            return
        self._next_s = now_s + 1.0
        with contextlib.suppress(OSError):  # a full disk is no reason to stop acting
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                # Overwrites the last time with the same width, which needs no room on a full disk.
                os.pwrite(file, f"{now_s:016.3f}\n".encode(), 0)
            finally:
                os.close(file)


class _TensorFlowActor:
    """The agent of an actor, computed by TensorFlow, whose import takes seconds and 220 MB.

    Attributes:
      sent_specs: what the actor sends to its learner.

    Raises:
      ConfigError: this machine has no TensorFlow.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec) -> None:
        tensorflow_startup.import_tensorflow("tensorflow")
        from impala_tf.agents.agent import agent_here
        from impala_tf.learner.actor_gradients import sent_specs

        tensorflow_startup.use_one_cpu_thread()
        tensorflow_startup.start_xla()
        self._config, self._spec = config, spec
        self._agent = agent_here(config.agent, spec)
        self.sent_specs = sent_specs(self._agent, spec, config)

    def network(self, seed: int, epsilons: np.ndarray | None) -> Network:
        """Returns the network that chooses actions; see `agents.policy.OwnNetwork`."""
        from impala_tf.agents.policy import OwnNetwork

        num_envs = self._config.process.envs_per_actor
        return OwnNetwork(self._agent, self._spec, num_envs, seed, epsilons)

    def push(self, client: ActorClient) -> Push:
        """Returns the function that sends unrolls or, for some algorithms, their gradients."""
        from impala_tf.learner.actor_gradients import GradientSender

        if configs.algorithm(self._config.loss.algorithm).actors_send == "unrolls":
            return client.push
        return GradientSender(client.push, self._agent, self._spec, self._config).push


def _connect(config: Config, specs: Sent) -> ActorClient:
    task, minutes = config.process.task, config.process.idle_exit_minutes
    num_sent = configs.sent_per_push(config)
    learners = configs.split(config.process.learner_hosts)
    order = order_learners(task, len(learners))
    # An actor whose learner stays away ends, because an idle machine may cost money.
    give_up_s = math.inf if minutes is None else 60.0 * minutes
    return ActorClient(
        Route([(number, learners[number]) for number in order], give_up_s),
        credentials_dir(config),
        f"actor-{task}",
        specs,
        configs.wire_digest(config),
        num_environments=num_sent,
    )
