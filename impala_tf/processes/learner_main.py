"""The learner process: build, run, close.

    actors --> server --put--> queue --> batches --> learner.update --> store --> server --> actors
                                                           |
                                                           '--> recorder --> outputs

`outputs`, of the first learner only, has what a run leaves behind: rows, checkpoints, videos.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_tf import config as configs
from impala_tf import transport
from impala_tf.agents.agent import Agent, agent_here, agent_of, parameter_specs
from impala_tf.checkpoint import files as checkpoint_files
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import signature_of
from impala_tf.config import Config, Given, config_file
from impala_tf.learner.actor_gradients import sent_specs
from impala_tf.learner.arrivals import Batches, Intake, UnrollQueue
from impala_tf.learner.conversion import NetworkService
from impala_tf.learner.inference import InferenceService
from impala_tf.learner.learner_group import LearnerGroup, check_equal_flags, join_group
from impala_tf.learner.peers import Peers
from impala_tf.learner.run_state import RunState
from impala_tf.learner.training_loop import TrainingLoop
from impala_tf.learner.update import Learner, NotFiniteError
from impala_tf.logdir import Logdir, write_atomically
from impala_tf.machine import certificates, process_memory
from impala_tf.machine.process_lifetime import (
    STDERR,
    StopRequest,
    raise_descriptor_limit,
    run_interruptibly,
)
from impala_tf.machine.supervision import REGROUP, REGROUP_SIGNAL, UNUSABLE_INPUT, USELESS, Members
from impala_tf.monitoring import status_file
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.monitoring.status_file import Notes
from impala_tf.monitoring.storage import StorageWatch
from impala_tf.processes import evaluator, mirroring, provenance, run_folder, warm_start
from impala_tf.processes.common import begin, credentials_dir, resume_message, seed_of
from impala_tf.processes.learner_outputs import LearnerOutputs
from impala_tf.processes.tensorflow_startup import select_device, start_xla, use_threads
from impala_tf.transport import Session
from impala_tf.types import EnvironmentSpec, Sent

_FAREWELL_S = 5.0
"""How long a learner that is done waits for its actors to call once more, to tell them."""

_STARVING_AFTER_S = 15.0
_EXITING = "exiting; after a restart, the group resumes from the last checkpoint"

_log = logging.getLogger("impala_tf.learner")


def main(given: Given) -> int:
    """Learns until the run has all its frames, or this process is asked to stop.

    Returns:
      0 if all went well; 1 if another learner of the group was lost, or training broke down; 2 if a
      callback raised; USELESS if the run is over, but its last checkpoint could not be written;
      REGROUP if a supervisor should restart it with another group of learners.

    Raises:
      ConfigError: flags, a device, a logdir, a checkpoint or a port that cannot be used.
    """
    config, spec, logdir, stop = begin(given)
    notes = Notes()
    logging.getLogger("impala_tf").addHandler(notes)
    raise_descriptor_limit()
    process_memory.use_one_arena()
    use_threads(configs.learner_threads(config))
    device = select_device(config.process.device)
    start_xla()
    members, regroup = Members.from_environment(), threading.Event()
    if members is not None:
        signal.signal(REGROUP_SIGNAL, lambda *_: regroup.set())
    group = join_group(config, members)
    config = configs.replace(config, task=group.members[group.rank])
    try:
        process = LearnerProcess(config, spec, logdir, group, stop)
        process.run(device, regroup.is_set, notes.lines)
    except NotFiniteError as error:
        _log.error("%s; %s", error, _newest(logdir))
        return 1
    except Exception as error:
        if not group.is_lost_peer(error):
            raise
        _log.error("learner-%d: lost %s; %s", config.process.task, group.others, _EXITING)
        return 1 if members is None else REGROUP
    finally:
        group.close()
    if process.failure:
        _log.error("%s; %s", process.failure, _newest(logdir))
        return UNUSABLE_INPUT  # it would raise again after a restart
    if trouble := process.storage.trouble():
        _log.error("%s; %s", trouble["text"], _newest(logdir))
        # The actors know that the run is over, so a restarted learner would wait for them forever.
        return USELESS if process.learner.done else 1
    return REGROUP if process.regroups else 0


def _newest(logdir: Logdir) -> str:
    paths = checkpoint_files.checkpoints(logdir.checkpoints)
    return f"the last good checkpoint is {paths[-1]}" if paths else "there is no good checkpoint"


class LearnerProcess:
    """A learner, connected with actors, other learners and the run's files.

    Making it restores the newest checkpoint on all ranks, and publishes the parameters. The
    server's port is bound, but nothing is served before `run`. Only rank 0 has `outputs` and writes
    to the logdir. Raises ConfigError: a logdir, checkpoint or port that cannot be used.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvironmentSpec,
        logdir: Logdir,
        group: LearnerGroup,
        stop: StopRequest,
    ) -> None:
        self.config, self.spec, self.logdir, self.group = config, spec, logdir, group
        self._stop = stop
        self._notes: Sequence[str] = ()
        self._ended: status_file.State | None = None
        configs.check_batches(config)
        leads = group.rank == 0
        if leads:
            mirroring.bring_back(config, spec, logdir, _log.info)
            run_folder.check_same_run(config, spec, logdir)
            evaluator.check(config, spec)
        tf.random.set_seed(seed_of(config.run.seed, "learner"))
        agent = agent_here(config.agent, spec)
        specs = sent_specs(agent, spec, config)
        self.learner = Learner(agent, spec, config, group)
        self.queue = UnrollQueue(
            specs._replace(actor=tf.TensorSpec((), tf.int32)), configs.queue_capacity(config)
        )
        self.storage = StorageWatch()
        self.outputs = LearnerOutputs(config, spec, logdir, self.storage) if leads else None
        replay = self.learner.uses.replay
        of_replay = {} if replay is None else {"replay_steps": lambda: replay.steps}
        self.recorder = RunRecorder(
            {} if self.outputs is None else self.outputs.writers,
            {"queue_size": self.queue.size, **of_replay},
            config.run.metrics_interval_s,
            None if self.outputs is None else self.outputs.level_rows,
            () if self.outputs is None else self.outputs.files,
            configs.split(config.run.info_metrics),
            group.members,
        )
        self.run_state = RunState(
            Checkpointer(logdir.checkpoints, self.learner.trackables()),
            self.learner,
            self.recorder,
            signature_of(config, spec),
        )
        self.resumed, self._started_from = False, None
        if leads:
            self.resumed = self.run_state.restore(config.run.logdir)
            if not self.resumed:
                self._started_from = warm_start.start(config, spec, logdir, self.learner)
            certificates.ensure(credentials_dir(config))
        # The ranks wait for each other here, so afterwards all have the credentials.
        check_equal_flags(config, group)
        shared = {"run_id": self.run_state.run_id, "counters": self.learner.counters()}
        self.run_state.adopt(**group.gather(shared)[0])
        self.learner.synchronize()
        self.store = transport.ParameterStore()
        self.store.publish(self.learner.parameter_version, self.learner.parameters())
        self.inference: InferenceService | None = None
        if config.process.inference == "learner":
            seed = seed_of(config.run.seed, "inference", config.process.task)
            copy = agent_of(config.agent, spec, agent.torso_dtype)
            self.inference = InferenceService(copy, spec, self.store, seed)
        self._waits = configs.waits_for_updates(config)
        self.server = self._make_server(agent, specs)
        self.peers = Peers(group)
        interval_s = config.run.checkpoint_interval_s
        self.loop = TrainingLoop(self.learner, self.recorder, self.peers, self, interval_s)

    def _make_server(self, agent: Agent, specs: Sent) -> transport.LearnerServer:
        config, process = self.config, self.config.process
        parameters, num_sent = parameter_specs(agent), configs.sent_per_push(config)
        networks = None
        if process.inference == "actor" and not configs.actors_use_tensorflow(config):
            networks = NetworkService(agent_of(config.agent, self.spec), self.spec).network
        terms = transport.RunTerms(
            run_id=self.run_state.run_id,
            config_digest=configs.wire_digest(config),
            sent_specs=specs,
            parameter_specs=parameters,
            max_environments=4 * num_sent,
            # The most games that can end in a push, for each of its unrolls.
            most_episodes=(2 + config.optimizer.unroll_length) * process.envs_per_actor // num_sent,
            num_levels=len(self.spec.levels),
            num_infos=len(configs.split(config.run.info_metrics)),
            run_steps=self.learner.agent_steps,
            level=json.dumps(self.spec.to_json()),
        )
        intake = Intake(
            self.spec,
            config,
            self.learner.senders,
            self.queue,
            self.recorder,
            lambda: self.learner.parameter_version,
        )
        # Actors work on the unrolls of a batch at a time, and two more.
        limit = transport.GrantLimit(2 + math.ceil(configs.sent_per_batch(config) / num_sent))
        service = transport.LearnerService(
            transport.Pushes(
                terms,
                intake.put,
                on_refused=self.recorder.record_refused,
                grants=transport.Grants() if self._waits else transport.Grants(limit),
            ),
            self.store,
            infer=None if self.inference is None else self.inference.ask,
            networks=networks,
            number=process.task,
            members=self.group.members,
        )
        address = configs.split(process.learner_hosts)[process.task]
        server = transport.LearnerServer(address, credentials_dir(config), service)
        if self.inference is not None and process.synchronization == "step":
            self.inference.wait_for(service.num_acting)
        return server

    # --- what the training loop calls ---

    def follow_update(self, stats: Any) -> None:
        """Publishes the parameters; `stats` is what `Learner.update` has returned."""
        self.store.publish(self.learner.parameter_version, self.learner.parameters())
        if self.outputs is not None:
            self.outputs.callbacks.on_update(stats)

    def write_row(self, intervals: list[dict[str, Any]]) -> None:
        """Writes a row from all learners' parts, if there is news."""
        assert self.outputs is not None
        with self.storage.attempt("metrics"):
            before = self.recorder.last_row
            self.recorder.write_row(intervals, self.learner.progress)
            if (row := self.recorder.last_row) is not None and row is not before:
                self.outputs.follow_row(row, self.recorder.window.largest_return)

    def save(self) -> bool:
        """Writes a checkpoint; returns whether that worked."""
        assert self.outputs is not None
        path: Path | None = None
        with self.storage.attempt("a checkpoint"):
            path = self.run_state.save()
        if path is not None:
            self.outputs.follow_checkpoint(path)
        return path is not None

    # --- run ---

    def run(
        self, device: str, regroup_requested: Callable[[], bool], notes: Sequence[str] = ()
    ) -> None:
        """Learns until the end, or until another group of learners should resume."""
        if self.outputs is not None:
            self._announce(device)
            with self.storage.attempt("a checkpoint"):
                self.run_state.save()  # from now on, there is always a checkpoint to resume from
        if self.inference is not None:
            self._stop.on_request(self.inference.close)
        self._notes = notes
        try:
            with self.reporting():
                run_interruptibly(lambda: self._learn(regroup_requested))
        finally:
            self.queue.close()
            self.server.stop(grace_s=0.5)
            if self.outputs is not None:
                done, ended = self.learner.done, self._ended
                self.outputs.close(done, self._stop, lambda: self.write_status(ended))
            self.recorder.close()
        frames = f"{self.learner.environment_frames:,}"
        where = f"; checkpoint {self.run_state.latest_checkpoint}" if self.outputs else ""
        _log.info("%s at %s frames%s", self.end_state, frames, where)

    @contextlib.contextmanager
    def reporting(self, interval_s: float = 1.0) -> Iterator[None]:
        """Keeps status.json up to date, at the end with how the run ended; ends a hung learner."""
        finished = threading.Event()

        def report() -> None:
            while not finished.wait(interval_s):
                self.write_status()
                if message := self.peers.hung():
                    _log.error("%s; %s", message, _EXITING)
                    faulthandler.dump_traceback(STDERR)
                    self.write_status("failed")
                    os._exit(1)  # nothing else ends a thread that hangs; checkpoints are complete

        thread = threading.Thread(target=report, name="status", daemon=True)
        thread.start()
        self._ended = "failed"
        try:
            yield
            self._ended = self.end_state
        finally:
            finished.set()
            thread.join()
            self.write_status(self._ended)

    def write_status(self, ended: status_file.State | None = None) -> None:
        """Writes status.json; see `status`."""
        with self.storage.attempt("status.json"):
            path = self.logdir.status(self.config.process.task)
            status_file.write_status(path, self.status(ended))

    def _learn(self, regroup_requested: Callable[[], bool]) -> None:
        learner = self.learner
        self.server.start()
        learner.compile()
        self.recorder.begin(learner.agent_steps, learner.environment_frames)
        batches = Batches(
            self.queue,
            configs.sent_per_batch(self.config),
            (lambda: learner.parameter_version) if self._waits else None,
            self.recorder.record_stale,
        )
        # On a stop, the learner stops waiting for a batch, and tells the others at once. The queue
        # itself is closed later: with a GPU, closing it while something waits in it has made other
        # operations fail.
        self._stop.on_request(batches.close)
        self.loop.run(batches, lambda: self._stop() or bool(self.end_reason), regroup_requested)
        if any(self.group.gather(bool(self.end_reason))):
            learner.finish()
        self.peers.ends()
        if self.outputs is not None and not self.regroups:
            self.outputs.callbacks.on_end()
        if self.group.size > 1:  # for comparison: all learners must end with the same parameters
            number = self.config.process.task
            _log.info("learner-%d: final parameters %s", number, learner.digest())
        if learner.done:
            self.server.finish()
            self.queue.close()  # tells pushes that wait for room, too
            if self.inference is not None:
                self.inference.close()
            _wait_for_actors_to_be_told(self.server)

    @property
    def failure(self) -> str:
        """Which of the user's callbacks raised what; '' if none did."""
        return "" if self.outputs is None else self.outputs.callbacks.failure

    @property
    def end_reason(self) -> str:
        """Why the run should end before its last frame; '' if it should not."""
        return "" if self.outputs is None else self.outputs.end_reason

    @property
    def end_state(self) -> status_file.State:
        """How the run has ended, if no error has ended it."""
        return "failed" if self.failure else "done" if self.learner.done else "stopped"

    @property
    def regroups(self) -> bool:
        """Whether another group of learners should continue."""
        return self.loop.regroups and not self.learner.done  # a callback may have ended it

    def status(self, ended: status_file.State | None = None) -> status_file.Status:
        """Returns the contents of status.json. `ended`: how the run has; None: it has not."""
        learner, config, recorder = self.learner, self.config, self.recorder
        service, updated_at = self.server.service, self.loop.updated_at
        state = ended or (
            "stopping" if self._stop() else "starting" if updated_at is None else "training"
        )
        row, starving_s, starving_since = recorder.last_row, self.peers.starving_s(), None
        if state == "training" and starving_s >= _STARVING_AFTER_S:
            starving_since = _unix_s(time.monotonic() - starving_s)
            row = None if row is None else {**row, "agent_steps_per_s": 0.0, "frames_per_s": 0.0}
        ended_early = state == "done" and learner.environment_frames < learner.total_frames
        replay, checkpoint = learner.uses.replay, self.run_state.latest_checkpoint
        return status_file.Status(
            state=state,
            level_name=self.spec.level_name,
            agent_name=config.agent.agent_name,
            precision=learner.agent.torso_dtype,
            logdir=str(config.run.logdir),
            agent_steps=learner.agent_steps,
            environment_frames=learner.environment_frames,
            total_environment_frames=learner.total_frames,
            frames_per_step=self.spec.frames_per_step,
            queue_capacity=configs.queue_capacity(config) * self.group.size,
            row=row,
            wall_time_s=recorder.wall_time_s,
            last_update_unix_s=None if updated_at is None else _unix_s(updated_at),
            starving_since_unix_s=starving_since,
            storage_trouble=self.storage.trouble(),
            num_learners=self.group.size,
            away_learners=[
                status_file.AwayLearner(learner=number, since_unix_s=since_s)
                for number, since_s in self.group.away_since_unix_s.items()
            ],
            replay=None
            if replay is None
            else status_file.ReplayStatus(
                steps=replay.steps, capacity=replay.capacity, missing=learner.uses.missing_steps
            ),
            evaluation=None
            if self.outputs is None
            else self.outputs.evaluation(state == "done" and not self._stop()),
            learners=recorder.last_learner_rows,
            actors=[
                _actor_status(actor, learner.parameter_version)
                for actor in service.sessions.shown()
            ],
            checkpoint=None
            if checkpoint is None
            else status_file.CheckpointStatus(
                path=checkpoint, environment_frames=self.run_state.saved_frames
            ),
            end_reason=self.end_reason if ended_early else "",
            notes=list(self._notes),
        )

    def _announce(self, device: str) -> None:
        before = provenance.read(self.logdir) if self.resumed else {}
        frames = self.learner.environment_frames
        described = provenance.describe(self.config, self.spec, before, frames, device)
        if started_from := self._started_from or before.get("started_from"):
            described["started_from"] = started_from
        write_atomically(self.logdir.config, json.dumps(described, indent=1) + "\n")
        repeating = config_file.text(provenance.repeating(described))
        write_atomically(self.logdir.config_file, repeating)
        _log.info("%s, protocol: %s", self.config.agent.agent_name, self.spec.protocol)
        _log.info("%s", configs.schedule_line(self.config))
        if self.resumed:
            _log.info("%s", resume_message(self.run_state.latest_checkpoint, frames))
            if change := configs.changes(before.get("flags", {}), self.config):
                _log.info("%s", change)
            if missing := self.learner.uses.missing_steps:
                _log.info("replay: refills; learning resumes in %s agent steps", f"{missing:,}")


def _actor_status(actor: Session, version: int) -> status_file.ActorStatus:
    return status_file.ActorStatus(
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


def _wait_for_actors_to_be_told(server: transport.LearnerServer) -> None:
    """Waits until every actor knows that the run is over, for a few seconds at most."""
    deadline = time.monotonic() + _FAREWELL_S
    while time.monotonic() < deadline:
        if all(actor.told_run_over for actor in server.service.sessions.shown()):
            return
        time.sleep(0.1)


def _unix_s(monotonic_s: float) -> float:
    """Returns the Unix time of a monotonic time, by the clock as it is set now."""
    return time.time() - time.monotonic() + monotonic_s
