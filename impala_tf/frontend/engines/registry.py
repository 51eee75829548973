"""The engines by name. A module is imported when its engine is chosen, or has the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from impala_tf.config import ENGINES
from impala_tf.frontend.engines.engine import Engine, record_path


def engine(name: str) -> Engine[Any]:
    """Returns an engine.

    Args:
      name: one of `ENGINES`.
    """
    match name:
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


def found(logdir: str | Path | None) -> tuple[Engine[Any], Any] | None:
    """Returns the engine that has the run of a logdir, and its job; None if none has it.

    Raises:
      ConfigError: the record of the job is damaged.
    """
    for name in ENGINES:
        if logdir is not None and record_path(logdir, name).exists():
            its = engine(name)
            job = its.find(logdir)
            if job is not None:
                return its, job
    return None
