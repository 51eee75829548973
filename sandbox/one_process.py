"""All of IMPALA in one process. Read this first; debuggers work with it.

    python sandbox/one_process.py [--level_name=LEVEL] [--flag=value ...]

Two threads act, and the main thread learns. `Mailbox` replaces the network; the other parts are
those of a real run. A real run adds processes (impala_tf/processes), gRPC
(impala_tf/transport), checkpoints, metrics, and more than one learner.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from impala_tf.processes import tensorflow_startup  # noqa: E402

tensorflow_startup.import_tensorflow()
tensorflow_startup.start_xla()

import tensorflow as tf  # noqa: E402

from impala_tf.actor.acting import OwnActing  # noqa: E402
from impala_tf.actor.actor import Actor  # noqa: E402
from impala_tf.agents.agent import agent_of  # noqa: E402
from impala_tf.agents.policy import OwnNetwork  # noqa: E402
from impala_tf.config import Config, ConfigError, Given, command_line  # noqa: E402
from impala_tf.environments import suites  # noqa: E402
from impala_tf.environments.batched import BatchedEnvironment  # noqa: E402
from impala_tf.learner.group import LearnerGroup  # noqa: E402
from impala_tf.learner.update import Learner  # noqa: E402
from impala_tf.processes.common import resolve  # noqa: E402
from impala_tf.transport import RunOver  # noqa: E402
from impala_tf.types import ActorReport, EnvironmentSpec, Episode, Unroll  # noqa: E402

NUM_ACTORS = 2


class Mailbox:
    """The actors' connection to the learner: they fetch parameters and push unrolls."""

    def __init__(self) -> None:
        self.parameters: tuple[int, list[np.ndarray]]  # (parameter_version, arrays)
        self.unrolls: queue.Queue[tuple[Unroll, list[Episode]]] = queue.Queue(maxsize=2)
        self.over = threading.Event()

    def fetch_parameters(self, known_version: int) -> tuple[int, list[np.ndarray]] | None:
        """Returns the newest parameters, unless the actor has them."""
        return None if self.parameters[0] == known_version else self.parameters

    def push(self, unroll: Unroll, episodes: list[Episode], report: ActorReport) -> None:
        """Queues a copy of an unroll; waits while the queue is full, so unrolls stay fresh."""
        copy = tf.nest.map_structure(tf.constant, unroll)
        while not self.over.is_set():
            try:
                return self.unrolls.put((copy, episodes), timeout=0.2)
            except queue.Full:
                continue
        raise RunOver


def act(config: Config, spec: EnvironmentSpec, mailbox: Mailbox, task: int) -> None:
    """Steps N environments with parameters that may be a few updates old, and sends unrolls."""
    num_envs = config.optimizer.batch_size  # so that one actor's unrolls are one batch
    agent = agent_of(config.agent, spec)
    environment = BatchedEnvironment(suites.make(config.environment, num_envs, seed=task))
    unroll_length = config.optimizer.unroll_length
    acting = OwnActing(OwnNetwork(agent, spec, num_envs, task), mailbox.fetch_parameters)
    actor = Actor(agent.interface, acting, environment, mailbox.push, spec, num_envs, unroll_length)
    try:
        actor.run(mailbox.over.is_set)
    except RunOver:
        environment.close()


def train(given: Given) -> float:
    """Trains to the end of the run's frames; returns the mean return of the last 100 episodes."""
    config, spec = resolve(given)
    if config.loss.algorithm not in ("impala", "appo"):
        raise ConfigError(f"--algorithm={config.loss.algorithm}: this script has impala and appo")
    if len(spec.levels) > 1:
        raise ConfigError(f"--level_name={spec.level_name}: this script learns one level; name one")
    tf.random.set_seed(config.run.seed)
    learner = Learner(agent_of(config.agent, spec), spec, config, LearnerGroup())
    mailbox = Mailbox()
    mailbox.parameters = (learner.parameter_version, learner.parameters())
    actors = [
        threading.Thread(target=act, args=(config, spec, mailbox, task), daemon=True)
        for task in range(NUM_ACTORS)
    ]
    for thread in actors:
        thread.start()
    returns: list[float] = []
    num_batches, total_frames = 0, config.run.total_environment_frames
    while not learner.done:
        batch, episodes = mailbox.unrolls.get()
        returns = [*returns, *(episode.episode_return for episode in episodes)][-100:]
        # V-trace corrects for the difference between the actors' parameters and these.
        stats = learner.update(batch)
        mailbox.parameters = (learner.parameter_version, learner.parameters())
        num_batches += 1
        if num_batches % 200 == 0 and stats is not None:
            print(
                f"{learner.environment_frames:9,} of {total_frames:,} frames,"
                f" return {np.mean(returns):6.1f},"
                f" entropy {stats.entropy:.2f}, policy lag {stats.policy_lag_mean:.1f} updates"
            )
    mailbox.over.set()
    for thread in actors:
        thread.join()
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--flag=value ...]",
        description=__doc__,
        epilog="The flags are those of run_experiment.py.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _, flags = parser.parse_known_args()
    defaults = ["--total_environment_frames=750000", "--level_name=CartPole-v1"]
    try:
        mean_return = train(command_line.parse(defaults + flags))
    except ConfigError as error:
        parser.error("; ".join(error.problems))
    print(f"mean return of the last 100 episodes: {mean_return:.1f}")
