"""What may change when a run resumes, and what would make it another run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from impala_tf.config import presets
from impala_tf.config.flag_values import (
    ENGINE_FLAGS,
    Given,
    to_dict,
    to_flag,
    waits_for_updates,
)
from impala_tf.config.flags import ClusterConfig, Config, ProcessConfig
from impala_tf.config.mode_flags import (
    BenchmarkConfig,
    EvaluationConfig,
    ExportConfig,
    ReportConfig,
)

_GROUPS = (ProcessConfig, ClusterConfig, EvaluationConfig, ReportConfig, ExportConfig,
           BenchmarkConfig)  # fmt: skip
# What actors wait for decides how old the parameters are that they act with; resets, what they see.
_LEARNED_FROM = {"synchronization", "staggered_resets"}
MAY_CHANGE = {
    "mode", "logdir", "mirror", "fresh", "track", "stop_at_return", "callbacks", "config",
    "track_project", "track_group", "track_tags",
    "checkpoint_interval_s", "metrics_interval_s", "video_every", "eval_every",
    "total_environment_frames", "environment_processes", "precision", "micro_batches",
    "gradient_compression", "save_replay",
    *(field.name for group in _GROUPS for field in dataclasses.fields(group)),
    *ENGINE_FLAGS,
} - _LEARNED_FROM  # fmt: skip
"""Flags that change how long a run trains, or where and how its processes run. Every other flag
changes what is learned from, or how."""

# These decide the values of many others, which are not listed then.
_DECIDING = ("level_name", "agent_name", "algorithm", "preset")


def missing(
    given: Given, saved: Mapping[str, Any], saved_sources: Mapping[str, str]
) -> dict[str, Any]:
    """Returns what a command that only names the folder of a run leaves out.

    Args:
      given: the flags of the command.
      saved: {flag: resolved value} of the run in --logdir.
      saved_sources: {flag: where its value is from}, or {} if not known.

    Returns:
      {flag: value} that the run was given and that it does not resume without. {} if the command
      says itself what is learned, or how: then it may mean another run.
    """
    if any(name not in MAY_CHANGE for name in given.flags):
        return {}
    return {
        name: value
        for name, value in saved.items()
        if name not in MAY_CHANGE and saved_sources.get(name) == "given"
    }


def differences(
    saved: Mapping[str, Any],
    saved_sources: Mapping[str, str],
    config: Config,
    sources: Mapping[str, str],
) -> dict[str, tuple[Any, Any]]:
    """Returns the flags that make a config that of another run than the saved one.

    Args:
      saved: {flag: resolved value} of the run. Flags that it lacks, as an old run may, are not
        compared.
      saved_sources: {flag: where its value is from} (see `config.sources`), or {} if not known.
      config: the run's.
      sources: where the values of `config` are from.

    Returns:
      {flag: (value of the run, value of the config)}. A value that neither gives, and that follows
      from flags that may change, such as ppo's batch size from the number of actors, may differ. So
      may one that is the preset's for some of their values only, such as ppo's minibatches.
    """
    values = {name: value for name, value in to_dict(config).items() if name not in MAY_CHANGE}
    if isinstance(level := saved.get("level_name"), str):
        saved = {**saved, "level_name": level.strip()}  # earlier versions kept blanks around it
    found = {
        name: (saved[name], value)
        for name, value in values.items()
        if name in saved and saved[name] != value
    }
    origins = {name: {sources[name], saved_sources.get(name, sources[name])} for name in values}
    found = {
        name: pair
        for name, pair in found.items()
        if "given" in origins[name]
        or not ("derived" in origins[name] or presets.follows_actors(name, pair))
    }
    deciding = {name: found[name] for name in _DECIDING if name in found}
    given = {name: pair for name, pair in found.items() if "given" in origins[name]}
    return (given or deciding) if deciding else found


def actors_change(saved: Mapping[str, Any], config: Config) -> str:
    """Returns what a resumed run learns with otherwise than before, in words; '' if nothing.

    These are values that nobody gave. Most follow from how many environments, actors and learners
    there are; others, in a run of an older version, from defaults that it did not have.

    Args:
      saved: {flag: resolved value} of the run, which `differences` does not tell from the config's.
      config: the run's.
    """
    values = to_dict(config)
    changed = {
        name: (before, values[name])
        for name, before in saved.items()
        # `schedule_change` is about this one.
        if name in values.keys() - MAY_CHANGE - {"schedule_frames"} and before != values[name]
    }
    if not changed:
        return ""
    now = ", ".join(f"{to_flag(name, value)}, not {old}" for name, (old, value) in changed.items())
    # Where actors wait, another batch than theirs may never be complete.
    keeping = (
        "to keep the old values, give each learner as many environments as before"
        if waits_for_updates(config) and "batch_size" in changed
        else f"{' '.join(to_flag(name, old) for name, (old, _) in changed.items())} keeps the old"
        " values"
    )
    return (
        "defaults of flags that were not given have changed, so the run continues with"
        f" {now}; {keeping}"
    )
