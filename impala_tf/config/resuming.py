"""Which flags may change when a run resumes, and which would make it another run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.config.flag_values import ENGINE_FLAGS, to_dict, to_flag
from impala_tf.config.flags import ClusterConfig, Config, ProcessConfig
from impala_tf.config.mode_flags import EvaluationConfig, ExportConfig

_GROUPS = (ProcessConfig, ClusterConfig, EvaluationConfig, ExportConfig)
# What actors wait for decides how old their parameters are.
_LEARNED_FROM = {"synchronization"}
MAY_CHANGE = {
    "mode", "logdir", "mirror", "fresh", "track", "stop_at_return", "callbacks", "config",
    "checkpoint_interval_s", "metrics_interval_s", "video_every", "eval_every",
    "total_environment_frames", "environment_processes", "precision",
    *(field.name for group in _GROUPS for field in dataclasses.fields(group)),
    *ENGINE_FLAGS,
} - _LEARNED_FROM  # fmt: skip
"""Flags that change how long a run trains, or where and how its processes run. Every other flag
changes how the run learns, or from what."""


def differences(
    saved: Mapping[str, Any],
    saved_sources: Mapping[str, str],
    config: Config,
    sources: Mapping[str, str],
) -> dict[str, tuple[Any, Any]]:
    """Returns the flags by which a config belongs to another run than the saved one.

    Args:
      saved: {flag: resolved value} of the saved run; {} if there is none.
      saved_sources: {flag: where its value comes from} (see `config.sources`).
      config: the config to compare.
      sources: where the values of `config` come from.

    Returns:
      {flag: (value of the run, value of the config)}, of flags that one of them gives. The others
      follow from flags that may change, as ppo's batch size from the number of actors.
    """
    return {
        name: (saved[name], value)
        for name, value in to_dict(config).items()
        # A flag that a later version added is not in an earlier one's file.
        if name in saved.keys() - MAY_CHANGE
        and "given" in (sources[name], saved_sources.get(name, "given"))
        and not _is_same(name, saved[name], value)
    }


def _is_same(name: str, one: Any, other: Any) -> bool:
    if name == "start_from" and one and other:  # a launch makes the path absolute
        return Path(one).expanduser().absolute() == Path(other).expanduser().absolute()
    return bool(one == other)


def changes(saved: Mapping[str, Any], config: Config) -> str:
    """Returns which values of learning have changed in a resumed run, in words; '' if none.

    These are values that nobody gave, and that follow from the number of frames, or from those of
    environments, actors and learners.

    Args:
      saved: {flag: resolved value} of a run that is the config's, as `differences` tells.
      config: the config of the resumed run.
    """
    values = to_dict(config)
    changed = [
        f"{to_flag(name, values[name])}, not {before}"
        for name, before in saved.items()
        if name in values.keys() - MAY_CHANGE and not _is_same(name, before, values[name])
    ]
    return f"what follows from other flags has changed: {', '.join(changed)}" if changed else ""
