"""Everything that a run resumes from, saved and restored together."""

from __future__ import annotations

import secrets

from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import RunSignature, check_compatible
from impala_tf.learner.update import Learner, NotFiniteError
from impala_tf.monitoring.recorder import RunRecorder


class RunState:
    """Saves and restores a run: variables, counters, and where its files end.

    Args:
      checkpointer: of the logdir.
      learner: whose counters are saved.
      recorder: whose state is saved.
      signature: what a checkpoint must have in common with this run.

    Attributes:
      run_id: random, made once per run; the same after a restart.
      saved_frames: environment frames at the last save or restore.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        learner: Learner,
        recorder: RunRecorder,
        signature: RunSignature,
    ) -> None:
        self._checkpointer = checkpointer
        self._learner = learner
        self._recorder = recorder
        self._signature = signature
        self.saved_frames = 0
        self.run_id = secrets.token_hex(8)

    @property
    def latest_checkpoint(self) -> str | None:
        """The checkpoint that was last saved or restored."""
        latest = self._checkpointer.latest
        return None if latest is None else str(latest)

    def restore(self, logdir: str | None) -> bool:
        """Restores the newest checkpoint, or starts the files of a fresh run if there is none.

        Returns:
          whether there was a checkpoint.

        Raises:
          ConfigError: the checkpoint is of another network or level, no checkpoint is whole, or a
            file of the logdir does not fit the checkpoint.
        """
        state = self._checkpointer.restore(
            lambda state: check_compatible(state["identity"], self._signature, logdir)
        )
        self._recorder.restore(None if state is None else state["recorder"])
        if state is not None:
            self.adopt(state["run_id"], state["counters"])
        return state is not None

    def adopt(self, run_id: str, counters: dict[str, float]) -> None:
        """Takes over the run's id and counters, from a checkpoint or from rank 0."""
        self.run_id = run_id
        self._learner.restore_counters(counters)
        self.saved_frames = self._learner.environment_frames

    def save(self) -> None:
        """Writes a checkpoint.

        Raises:
          NotFiniteError: a variable is not finite; nothing is written then.
          OSError: it cannot be written; the checkpoints before stay.
        """
        if broken := self._learner.not_finite():
            raise NotFiniteError(f"not saved: {', '.join(broken)} would hold NaN or infinity")
        state = {
            "identity": self._signature,
            "run_id": self.run_id,
            "counters": self._learner.counters(),
            "recorder": self._recorder.state(),
        }
        self._checkpointer.save(state, self._learner.learner_updates)
        self.saved_frames = self._learner.environment_frames
