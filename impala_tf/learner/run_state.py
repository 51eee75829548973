"""The state from which a run resumes, saved and restored as a whole."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import check_compatible
from impala_tf.learner.update import Learner, NotFiniteError
from impala_tf.monitoring.recorder import RunRecorder


class RunState:
    """Saves and restores a run: variables, counters, and the rows of its files.

    Args:
      checkpointer: saves the learner's variables.
      learner: the learner, whose counters are saved.
      recorder: the recorder, whose clocks and episodes are saved.
      signature: what a checkpoint must have in common with this run, see `signature_of`.

    Attributes:
      run_id: a random id of the run, which a restart does not change.
      saved_frames: environment frames at the last save or restore.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        learner: Learner,
        recorder: RunRecorder,
        signature: Mapping[str, Any],
    ) -> None:
        self._checkpointer = checkpointer
        self._learner = learner
        self._recorder = recorder
        self._signature = signature
        self.saved_frames = 0
        self.run_id = secrets.token_hex(8)

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the checkpoint that was last saved or restored; None if there was none."""
        latest = self._checkpointer.latest
        return None if latest is None else str(latest)

    def restore(self, logdir: str | None) -> bool:
        """Restores the newest checkpoint, or starts the files of a fresh run if there is none.

        Returns:
          whether there was a checkpoint.

        Raises:
          ConfigError: the checkpoint is of another network or level, no checkpoint is complete, or
            a file of the logdir is not this run's.
        """
        state = self._checkpointer.restore(
            lambda state: check_compatible(state["identity"], self._signature, logdir)
        )
        if state is None:
            self._recorder.restore(None)
            return False
        self._recorder.restore(state["recorder"], int(state["counters"]["environment_frames"]))
        self.adopt(state["run_id"], state["counters"])
        return True

    def adopt(self, run_id: str, counters: dict[str, float]) -> None:
        """Sets the run's id and counters, from a checkpoint or from rank 0."""
        self.run_id = run_id
        self._learner.restore_counters(counters)
        self.saved_frames = self._learner.environment_frames

    def save(self) -> Path:
        """Writes a checkpoint, and returns its path.

        Raises:
          NotFiniteError: a variable is not finite; nothing is written.
          OSError: the checkpoint cannot be written; earlier checkpoints stay.
        """
        if broken := self._learner.not_finite():
            raise NotFiniteError(f"not saved: {', '.join(broken)} would hold NaN or infinity")
        state = {
            "identity": self._signature,
            "run_id": self.run_id,
            "counters": self._learner.counters(),
            "recorder": self._recorder.state(),
        }
        path = self._checkpointer.save(state, self._learner.learner_updates)
        self.saved_frames = self._learner.environment_frames
        return path
