"""What a checkpoint and a run must have in common for the run to resume from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.config import Config, ConfigError
from impala_tf.types import EnvironmentSpec


def signature_of(config: Config, spec: EnvironmentSpec) -> dict[str, Any]:
    """Returns the fields of a run that its checkpoints must match, JSON-able."""
    sizes = list(spec.actions.sizes)
    parts = spec.observation
    return {
        "level_name": spec.level_name,
        "agent_name": config.agent.agent_name,
        "width_scale": config.agent.width_scale,
        "core": config.agent.core,
        "heads": config.agent.heads,
        "layer_norm": config.agent.layer_norm,
        "num_actions": sizes[0] if spec.actions.kind == "discrete" else sizes,
        "observation_shape": {name: list(part.shape) for name, part in parts.items()}
        if isinstance(parts, dict)
        else list(parts.shape),
        "observation_normalization": config.agent.observation_normalization,
        "optimizer": config.optimizer.optimizer,
    }


def check_compatible(
    saved: Mapping[str, Any], current: Mapping[str, Any], logdir: Path | str | None = None
) -> None:
    """Raises ConfigError, one line per difference, if a checkpoint belongs to another run.

    Args:
      saved: the signature in the checkpoint's state.
      current: the signature of this run.
      logdir: the run's folder, for the message.
    """
    where = "--logdir" if logdir is None else f"--logdir={logdir}"
    problems = [
        f"{where}: holds a run with {name} {saved.get(name)}, but this run has {value};"
        " choose another --logdir"
        for name, value in current.items()
        if saved.get(name) != value
    ]
    if problems:
        raise ConfigError(problems)
