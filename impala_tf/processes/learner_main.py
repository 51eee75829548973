"""The learner process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from impala_tf import config as configs
from impala_tf.checkpoint import files as checkpoint_files
from impala_tf.config import Config, ConfigError, Given, config_file, user_commands
from impala_tf.learner.group import HorovodGroup, LearnerGroup, LostPeerError
from impala_tf.learner.peers import Peers
from impala_tf.learner.training_loop import TrainingLoop
from impala_tf.learner.unroll_queue import Batches
from impala_tf.learner.update import Learner, NotFiniteError
from impala_tf.logdir import Logdir, write_atomically
from impala_tf.machine import process_memory
from impala_tf.machine.process_lifetime import (
    StopRequest,
    raise_descriptor_limit,
    run_interruptibly,
)
from impala_tf.machine.supervision import REGROUP, REGROUP_SIGNAL, UNUSABLE_INPUT, USELESS, Members
from impala_tf.monitoring.notes import Notes
from impala_tf.processes import provenance, run_folder
from impala_tf.processes.common import begin, resume_message
from impala_tf.processes.learner_parts import LearnerParts
from impala_tf.processes.status_reporter import EXITING, StatusReporter
from impala_tf.processes.tensorflow_startup import select_device, start_xla, use_threads
from impala_tf.transport import LearnerServer

# How long a learner that is done waits for its actors to call once more, to tell them.
_FAREWELL_S = 5.0
_BEST = "the best checkpoint"

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
    run_folder.check_not_exported(logdir)
    raise_descriptor_limit()
    process_memory.use_one_arena()
    use_threads(configs.learner_threads(config))
    device = select_device(config.process.device)
    start_xla()
    members, regroup = Members.from_environment(), threading.Event()
    if members is not None:
        signal.signal(REGROUP_SIGNAL, lambda *_: regroup.set())
    group = _join_group(config, members)
    config = configs.replace(config, task=group.members[group.rank])
    try:
        with _naming_lost_peers(group, lambda: "another learner"):
            parts = LearnerParts(config, spec, logdir, group)
            regroups = _learn(parts, stop, regroup.is_set, device, notes.lines)
    except NotFiniteError as error:
        _log.error("%s; %s", error, _newest(logdir))
        return 1
    except LostPeerError as lost:
        _log.error("learner-%d: lost %s; %s", config.process.task, lost, EXITING)
        return 1 if members is None else REGROUP
    finally:
        group.close()
    if parts.callbacks.failure:
        _log.error("%s; %s", parts.callbacks.failure, _newest(logdir))
        return UNUSABLE_INPUT  # it would raise again after a restart
    parts.storage.forget(_BEST)  # the checkpoint itself is there
    if trouble := parts.storage.trouble():
        _log.error("%s; %s", trouble["text"], _newest(logdir))
        # The actors know that the run is over, so a restarted learner would wait for them forever.
        return USELESS if parts.learner.done else 1
    return REGROUP if regroups else 0


def _newest(logdir: Logdir) -> str:
    paths = checkpoint_files.checkpoints(logdir.checkpoints)
    return f"the last good checkpoint is {paths[-1]}" if paths else "there is no good checkpoint"


def _learn(
    parts: LearnerParts,
    stop: StopRequest,
    regroup_requested: Callable[[], bool],
    device: str,
    notes: Sequence[str],
) -> bool:
    """Learns until the end; returns whether another group of learners should continue."""
    config, group, learner, callbacks = parts.config, parts.group, parts.learner, parts.callbacks

    def save() -> None:
        parts.run_state.save()
        with parts.storage.attempt(_BEST):
            callbacks.on_checkpoint(parts.run_state.latest_checkpoint)

    if group.rank == 0:
        _announce(parts, device)
        with parts.storage.attempt("a checkpoint"):
            parts.run_state.save()  # from now on, there is always a checkpoint to resume from
        parts.storage.may_fail(_BEST)  # the folder is the right one, so only the disk can be full
    hosts = configs.split(config.process.learner_hosts)
    peers = Peers(group, [hosts[number] for number in group.members])
    loop = TrainingLoop(
        learner,
        parts.store.publish,
        parts.recorder,
        save,
        peers,
        config.run.checkpoint_interval_s,
        parts.storage.attempt,
        on_update=callbacks.on_update,
    )

    def goes_on_with_others() -> bool:
        return loop.regroups and not learner.done  # a callback may have ended the run meanwhile

    def learn() -> None:
        parts.server.start()
        learner.compile()
        parts.recorder.begin(learner.agent_steps, learner.environment_frames)
        batches = Batches(parts.queue, configs.sent_per_batch(config))
        # On a stop, the learner stops waiting for a batch, and tells the others at once. The queue
        # itself is closed later: with a GPU, closing it while something waits in it has made other
        # operations fail.
        stop.on_request(batches.close)
        loop.run(batches, lambda: stop() or callbacks.stopping, regroup_requested)
        if any(group.gather(callbacks.stopping)):
            learner.finish()
        peers.ends()
        if not goes_on_with_others():
            callbacks.on_end()
        if group.size > 1:  # for comparison: all learners must end with the same parameters
            number = config.process.task
            _log.info("learner-%d: final parameters %s", number, _digest(learner))
        if learner.done:
            parts.server.finish()
            parts.queue.close()  # tells pushes that wait for room, too
            if parts.inference is not None:
                parts.inference.close()
            _wait_for_actors_to_be_told(parts.server)

    if parts.inference is not None:
        stop.on_request(parts.inference.close)
    reporter = StatusReporter(parts, stop, peers, notes)
    try:
        with _naming_lost_peers(group, peers.lost), reporter:
            run_interruptibly(learn)
    finally:
        parts.queue.close()
        parts.server.stop(grace_s=0.5)
        if parts.evaluator is not None:
            parts.evaluator.close(lambda: learner.done and not stop() and not callbacks.failure)
            reporter.write_end()  # with its results
        parts.recorder.close()
        if parts.uploads is not None:
            latest = parts.run_state.latest_checkpoint
            if latest and parts.evaluator is not None and learner.done:
                parts.uploads.on_checkpoint(Path(latest))  # again, with its results
            if learner.done or stop():
                parts.uploads.close(stop)
            reporter.write_end()  # with the checkpoints that the mirror lacks
    _log.info(
        "%s at %s frames%s",
        "failed" if callbacks.failure else "done" if learner.done else "stopped",
        f"{learner.environment_frames:,}",
        f"; checkpoint {parts.run_state.latest_checkpoint}" if group.rank == 0 else "",
    )
    return goes_on_with_others()


@contextlib.contextmanager
def _naming_lost_peers(group: LearnerGroup, peers: Callable[[], str]) -> Iterator[None]:
    """Turns an error of an operation that lost a peer into LostPeerError, with names of `peers`."""
    try:
        yield
    except Exception as error:
        if not group.is_lost_peer(error):
            raise
        raise LostPeerError(peers()) from error


def _digest(learner: Learner) -> str:
    """Returns 16 hexadecimal digits that identify all parameters and optimizer slots exactly."""
    arrays = [variable.numpy().tobytes() for variable in learner.parameters_and_slots()]
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]


def _join_group(config: Config, told: Members | None) -> LearnerGroup:
    learners = len(configs.split(config.process.learner_hosts))
    expected = learners if told is None else len(told.numbers)
    if away := {} if told is None else told.away_since_unix_s:
        names = ", ".join(f"learner-{number}" for number in away)
        _log.warning("training with %d of %d learners, without %s", expected, learners, names)
    if expected == 1:
        return LearnerGroup(told)
    _log.info("waiting for the other learners; %d in all", expected)
    try:
        group = HorovodGroup(told)
    except ImportError:
        raise ConfigError(
            f"--learner_hosts: {learners} learners need Horovod; install it with"
            f" {user_commands.install_horovod(Path(sys.executable))}"
        ) from None
    if group.size != expected:
        raise ConfigError(
            f"--learner_hosts: names {learners} learners, but Horovod started {group.size};"
            f" start them with horovodrun -np {learners}"
        )
    return group


def _announce(parts: LearnerParts, device: str) -> None:
    before = provenance.read(parts.logdir) if parts.resumed else {}
    frames = parts.learner.environment_frames
    described = provenance.describe(parts.config, parts.spec, before, frames, device)
    if started_from := parts.started_from or before.get("started_from"):
        described["started_from"] = started_from
    write_atomically(parts.logdir.config, json.dumps(described, indent=1) + "\n")
    write_atomically(parts.logdir.config_file, config_file.text(provenance.repeating(described)))
    _log.info("%s, protocol: %s", parts.config.agent.agent_name, parts.spec.protocol)
    _log.info("%s", configs.schedule_line(parts.config))
    if parts.resumed:
        _log.info("%s", resume_message(parts.run_state.latest_checkpoint, frames))
        if change := configs.changes(before.get("flags", {}), parts.config):
            _log.info("%s", change)
        if missing := parts.learner.uses.missing_steps:
            _log.info("replay: refills; learning resumes in %s agent steps", f"{missing:,}")


def _wait_for_actors_to_be_told(server: LearnerServer) -> None:
    """Waits until every actor knows that the run is over, for a few seconds at most."""
    deadline = time.monotonic() + _FAREWELL_S
    while time.monotonic() < deadline:
        if all(actor.told_run_over for actor in server.service.actors()):
            return
        time.sleep(0.1)
