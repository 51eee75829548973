"""The parts of a learner process, made and connected."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import Agent, agent_here, agent_of, parameter_specs
from impala_tf.callbacks import Callback
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import signature_of
from impala_tf.config import Config, ConfigError
from impala_tf.config.flags import LEARNERS
from impala_tf.environments import suites
from impala_tf.learner import callbacks
from impala_tf.learner.actor_gradients import sent_specs
from impala_tf.learner.callbacks import Callbacks
from impala_tf.learner.conversion import NetworkService
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.inference import InferenceService
from impala_tf.learner.inspection import MAX_POLICY_LAG, Inspector
from impala_tf.learner.run_state import RunState
from impala_tf.learner.statistics import MIN_STD
from impala_tf.learner.unroll_queue import UnrollQueue
from impala_tf.learner.update import Learner
from impala_tf.logdir import Logdir
from impala_tf.machine import certificates
from impala_tf.monitoring.evaluations import EvaluationRows
from impala_tf.monitoring.metrics import LEVEL_METRICS, METRICS, info_columns
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.monitoring.rows import LevelRows
from impala_tf.monitoring.storage import StorageWatch
from impala_tf.monitoring.wandb_writer import WandbWriter
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter, Writer
from impala_tf.processes import evaluator, mirroring, run_folder, warm_start
from impala_tf.processes.common import credentials_dir, seed_of
from impala_tf.processes.evaluator import Evaluator, Result
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


class LearnerParts:
    """A learner process: unrolls go server -> queue -> learner, parameters learner -> store.

    Making it restores the newest checkpoint on all ranks, and publishes the parameters. The
    server's port is bound, but nothing is served yet.

    Args:
      config: the run's, resolved; --task is the learner's number.
      spec: the level's specification.
      logdir: the run's folder, in which only rank 0 writes.
      group: the learners of the run.

    Attributes:
      config, spec, logdir, group: as given.
      resumed: whether from a checkpoint.
      started_from: what config.json holds about --start_from; None without it.
      callbacks: empty except in rank 0.
      evaluator: of rank 0, with --video_every or --eval_every; else None.
      evaluations: the rows of --eval_every, of rank 0; else None.
      uploads: of rank 0, with --mirror; else None.
      inference: for --inference=learner; else None.

    Raises:
      ConfigError: a logdir, checkpoint or port that cannot be used.
    """

    def __init__(
        self, config: Config, spec: EnvironmentSpec, logdir: Logdir, group: LearnerGroup
    ) -> None:
        self.config, self.spec, self.logdir, self.group = config, spec, logdir, group
        configs.check_batches(config)
        self.storage = StorageWatch()
        self.uploads: MirrorUploads | None = None
        if group.rank == 0:
            mirroring.bring_back(config, spec, logdir, _log.info)
            if config.run.mirror:
                self.uploads = MirrorUploads(config.run.mirror, logdir, self.storage)
            run_folder.check_same_run(config, spec, logdir)
            evaluator.check(config, spec)
        tf.random.set_seed(seed_of(config.run.seed, "learner"))
        agent = agent_here(config.agent, spec)
        specs = sent_specs(agent, spec, config)
        self.learner = Learner(agent, spec, config, group)
        self._waits = configs.waits_for_updates(config)
        self.queue: UnrollQueue[Sent] = UnrollQueue(
            specs._replace(actor=tf.TensorSpec((), tf.int32)),
            configs.queue_capacity(config),
            (lambda: self.learner.parameter_version) if self._waits else None,
            lambda num_unrolls: self.recorder.record_stale(num_unrolls),
        )
        self.callbacks = Callbacks([], [], logdir)
        self.evaluator: Evaluator | None = None
        self.evaluations: EvaluationRows | None = None
        self.recorder = self._make_recorder()
        checkpointer = Checkpointer(logdir.checkpoints, self.learner.trackables())
        identity = signature_of(config, spec)
        self.run_state = RunState(checkpointer, self.learner, self.recorder, identity)
        self.resumed, self.started_from = False, None
        if group.rank == 0:
            self.resumed = self.run_state.restore(config.run.logdir)
            if not self.resumed:
                self.started_from = warm_start.start(config, spec, logdir, self.learner)
            certificates.ensure(credentials_dir(config))
        # The ranks wait for each other here, so afterwards all have the credentials.
        check_equal_flags(config, group)
        shared = {"run_id": self.run_state.run_id, "counters": self.learner.counters()}
        self.run_state.adopt(**group.gather(shared)[0])
        self.learner.synchronize()
        self.store = ParameterStore()
        self.store.publish(self.learner.parameter_version, self.learner.parameters())
        self.inference: InferenceService | None = None
        if config.process.inference == "learner":
            seed = seed_of(config.run.seed, "inference", config.process.task)
            copy = agent_of(config.agent, spec, agent.torso_dtype)
            self.inference = InferenceService(copy, spec, self.store, seed)
        self.server = self._make_server(agent, specs)

    def _make_recorder(self) -> RunRecorder:
        """Makes the recorder of results; in rank 0, also all that rows and checkpoints go to."""
        config, spec, logdir = self.config, self.spec, self.logdir
        names = configs.split(config.run.info_metrics)
        writers: dict[str, Writer] = {}
        level_rows = None
        if self.group.rank == 0:
            writers["csv"] = CsvWriter(logdir.metrics, METRICS | info_columns(names))
            flags = configs.to_dict(config)
            self._tensorboard = TensorBoardWriter(logdir.tensorboard, flags)
            writers["tensorboard"] = self._tensorboard
            self._wandb = None
            if config.run.track == "wandb":
                self._wandb = WandbWriter(logdir.path, flags)
                writers["wandb"] = self._wandb
            if len(spec.levels) > 1:
                levels_writer = CsvWriter(logdir.level_metrics, LEVEL_METRICS)
                level_rows = LevelRows(levels_writer, spec.levels, self._normalize)
            if config.run.eval_every is not None:
                self.evaluations = EvaluationRows(
                    logdir.evaluations, self._tensorboard, self._wandb
                )
                writers["evaluations"] = self.evaluations
            if config.run.eval_every is not None or config.run.video_every is not None:
                self.evaluator = Evaluator(config, spec, logdir, self._publish)
            self.callbacks = self._make_callbacks(level_rows)
            writers["callbacks"] = self.callbacks
        uses = self.learner.uses
        return RunRecorder(
            writers,
            self.queue.size,
            config.run.metrics_interval_s,
            level_rows,
            None if uses.replay is None else lambda: uses.replay.steps,
            names,
            self.group.members,
        )

    def _make_callbacks(self, level_rows: LevelRows | None) -> Callbacks:
        run, logdir = self.config.run, self.logdir
        score_of, name, in_words = callbacks.mean_return, "episode_return_mean", "mean return"
        if level_rows is not None:
            score_of, name = lambda row: level_rows.score(), "mean_over_levels"
            in_words = "mean over the levels"
        built_in: list[Callback | None] = [
            callbacks.KeepBest(logdir, score_of, name), self.evaluator, self.uploads
        ]  # fmt: skip
        if run.stop_at_return is not None:
            built_in.append(callbacks.StopAtReturn(run.stop_at_return, score_of, in_words))
        if self.config.loss.value_normalization == "running":
            built_in.append(
                callbacks.SmallReturns(lambda: self.recorder.window.largest_return, MIN_STD)
            )
        others = [callback for callback in built_in if callback is not None]
        return Callbacks(callbacks.load(run), others, logdir, self._tensorboard.add)

    def _normalize(self, index: int, score: float) -> float | None:
        return suites.normalized(suites.levels(self.config.environment)[index], score)

    def _publish(self, result: Result, environment_frames: int) -> None:
        """Shows the evaluator's results in files, TensorBoard and W&B."""
        if result.rows and self.evaluations is not None:
            self.evaluations.add(result.rows)
        if not result.video:
            return
        gif = Path(result.gif).read_bytes()
        self._tensorboard.add_gif("video/game", gif, result.environment_frames)
        if self._wandb is not None:
            caption = f"{result.environment_frames:,} frames"
            self._wandb.add_video("video/game", Path(result.video), environment_frames, caption)

    def _make_server(self, agent: Agent, specs: Sent) -> LearnerServer:
        config, task = self.config, self.config.process.task
        process, inference = config.process, self.inference
        parameters = parameter_specs(agent)
        if process.inference == "actor":
            check_parameters(parameters, config.agent.agent_name)
        num_sent = configs.sent_per_push(config)
        terms = RunTerms(
            run_id=self.run_state.run_id,
            config_digest=configs.wire_digest(config),
            sent_specs=specs,
            parameter_specs=parameters,
            max_environments=max_environments(specs, num_sent),
            # The most games that can end in a push, for each of its unrolls.
            most_episodes=(2 + config.optimizer.unroll_length) * process.envs_per_actor // num_sent,
            num_levels=len(self.spec.levels),
            num_infos=len(configs.split(config.run.info_metrics)),
            run_steps=self.learner.agent_steps,
        )
        # Actors work on the unrolls of a batch at a time, and two more.
        limit = GrantLimit(2 + math.ceil(configs.sent_per_batch(config) / num_sent))
        grants = Grants() if self._waits else Grants(limit)
        networks = None
        if process.inference == "actor" and not configs.actors_use_tensorflow(config):
            networks = NetworkService(agent_of(config.agent, self.spec), self.spec).network
        steps = config.optimizer.updates_per_batch * config.optimizer.minibatches
        # For a replay, old steps are as good as new ones.
        replays = configs.algorithm(config.loss.algorithm).replays
        max_lag = None if replays else MAX_POLICY_LAG
        batch_steps = config.optimizer.batch_size * config.optimizer.unroll_length
        self._inspector = Inspector(self.spec, max_lag, steps, batch_steps)
        service = LearnerService(
            Pushes(terms, self._put, on_refused=self.recorder.record_refused, grants=grants),
            self.store,
            infer=None if inference is None else inference.ask,
            networks=networks,
            number=task,
            members=self.group.members,
        )
        address = configs.split(process.learner_hosts)[task]
        server = LearnerServer(address, credentials_dir(config), service)
        if inference is not None and process.synchronization == "step":
            inference.wait_for(service.num_acting)
        return server

    def _put(self, sent: Sent, report: PushReport) -> None:
        """Accepts and records unrolls or gradients, or refuses them.

        Where actors wait for updates, unrolls of older parameters are stale. They come from actors
        that waited so long that their unrolls filled in for a lost actor's; with them, every later
        batch would be late. The queue drops unrolls that become stale in it.
        """
        version = self.learner.parameter_version
        number = self.learner.senders.admit(report.actor_name)
        try:
            self._inspector.check(sent, version)
        except RefusedVersion:
            self.recorder.record_episodes(report.episodes)  # the games were played
            raise
        if self._waits and report.parameter_version != version:
            self.recorder.record_episodes(report.episodes)  # the games were played
            self.recorder.record_stale(report.num_unrolls)
            raise StaleUnroll("stale: the learner has newer parameters by now")
        self.queue.put(sent._replace(actor=np.full(report.num_unrolls, number, np.int32)))
        self.recorder.record_episodes(report.episodes)
        self.recorder.record_actor(report.actor)


def check_equal_flags(config: Config, group: LearnerGroup) -> None:
    """Raises ConfigError if the learners of a group would not take the same steps.

    Some defaults depend on the number of actors, which a machine may have to guess.
    """
    values = configs.to_dict(config)
    own_flags = {name: values[name] for name in configs.flags_of(LEARNERS)}
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
