"""--start_from: a new run begins with the parts of another run's network that fit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from impala_tf.checkpoint import files
from impala_tf.checkpoint.compatibility import signature_of
from impala_tf.config import Config, ConfigError, composition, to_flag
from impala_tf.logdir import Logdir
from impala_tf.monitoring.notes import FOR_USER
from impala_tf.types import EnvironmentSpec

if TYPE_CHECKING:
    import tensorflow as tf

    from impala_tf.learner.update import Learner

# A torso's weights have a meaning only with these. Each is a field of `signature_of`.
_FLAGS_OF_TORSO = ("width_scale", "layer_norm", "observation_normalization")

_log = logging.getLogger("impala_tf.learner")


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
    path, problem = Path(start_from).expanduser(), f"--start_from={start_from}: "
    if (path / files.MANIFEST).is_file():
        try:
            state = files.read_state(path)
        except files.DamagedError as damaged:
            raise ConfigError(f"{problem}is damaged ({damaged}); give another") from None
    else:
        folder = Logdir(path).checkpoints
        newest = files.find(folder if folder.is_dir() else path)
        if newest is None:
            missing = "holds no checkpoint" if path.is_dir() else "there is no such folder"
            raise ConfigError(
                f"{problem}{missing}; give the folder of a run, RUN/best, or RUN/checkpoints/ckpt-N"
            )
        path, state = newest.path, newest.state
    return Source(path, state["identity"], int(state["counters"]["environment_frames"]))


def check(
    config: Config, spec: EnvironmentSpec, logdir: Logdir, may_be_mirrored: bool = True
) -> None:
    """Raises ConfigError if a run would begin with a checkpoint that it cannot use.

    Only the first start of a run uses it, so a run in the folder or in a mirror needs none.

    Args:
      config: the run's config.
      spec: its level's specification.
      logdir: its folder.
      may_be_mirrored: whether --mirror may have a run that is not in the folder yet.
    """
    run = config.run
    mirrored = run.mirror and may_be_mirrored
    resumes = not run.fresh and (mirrored or files.checkpoints(logdir.checkpoints))
    if run.start_from and not resumes:
        find_fitting(run.start_from, signature_of(config, spec), logdir)


def find_fitting(start_from: str, current: Mapping[str, Any], logdir: Logdir) -> Source:
    """Returns the checkpoint that --start_from names, if a run can start from it.

    Args:
      start_from: see `find`.
      current: the signature of the new run.
      logdir: the new run's folder.

    Raises:
      ConfigError: there is no complete checkpoint, its torso does not fit, or it is one of the new
        run's own.
    """
    if Path(start_from).expanduser().resolve().is_relative_to(logdir.path.resolve()):
        raise ConfigError(
            f"--start_from={start_from}: is the run in --logdir={logdir.path} itself; leave"
            " --start_from out to resume it, or give another --logdir for a new run"
        )
    source = find(start_from)
    saved = source.identity
    theirs, ours = saved["agent_name"], current["agent_name"]
    problems = [
        f"was trained with {to_flag(name, saved[name])}; give that flag"
        for name in _FLAGS_OF_TORSO
        if saved[name] != current[name]
    ]
    if composition(theirs).torso != composition(ours).torso:
        problems.append(f"has the torso of {theirs}, not of {ours}; give --agent_name={theirs}")
    shapes = [identity["observation_shape"] for identity in (saved, current)]
    if shapes[0] != shapes[1]:
        problems.append(f"its observations are {shapes[0]}, but those of this run are {shapes[1]}")
    if problems:
        raise ConfigError([f"--start_from={start_from}: {problem}" for problem in problems])
    return source


def start(
    config: Config, spec: EnvironmentSpec, logdir: Logdir, learner: Learner
) -> dict[str, Any] | None:
    """Gives a new run's learner the network of --start_from, and tells the user.

    That is its torso and, as far as they fit, its core, policy and baseline. The statistics of
    observations come with the torso. Optimizer, counters and all else stay new.

    Returns:
      what config.json holds about it, JSON-able; None without the flag.

    Raises:
      ConfigError: the checkpoint cannot be used.
    """
    if not config.run.start_from:
        return None
    signature = signature_of(config, spec)
    source = find_fitting(config.run.start_from, signature, logdir)
    taken = take(learner, source, signature)
    level, frames = source.identity["level_name"], source.environment_frames
    old, new = (
        ", ".join(part for part, is_taken in taken.items() if is_taken is which)
        for which in (True, False)
    )
    line = f"starting from {source.path} ({level}, {frames:,} frames); taken: {old}"
    _log.info("%s%s", line, f"; new: {new}" if new else "", extra=FOR_USER)
    return {
        "checkpoint": str(source.path.resolve()),
        "level_name": level,
        "environment_frames": frames,
        "parts": [part for part, is_taken in taken.items() if is_taken],
    }


def take(learner: Learner, source: Source, signature: Mapping[str, Any]) -> dict[str, bool]:
    """Assigns the parts of a checkpoint's network that fit; see `start`.

    Args:
      learner: a new learner.
      source: the checkpoint, with a torso that fits (see `find_fitting`).
      signature: that of the new run.

    Returns:
      {part of the agent that has variables: whether it was assigned}.

    Raises:
      ConfigError: its torso does not fit.
      DamagedError: the checkpoint cannot be read, or was removed meanwhile.
    """
    import tensorflow as tf  # the run's starter has none

    from impala_tf.learner.policy import value_moments

    agent = learner.agent
    parts: dict[str, tf.Module] = {}
    for name, modules in agent.parts().items():
        parts[name] = part = tf.Module()
        for own_name, module in modules.items():
            setattr(part, own_name, module)  # checkpoints have these names
    taken = dict.fromkeys(parts, False)
    for name in _parts_alike(source.identity, signature):
        taken[name] = _assign(source, agent=parts[name])
        if name in ("torso", "core") and not taken[name]:
            break  # what follows would have other inputs
    if not taken["torso"]:
        raise ConfigError(f"--start_from: the torso of {source.path} does not fit this run's")
    statistics = learner.trackables().get("observation_statistics")
    if statistics is not None and _assign(source, observation_statistics=statistics):
        statistics.limit()
    if taken.get("baseline") and _assign(source, value_moments=(moments := value_moments(agent))):
        heads = agent.policy_heads
        # Makes the baseline's layer predict values, not values in the other run's unit.
        heads.unit.assign(moments.mean, moments.std)
        heads.set_unit(tf.zeros_like(heads.unit.mean), tf.ones_like(heads.unit.std))
    if taken.get("Q-values"):
        agent.q_heads.set_unit(tf.constant(0.0), tf.constant(1.0))  # without changing values
    learner.copy_to_target()
    return {name: taken[name] for name, part in parts.items() if part.variables}


def _parts_alike(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the parts of two agents with equal torsos that mean the same, as `Agent.parts`.

    Those are parts whose inputs mean the same, too. Their sizes may still differ.
    """
    theirs, ours = (
        composition(one["agent_name"]).with_core(one["core"]) for one in (saved, current)
    )
    sees_same = theirs.observes_last_action_and_reward == ours.observes_last_action_and_reward
    if saved["core"] != current["core"] or not sees_same:
        return ("torso",)
    same_actions = saved["num_actions"] == current["num_actions"]
    if saved["heads"] != current["heads"]:
        return ("torso", "core")
    if saved["heads"] != "policy":
        return ("torso", "core", *["Q-values"] * same_actions)
    same_inputs = theirs.separate_baseline == ours.separate_baseline
    return ("torso", "core", *["policy"] * same_actions, *["baseline"] * same_inputs)


def _assign(source: Source, **modules: tf.Module) -> bool:
    """Assigns all variables of modules, which are given by their names in checkpoints, or none.

    Returns:
      whether all of them are in the checkpoint with the same shapes.
    """
    import tensorflow as tf

    from impala_tf.checkpoint.checkpointer import MismatchError, read_variables

    variables = [variable for module in modules.values() for variable in module.variables]
    before = [variable.numpy() for variable in variables]
    try:
        read_variables(source.path, tf.train.Checkpoint(**modules), partial=True)
    except MismatchError:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return False
    return True
