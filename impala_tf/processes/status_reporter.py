"""Writes status.json once per second, and warns if the learner has waited for long."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from impala_tf import config as configs
from impala_tf.learner.peers import Peers
from impala_tf.machine.process_lifetime import STDERR, StopRequest
from impala_tf.monitoring import status
from impala_tf.processes.learner_parts import LearnerParts
from impala_tf.transport import Session

_STARVING_AFTER_S = 15.0
EXITING = "exiting; after a restart, the group resumes from the last checkpoint"

_log = logging.getLogger("impala_tf.learner")


class StatusReporter:
    """A context that keeps status.json up to date; on exit, it writes how the run ended.

    Args:
      parts: the learner's parts.
      stop: tells whether the process was asked to stop.
      peers: tells whether this learner waits or hangs.
      notes: what this learner's user must know; it may grow.
      interval_s: seconds between updates.
    """

    def __init__(
        self,
        parts: LearnerParts,
        stop: StopRequest,
        peers: Peers,
        notes: Sequence[str] = (),
        interval_s: float = 1.0,
    ) -> None:
        self._parts = parts
        self._stop = stop
        self._peers = peers
        self._notes = notes
        self._interval_s = interval_s
        self._path = parts.logdir.status(parts.config.process.task)
        self._updates = self._updates_before = parts.learner.learner_updates
        self._last_update_at: float | None = None  # monotonic
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._end: status.State = "stopped"

    def __enter__(self) -> StatusReporter:
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
        ended: status.State = "done" if self._parts.learner.done else "stopped"
        failed = error is not None or bool(self._parts.callbacks.failure)
        self._end = "failed" if failed else ended
        self.write_end()

    def write_end(self) -> None:
        """Writes how the run ended, with results that came later."""
        with self._parts.storage.attempt("status.json"):
            status.write_status(self._path, self._status(self._end))

    def _run(self) -> None:
        while not self._finished.wait(self._interval_s):
            self._parts.storage.look_for(self._parts.logdir.config)
            with self._parts.storage.attempt("status.json"):
                status.write_status(self._path, self._status(self._state()))
            self._peers.warn([actor.actor_id for actor in self._parts.server.service.actors()])
            if message := self._peers.hung():
                self._end_hung(message)

    def _end_hung(self, message: str) -> None:
        """Exits at once, as nothing else ends a thread that hangs. Checkpoints stay complete."""
        _log.error("%s; %s", message, EXITING)
        faulthandler.dump_traceback(STDERR)
        with self._parts.storage.attempt("status.json"):
            status.write_status(self._path, self._status("failed"))
        os._exit(1)

    def _state(self) -> status.State:
        if self._stop():
            return "stopping"
        updated = self._parts.learner.learner_updates > self._updates_before
        return "training" if updated else "starting"

    def _status(self, state: status.State) -> status.Status:
        parts, learner, config = self._parts, self._parts.learner, self._parts.config
        if learner.learner_updates != self._updates:
            self._updates, self._last_update_at = learner.learner_updates, time.monotonic()
        updated_at, row = self._last_update_at, parts.recorder.last_row
        starving_s, starving_since = self._peers.starving_s(), None
        if state == "training" and starving_s >= _STARVING_AFTER_S:
            starving_since = _unix_s(time.monotonic() - starving_s)
            row = None if row is None else {**row, "agent_steps_per_s": 0.0, "frames_per_s": 0.0}
        checkpoint, replay = parts.run_state.latest_checkpoint, learner.uses.replay
        total = config.run.total_environment_frames
        ended_early = state == "done" and learner.environment_frames < total
        return status.Status(
            state=state,
            level_name=parts.spec.level_name,
            agent_name=config.agent.agent_name,
            precision=learner.agent.torso_dtype,
            logdir=str(config.run.logdir),
            agent_steps=learner.agent_steps,
            environment_frames=learner.environment_frames,
            total_environment_frames=total,
            frames_per_step=parts.spec.frames_per_step,
            queue_capacity=configs.queue_capacity(config) * parts.group.size,
            row=row,
            wall_time_s=parts.recorder.wall_time_s,
            last_update_unix_s=None if updated_at is None else _unix_s(updated_at),
            starving_since_unix_s=starving_since,
            storage_trouble=parts.storage.trouble(),
            num_learners=parts.group.size,
            away_learners=[
                status.AwayLearner(learner=number, since_unix_s=since_s)
                for number, since_s in parts.group.away_since_unix_s.items()
            ],
            refused_actor=parts.server.service.last_refusal(),
            replay=None
            if replay is None
            else status.ReplayStatus(
                steps=replay.steps, capacity=replay.capacity, missing=learner.uses.missing_steps
            ),
            evaluation=self._evaluation(state),
            learners=parts.recorder.last_learner_rows,
            actors=[self._actor_status(actor) for actor in parts.server.service.actors()],
            checkpoint=None
            if checkpoint is None
            else status.CheckpointStatus(
                path=checkpoint, environment_frames=parts.run_state.saved_frames
            ),
            end_reason=parts.callbacks.end_reason if ended_early else "",
            notes=list(self._notes),
        )

    def _evaluation(self, state: status.State) -> status.EvaluationStatus | None:
        """Returns the newest result of --eval_every, and whether the end awaits another."""
        rows, evaluator = self._parts.evaluations, self._parts.evaluator
        if rows is None or evaluator is None:
            return None
        awaited = state == "done" and not self._stop() and evaluator.awaits_games
        if rows.newest is None and not awaited:
            return None
        none = status.EvaluationStatus(
            environment_frames=0, return_mean=None, episodes=0, played="", awaited=False
        )
        return {**(rows.newest or none), "awaited": awaited}

    def _actor_status(self, actor: Session) -> status.ActorStatus:
        version = self._parts.learner.parameter_version
        return status.ActorStatus(
            name=actor.actor_id,
            host=actor.host,
            agent_steps_per_s=actor.report.agent_steps_per_s,
            environment_restarts=actor.report.environment_restarts,
            trouble=actor.trouble,
            parameter_lag=float(max(0, version - actor.parameter_version)),
            push_wait_fraction=actor.report.push_wait_fraction,
            last_contact_unix_s=_unix_s(actor.last_contact),
            present=actor.is_present,
            memory_mb=actor.report.memory_mb,
        )


def _unix_s(monotonic_s: float) -> float:
    """Returns the Unix time of a monotonic time, by the clock as it is set now."""
    return time.time() - time.monotonic() + monotonic_s
