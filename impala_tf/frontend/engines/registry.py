"""The engines by name, and which of them has a run.

Their modules import the packages of an engine, such as Ray, only when they are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ClusterConfig
from impala_tf.frontend import record
from impala_tf.frontend.engines import ray, slurm, ssh
from impala_tf.frontend.engines.engine import Engine, record_path

SSH = "ssh"
"""The engine of runs with a workers CSV."""
ENGINES: dict[str, Engine[Any]] = {
    SSH: ssh,
    "slurm": slurm,
    "ray": ray,
}
"""All values of --engine."""


class Run(NamedTuple):
    """A run, and the engine that has it."""

    name: str
    """The name of the engine."""
    engine: Engine[Any]
    job: Any


def found(logdir: str | Path | None, tmux_sess: str = ClusterConfig.tmux_sess) -> Run:
    """Returns the run in a logdir; the newest one, if several engines have had a run there.

    Args:
      logdir: the run's logdir. None for the newest run over SSH in a tmux session.
      tmux_sess: that session.

    Raises:
      ConfigError: the record of the run is damaged, or there is no run in that session.
    """
    records = {} if logdir is None else {n: record_path(logdir, n) for n in ENGINES if n != SSH}
    written = {name: path.stat().st_mtime_ns for name, path in records.items() if path.exists()}
    if logdir is not None and (over_ssh := Path(logdir) / record.NAME).exists():
        written[SSH] = over_ssh.stat().st_mtime_ns
    name = max(written, key=written.__getitem__, default=SSH)
    if name == SSH:
        return Run(SSH, ssh, ssh.find(logdir, tmux_sess))
    return Run(name, ENGINES[name], ENGINES[name].find(str(logdir)))
