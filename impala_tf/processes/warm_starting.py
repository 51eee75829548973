"""--start_from: a new run that begins with the network of another one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from impala_tf.checkpoint import files, warm_start
from impala_tf.checkpoint.compatibility import signature_of
from impala_tf.checkpoint.warm_start import Source
from impala_tf.config import Config, ConfigError
from impala_tf.logdir import Logdir
from impala_tf.monitoring.notes import FOR_USER
from impala_tf.types import EnvironmentSpec

if TYPE_CHECKING:
    from impala_tf.learner.update import Learner

_log = logging.getLogger("impala_tf.learner")


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
    if not run.start_from:
        return
    warm_start.check_is_another(run.start_from, logdir.path)
    mirrored = run.mirror and may_be_mirrored
    resumes = not run.fresh and (mirrored or files.checkpoints(logdir.checkpoints))
    if not resumes:
        warm_start.check(run.start_from, signature_of(config, spec), logdir.path)


def start(
    config: Config, spec: EnvironmentSpec, logdir: Logdir, learner: Learner
) -> dict[str, Any] | None:
    """Gives a new run's learner the network of --start_from, and tells the user.

    Returns:
      what config.json holds about it, JSON-able; None without the flag.

    Raises:
      ConfigError: the checkpoint cannot be used.
    """
    if not config.run.start_from:
        return None
    from impala_tf.learner import warm_start as network  # the run's starter has no TensorFlow

    def take() -> tuple[Source, dict[str, bool]]:
        signature = signature_of(config, spec)
        source = warm_start.check(config.run.start_from, signature, logdir.path)
        return source, network.start(learner, source, signature)

    try:
        source, taken = take()
    except files.DamagedError:  # a run that still trains has replaced it meanwhile
        try:
            source, taken = take()
        except files.DamagedError as damaged:
            raise ConfigError(
                f"--start_from={config.run.start_from}: cannot be read ({damaged})"
            ) from None
    _log.info("%s", _line(source, taken), extra=FOR_USER)
    return {
        "checkpoint": str(source.path.resolve()),
        "level_name": source.identity["level_name"],
        "environment_frames": source.environment_frames,
        "parts": [part for part, is_taken in taken.items() if is_taken],
    }


def _line(source: Source, taken: Mapping[str, bool]) -> str:
    of = f"{source.identity['level_name']}, {source.environment_frames:,} frames"
    old, new = (
        ", ".join(part for part, is_taken in taken.items() if is_taken is which)
        for which in (True, False)
    )
    rest = f"; new: {new}" if new else ""
    return f"starting from {source.path} ({of}); taken: {old}{rest}"
