"""Checkpoints that are complete or absent, never half.

A checkpoint's folder (see `checkpoint_files`) is written under another name, flushed to the disk
and renamed; on the way out it is renamed before it is deleted. A process that is killed at any
moment leaves whole checkpoints and perhaps a `.tmp-` folder, which the next one removes.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_tf import checkpoint_files as files
from impala_tf.config import ConfigError
from impala_tf.logdir import sync

_log = logging.getLogger(__name__)


class Checkpointer:
    """Saves and restores one run's variables and state. One process saves; any may restore.

    Args:
      directory: the folder of checkpoints; made by the first `save`.
      trackables: {name: tf.Module or tf.Variable}. Their variables must exist before `restore`,
        the optimizer's slots included (Sonnet: `optimizer._initialize(variables)`).
      keep: how many checkpoints stay.
      stage: called with the name of each stage that `save` has reached.

    Attributes:
      latest: the checkpoint that was last saved or restored; None before.
    """

    def __init__(
        self,
        directory: Path,
        trackables: Mapping[str, tf.Module | tf.Variable],
        keep: int = 3,
        stage: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.latest: Path | None = None
        self._directory = Path(directory)
        self._checkpoint = tf.train.Checkpoint(**trackables)
        self._keep = keep
        self._stage = stage
        self._damaged: list[Path] = []
        self._tidy = False

    def save(self, state: Mapping[str, Any], step: int) -> Path:
        """Writes a checkpoint and removes the oldest beyond `keep`.

        Args:
          state: JSON-able.
          step: learner updates so far. A whole checkpoint of the same step is kept as it is.

        Returns:
          the checkpoint's folder.
        """
        self._tidy_up()
        final = self._directory / files.folder_name(step)
        if final.exists() and not files.is_whole(final):
            files.set_aside(final)
        if not final.exists():
            self._write(final, state, step)
        self.latest = final
        for old in files.checkpoints(self._directory)[: -self._keep]:
            self._remove(old)
        return final

    def restore(
        self, check: Callable[[dict[str, Any]], None] = lambda _: None, partial: bool = False
    ) -> dict[str, Any] | None:
        """Restores the newest whole checkpoint.

        Args:
          check: called with the state before any variable is touched; raises to refuse it.
          partial: the checkpoint may hold more than the trackables, as for evaluation.

        Returns:
          the state; None only if there is no checkpoint at all.

        Raises:
          ConfigError: there are checkpoints, but none is whole or the newest whole one does not
            fit the trackables.
        """

        def accept(path: Path, state: Any) -> None:
            check(state)
            self._read_variables(path, partial)

        found = files.find(self._directory, accept)
        if found is None:
            return None
        for path, reason in found.damaged.items():
            _log.warning("%s", files.damage_line(path, reason, found.path))
        self._damaged = list(found.damaged)
        self.latest = found.path
        return found.state

    def _tidy_up(self) -> None:
        # Left to the first save: whoever only reads (evaluation) changes nothing in the folder.
        self._directory.mkdir(parents=True, exist_ok=True)
        if not self._tidy:
            files.remove_leftovers(self._directory)
            self._tidy = True
        # Set aside, or they would outlive the good ones as the newest.
        while self._damaged:
            files.set_aside(self._damaged.pop())

    def _write(self, final: Path, state: Mapping[str, Any], step: int) -> None:
        with self._temporary(final) as folder:
            folder.mkdir()
            self._stage("folder")
            self._checkpoint.write(str(folder / "variables"))
            self._stage("variables")
            files.write_state(folder, state, step)
            self._stage("state")
            files.write_manifest(folder)
            self._stage("manifest")
            for path in (*folder.iterdir(), folder):
                sync(path)
            self._stage("flushed")
            folder.rename(final)
        self._stage("renamed")
        sync(self._directory)

    def _remove(self, path: Path) -> None:
        with self._temporary(path) as folder:
            path.rename(folder)
            self._stage("removing")

    @contextlib.contextmanager
    def _temporary(self, path: Path) -> Iterator[Path]:
        """Yields the name that a checkpoint has while it is no checkpoint; removes what is left."""
        folder = self._directory / files.temporary_name(path)
        try:
            yield folder
        finally:
            if folder.exists():
                shutil.rmtree(folder)

    def _read_variables(self, path: Path, partial: bool) -> None:
        try:
            # What does not fit raises below; expect_partial only keeps TensorFlow from logging it.
            status = self._checkpoint.read(str(path / "variables")).expect_partial()
            if partial:
                status.assert_existing_objects_matched()
            else:
                status.assert_consumed()
        except tf.errors.ResourceExhaustedError:
            raise  # the machine's fault, not the checkpoint's
        except tf.errors.OpError as error:
            raise files.DamagedError(error.message) from error
        except (AssertionError, ValueError) as error:
            reason = str(error).splitlines()[0].removesuffix(": attributes {")
            raise ConfigError(
                f"{path}: does not fit this agent and optimizer ({reason}); go on with the version"
                " and flags that wrote it or choose another --logdir"
            ) from error
