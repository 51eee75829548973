"""The learner process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from impala_tf import agents, provenance, quiet
from impala_tf import config as configs
from impala_tf.allreduce import HorovodGroup, LearnerGroup, LearnerLostError, SingleLearner
from impala_tf.checkpoint import Checkpointer
from impala_tf.config import Config, ConfigError, known
from impala_tf.learner import Learner, TrainingLoop
from impala_tf.learner_metrics import LEARNER_METRICS
from impala_tf.logdir import Logdir, write_atomically
from impala_tf.metrics import CsvWriter, TensorBoardWriter
from impala_tf.processes import peers, precision
from impala_tf.processes.common import begin, credentials_dir, going_on, identity_of, seed_of
from impala_tf.processes.keeper import Keeper
from impala_tf.processes.reporter import Reporter
from impala_tf.processes.waits import Waits
from impala_tf.recorder import RunRecorder
from impala_tf.shutdown import StopRequest, run_interruptibly
from impala_tf.transport import (
    PROTOCOL_VERSION,
    LearnerServer,
    ParameterStore,
    RunIdentity,
    credentials,
)
from impala_tf.types import EnvironmentSpec, Unroll
from impala_tf.unroll_queue import UnrollQueue, without_waiting

# How long a learner that is done waits for its actors to come once more and hear that it is over.
_FAREWELL_S = 5.0
# A learner of a group without a batch for so long takes part in an update without one, so that the
# others go on and wishes to stop get through.
_PATIENCE_S = 60.0

# Of those whom a loss leaves, one may find out so much later, and ask the others then.
_LATE_S = 2.0

_log = logging.getLogger("impala_tf.learner")


def main(config: Config) -> int:
    """Learns until the frames are used up or somebody asks this process to stop.

    Returns:
      0, or 1 where another learner of the group was lost.

    Raises:
      ConfigError: flags, a logdir, a checkpoint or a port that cannot be used.
    """
    config, spec, logdir, stop = begin(config)
    quiet.start_xla()
    group = _group(config)
    config = configs.replace(config, task=group.rank)
    try:
        with _losses(group, lambda: "another learner"):
            _learn(config, spec, logdir, stop, group)
    except LearnerLostError as lost:
        text = "learner-%d: lost %s; ends, and a relaunch goes on from the last checkpoint"
        _log.error(text, group.rank, lost)
        return 1
    finally:
        group.close()
    return 0


def _learn(
    config: Config, spec: EnvironmentSpec, logdir: Logdir, stop: StopRequest, group: LearnerGroup
) -> None:
    tf.random.set_seed(seed_of(config.run.seed, "learner"))
    agent = agents.make(config.agent.agent_name, spec, precision.choose(config.agent))
    specs = agents.unroll_specs(agent, spec, config.optimizer.unroll_length)
    learner = Learner(agent, spec, config, group)
    queue = UnrollQueue(specs, known(config.process.queue_capacity))
    recorder = _recorder(config, logdir, queue, group)
    checkpointer = Checkpointer(logdir.checkpoints, learner.trackables())
    keeper = Keeper(checkpointer, learner, recorder, identity_of(config, spec))
    resumed = _go_on_together(keeper, learner, group, config)
    store = ParameterStore()
    server = _server(config, specs, agent, queue, store, recorder, keeper.run_id)
    if group.rank == 0:
        _announce(config, spec, logdir, learner, keeper, resumed)
        keeper.save()  # whatever happens from now on, there is something to go on from
    loop = TrainingLoop(
        learner, store.publish, recorder, keeper.save, group, config.run.checkpoint_interval_s
    )
    hosts = configs.hosts(config.process.learner_hosts)
    waits = Waits(hosts, group.rank, lambda: learner.without_batch)
    reporter = Reporter(config, spec, logdir, learner, recorder, keeper, server, stop, waits)

    def learn() -> None:
        server.start()
        recorder.begin(learner.agent_steps, learner.environment_frames)
        batches = queue.batches(config.optimizer.batch_size)
        if group.size == 1:
            loop.run(waits.during(batches), stop)
        else:
            absence = peers.Absence(hosts, group.rank)
            in_step = without_waiting(batches, _PATIENCE_S, lambda: stop() or absence())
            loop.run(waits.during(in_step), stop)
        if group.size > 1:  # to compare: it is one network, in every learner
            _log.info("learner-%d: ends with parameters %s", group.rank, _digest(learner))
        if learner.done:
            server.finish()
            queue.close()  # pushes that wait for room are told as well
            _say_goodbye(server)

    # Nobody waits for a batch from a closed queue: the update that tells the group comes at once.
    stop.on_request(queue.close)
    try:
        with _losses(group, lambda: _missing(hosts, group.rank)), reporter:
            run_interruptibly(learn)
    finally:
        queue.close()
        server.stop(grace_s=0.5)
        recorder.close()
    _log.info(
        "%s at %s frames%s",
        "done" if learner.done else "stopped",
        f"{learner.environment_frames:,}",
        f"; checkpoint {keeper.latest}" if group.rank == 0 else "",
    )


@contextlib.contextmanager
def _losses(group: LearnerGroup, whom: Callable[[], str]) -> Iterator[None]:
    """Raises LearnerLostError, saying whom, for a failure inside that means another learner."""
    try:
        yield
    except Exception as error:
        if not group.is_loss(error):
            raise
        raise LearnerLostError(whom()) from error


def _missing(hosts: Sequence[str], rank: int) -> str:
    """Returns who does not answer; asked before this learner's own port closes, as all ask it."""
    silent = [f"learner-{other} at {hosts[other]}" for other in peers.silent(hosts, rank)]
    if len(hosts) > 2:
        time.sleep(_LATE_S)
    return f"{', '.join(silent)} (no answer)" if silent else "another learner"


def _digest(learner: Learner) -> str:
    """Returns 16 hexadecimal digits of all parameters and optimizer slots, bit for bit."""
    arrays = [variable.numpy().tobytes() for variable in learner.parameters_and_slots()]
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]


def _group(config: Config) -> LearnerGroup:
    learners = len(configs.hosts(config.process.learner_hosts))
    if learners == 1:
        return SingleLearner()
    _log.info("meets the other learners; %d in all", learners)
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


def _go_on_together(keeper: Keeper, learner: Learner, group: LearnerGroup, config: Config) -> bool:
    """Takes every learner to where rank 0's checkpoint left off; says whether there was one."""
    state = None
    if group.rank == 0:
        state = keeper.restore(config.run.logdir)
        keeper.go_on(state)
        credentials.ensure(credentials_dir(config))
    shared = group.gather({"run_id": keeper.run_id, "counters": learner.counters()})[0]
    keeper.run_id = shared["run_id"]
    learner.restore_counters(shared["counters"])
    learner.synchronize()
    return state is not None


def _recorder(
    config: Config, logdir: Logdir, queue: UnrollQueue, group: LearnerGroup
) -> RunRecorder:
    writers: dict[str, CsvWriter | TensorBoardWriter] = {}
    learners_writer = None
    if group.rank == 0:
        writers["csv"] = CsvWriter(logdir.metrics)
        writers["tensorboard"] = TensorBoardWriter(logdir.tensorboard)
        if group.size > 1:
            learners_writer = CsvWriter(logdir.learner_metrics, LEARNER_METRICS)
    return RunRecorder(writers, queue.size, config.run.metrics_interval_s, learners_writer)


def _server(
    config: Config,
    specs: Unroll,
    agent: agents.Agent,
    queue: UnrollQueue,
    store: ParameterStore,
    recorder: RunRecorder,
    run_id: str,
) -> LearnerServer:
    identity = RunIdentity(
        protocol_version=PROTOCOL_VERSION,
        run_id=run_id,
        config_digest=configs.wire_digest(config),
        unroll_specs=specs,
        parameter_specs=[
            (variable.name, tuple(variable.shape), variable.dtype.name)
            for variable in agent.trainable_variables
        ],
    )
    return LearnerServer(
        configs.hosts(config.process.learner_hosts)[config.process.task],
        credentials_dir(config),
        identity,
        queue.put,
        store,
        on_push=lambda report: recorder.record_episodes(report.episodes),
    )


def _announce(
    config: Config,
    spec: EnvironmentSpec,
    logdir: Logdir,
    learner: Learner,
    keeper: Keeper,
    resumed: bool,
) -> None:
    write_atomically(logdir.config, json.dumps(provenance.describe(config, spec), indent=1) + "\n")
    _log.info("%s, protocol: %s", config.agent.agent_name, spec.protocol)
    if resumed:
        _log.info("%s", going_on(keeper.latest, learner.environment_frames))


def _say_goodbye(server: LearnerServer) -> None:
    """Waits until every actor has heard that the run is over, but not for long."""
    deadline = time.monotonic() + _FAREWELL_S
    while time.monotonic() < deadline:
        if all(actor.told_run_over for actor in server.actors()):
            return
        time.sleep(0.1)
