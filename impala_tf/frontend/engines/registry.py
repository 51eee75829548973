"""The engines by name, and which of them has a run.

Their modules import the packages of an engine, such as Ray, only when they are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ClusterConfig
from impala_tf.frontend.engines import kubernetes, ray, skypilot, slurm, ssh
from impala_tf.frontend.engines.engine import Engine, record_path

SSH = "ssh"
"""The engine of runs with a workers CSV."""
ENGINES: dict[str, Engine[Any]] = {
    SSH: ssh,
    "slurm": slurm,
    "kubernetes": kubernetes,
    "skypilot": skypilot,
    "ray": ray,
}
"""All values of --engine."""


class Run(NamedTuple):
    """A run, and who has it."""

    name: str
    """Of the engine."""
    engine: Engine[Any]
    job: Any


def found(logdir: str | Path | None, tmux_sess: str = ClusterConfig.tmux_sess) -> Run:
    """Returns the run of a logdir. Where no other engine has one, SSH may have it.

    Args:
      logdir: None for the newest run over SSH.
      tmux_sess: the session of that.

    Raises:
      ConfigError: the record of the run is damaged, or there is no run in that session.
    """
    for name, engine in ENGINES.items():
        if logdir is not None and name != SSH and record_path(logdir, name).exists():
            return Run(name, engine, engine.find(logdir))
    return Run(SSH, ssh, ssh.find(logdir, tmux_sess))
