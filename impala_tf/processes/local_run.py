"""The command that trains on this machine: shows the run, stops it on request."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from impala_tf import config as configs
from impala_tf.checkpoint import files
from impala_tf.config import Given, user_commands
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.monitoring import status_file
from impala_tf.monitoring.live_display import Display
from impala_tf.processes import run_folder, trained_flags
from impala_tf.processes.local_training import LocalTraining


def main(given: Given) -> int:
    """Trains on this machine; returns the exit status.

    Raises:
      ConfigError: the flags, level or logdir cannot be used; nothing was started.
    """
    training = LocalTraining(given)
    if training.config.cluster.dry_run:
        _print_plan(training)
        return 0
    try:
        training.claim()
        if training.is_complete:
            print(training.complete_lines)
            return 0
        return _train(training)
    finally:
        training.close()


def display_of(training: LocalTraining, may_lose: Callable[[], bool] = lambda: False) -> Display:
    """Prints what a run trains on; returns its display, started."""
    path = training.logdir.status()
    interval_s = training.config.run.metrics_interval_s
    display = Display(
        lambda: status_file.read_status(path), interval_s=interval_s, may_lose=may_lose
    )
    display.say(f"{training.spec.level_name}: {training.spec.protocol}")
    display.say(configs.schedule_line(training.config))
    display.start()
    return display


def _train(training: LocalTraining) -> int:
    """Trains in a folder that this process holds; returns the exit status."""
    stop = StopRequest()
    stop.install()
    training.start()
    failure = training.follow(stop, display=display_of(training, may_lose=stop))
    with contextlib.suppress(OSError):  # the terminal may be gone although the run has ended well
        if failure:
            print(failure, file=sys.stderr, flush=True)
        else:
            _print_next_commands(training)
            sys.stdout.flush()
    return 1 if failure else 0


def _print_plan(training: LocalTraining) -> None:
    config, spec, logdir = training.config, training.spec, training.logdir
    frames = 0 if config.run.fresh else run_folder.frames_so_far(config, spec, logdir)
    process, optimizer = config.process, config.optimizer
    print(f"{spec.level_name}: {spec.protocol}")
    print(
        f"one learner and {process.num_actors} actor{'s' * (process.num_actors > 1)} with"
        f" {process.envs_per_actor} environments each, on this machine\n"
        f"{config.loss.algorithm} with {config.agent.agent_name}, batches of"
        f" {optimizer.batch_size} unrolls of {optimizer.unroll_length} steps"
    )
    print(configs.schedule_line(config))
    print(f"{logdir.path}: {frames:,} of {config.run.total_environment_frames:,} frames so far")


def _print_next_commands(training: LocalTraining) -> None:
    given, logdir = training.given, training.logdir
    resume = configs.to_flags(given.replace(logdir=str(logdir.path)))
    if not files.checkpoints(logdir.checkpoints):
        print("to start again:", user_commands.run_experiment(*resume))
        return
    test = ["--mode=test", f"--logdir={logdir.path}"]
    if training.spec.renders:
        test.append("--video")
    if trained_flags.own_modules(given):
        test.append("--trust_level_module")  # this run has imported it already
    last = status_file.read_status(logdir.status(), status_file.PATIENCE_S)
    if last is not None and last["state"] != "done":
        print("to resume:  ", user_commands.run_experiment(*resume))
    print("to evaluate:", user_commands.run_experiment(*test))
    print("curves:     ", user_commands.installed("tensorboard", "--logdir", str(logdir.path)))
