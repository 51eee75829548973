"""The parts of a learner process, made and connected."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import Agent, agent_here, agent_of, parameter_specs
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import signature_of
from impala_tf.config import Config, ConfigError
from impala_tf.learner.actor_gradients import sent_specs
from impala_tf.learner.callbacks import Callbacks
from impala_tf.learner.conversion import NetworkService
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.inference import InferenceService
from impala_tf.learner.inspection import Inspector
from impala_tf.learner.run_state import RunState
from impala_tf.learner.unroll_queue import UnrollQueue
from impala_tf.learner.update import Learner
from impala_tf.logdir import Logdir
from impala_tf.machine import certificates
from impala_tf.monitoring.evaluations import EvaluationRows
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.monitoring.storage import StorageWatch
from impala_tf.processes import (
    evaluator,
    learner_records,
    mirroring,
    run_folder,
    warm_start,
)
from impala_tf.processes.common import credentials_dir, seed_of
from impala_tf.processes.evaluator import Evaluator
from impala_tf.processes.mirroring import MirrorUploads
from impala_tf.transport import (
    GrantLimit,
    Grants,
    LearnerServer,
    LearnerService,
    ParameterStore,
    Pushes,
    PushReport,
    RefusedVersion,
    RunTerms,
    StaleUnroll,
    check_parameters,
    max_environments,
)
from impala_tf.types import EnvironmentSpec, Sent

_log = logging.getLogger("impala_tf.learner")


class LearnerParts(NamedTuple):
    """A learner process: unrolls go server -> queue -> learner, parameters learner -> store."""

    config: Config  # resolved; --task is the learner's number
    spec: EnvironmentSpec
    logdir: Logdir
    group: LearnerGroup
    learner: Learner
    queue: UnrollQueue[Sent]
    recorder: RunRecorder
    run_state: RunState
    resumed: bool  # whether from a checkpoint
    started_from: dict[str, Any] | None  # what config.json holds about --start_from
    store: ParameterStore
    server: LearnerServer
    inference: InferenceService | None  # for --inference=learner
    storage: StorageWatch
    callbacks: Callbacks  # empty except in rank 0
    evaluator: Evaluator | None  # of rank 0, with --video_every or --eval_every
    evaluations: EvaluationRows | None  # of rank 0, with --eval_every
    uploads: MirrorUploads | None  # of rank 0, with --mirror


def build(
    config: Config, spec: EnvironmentSpec, logdir: Logdir, group: LearnerGroup
) -> LearnerParts:
    """Makes the parts, restores the newest checkpoint on all ranks, and publishes the parameters.

    The server's port is bound, but nothing is served yet.

    Raises:
      ConfigError: a logdir, checkpoint or port that cannot be used.
    """
    configs.check_batches(config)
    storage, uploads = StorageWatch(), None
    if group.rank == 0:
        mirroring.bring_back(config, spec, logdir, _log.info)
        if config.run.mirror:
            uploads = MirrorUploads(config.run.mirror, logdir, storage)
        run_folder.check_same_run(config, spec, logdir)
        evaluator.check(config)
    tf.random.set_seed(seed_of(config.run.seed, "learner"))
    agent = agent_here(config.agent, spec)
    specs = sent_specs(agent, spec, config)
    learner = Learner(agent, spec, config, group)
    queue = UnrollQueue(
        specs,
        config.process.queue_capacity,
        (lambda: learner.parameter_version) if configs.waits_for_updates(config) else None,
        lambda num_unrolls: recorder.record_stale(num_unrolls),
    )
    recorder, receivers = learner_records.make(config, spec, logdir, queue, learner, group, uploads)
    checkpointer = Checkpointer(logdir.checkpoints, learner.trackables())
    run_state = RunState(checkpointer, learner, recorder, signature_of(config, spec))
    resumed, started_from = False, None
    if group.rank == 0:
        resumed = run_state.restore(config.run.logdir)
        if not resumed:
            started_from = warm_start.start(config, spec, logdir, learner)
        certificates.ensure(credentials_dir(config))
    # The ranks wait for each other here, so afterwards all have the credentials.
    check_equal_flags(config, group)
    _copy_from_rank_0(run_state, learner, group)
    store = ParameterStore()
    store.publish(learner.parameter_version, learner.parameters())
    inference = _inference(config, spec, agent.torso_dtype, store)
    networks = _networks(config, spec)
    pushes = Pushes(
        _terms(config, spec, specs, agent, run_state.run_id),
        _put(config, spec, queue, learner, recorder),
        on_refused=recorder.record_refused,
        grants=_grants(config),
    )
    service = LearnerService(
        pushes,
        store,
        parameter_lag=_parameter_lag(config),
        infer=None if inference is None else inference.ask,
        networks=None if networks is None else networks.network,
        run_steps=learner.agent_steps,
        number=config.process.task,
        members=group.members,
    )
    address = configs.split(config.process.learner_hosts)[config.process.task]
    server = LearnerServer(address, credentials_dir(config), service)
    if inference is not None and config.process.synchronization == "step":
        inference.wait_for(service.num_acting)
    return LearnerParts(
        config=config,
        spec=spec,
        logdir=logdir,
        group=group,
        learner=learner,
        queue=queue,
        recorder=recorder,
        run_state=run_state,
        resumed=resumed,
        started_from=started_from,
        store=store,
        server=server,
        inference=inference,
        storage=storage,
        callbacks=receivers.callbacks,
        evaluator=receivers.evaluator,
        evaluations=receivers.evaluations,
        uploads=uploads,
    )


def _inference(
    config: Config, spec: EnvironmentSpec, dtype: str, store: ParameterStore
) -> InferenceService | None:
    if config.process.inference != "learner":
        return None
    seed = seed_of(config.run.seed, "inference", config.process.task)
    return InferenceService(agent_of(config.agent, spec, dtype), spec, store, seed)


def _networks(config: Config, spec: EnvironmentSpec) -> NetworkService | None:
    if config.process.inference != "actor" or configs.actors_use_tensorflow(config):
        return None
    return NetworkService(agent_of(config.agent, spec), spec)


def _steps_per_batch(config: Config) -> int:
    return config.optimizer.updates_per_batch * config.optimizer.minibatches


def _max_policy_lag(config: Config) -> int | None:
    """Returns how many batches old an unroll may be; None: any age."""
    # For a replay, old steps are as good as new ones.
    replays = configs.algorithm(config.loss.algorithm).replays
    return None if replays else config.process.max_policy_lag


def _parameter_lag(config: Config) -> int:
    """Returns how many gradient steps old an actor's parameters may become.

    Not more than its unrolls may: else all would be refused, the learner would take no step any
    more, and actors would wait for its next parameters forever.
    """
    if configs.waits_for_updates(config):
        return 1
    lag, most = config.process.parameter_lag, _max_policy_lag(config)
    return lag if most is None else min(lag, most * _steps_per_batch(config))


def _put(
    config: Config,
    spec: EnvironmentSpec,
    queue: UnrollQueue,
    learner: Learner,
    recorder: RunRecorder,
) -> Callable[[Sent, PushReport], None]:
    """Returns the function that accepts and records unrolls or gradients, or refuses them.

    Where actors wait for updates, unrolls of older parameters are stale. They come from actors that
    waited so long that their unrolls filled in for a lost actor's; with them, every later batch
    would be late. The queue drops unrolls that become stale in it.
    """
    inspector = Inspector(spec, _max_policy_lag(config), _steps_per_batch(config))
    only_new = configs.waits_for_updates(config)

    def put(sent: Sent, report: PushReport) -> None:
        version = learner.parameter_version
        try:
            inspector.check(sent, version)
        except RefusedVersion:
            recorder.record_episodes(report.episodes)  # the games were played
            raise
        if only_new and report.parameter_version != version:
            recorder.record_episodes(report.episodes)  # the games were played
            recorder.record_stale(report.num_unrolls)
            raise StaleUnroll("stale: the learner has newer parameters by now")
        queue.put(sent)
        recorder.record_episodes(report.episodes)
        recorder.record_actor(report.actor)

    return put


_OF_A_MACHINE = ("precision", "micro_batches")  # of the flags that shape an update


def check_equal_flags(config: Config, group: LearnerGroup) -> None:
    """Raises ConfigError if the learners of a group would not take the same steps.

    Some defaults depend on the number of actors, which a machine may have to guess.
    """
    parts = (config.agent, config.loss, config.optimizer, config.replay)
    own_flags = {name: value for part in parts for name, value in vars(part).items()}
    for own in _OF_A_MACHINE:
        del own_flags[own]
    own_flags["schedule_frames"] = config.run.schedule_frames
    all_flags = group.gather(own_flags)
    differing = [
        name for name in own_flags if any(flags[name] != own_flags[name] for flags in all_flags)
    ]
    if differing:
        raise ConfigError([
            f"--{name}: the learners have {', '.join(str(flags[name]) for flags in all_flags)};"
            " give all of them the same value"
            for name in differing
        ])  # fmt: skip


def _copy_from_rank_0(run_state: RunState, learner: Learner, group: LearnerGroup) -> None:
    """Gives every rank the run id, counters, parameters and optimizer slots of rank 0."""
    shared = group.gather({"run_id": run_state.run_id, "counters": learner.counters()})[0]
    run_state.adopt(shared["run_id"], shared["counters"])
    learner.synchronize()


def _grants(config: Config) -> Grants:
    """Limits the unrolls that actors work on at a time to those of a batch, and two more."""
    if configs.waits_for_updates(config):
        return Grants()
    of_batch = configs.sent_per_batch(config) / configs.sent_per_push(config)
    return Grants(GrantLimit(2 + math.ceil(of_batch)))


def _most_episodes(config: Config) -> int:
    """Returns the most games that can end in a push, for each of its unrolls."""
    of_environment = 2 + config.optimizer.unroll_length
    environments = config.process.envs_per_actor
    return of_environment * environments // configs.sent_per_push(config)


def _terms(
    config: Config, spec: EnvironmentSpec, specs: Sent, agent: Agent, run_id: str
) -> RunTerms:
    parameters = parameter_specs(agent)
    if config.process.inference == "actor":
        check_parameters(parameters, config.agent.agent_name)
    return RunTerms(
        run_id=run_id,
        config_digest=configs.wire_digest(config),
        sent_specs=specs,
        parameter_specs=parameters,
        max_environments=max_environments(specs, configs.sent_per_push(config)),
        most_episodes=_most_episodes(config),
        num_levels=len(spec.levels),
        num_infos=len(configs.split(config.run.info_metrics)),
    )
