"""The engines by name, and which of them has a run.

Their modules import the packages of an engine, such as Ray, only when they are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.cluster import record
from impala_tf.cluster.engines import ray, slurm, ssh
from impala_tf.cluster.engines.engine import Engine
from impala_tf.cluster.record import SSH
from impala_tf.config import ClusterConfig

ENGINES: dict[str, Engine] = {
    SSH: ssh,
    "slurm": slurm,
    "ray": ray,
}
"""All values of --engine."""


class Run(NamedTuple):
    """A run, and the engine that has it."""

    name: str
    """The name of the engine."""
    engine: Engine
    job: Any


def found(logdir: str | Path | None, tmux_sess: str = ClusterConfig.tmux_sess) -> Run:
    """Returns the run in a logdir.

    Args:
      logdir: the run's logdir. None for the newest run over SSH in a tmux session.
      tmux_sess: that session.

    Raises:
      ConfigError: this user has launched no such run.
    """
    launch = record.newest(tmux_sess) if logdir is None else record.find(logdir)
    engine = ENGINES[launch.engine]
    return Run(launch.engine, engine, engine.job(launch, Path(logdir or launch.logdir)))
