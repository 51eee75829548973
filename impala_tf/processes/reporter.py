"""status.json, each second, and a word when the learner has been waiting for long."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Protocol

from impala_tf import status
from impala_tf.config import Config, known
from impala_tf.learner import Learner
from impala_tf.logdir import Logdir
from impala_tf.processes.waits import Waits
from impala_tf.recorder import RunRecorder
from impala_tf.shutdown import StopRequest
from impala_tf.transport import ActorView, LearnerServer
from impala_tf.types import EnvironmentSpec

_INTERVAL_S = 1.0


class Kept(Protocol):
    """What is said about checkpoints (see `processes.keeper.Keeper`)."""

    saved_frames: int

    @property
    def latest(self) -> str | None:
        """The newest checkpoint."""


class Reporter:
    """A context in which status.json is kept up to date; leaving it writes how the run ended."""

    def __init__(
        self,
        config: Config,
        spec: EnvironmentSpec,
        logdir: Logdir,
        learner: Learner,
        recorder: RunRecorder,
        kept: Kept,
        server: LearnerServer,
        stop: StopRequest,
        waits: Waits,
    ) -> None:
        self._config = config
        self._spec = spec
        self._learner = learner
        self._updates_before = learner.updates
        self._recorder = recorder
        self._kept = kept
        self._server = server
        self._stop = stop
        self._waits = waits
        self._writer = status.StatusWriter(logdir.status(config.process.task))
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> Reporter:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finished.set()
        self._thread.join()
        ended: status.State = "done" if self._learner.done else "stopping"
        self._writer.write(self._status("failed" if error is not None else ended))

    def _run(self) -> None:
        while not self._finished.wait(_INTERVAL_S):
            self._writer.write(self._status(self._state()))
            self._waits.warn([actor.actor_id for actor in self._server.actors()])

    def _state(self) -> status.State:
        if self._stop():
            return "stopping"
        if self._config.process.task == 0:
            return "training" if self._recorder.last_row else "starting"
        # Rows are learner 0's to write.
        return "training" if self._learner.updates > self._updates_before else "starting"

    def _status(self, state: status.State) -> status.Status:
        learner = self._learner
        latest = self._kept.latest
        return status.Status(
            state=state,
            level_name=self._spec.level_name,
            agent_name=self._config.agent.agent_name,
            logdir=str(self._config.run.logdir),
            agent_steps=learner.agent_steps,
            environment_frames=learner.environment_frames,
            total_environment_frames=known(self._config.run.total_environment_frames),
            frames_per_step=self._spec.frames_per_step,
            queue_capacity=known(self._config.process.queue_capacity),
            row=self._recorder.last_row,
            learners=self._recorder.last_learner_rows,
            actors=[self._actor_status(actor) for actor in self._server.actors()],
            checkpoint=None
            if latest is None
            else status.CheckpointStatus(path=latest, environment_frames=self._kept.saved_frames),
        )

    def _actor_status(self, actor: ActorView) -> status.ActorStatus:
        return status.ActorStatus(
            name=actor.actor_id,
            host=actor.host,
            agent_steps_per_s=actor.agent_steps_per_s,
            parameter_lag=float(max(0, self._learner.updates - actor.parameter_version)),
            push_wait_fraction=actor.push_wait_fraction,
            last_contact_unix_s=actor.last_contact,
        )
