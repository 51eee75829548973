"""--start_from: a new run begins with the parts of another run's network that fit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impala_tf.checkpoint import files
from impala_tf.checkpoint.compatibility import signature_of
from impala_tf.checkpoint.files import Newest
from impala_tf.config import AgentComposition, Config, ConfigError, composition, to_flag
from impala_tf.logdir import Logdir
from impala_tf.monitoring.status_file import FOR_USER
from impala_tf.types import EnvironmentSpec

if TYPE_CHECKING:
    import tensorflow as tf

    from impala_tf.learner.update import Learner

# A torso's weights have a meaning only with these. Each is a field of `signature_of`.
_FLAGS_OF_TORSO = ("width_scale", "layer_norm", "observation_normalization")
_COMPARED = ("level_name", "heads", "observation_shape")

_log = logging.getLogger("impala_tf.learner")


def find(start_from: str) -> Newest:
    """Returns the checkpoint that --start_from names: a run's newest, RUN/best, or that itself.

    Raises ConfigError: there is no complete checkpoint of a run.
    """
    path, problem = Path(start_from).expanduser(), f"--start_from={start_from}: "
    if (path / files.MANIFEST).is_file():
        try:
            state = files.read_state(path)
            _check_identity(path, state)
        except files.DamagedError as damaged:
            raise ConfigError(f"{problem}is damaged ({damaged}); give another") from None
        return Newest(path, state, {})
    folder = Logdir(path).checkpoints
    newest = files.find(folder if folder.is_dir() else path, _check_identity)
    if newest is None:
        missing = "holds no checkpoint" if path.is_dir() else "there is no such folder"
        raise ConfigError(
            f"{problem}{missing}; give the folder of a run, RUN/best, or RUN/checkpoints/ckpt-N"
        )
    return newest


def _check_identity(path: Path, state: Any) -> None:
    """Raises DamagedError if the identity of a checkpoint, perhaps a stranger's, is no run's."""
    identity = state["identity"]
    try:
        _composition(identity)
        used = {name: identity[name] for name in (*_FLAGS_OF_TORSO, *_COMPARED)}
        if not used["level_name"].isprintable():
            raise ValueError(used["level_name"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise files.DamagedError(f"state.json is not a run's: {error!r}") from None


def check(config: Config, spec: EnvironmentSpec, logdir: Logdir) -> None:
    """Raises ConfigError if a run would begin with a checkpoint that it cannot use.

    Only the first start of a run uses it, so a run in the folder or in a mirror needs none.
    """
    run = config.run
    resumes = not run.fresh and (run.mirror or files.checkpoints(logdir.checkpoints))
    if run.start_from and not resumes:
        find_fitting(run.start_from, signature_of(config, spec), logdir)


def find_fitting(start_from: str, current: Mapping[str, Any], logdir: Logdir) -> Newest:
    """Returns the checkpoint of --start_from, if a run in `logdir` with a signature fits it.

    Raises ConfigError: there is no complete checkpoint, its torso does not fit, or it is one of the
    new run's own.
    """
    if Path(start_from).expanduser().resolve().is_relative_to(logdir.path.resolve()):
        raise ConfigError(
            f"--start_from={start_from}: is the run in --logdir={logdir.path} itself; leave"
            " --start_from out to resume it, or give another --logdir for a new run"
        )
    source = find(start_from)
    saved = source.state["identity"]
    differing = [name for name in _FLAGS_OF_TORSO if saved[name] != current[name]]
    if _composition(saved).torso != _composition(current).torso:
        differing.append("agent_name")
    problems = [f"was trained with {to_flag(name, saved[name])}" for name in differing]
    if saved["observation_shape"] != current["observation_shape"]:
        problems.append(
            f"has observations {saved['observation_shape']}, not {current['observation_shape']}"
        )
    if problems:
        raise ConfigError([f"--start_from={start_from}: {problem}" for problem in problems])
    return source


def start(
    config: Config, spec: EnvironmentSpec, logdir: Logdir, learner: Learner
) -> dict[str, Any] | None:
    """Gives a new run's learner the network of --start_from, and tells the user.

    That is its torso and, as far as they fit, its core, policy and baseline. The statistics of
    observations come with the torso. Optimizer, counters and all else stay new. Returns what
    config.json holds about it; None without the flag. Raises ConfigError: the checkpoint cannot be
    used.
    """
    if not config.run.start_from:
        return None
    signature = signature_of(config, spec)
    source = find_fitting(config.run.start_from, signature, logdir)
    started_from = {
        "checkpoint": str(source.path.resolve()),
        "level_name": source.state["identity"]["level_name"],
        "environment_frames": source.state["counters"]["environment_frames"],
        "parts": take(learner, source, signature),
    }
    line = "starting from {checkpoint} ({level_name}, {environment_frames:,} frames); taken: "
    taken = ", ".join(started_from["parts"])
    _log.info("%s", line.format(**started_from) + taken, extra=FOR_USER)
    return started_from


def take(learner: Learner, source: Newest, signature: Mapping[str, Any]) -> list[str]:
    """Assigns the parts of a checkpoint's network that fit, and returns their names.

    Of an agent with another core, other heads or other inputs, only the torso means the same.
    Raises ConfigError: its torso does not fit, or it cannot be read, or was removed meanwhile.
    """
    import tensorflow as tf  # the run's starter has none

    from impala_tf.learner.policy_step import value_moments

    agent, identities = learner.agent, (signature, source.state["identity"])
    ours, theirs = ((each["heads"], _composition(each)) for each in identities)
    taken = []
    for name, modules in agent.parts().items():
        part = tf.Module()
        for own_name, module in modules.items():
            setattr(part, own_name, module)  # checkpoints have these names
        if not part.variables:
            continue
        if _assign(source, "agent", part):
            taken.append(name)
        elif name == "torso":
            raise ConfigError(f"--start_from: the torso of {source.path} does not fit this run's")
        elif name == "core":
            break  # what follows would have other inputs
        if theirs != ours:  # what follows would have other inputs, too
            break
    statistics = learner.trackables().get("observation_statistics")
    if statistics is not None and _assign(source, "observation_statistics", statistics):
        for part in statistics.parts.values():
            part.limit()
    if "baseline" in taken and _assign(source, "value_moments", moments := value_moments(agent)):
        heads = agent.policy_heads
        # Makes the baseline's layer predict values, not values in the other run's unit.
        heads.unit.assign(moments.mean, moments.std)
        heads.set_unit(tf.zeros_like(heads.unit.mean), tf.ones_like(heads.unit.std))
    if "Q-values" in taken:
        agent.q_heads.set_unit(tf.constant(0.0), tf.constant(1.0))  # without changing values
    learner.copy_to_target()
    return taken


def _composition(identity: Mapping[str, Any]) -> AgentComposition:
    return composition(identity["agent_name"]).with_core(identity["core"])


def _assign(source: Newest, name: str, module: tf.Module) -> bool:
    """Returns whether a checkpoint has all of a module's variables; then assigns them."""
    import tensorflow as tf

    from impala_tf.checkpoint.checkpointer import MismatchError, read_variables

    before = [variable.numpy() for variable in module.variables]
    try:
        read_variables(source.path, tf.train.Checkpoint(**{name: module}), partial=True)
    except files.DamagedError as damaged:
        raise ConfigError(f"--start_from={source.path}: is damaged ({damaged})") from None
    except MismatchError:
        for variable, value in zip(module.variables, before, strict=True):
            variable.assign(value)
        return False
    return True
