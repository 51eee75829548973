"""--start_from: the checkpoint with which a new run begins, and which of its parts fit the run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.checkpoint import files
from impala_tf.config import AGENTS, ConfigError, composition, plug_ins, to_flag
from impala_tf.logdir import Logdir

# A torso's weights have a meaning only with these. Each is a field of a checkpoint's "identity".
_FLAGS_OF_TORSO = ("width_scale", "layer_norm", "observation_normalization")

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """A checkpoint of another run."""

    path: Path
    identity: Mapping[str, Any]  # see `compatibility.signature_of`
    environment_frames: int


def find(start_from: str) -> Source:
    """Returns the checkpoint that --start_from names.

    Args:
      start_from: a run's folder, whose newest checkpoint is used; a folder of checkpoints, such as
        RUN/best; or one checkpoint.

    Raises:
      ConfigError: there is no complete checkpoint.
    """
    path, problem = _path(start_from), f"--start_from={start_from}: "
    if Logdir(path).is_exported:
        raise ConfigError(f"{problem}holds an exported agent; give the folder of its run")
    if (path / files.MANIFEST).is_file():
        return _source(path, _state_of(path, problem))
    folder = Logdir(path).checkpoints
    try:
        newest = files.find(folder if folder.is_dir() else path)
    except ConfigError as error:
        raise ConfigError(
            [*error.problems[:-1], f"{problem}has no whole checkpoint; give another run"]
        ) from None
    if newest is None:
        missing = "holds no checkpoint" if path.is_dir() else "there is no such folder"
        raise ConfigError(
            f"{problem}{missing}; give the folder of a run, RUN/best, or RUN/checkpoints/ckpt-N"
        )
    for damaged, reason in newest.damaged.items():
        _log.warning("%s", files.damage_line(damaged, reason, newest.path))
    return _source(newest.path, newest.state)


def check(start_from: str, current: Mapping[str, Any], logdir: Path) -> Source:
    """Returns the checkpoint that --start_from names, if a run can start from it.

    Args:
      start_from: see `find`.
      current: the signature of the new run.
      logdir: the new run's folder.

    Raises:
      ConfigError: there is no complete checkpoint, its torso does not fit, or it is one of the new
        run's own.
    """
    check_is_another(start_from, logdir)
    source = find(start_from)
    saved = source.identity
    theirs, ours = saved["agent_name"], current["agent_name"]
    if theirs not in AGENTS and not plug_ins.is_own(theirs):
        raise ConfigError(f"--start_from={start_from}: has {theirs}, unknown to this version")
    problems = [
        f"was trained with {to_flag(name, saved.get(name))}; give that flag"
        for name in _FLAGS_OF_TORSO
        if saved.get(name) != current.get(name)
    ]
    if composition(theirs).torso != composition(ours).torso:
        problems.append(f"has the torso of {theirs}, not of {ours}; give --agent_name={theirs}")
    shapes = [identity.get("observation_shape") for identity in (saved, current)]
    if shapes[0] != shapes[1]:
        problems.append(f"its observations are {shapes[0]}, but those of this run are {shapes[1]}")
    if problems:
        raise ConfigError([f"--start_from={start_from}: {problem}" for problem in problems])
    return source


def check_is_another(start_from: str, logdir: Path) -> None:
    """Raises ConfigError if --start_from names the new run's own folder, or a part of it."""
    if _path(start_from).resolve().is_relative_to(logdir.resolve()):
        raise ConfigError(
            f"--start_from={start_from}: is the run in --logdir={logdir} itself; leave"
            " --start_from out to resume it, or give another --logdir for a new run"
        )


def alike(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the parts of two agents with equal torsos that mean the same, as `Agent.parts`.

    Those are parts whose inputs mean the same, too. Their sizes may still differ.

    Args:
      saved: the identity of a `Source`.
      current: the signature of the new run.
    """
    theirs, ours = (_composition(identity) for identity in (saved, current))
    sees_same = theirs.observes_last_action_and_reward == ours.observes_last_action_and_reward
    if saved["core"] != current["core"] or not sees_same:
        return ("torso",)
    same_actions = saved["num_actions"] == current["num_actions"]
    if saved["heads"] != current["heads"]:
        heads = []
    elif saved["heads"] == "policy":
        same_inputs = theirs.separate_baseline == ours.separate_baseline
        heads = ["policy"] * same_actions + ["baseline"] * same_inputs
    else:
        heads = ["Q-values"] * same_actions
    return "torso", "core", *heads


def _path(start_from: str) -> Path:
    path = Path(start_from)
    with contextlib.suppress(RuntimeError):  # there is no such user
        path = path.expanduser()
    return path


def _state_of(checkpoint: Path, problem: str) -> Any:
    try:
        return files.read_state(checkpoint)
    except files.DamagedError as damaged:
        raise ConfigError(f"{problem}is damaged ({damaged}); give another checkpoint") from None


def _source(path: Path, state: Mapping[str, Any]) -> Source:
    return Source(path, state["identity"], int(state["counters"]["environment_frames"]))


def _composition(identity: Mapping[str, Any]) -> Any:
    return composition(identity["agent_name"]).with_core(identity["core"])
