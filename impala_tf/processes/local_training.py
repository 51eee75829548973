"""A run on this machine with everything it needs: its folder, certificates and processes."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, Given, command_line
from impala_tf.environments import suites
from impala_tf.learner import callbacks
from impala_tf.logdir import Logdir
from impala_tf.machine import certificates, process_logs
from impala_tf.machine.node import Node, is_learner, run_end_command
from impala_tf.machine.supervision import (
    ENDED_AS_TOLD,
    LEARNER_RESTARTS,
    Command,
    ProcessState,
    SupervisedProcess,
)
from impala_tf.monitoring import render, status, wandb_writer
from impala_tf.monitoring.metrics import Row
from impala_tf.processes import (
    evaluator,
    mirroring,
    provenance,
    run_file,
    run_folder,
    tensorflow_startup,
    warm_start,
)
from impala_tf.processes.common import credentials_dir, logdir_of, resolve

# A learner that is asked to stop finishes its update and writes a checkpoint.
_STOP_S = 60.0
_ACTOR_STOP_S = 10.0
# A learner that fails earlier than this will most likely fail again.
_PROVEN_S = 60.0


class LocalTraining:
    """Trains on this machine: a learner and its actors, from `claim` to `close`.

    Call `claim`, then `start`, then `tick` about every `node.TICK_S` seconds until `over`, and
    finally `close`, even after an exception. Installs no signal handlers. The processes end with
    this one, however it ends.

    Args:
      given: the flags. Nothing is touched before `claim`.

    Attributes:
      environment: variables for the processes, besides those of this process.
      given: the flags as the user gave them, except --fresh, which a resume must not repeat.
      config, spec, logdir: the run's config, its level's specification, and its folder.
      needs: what the user should know about the run's needs on this machine; '' if nothing.
      frames: environment frames of the run when it was claimed.
      moved: where an earlier run of the folder was moved to; None if nothing was moved.

    Raises:
      ConfigError: flags or a level that cannot be used.
    """

    def __init__(self, given: Given) -> None:
        self.config, self.spec = resolve(given)
        configs.check_batches(self.config)
        self.logdir = logdir_of(self.config)
        run_folder.check_not_exported(self.logdir)
        warm_start.check(self.config, self.spec, self.logdir)
        self.given = given.without("fresh")
        callbacks.load(self.config.run)
        if self.config.run.mirror:
            mirroring.check(self.config.run.mirror)
        evaluator.check(self.config)
        if self.config.run.track == "wandb":
            wandb_writer.check_installed()
        self.frames = 0
        self.moved: Path | None = None
        self.environment: Mapping[str, str] = {}
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._held = contextlib.ExitStack()
        self._node: Node | None = None
        self._hours_passed = ""

    def claim(self) -> None:
        """Claims the run's folder, so that no other run of this machine can use it until `close`.

        Restores a newer checkpoint from --mirror.

        Raises:
          ConfigError: another run uses the folder, it holds another run, it cannot be written, no
            checkpoint is complete, --mirror cannot be used, or TensorFlow is missing.
        """
        tensorflow_startup.check_installed()
        config = self.config
        address = _learner_address(config)
        with contextlib.ExitStack() as held:
            claimed = run_folder.claimed(self.logdir, fresh=config.run.fresh)
            self.moved = held.enter_context(claimed)
            if self.moved is not None:
                print(f"the run that was in {self.logdir.path} is now in {self.moved}")
            mirroring.bring_back(config, self.spec, self.logdir, print)
            provenance.keep_offsets(config.environment, provenance.read(self.logdir))
            self.spec = suites.spec(config.environment)
            self.frames = run_folder.frames_so_far(config, self.spec, self.logdir)
            self._held = held.pop_all()
        self.config = configs.replace(config, learner_hosts=address, fresh=False)

    @property
    def is_complete(self) -> bool:
        """Whether the run had all of its frames when it was claimed."""
        return self.frames >= self.config.run.total_environment_frames

    def start(self) -> None:
        """Starts the processes.

        Raises:
          ConfigError: the folder cannot be written.
        """
        _prepare(self.logdir)
        certificates.ensure(credentials_dir(self.config))
        self._node = Node(self._on_event, self.config.cluster.max_hours)
        run_file.write(self.logdir.run, self.config, self.spec)
        for command in _commands(self.config, self.logdir, self.environment):
            self._node.add(command).start()

    def _on_event(self, command: Command, event: str) -> None:
        if not event.startswith("finished"):  # `final_lines` says that the run is done
            self._events.put(f"{command.name} {event}; see {command.log_path}")

    @property
    def node(self) -> Node:
        """The processes."""
        assert self._node is not None, "start() comes first"
        return self._node

    @property
    def over(self) -> bool:
        """Whether the learner is over, all actors failed, or one was refused."""
        return (
            _learner(self.node).over
            or _no_actor_is_left(self.node)
            or any(actor.state == "refused" for actor in _actor_states(self.node))
        )

    def tick(self, note: Callable[[str], None]) -> None:
        """Stops what is due to stop; returns at once.

        Args:
          note: called with a line for each event that a user should see.
        """
        if not self.node.stopping and self.node.is_late:
            self._hours_passed = self.node.hours_passed
            note(f"{self._hours_passed}: stopping")
            self.node.stop()
        self.node.tick()
        # While the run stops, its processes end as intended, so nothing is noted.
        while not (self.node.stopping or self._events.empty()):
            note(self._events.get())

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to stop."""
        return self.node.stopping

    def stop(self) -> None:
        """Makes `tick` stop the run; the learner writes a checkpoint. Returns at once."""
        self.node.stop()

    def kill(self) -> None:
        """Kills all processes; what was learned since the last checkpoint is lost."""
        self.node.stop()
        for process in self.node.processes.values():
            process.stop()
            process.kill()

    def close(self) -> None:
        """Stops the processes, waits for them, and releases the folder. May be called twice."""
        try:
            if self._node is not None:
                self._node.close()
        finally:
            self._held.close()

    def run_end_command(self) -> None:
        """Runs --end_command, if there is one."""
        if command := self.config.cluster.end_command:
            with contextlib.suppress(OSError):  # it runs even if this cannot be printed
                print(f"--end_command: {command}", flush=True)
            run_end_command(command, str(self.logdir.path), self.node.states)

    def raise_if_refused(self) -> None:
        """Raises ConfigError if a process found its flags or files unusable."""
        for name, state in self.node.states.items():
            if state.state != "refused":
                continue
            prefix = "" if is_learner(name) else f"{name}: "
            problems = [
                prefix + line.partition(": ")[2]
                for line in _last_lines(self.node.processes[name], 20)
                if line.startswith(command_line.PROBLEM_PREFIXES)
            ]
            raise ConfigError(problems or [state.detail])

    def failure(self) -> str:
        """Returns why the run failed, in lines for the user; '' if it did not."""
        if _no_actor_is_left(self.node):
            last = _actor_states(self.node)[-1]
            return f"no actor is left; the last one said:\n{last.detail}"
        learner = _learner(self.node)
        # A learner that was asked to stop, and could not save its work or had to be killed.
        lost_work = learner.state.exit_status not in ENDED_AS_TOLD
        if learner.state.state != "failed" and not lost_work:
            return ""
        failed, lines = f"the learner failed: {learner.state.detail}", _last_lines(learner, 15)
        if not lines:
            return f"{failed}; {learner.command.log_path} is empty or not there"
        return "\n".join([f"{failed}; the last lines of", f"{learner.command.log_path}:", *lines])

    def complete_lines(self) -> str:
        """Returns the message for a run that has all of its frames."""
        total = self.config.run.total_environment_frames
        return (
            f"{self.logdir.path}: this run is complete ({self.frames:,} frames; you asked for"
            f" {total:,}).\nTo train longer, give --total_environment_frames={2 * self.frames};"
            " to start again, --fresh."
        )

    @property
    def end_reason(self) -> str:
        """Which flag or callback ended the run before its last frame; '' if none did."""
        last = status.read_status(self.logdir.status(), status.PATIENCE_S)
        is_done = last is not None and last["state"] == "done"
        return last.get("end_reason", "") if last and is_done else self._hours_passed

    def final_lines(self) -> str:
        """Returns why the run ended early, if it did, and its state, frames and return."""
        # The end by --max_hours was noted when it happened.
        reason = self.end_reason
        noted = reason == self._hours_passed
        return "\n".join(filter(None, ["" if noted else reason, self._how_far()]))

    def _how_far(self) -> str:
        last = status.read_status(self.logdir.status(), status.PATIENCE_S)
        if last is None and self.frames:
            return f"stopped: nothing was added to the run's {self.frames:,} frames"
        if last is None:
            return "nothing was trained"
        frames = f"{last['environment_frames']:,} of {last['total_environment_frames']:,} frames"
        row, evaluated = last["row"], render.evaluation(last)
        return ", ".join([
            f"{last['state']}: {frames}",
            *(_found(row) if row else ()),  # there may be no row yet
            *([f"evaluation {evaluated}"] if evaluated else ()),
        ])  # fmt: skip


def _commands(config: Config, logdir: Logdir, environment: Mapping[str, str]) -> list[Command]:
    """Returns the processes of the run: a learner and its actors."""

    def command(job_name: str, task: int) -> Command:
        name = f"{job_name}-{task}"
        return Command(
            name,
            run_file.command(logdir.run, job_name, task),
            workdir=str(Path.cwd()),
            log_path=str(logdir.processes / f"{name}.log"),
            environment=environment,
            stop_timeout_s=_ACTOR_STOP_S,
        )

    learner = command("learner", 0)._replace(
        max_restarts=LEARNER_RESTARTS,
        proven_after_s=_PROVEN_S,
        stop_timeout_s=_STOP_S,
    )
    actors = range(config.process.num_actors)
    return [learner, *(command("actor", task) for task in actors)]


def _found(row: Row) -> list[str]:
    """Returns the mean return and other results in a run's last row of metrics."""
    games = "no episode finished"
    if row.get("episode_return_mean") is not None:
        games = f"mean return {render.mean_return(row)}"
    return [games, *filter(None, [render.skipped(row)])]


def _learner(node: Node) -> SupervisedProcess:
    return node.processes["learner-0"]


def _actor_states(node: Node) -> list[ProcessState]:
    return [state for name, state in node.states.items() if not is_learner(name)]


def _no_actor_is_left(node: Node) -> bool:
    return all(actor.state == "failed" for actor in _actor_states(node))


def _last_lines(process: SupervisedProcess, count: int) -> list[str]:
    """Returns the last lines of a process's output; [] if its log cannot be read."""
    try:
        lines = Path(process.command.log_path).read_text(errors="replace").splitlines()
    except OSError:  # the failure is reported without them
        return []
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
    if not config.process.learner_hosts:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"
    return configs.split(config.process.learner_hosts)[0]
