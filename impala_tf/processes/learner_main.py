"""The learner process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from impala_tf import config as configs
from impala_tf.checkpoint import files as checkpoint_files
from impala_tf.checkpoint.run_state import NotFiniteError
from impala_tf.config import Config, ConfigError
from impala_tf.learner import peer_watch
from impala_tf.learner.group import HorovodGroup, LearnerGroup, LostPeerError, SingleLearner
from impala_tf.learner.peer_watch import PeerWatch
from impala_tf.learner.stall_watch import StallWatch
from impala_tf.learner.training_loop import TrainingLoop
from impala_tf.learner.unroll_queue import batches, batches_or_none
from impala_tf.learner.update import Learner
from impala_tf.logdir import Logdir, write_atomically
from impala_tf.machine import certificates, process_memory
from impala_tf.machine.process_lifetime import (
    StopRequest,
    raise_descriptor_limit,
    run_interruptibly,
)
from impala_tf.processes import learner_parts, provenance
from impala_tf.processes.common import begin, credentials_dir, resume_message
from impala_tf.processes.learner_parts import LearnerParts
from impala_tf.processes.status_reporter import StatusReporter
from impala_tf.processes.tensorflow_startup import select_device, start_xla
from impala_tf.transport import LearnerServer
from impala_tf.types import Sent

# How long a learner that is done waits for its actors to call once more and be told.
_FAREWELL_S = 5.0
# After this long without a batch, a learner of a group takes part in an update without one, so that
# the others continue and control flags get through.
_PATIENCE_S = 60.0
# Survivors notice a lost peer at different times; keep our port open this long so that slower ones
# do not count us as lost.
_LATE_S = 2.0

_log = logging.getLogger("impala_tf.learner")


def main(config: Config) -> int:
    """Learns until the run has had all its frames, or this process is asked to stop.

    Returns:
      0, or 1 if another learner of the group was lost.

    Raises:
      ConfigError: flags, a device, a logdir, a checkpoint or a port that cannot be used.
    """
    config, spec, logdir, stop = begin(config)
    raise_descriptor_limit()
    process_memory.use_one_arena()  # its large tensors are not allocated from arenas anyway
    process_memory.give_back_after_start()
    select_device(config.process.device)
    start_xla()
    group = _join_group(config)
    config = configs.replace(config, task=group.rank)
    try:
        with _naming_lost_peers(group, lambda: "another learner"):
            parts = learner_parts.build(config, spec, logdir, group)
            _learn(parts, stop)
    except NotFiniteError as error:
        _log.error("%s; the last good checkpoint is %s", error, _newest(logdir))
        return 1
    except LostPeerError as lost:
        message = "learner-%d: lost %s; exiting, a relaunch resumes from the last checkpoint"
        _log.error(message, group.rank, lost)
        return 1
    finally:
        group.close()
    if trouble := parts.storage.trouble():
        _log.error("%s; the last good checkpoint is %s", trouble["text"], _newest(logdir))
        return 1
    return 0


def _newest(logdir: Logdir) -> str:
    found = checkpoint_files.checkpoints(logdir.checkpoints)
    return str(found[-1]) if found else "not there"


def _learn(parts: LearnerParts, stop: StopRequest) -> None:
    config, group, learner = parts.config, parts.group, parts.learner
    if group.rank == 0:
        _announce(parts)
        with parts.storage.attempt("a checkpoint"):
            parts.run_state.save()  # from now on, there is always something to resume from
    loop = TrainingLoop(
        learner,
        parts.store.publish,
        parts.recorder,
        parts.run_state.save,
        group,
        config.run.checkpoint_interval_s,
        parts.storage.attempt,
    )
    hosts = configs.hosts(config.process.learner_hosts)
    stall_watch = StallWatch(
        hosts,
        group.rank,
        lambda: learner.ranks_without_batch,
        learner_updates=lambda: learner.learner_updates,
    )

    def learn() -> None:
        parts.server.start()
        peers = _watch_peers(group, hosts)
        learner.compile()
        parts.recorder.begin(learner.agent_steps, learner.environment_frames)
        loop.run(stall_watch.watch(_batches(parts, peers, stop)), stop)
        if group.size > 1:  # for comparison: all learners must end with the same parameters
            _log.info("learner-%d: final parameters %s", group.rank, _digest(learner))
        if learner.done:
            parts.server.finish()
            parts.queue.close()  # pushes that wait for room are told as well
            if parts.inference is not None:
                parts.inference.close()
            _wait_for_actors_to_be_told(parts.server)

    # With the queue closed, no learner waits for a batch: the next update spreads the stop flag.
    stop.on_request(parts.queue.close)
    if parts.inference is not None:
        stop.on_request(parts.inference.close)
    try:
        with (
            _naming_lost_peers(group, lambda: _lost_peers(hosts, group.rank)),
            StatusReporter(parts, stop, stall_watch),
        ):
            run_interruptibly(learn)
    finally:
        parts.queue.close()
        parts.server.stop(grace_s=0.5)
        parts.recorder.close()
    _log.info(
        "%s at %s frames%s",
        "done" if learner.done else "stopped",
        f"{learner.environment_frames:,}",
        f"; checkpoint {parts.run_state.latest_checkpoint}" if group.rank == 0 else "",
    )


def _watch_peers(group: LearnerGroup, hosts: Sequence[str]) -> PeerWatch:
    """Returns a watch that has seen which peers can be reached; all of them are served by now."""
    group.gather(None)
    peers = PeerWatch(hosts, group.rank)
    peers.lost_peer()
    return peers


def _batches(parts: LearnerParts, peers: PeerWatch, stop: StopRequest) -> Iterator[Sent | None]:
    batch_size = configs.sent_per_batch(parts.config)
    if parts.group.size == 1:
        return batches(parts.queue, batch_size)
    return batches_or_none(
        parts.queue, batch_size, _PATIENCE_S, lambda: stop() or peers.lost_peer()
    )


@contextlib.contextmanager
def _naming_lost_peers(group: LearnerGroup, peers: Callable[[], str]) -> Iterator[None]:
    """Raises LostPeerError, with the names that `peers` returns, if an operation lost a peer."""
    try:
        yield
    except Exception as error:
        if not group.is_lost_peer(error):
            raise
        raise LostPeerError(peers()) from error


def _lost_peers(hosts: Sequence[str], rank: int) -> str:
    """Returns the peers that do not answer. Call it before this learner's own port is closed."""
    gone = [f"learner-{other} at {hosts[other]}" for other in peer_watch.unreachable(hosts, rank)]
    if len(hosts) > 2:
        time.sleep(_LATE_S)
    return f"{', '.join(gone)} (no answer)" if gone else "another learner"


def _digest(learner: Learner) -> str:
    """Returns 16 hexadecimal digits that identify all parameters and optimizer slots exactly."""
    arrays = [variable.numpy().tobytes() for variable in learner.parameters_and_slots()]
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]


def _join_group(config: Config) -> LearnerGroup:
    learners = len(configs.hosts(config.process.learner_hosts))
    if learners == 1:
        return SingleLearner()
    _log.info("waiting for the other learners; %d in all", learners)
    try:
        group = HorovodGroup()
    except ImportError:
        raise ConfigError(
            f"--learner_hosts: {learners} learners need Horovod; `make setup-dev` installs it"
        ) from None
    if group.size != learners:
        raise ConfigError(
            f"--learner_hosts: names {learners} learners, but Horovod started {group.size};"
            f" start them with horovodrun -np {learners}"
        )
    return group


def _announce(parts: LearnerParts) -> None:
    days = certificates.days_left(credentials_dir(parts.config))
    if days < certificates.RENEW_DAYS:
        _log.warning("the run's certificates expire in %.0f days; stop and start it before", days)
    before = provenance.read(parts.logdir) if parts.resumed else {}
    frames = parts.learner.environment_frames
    described = provenance.describe(parts.config, parts.spec, before, frames)
    write_atomically(parts.logdir.config, json.dumps(described, indent=1) + "\n")
    _log.info("%s, protocol: %s", parts.config.agent.agent_name, parts.spec.protocol)
    _log.info("%s", configs.schedule_line(parts.config))
    if parts.resumed:
        _log.info("%s", resume_message(parts.run_state.latest_checkpoint, frames))
        replayed = parts.learner.replay
        if replayed is not None and replayed.missing_steps:
            missing = f"{replayed.missing_steps:,}"
            _log.info("replay: refills; learning resumes in %s agent steps", missing)


def _wait_for_actors_to_be_told(server: LearnerServer) -> None:
    """Waits until every actor was told that the run is over, for a few seconds at most."""
    deadline = time.monotonic() + _FAREWELL_S
    while time.monotonic() < deadline:
        if all(actor.told_run_over for actor in server.service.actors()):
            return
        time.sleep(0.1)
