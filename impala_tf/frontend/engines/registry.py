"""The engines by name. A module is imported when its engine is chosen, or has the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ENGINES, ClusterConfig
from impala_tf.frontend.engines.engine import Engine, record_path

SSH = "ssh"
"""The engine of runs with a workers CSV."""


class Run(NamedTuple):
    """A run, and who has it."""

    name: str
    """Of the engine."""
    engine: Engine[Any]
    job: Any


def engine(name: str) -> Engine[Any]:
    """Returns an engine.

    Args:
      name: one of `ENGINES`.
    """
    match name:
        case "ssh":
            from impala_tf.frontend.engines import ssh

            return ssh
        case "slurm":
            from impala_tf.frontend.engines import slurm

            return slurm
        case "kubernetes":
            from impala_tf.frontend.engines import kubernetes

            return kubernetes
        case "skypilot":
            from impala_tf.frontend.engines import skypilot

            return skypilot
        case "ray":
            from impala_tf.frontend.engines import ray

            return ray
    raise ValueError(f"no engine {name!r}")


def found(logdir: str | Path | None, tmux_sess: str = ClusterConfig.tmux_sess) -> Run:
    """Returns the run of a logdir. Where no other engine has one, SSH may have it.

    Args:
      logdir: None for the newest run over SSH.
      tmux_sess: the session of that.

    Raises:
      ConfigError: the record of the run is damaged, or there is no run in that session.
    """
    for name in ENGINES:
        if logdir is not None and name != SSH and record_path(logdir, name).exists():
            its = engine(name)
            return Run(name, its, its.find(logdir))
    from impala_tf.frontend.engines import ssh

    return Run(SSH, ssh, ssh.find(logdir, tmux_sess))
