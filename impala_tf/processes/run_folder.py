"""Checks that a folder belongs to one run, claims it for a process, and moves a run aside."""

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
from impala_tf.config import Config, ConfigError
from impala_tf.logdir import Logdir, NoLocksError, in_use, lock, moved_aside
from impala_tf.processes import provenance
from impala_tf.processes.common import logdir_of, resume_message
from impala_tf.types import EnvironmentSpec

_LOCK = ".lock"


@contextlib.contextmanager
def claimed(logdir: Logdir, *, fresh: bool) -> Iterator[Path | None]:
    """Holds the folder: no other run of this machine can claim it until the context ends.

    If `fresh`, moves a run in it aside first; yields where to, else None. Raises ConfigError:
    another run uses the folder, or it cannot be written or locked.
    """
    with contextlib.ExitStack() as locks:
        _lock(locks, logdir)
        moved = _move_aside(logdir) if fresh else None
        if moved is not None:
            _lock(locks, logdir)  # of the new folder
        yield moved


def check_usable(config: Config) -> None:
    """Raises ConfigError if the logdir holds what is no run's, unless --fresh moves it aside."""
    logdir = logdir_of(config)
    if logdir.is_exported or not config.run.fresh:
        provenance.read(logdir)


def _lock(locks: contextlib.ExitStack, logdir: Logdir) -> None:
    where = f"--logdir={logdir.path}"
    try:
        logdir.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(logdir.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        locks.callback(os.close, descriptor)
        lock(descriptor, logdir.path / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if in_use(logdir.metrics):  # by a learner that a user or a launch has started
            raise BlockingIOError
    except BlockingIOError:
        raise ConfigError(
            f"{where}: another run is writing there; choose another --logdir"
        ) from None
    except NoLocksError as error:
        raise ConfigError(f"{where}: {error.strerror}") from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot write there: {error.strerror}") from None


def _move_aside(logdir: Logdir) -> Path | None:
    try:
        return moved_aside(logdir.path)
    except OSError as error:
        raise ConfigError(f"--fresh: cannot rename {logdir.path}: {error.strerror}") from None


def frames_so_far(config: Config, spec: EnvironmentSpec, logdir: Logdir) -> int:
    """Returns the environment frames of the run in the folder; 0 if there is none.

    Prints what a user should know about resuming. Raises ConfigError: the folder holds another run,
    no checkpoint is complete, or there is a checkpoint but no config.json.
    """
    saved = check_same_run(config, spec, logdir)
    newest = checkpoint_files.find(logdir.checkpoints)
    if newest is None:
        return 0
    if not saved:
        raise ConfigError(
            f"--logdir={logdir.path}: holds checkpoints but no config.json, so nothing says how"
            " they were trained; put it back, or give another --logdir"
        )
    check_compatible(newest.state["identity"], signature_of(config, spec), logdir.path)
    for path, reason in newest.damaged.items():
        print(checkpoint_files.damage_line(path, reason, newest.path))
    frames: int = newest.state["counters"]["environment_frames"]
    if 0 < frames < config.run.total_environment_frames:
        print(resume_message(newest.path, frames))
        if change := configs.changes(saved, config):
            print(change)
    return frames


def check_same_run(config: Config, spec: EnvironmentSpec, logdir: Logdir) -> dict[str, Any]:
    """Returns the flags in config.json; {} if there is none.

    Raises ConfigError: it is another run's, with one line for each flag that differs.
    """
    described = provenance.read(logdir)
    if lines := differences(described, str(logdir.path), config, spec):
        raise ConfigError(lines)
    return dict(described.get("flags", {}))


def differences(
    described: Mapping[str, Any],
    where: str,
    config: Config,
    spec: EnvironmentSpec,
    flag: str = "logdir",
) -> list[str]:
    """Returns why the run of a config.json is not this one, in lines for the user.

    `where` is the value of `flag`, which names its folder.
    """
    now = provenance.sources(config, spec)
    differing = configs.differences(
        described.get("flags", {}), described.get("sources", {}), config, now
    )
    lines = [
        f"{_type(name, value)}{'' if now[name] == 'given' else ' (not given)'}, but {where} was"
        f" trained with {_type(name, before)}"
        for name, (before, value) in differing.items()
    ]
    if lines:
        more = f"another --{flag}" + (", or --fresh" if flag == "logdir" else "")
        lines.append(f"--{flag}={where}: holds another run; give its flags to resume it, or {more}")
    return lines


def _type(name: str, value: Any) -> str:
    """Returns a flag as it is typed in a shell; one without a value as "no --NAME"."""
    return f"no --{name}" if value == "" else shlex.quote(configs.to_flag(name, value))
