"""Atomic checkpoints: each is complete or absent.

A checkpoint's folder (see `files`) is written under a temporary name, flushed to the disk and
renamed; it is renamed again before it is deleted. A process that is killed at any moment leaves
complete checkpoints and perhaps a `.tmp-` folder, which the next process removes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_tf.checkpoint import files
from impala_tf.config import ConfigError
from impala_tf.logdir import os_error, sync

_log = logging.getLogger(__name__)


class Checkpointer:
    """Saves and restores a run's variables and state. One process saves; any process may restore.

    Args:
      directory: the folder of checkpoints; the first `save` creates it.
      trackables: {name: tf.Module or tf.Variable}. Their variables must exist before `restore`,
        including the optimizer's slots.
      keep: how many checkpoints are kept.

    Attributes:
      latest: the checkpoint that was last saved or restored; None before that.
    """

    def __init__(
        self,
        directory: Path,
        trackables: Mapping[str, tf.Module | tf.Variable],
        keep: int = 3,
    ) -> None:
        self.latest: Path | None = None
        self._directory = Path(directory)
        self._checkpoint = tf.train.Checkpoint(**trackables)
        self._keep = keep
        self._damaged: list[Path] = []

    def save(self, state: Mapping[str, Any], learner_updates: int) -> Path:
        """Writes a checkpoint and removes the oldest ones beyond `keep`.

        Args:
          state: what to save besides variables, JSON-able.
          learner_updates: the number of updates so far. If a checkpoint has the same number,
            nothing is written: what came without an update, such as the frames that fill a replay,
            comes again.

        Returns:
          the checkpoint's folder.

        Raises:
          OSError: the checkpoint cannot be written; earlier checkpoints stay.
        """
        # Only here: a process that only reads (evaluation) must not change anything.
        self._directory.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(self._directory)
        # Damaged checkpoints are newer than the good ones, so those would be removed instead.
        while self._damaged:
            files.set_aside(self._damaged.pop())
        final = self._directory / files.folder_name(learner_updates)
        if not final.exists():
            with files.temporary(final) as folder:
                folder.mkdir()
                try:
                    self._checkpoint.write(str(folder / "variables"))
                except tf.errors.OpError as error:  # such as a full disk
                    raise os_error(error.message, folder) from error
                files.write_state(folder, state)
                for path in (*folder.iterdir(), folder):
                    sync(path)
                folder.rename(final)
            sync(self._directory)
        self.latest = final
        for old in files.checkpoints(self._directory)[: -self._keep]:
            with files.temporary(old) as folder:
                old.rename(folder)
        return final

    def restore(
        self, check: Callable[[dict[str, Any]], None] = lambda _: None, partial: bool = False
    ) -> dict[str, Any] | None:
        """Restores the newest complete checkpoint.

        Args:
          check: called with the state before any variable is changed; raises to refuse it.
          partial: whether the checkpoint may hold more than the trackables, as in evaluation.

        Returns:
          the state; None only if there is no checkpoint at all.

        Raises:
          ConfigError: there are checkpoints, but none is complete, or the newest complete one does
            not fit the trackables.
        """

        def accept(path: Path, state: Any) -> None:
            check(state)
            try:
                read_variables(path, self._checkpoint, partial)
            except MismatchError as error:
                raise ConfigError(
                    f"{path}: does not fit this agent and optimizer ({error}); use the version and"
                    " flags that wrote it, or choose another --logdir"
                ) from error

        newest = files.find(self._directory, accept)
        if newest is None:
            return None
        for path, reason in newest.damaged.items():
            _log.warning("%s", files.damage_line(path, reason, newest.path))
        self._damaged = list(newest.damaged)
        self.latest = newest.path
        return newest.state


class MismatchError(Exception):
    """A checkpoint's variables are not those that are asked for."""


def read_variables(path: Path, variables: tf.train.Checkpoint, partial: bool) -> None:
    """Assigns a checkpoint's values to variables.

    Args:
      path: the checkpoint's folder.
      variables: their names in it.
      partial: whether the checkpoint may hold more.

    Raises:
      MismatchError: one is missing or has another shape; some may have been assigned.
      files.DamagedError: the values cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # TensorFlow reads a path as a pattern, so a folder with a [ in its name needs another.
            prefix = f"/proc/self/fd/{descriptor}/variables"
            # A mismatch raises below; expect_partial keeps TensorFlow from also logging it.
            status = variables.read(prefix).expect_partial()
            if partial:
                status.assert_existing_objects_matched()
            else:
                status.assert_consumed()
        finally:
            os.close(descriptor)
    except tf.errors.ResourceExhaustedError:
        raise  # the machine is out of memory; the checkpoint may be fine
    except tf.errors.OpError as error:
        raise files.DamagedError(error.message) from error
    except FileNotFoundError as error:
        raise files.DamagedError("it was removed") from error
    except (AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0].removesuffix(": attributes {")
        raise MismatchError(reason) from error
