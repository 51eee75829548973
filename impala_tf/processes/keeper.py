"""What a learner goes on from, saved and restored."""

from __future__ import annotations

import secrets
from typing import Any

from impala_tf.checkpoint import Checkpointer
from impala_tf.identity import Identity, check_identity
from impala_tf.learner import Learner
from impala_tf.recorder import RunRecorder


class Keeper:
    """Saves and restores everything that a learner goes on from.

    Args:
      checkpointer: of the logdir.
      learner, recorder: whose state is kept.
      identity: what a checkpoint must share with this run.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        learner: Learner,
        recorder: RunRecorder,
        identity: Identity,
    ) -> None:
        self._checkpointer = checkpointer
        self._learner = learner
        self._recorder = recorder
        self._identity = identity
        self.saved_frames = 0
        self.run_id = secrets.token_hex(8)

    @property
    def latest(self) -> str | None:
        """The checkpoint that was last saved or restored."""
        return None if self._checkpointer.latest is None else str(self._checkpointer.latest)

    def restore(self, logdir: str | None) -> dict[str, Any] | None:
        """Restores the variables of the newest checkpoint and returns its state, if there is one.

        Raises:
          ConfigError: it is of another network or level, or no checkpoint is whole.
        """
        return self._checkpointer.restore(
            lambda state: check_identity(state["identity"], self._identity, logdir)
        )

    def go_on(self, state: dict[str, Any] | None) -> None:
        """Takes counters and files to where `state` left them; None: a fresh run.

        Raises:
          ConfigError: a file of the logdir is not the one that the checkpoint knew.
        """
        self._recorder.restore(None if state is None else state["recorder"])
        if state is not None:
            self.run_id = state["run_id"]
            self._learner.restore_counters(state["counters"])
            self.saved_frames = self._learner.environment_frames

    def save(self) -> None:
        """Writes a checkpoint."""
        state = {
            "identity": self._identity,
            "run_id": self.run_id,
            "counters": self._learner.counters(),
            "recorder": self._recorder.state(),
        }
        self._checkpointer.save(state, self._learner.updates)
        self.saved_frames = self._learner.environment_frames
