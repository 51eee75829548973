"""A run on this machine: starts a learner and actors, shows their progress, ends all of them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, command_line, resolved, user_commands
from impala_tf.environments import suites
from impala_tf.logdir import Logdir
from impala_tf.machine import certificates, process_logs
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.machine.supervision import Command, SupervisedProcess
from impala_tf.monitoring import status, wandb_writer
from impala_tf.monitoring.live_display import Display
from impala_tf.processes import run_folder, tensorflow_startup
from impala_tf.processes.common import (
    check_replay_fits,
    credentials_dir,
    logdir_of,
    resolve,
)
from impala_tf.types import EnvironmentSpec

_SCRIPT = user_commands.PROJECT / user_commands.SCRIPT
_POLL_S = 0.25
# A learner that is asked to stop finishes its update and writes a checkpoint.
_STOP_S = 60.0
_ACTOR_STOP_S = 10.0
# A learner that fails earlier than this will most likely fail again.
_PROVEN_S = 60.0


def main(config: Config) -> int:
    """Trains on this machine; returns the exit status.

    Raises:
      ConfigError: flags, level or logdir that cannot be used; nothing was started then.
    """
    given = configs.replace(config, fresh=False)  # a resume must not start again
    config, spec = resolve(config)
    configs.check_batches(config)
    logdir = logdir_of(config)
    if memory := check_replay_fits(config, spec):
        print(memory)
    tensorflow_startup.check_gpu(config.process.device)
    if config.run.track == "wandb":
        wandb_writer.check_installed()
    if config.cluster.dry_run:
        frames = 0 if config.run.fresh else run_folder.frames_so_far(config, spec, logdir)
        _print_plan(config, spec, logdir, frames)
        return 0
    tensorflow_startup.check_installed()
    address = _learner_address(config)
    with run_folder.claimed(logdir, fresh=config.run.fresh) as moved:
        if moved is not None:
            print(f"the run that was in {logdir.path} is now in {moved}")
        frames = run_folder.frames_so_far(config, spec, logdir)
        if frames >= resolved(config.run.total_environment_frames):
            print(_complete(config, logdir, frames))
            return 0
        return _train(configs.replace(config, learner_hosts=address, fresh=False), spec, given)


def _complete(config: Config, logdir: Logdir, frames: int) -> str:
    total = resolved(config.run.total_environment_frames)
    return (
        f"{logdir.path}: this run is complete ({frames:,} frames; you asked for {total:,}).\n"
        f"To train longer, give --total_environment_frames={2 * frames}; to start again, --fresh."
    )


def _train(config: Config, spec: EnvironmentSpec, given: Config) -> int:
    """Trains in a folder that this process holds; returns the exit status.

    Args:
      config: resolved; the learner's address is free.
      spec: of the level.
      given: the flags as the user gave them, for the commands that are printed at the end.
    """
    logdir = logdir_of(config)
    _prepare(logdir)
    certificates.renew(credentials_dir(config))
    stop = StopRequest()
    stop.install()
    display = Display(
        lambda: status.read_status(logdir.status()), interval_s=config.run.metrics_interval_s
    )
    print(f"{spec.level_name}: {spec.protocol}")
    print(configs.schedule_line(config), flush=True)
    processes = _Processes(config, logdir)
    display.start()
    try:
        processes.start()
        processes.watch(stop, display)
    finally:
        processes.stop()
        display.stop(_final_line(logdir))
        _run_end_command(config, logdir)
    processes.raise_if_refused()
    if processes.no_actor_is_left:
        print("no actor is left; the last one said:", file=sys.stderr)
        print(processes.actors[-1].state.detail, file=sys.stderr)
        return 1
    if processes.learner.state.state == "failed" or processes.was_killed:
        print(f"the learner {processes.learner.state.detail}; the last lines of", file=sys.stderr)
        print(f"{processes.log(processes.learner)}:", file=sys.stderr)
        print("\n".join(processes.last_lines(processes.learner, 15)), file=sys.stderr)
        return 1
    _print_next_commands(given, logdir)
    return 0


def _print_plan(config: Config, spec: EnvironmentSpec, logdir: Logdir, frames: int) -> None:
    actors = resolved(config.process.num_actors)
    each = resolved(config.process.envs_per_actor)
    total = resolved(config.run.total_environment_frames)
    optimizer = config.optimizer
    print(f"{spec.level_name}: {spec.protocol}")
    print(f"one learner and {actors} actors with {each} environments each, on this machine")
    print(
        f"{config.loss.algorithm} with {config.agent.agent_name}, batches of "
        f"{optimizer.batch_size} unrolls of {optimizer.unroll_length} steps"
    )
    print(configs.schedule_line(config))
    print(f"{logdir.path}: {frames:,} of {total:,} frames so far")


class _Processes:
    """The learner and the actors of the run."""

    def __init__(self, config: Config, logdir: Logdir) -> None:
        self._logdir = logdir
        self._max_hours = config.cluster.max_hours
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.learner = self._supervised(
            config, "learner", 0, _STOP_S, config.cluster.max_restarts, _PROVEN_S
        )
        self.actors = [
            self._supervised(config, "actor", task, _ACTOR_STOP_S, None, 0.0)
            for task in range(resolved(config.process.num_actors))
        ]

    @property
    def was_killed(self) -> bool:
        """Whether the learner did not stop when it was told to."""
        return self.learner.state.exit_status == -signal.SIGKILL

    @property
    def no_actor_is_left(self) -> bool:
        """Whether all actors have failed for good."""
        return all(actor.state.state == "failed" for actor in self.actors)

    def start(self) -> None:
        """Starts all of them."""
        self.learner.start()
        for actor in self.actors:
            actor.start()

    def watch(self, stop: StopRequest, display: Display) -> None:
        """Shows the run until its learner is over, its actors failed, or one was refused."""
        asked = False
        limit_h = self._max_hours
        end_s = float("inf") if limit_h is None else time.monotonic() + 3600 * limit_h
        while not (
            self.learner.over or self.no_actor_is_left or any(map(_is_refused, self.actors))
        ):
            if not asked and time.monotonic() > end_s:
                asked = True
                display.note(f"--max_hours={limit_h:g} have passed: stopping")
                self.learner.stop()
            if stop() and not asked:
                asked = True
                display.note("stopping: the learner writes a checkpoint (Ctrl-C again: stop now)")
                self.learner.stop()
            self._show_events(display, shown=not asked)
            display.update()
            time.sleep(_POLL_S)
        self._show_events(display, shown=not asked)

    def _show_events(self, display: Display, *, shown: bool) -> None:
        while not self._events.empty():
            event = self._events.get()
            if shown:
                display.note(event)

    def stop(self) -> None:
        """Stops all of them, and waits: the learner first, which writes a checkpoint."""
        for group in ([self.learner], self.actors):
            for process in group:
                process.stop()
            for process in group:
                if process.ident is not None:
                    process.join()

    def raise_if_refused(self) -> None:
        """Raises ConfigError if a process found its flags or files unusable."""
        for process in filter(_is_refused, [self.learner, *self.actors]):
            prefix = "" if process is self.learner else f"{process.command.name}: "
            lines = self.last_lines(process, 20)
            problems = [
                line.removeprefix(command_line.PROBLEM_PREFIX)
                for line in lines
                if line.startswith(command_line.PROBLEM_PREFIX)
            ]
            raise ConfigError([prefix + line for line in problems] or [process.state.detail])

    def log(self, process: SupervisedProcess) -> Path:
        """Returns the path of a process's log."""
        return Path(process.command.log_path)

    def last_lines(self, process: SupervisedProcess, count: int) -> list[str]:
        """Returns the last lines that a process printed."""
        lines = self.log(process).read_text(errors="replace").splitlines()
        return [line for line in lines if line.strip() and not line.startswith(process_logs.EVENT)][
            -count:
        ]

    def _supervised(
        self,
        config: Config,
        job_name: str,
        task: int,
        stop_timeout_s: float,
        max_restarts: int | None,
        proven_after_s: float,
    ) -> SupervisedProcess:
        name = f"{job_name}-{task}"
        log = self._logdir.processes / f"{name}.log"
        flags = configs.to_flags(configs.replace(config, job_name=job_name, task=task))
        command = Command(
            name,
            (sys.executable, str(_SCRIPT), *flags),
            workdir=str(Path.cwd()),
            log_path=str(log),
            max_restarts=max_restarts,
            proven_after_s=proven_after_s,
        )
        return SupervisedProcess(
            command,
            lambda event: self._events.put(f"{name} {event}; see {log}"),
            stop_timeout_s=stop_timeout_s,
        )


def _run_end_command(config: Config, logdir: Logdir) -> None:
    command = config.cluster.end_command
    if command:
        print(f"--end_command: {command}", flush=True)
        environment = {**os.environ, "IMPALA_TF_LOGDIR": str(logdir.path)}
        subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, env=environment)


def _is_refused(process: SupervisedProcess) -> bool:
    return process.state.state == "refused"


def _prepare(logdir: Logdir) -> None:
    try:
        logdir.processes.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--logdir={logdir.path}: cannot write there: {error.strerror}") from None
    with contextlib.suppress(FileNotFoundError):
        logdir.status().unlink()  # of an earlier run


def _learner_address(config: Config) -> str:
    """Returns the learner's address: --learner_hosts, or a free port on this machine."""
    with socket.socket() as probe:
        if not config.process.learner_hosts:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"
        address = configs.hosts(config.process.learner_hosts)[0]
        host, _, port = address.rpartition(":")
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise ConfigError(
                f"--learner_hosts={address}: cannot listen there: {error.strerror}"
            ) from None
        return address


def _final_line(logdir: Logdir) -> str:
    last = status.read_status(logdir.status())
    if last is None:
        return "nothing was trained"
    frames = f"{last['environment_frames']:,} of {last['total_environment_frames']:,} frames"
    mean = (last["row"] or {}).get("episode_return_mean")
    score = "no episode finished" if mean is None else f"mean return {mean:.1f} (last 100 episodes)"
    return f"{last['state']}: {frames}, {score}"


def _print_next_commands(config: Config, logdir: Logdir) -> None:
    resume = configs.to_flags(configs.replace(config, logdir=str(logdir.path)))
    test = ["--mode=test", f"--logdir={logdir.path}", "--video"]
    if suites.modules(config.environment):
        test.append("--trust_level_module")  # this run has imported it already
    last = status.read_status(logdir.status())
    if last is not None and last["state"] != "done":
        print("to resume:  ", user_commands.run_experiment(*resume))
    print("to evaluate:", user_commands.run_experiment(*test))
    print("curves:     ", user_commands.installed("tensorboard", "--logdir", str(logdir.path)))
