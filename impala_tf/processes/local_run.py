"""A run on this machine: starts a learner and actors, shows their progress, ends all of them."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import sys
import time
from pathlib import Path

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, Given, command_line, user_commands
from impala_tf.environments import suites
from impala_tf.learner import callbacks
from impala_tf.logdir import Logdir
from impala_tf.machine import certificates, process_logs
from impala_tf.machine.node import TICK_S, Node, is_learner, run_end_command
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.machine.supervision import Command, ProcessState, SupervisedProcess
from impala_tf.monitoring import status, wandb_writer
from impala_tf.monitoring.live_display import Display
from impala_tf.processes import run_folder, tensorflow_startup
from impala_tf.processes.common import (
    credentials_dir,
    logdir_of,
    resolve,
)
from impala_tf.types import EnvironmentSpec

# A learner that is asked to stop finishes its update and writes a checkpoint.
_STOP_S = 60.0
_ACTOR_STOP_S = 10.0
# A learner that fails earlier than this will most likely fail again.
_PROVEN_S = 60.0


def main(given: Given) -> int:
    """Trains on this machine; returns the exit status.

    Raises:
      ConfigError: flags, level or logdir that cannot be used; nothing was started then.
    """
    config, spec = resolve(given)
    configs.check_batches(config)
    logdir = logdir_of(config)
    if needs := configs.algorithm(config.loss.algorithm).check_machine(config, spec):
        print(needs)
    tensorflow_startup.check_gpu(config.process.device)
    callbacks.load(config.run)
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
        if frames >= config.run.total_environment_frames:
            print(_complete(config, logdir, frames))
            return 0
        given = given.without("fresh")  # a resume must not start again
        return _train(configs.replace(config, learner_hosts=address, fresh=False), spec, given)


def _complete(config: Config, logdir: Logdir, frames: int) -> str:
    total = config.run.total_environment_frames
    return (
        f"{logdir.path}: this run is complete ({frames:,} frames; you asked for {total:,}).\n"
        f"To train longer, give --total_environment_frames={2 * frames}; to start again, --fresh."
    )


def _train(config: Config, spec: EnvironmentSpec, given: Given) -> int:
    """Trains in a folder that this process holds; returns the exit status.

    Args:
      config: the run's; the learner's address is free.
      spec: the level's specification.
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
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    node = Node(
        lambda command, event: events.put(f"{command.name} {event}; see {command.log_path}"),
        config.cluster.max_hours,
    )
    display.start()
    try:
        for command in _commands(config, logdir):
            node.add(command).start()
        _watch(node, stop, display, events, config.cluster.max_hours)
    finally:
        node.close()
        display.stop(_final_line(logdir))
        if config.cluster.end_command:
            print(f"--end_command: {config.cluster.end_command}", flush=True)
            run_end_command(config.cluster.end_command, str(logdir.path), node.states)
    _raise_if_refused(node)
    if failure := _failure(node):
        print(failure, file=sys.stderr)
        return 1
    _print_next_commands(given, logdir)
    return 0


def _print_plan(config: Config, spec: EnvironmentSpec, logdir: Logdir, frames: int) -> None:
    actors = config.process.num_actors
    each = config.process.envs_per_actor
    total = config.run.total_environment_frames
    optimizer = config.optimizer
    print(f"{spec.level_name}: {spec.protocol}")
    print(f"one learner and {actors} actors with {each} environments each, on this machine")
    print(
        f"{config.loss.algorithm} with {config.agent.agent_name}, batches of "
        f"{optimizer.batch_size} unrolls of {optimizer.unroll_length} steps"
    )
    print(configs.schedule_line(config))
    print(f"{logdir.path}: {frames:,} of {total:,} frames so far")


def _commands(config: Config, logdir: Logdir) -> list[Command]:
    """Returns the processes of the run: a learner and its actors."""

    def command(job_name: str, task: int) -> Command:
        name = f"{job_name}-{task}"
        flags = configs.to_flags(Given.of(config).replace(job_name=job_name, task=task))
        return Command(
            name,
            (sys.executable, *user_commands.program(), *flags),
            workdir=str(Path.cwd()),
            log_path=str(logdir.processes / f"{name}.log"),
            stop_timeout_s=_ACTOR_STOP_S,
        )

    learner = command("learner", 0)._replace(
        max_restarts=config.cluster.max_restarts,
        proven_after_s=_PROVEN_S,
        stop_timeout_s=_STOP_S,
    )
    actors = range(config.process.num_actors)
    return [learner, *(command("actor", task) for task in actors)]


def _learner(node: Node) -> SupervisedProcess:
    return node.processes["learner-0"]


def _actor_states(node: Node) -> list[ProcessState]:
    return [state for name, state in node.states.items() if not is_learner(name)]


def _no_actor_is_left(node: Node) -> bool:
    return all(actor.state == "failed" for actor in _actor_states(node))


def _watch(
    node: Node,
    stop: StopRequest,
    display: Display,
    events: queue.SimpleQueue[str],
    max_hours: float | None,
) -> None:
    """Shows the run until its learner is over, its actors failed, or one was refused."""
    while not (
        _learner(node).over
        or _no_actor_is_left(node)
        or any(actor.state == "refused" for actor in _actor_states(node))
    ):
        if not node.stopping and node.is_late:
            display.note(f"--max_hours={max_hours:g} have passed: stopping")
            node.stop()
        if not node.stopping and stop():
            display.note("stopping: the learner writes a checkpoint (Ctrl-C again: stop now)")
            node.stop()
        node.tick()
        _show_events(node, display, events)
        display.update()
        time.sleep(TICK_S)
    _show_events(node, display, events)


def _show_events(node: Node, display: Display, events: queue.SimpleQueue[str]) -> None:
    """Shows what happened, but not while the run stops: then processes end as they should."""
    while not (node.stopping or events.empty()):
        display.note(events.get())


def _raise_if_refused(node: Node) -> None:
    """Raises ConfigError if a process found its flags or files unusable."""
    for name, state in node.states.items():
        if state.state != "refused":
            continue
        prefix = "" if is_learner(name) else f"{name}: "
        problems = [
            prefix + line.partition(": ")[2]
            for line in _last_lines(node.processes[name], 20)
            if line.startswith(command_line.PROBLEM_PREFIXES)
        ]
        raise ConfigError(problems or [state.detail])


def _failure(node: Node) -> str:
    """Returns why the run failed, in lines for the user; '' if it did not."""
    if _no_actor_is_left(node):
        return f"no actor is left; the last one said:\n{_actor_states(node)[-1].detail}"
    learner = _learner(node)
    # One that was killed did not stop when it was told to.
    if learner.state.state != "failed" and learner.state.exit_status != -signal.SIGKILL:
        return ""
    return "\n".join([
        f"the learner {learner.state.detail}; the last lines of",
        f"{learner.command.log_path}:",
        *_last_lines(learner, 15),
    ])  # fmt: skip


def _last_lines(process: SupervisedProcess, count: int) -> list[str]:
    """Returns the last lines that a process printed."""
    lines = Path(process.command.log_path).read_text(errors="replace").splitlines()
    printed = [line for line in lines if line.strip() and not line.startswith(process_logs.EVENT)]
    return printed[-count:]


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


def _print_next_commands(given: Given, logdir: Logdir) -> None:
    resume = configs.to_flags(given.replace(logdir=str(logdir.path)))
    test = ["--mode=test", f"--logdir={logdir.path}", "--video"]
    if suites.modules(given.environment):
        test.append("--trust_level_module")  # this run has imported it already
    last = status.read_status(logdir.status())
    if last is not None and last["state"] != "done":
        print("to resume:  ", user_commands.run_experiment(*resume))
    print("to evaluate:", user_commands.run_experiment(*test))
    print("curves:     ", user_commands.installed("tensorboard", "--logdir", str(logdir.path)))
