"""A folder belongs to one run: who writes there now, whose it is, and moving it aside."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.checkpoint import files as checkpoint_files
from impala_tf.checkpoint.compatibility import check_compatible, signature_of
from impala_tf.config import Config, ConfigError, Given
from impala_tf.logdir import Logdir, NoLocksError, holds_run, in_use, lock, moved_aside
from impala_tf.machine.claims import claimed as process_claimed
from impala_tf.machine.claims import name_of
from impala_tf.processes import own_modules, provenance
from impala_tf.processes.common import resume_message
from impala_tf.types import EnvironmentSpec

_LOCK = ".lock"


@contextlib.contextmanager
def claimed(logdir: Logdir, *, fresh: bool) -> Iterator[Path | None]:
    """Holds the folder: no other run of this machine can claim it until the context ends.

    Args:
      logdir: is created if it is missing.
      fresh: whether a run that is there is moved aside first (see `logdir.moved_aside`).

    Yields:
      where the run that was there is now; None if there was none, or if it stays.

    Raises:
      ConfigError: another run uses the folder, it cannot be written, or it cannot be locked.
    """
    moved = None
    with contextlib.ExitStack() as locks:
        _lock(locks, logdir)
        _claim_path(locks, logdir)
        if fresh:
            moved = _moved_aside(logdir)
            if moved is not None:
                _lock(locks, logdir)  # of the new folder
        yield moved


def check_not_exported(logdir: Logdir) -> None:
    """Raises ConfigError if an exported agent is in the folder: others may use it as it is."""
    if logdir.is_exported:
        raise ConfigError(
            f"--logdir={logdir.path}: holds an exported agent, which cannot be trained further;"
            " give another folder (its config.yaml repeats its run: --config=FILE)"
        )


def check_flags(config: Config, logdir: Logdir) -> None:
    """Raises ConfigError if flags of a run that begins in the folder do nothing.

    A run that a mirror brings back may have been trained by a version that allowed them.
    """
    if config.run.fresh or not (config.run.mirror or holds_run(logdir.path)):
        configs.check_windows(config)


def _lock(locks: contextlib.ExitStack, logdir: Logdir) -> None:
    try:
        logdir.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(logdir.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"--logdir={logdir.path}: cannot write there: {error.strerror}") from None
    locks.callback(os.close, descriptor)
    try:
        lock(descriptor, logdir.path / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise used_by_another(logdir) from None
    except NoLocksError as error:
        raise ConfigError(f"--logdir={logdir.path}: {error.strerror}") from None
    if in_use(logdir.metrics):  # by a learner that was started by hand, or by a launch
        raise used_by_another(logdir)


def _claim_path(locks: contextlib.ExitStack, logdir: Logdir) -> None:
    """Holds the folder's name, too: the files that a run has locked go with a folder that moves.

    The run still writes checkpoints under the old name.
    """
    with contextlib.suppress(OSError):  # a sandbox may forbid sockets
        if not locks.enter_context(process_claimed(f"run in {name_of(logdir.path)}")):
            raise ConfigError(
                f"--logdir={logdir.path}: a run that began there still writes there, but its folder"
                " was moved or deleted; stop that run first, or choose another --logdir"
            )


def _moved_aside(logdir: Logdir) -> Path | None:
    path = logdir.path.resolve()
    if holds_run(path) and Path.cwd().is_relative_to(path):
        raise ConfigError(
            f"--fresh: would rename the current folder, {path}; give --logdir a folder of the run's"
            " own"
        )
    try:
        return moved_aside(logdir.path)
    except OSError as error:
        raise ConfigError(f"--fresh: cannot rename {logdir.path}: {error.strerror}") from None


def used_by_another(logdir: Logdir) -> ConfigError:
    """Returns the error that another process writes there."""
    return ConfigError(
        f"--logdir={logdir.path}: another run is writing there; choose another --logdir"
    )


def frames_so_far(config: Config, spec: EnvironmentSpec, logdir: Logdir) -> int:
    """Returns the environment frames of the run in the folder; 0 if there is none.

    Prints what a user should know about resuming it: the checkpoint, damaged ones, and the
    `changes`. Of a run that has all its frames, which is not resumed, only the damaged ones.

    Args:
      config: the run's.
      spec: the level's specification.
      logdir: may be missing.

    Raises:
      ConfigError: the folder holds another run, no checkpoint is whole, or config.json is missing
        beside one.
    """
    saved = check_same_run(config, spec, logdir)
    found = checkpoint_files.find(logdir.checkpoints)
    if found is None:
        return 0
    if not saved:
        raise ConfigError(
            f"--logdir={logdir.path}: holds checkpoints but no config.json, so nothing says how"
            " they were trained; put it back, or give another --logdir"
        )
    check_compatible(found.state["identity"], signature_of(config, spec), logdir.path)
    for path, reason in found.damaged.items():
        print(checkpoint_files.damage_line(path, reason, found.path))
    frames: int = found.state["counters"]["environment_frames"]
    if 0 < frames < config.run.total_environment_frames:
        print(resume_message(found.path, frames))
        for change in changes(saved, config, frames):
            print(change)
    return frames


def changes(saved: Mapping[str, Any], config: Config, frames: int) -> list[str]:
    """Returns what a run learns with otherwise from now on, in lines for the user.

    Args:
      saved: {flag: resolved value} of the run, when it was last started.
      config: the run's.
      frames: environment frames so far.
    """
    found = configs.schedule_change(saved, config, frames), configs.actors_change(saved, config)
    return [line for line in found if line]


def check_same_run(config: Config, spec: EnvironmentSpec, logdir: Logdir) -> dict[str, Any]:
    """Checks that config.json, if there is one, is of a run that this config resumes.

    Args:
      config: the run's.
      spec: the level's specification.
      logdir: may be missing.

    Returns:
      the flags in config.json; {} if there is none.

    Raises:
      ConfigError: it is another run's, with one line for each flag or module that differs.
    """
    described = provenance.read(logdir)
    if found := differences(described, str(logdir.path), config, spec):
        raise ConfigError(found)
    modules = own_modules.names(Given.of(config))
    if found := own_modules.problems(described, str(logdir.path), sorted(modules)):
        raise ConfigError(found)
    return dict(described.get("flags", {}))


def differences(
    described: Mapping[str, Any],
    where: str,
    config: Config,
    spec: EnvironmentSpec,
    flag: str = "logdir",
) -> list[str]:
    """Returns why the run that config.json describes is another one, in lines for the user.

    Args:
      described: "flags" and "sources" of config.json; may be empty.
      where: its folder.
      config: the run's.
      spec: the level's specification.
      flag: that names the folder.
    """
    flags, sources = described.get("flags", {}), described.get("sources", {})
    now = provenance.sources(config, spec)
    differing = configs.differences(flags, sources, config, now)
    if not differing:
        return []
    flag_of = configs.to_flag
    lines = [
        f"{flag_of(name, value)}{'' if now[name] == 'given' else ' (not given)'}, but {where} was"
        f" trained with {flag_of(name, before)}"
        for name, (before, value) in differing.items()
    ]
    theirs = shlex.join(flag_of(name, before) for name, (before, _) in differing.items())
    end = "or --fresh to move that run aside"
    out = (
        f"another --logdir to train a new one, {end}"
        if flag == "logdir"
        else f"or another --{flag}"
    )
    give = "give that flag" if len(differing) == 1 else "give these flags"
    return [*lines, f"--{flag}={where}: holds a run with {theirs}; {give} to resume it, {out}"]
