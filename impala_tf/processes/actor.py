"""The actor process."""

from __future__ import annotations

import logging

import tensorflow as tf

from impala_tf import agents, quiet
from impala_tf import config as configs
from impala_tf.actor import Actor
from impala_tf.config import Config, ConfigError, known
from impala_tf.environments import factory
from impala_tf.environments.stream import EnvStream
from impala_tf.heartbeat import Heartbeat
from impala_tf.processes import precision
from impala_tf.processes.common import begin, credentials_dir, seed_of
from impala_tf.shutdown import run_interruptibly
from impala_tf.transport import ActorClient, ClientClosed, HandshakeRefused, RunOver

_log = logging.getLogger("impala_tf.actor")


def main(config: Config) -> int:
    """Acts until the learner says that the run is over, or somebody asks this process to stop.

    Raises:
      ConfigError: flags, credentials or a level that this process or the learner cannot take.
    """
    config, spec, _, stop = begin(config)
    # One thread each: as many actors as cores use them better than one actor with many threads.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")
    quiet.start_xla()
    task, num_envs = config.process.task, known(config.process.envs_per_actor)
    unroll_length = config.optimizer.unroll_length
    seed = seed_of(config.run.seed, "actor", task)
    learners = configs.hosts(config.process.learner_hosts)
    heartbeat = Heartbeat(config.process.heartbeat_path)
    agent = agents.make(config.agent.agent_name, spec, precision.choose(config.agent))
    client = ActorClient(
        learners[task % len(learners)],
        credentials_dir(config),
        f"actor-{task}",
        agents.unroll_specs(agent, spec, unroll_length),
        configs.wire_digest(config),
        lambda seconds, reason: _log.info("%.0f s without the learner: %s", seconds, reason),
        heartbeat.beat,
    )
    stop.on_request(client.close)
    stream = EnvStream(factory.make(config.environment, num_envs, seed))
    actor = Actor(agent, stream, client, spec, num_envs, unroll_length, seed)

    def act() -> None:
        client.handshake()
        _log.info("acting in %d environments of %s", num_envs, spec.level_name)
        actor.run(stop)

    try:
        run_interruptibly(act)
    except HandshakeRefused as refused:
        raise ConfigError(str(refused)) from refused
    except RunOver:
        _log.info("the run is over")
    except ClientClosed:
        _log.info("stopped")
    finally:
        client.close()
        stream.close()
    return 0
