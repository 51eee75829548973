"""What a run is: its level and network, by which a checkpoint is known to belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from impala_tf.config import ConfigError


class Identity(TypedDict):
    """What must be the same for a checkpoint to fit."""

    level_name: str
    agent_name: str
    num_actions: int
    observation_shape: list[int]


def check_identity(
    saved: Mapping[str, Any], mine: Mapping[str, Any], logdir: Path | str | None = None
) -> None:
    """Raises ConfigError, one line a difference, where a checkpoint is of another run.

    Args:
      saved: the Identity inside the checkpoint's state.
      mine: the Identity of this run.
      logdir: named in the message.
    """
    where = "--logdir" if logdir is None else f"--logdir={logdir}"
    labels = {
        "level_name": "level",
        "agent_name": "agent",
        "num_actions": "number of actions",
        "observation_shape": "observation shape",
    }
    found = [
        f"{where}: holds a run of {label} {_plain(saved.get(name))}, this is {label}"
        f" {_plain(mine.get(name))}; choose another --logdir"
        for name, label in labels.items()
        if _plain(saved.get(name)) != _plain(mine.get(name))
    ]
    if found:
        raise ConfigError(found)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value  # JSON knows no tuples
