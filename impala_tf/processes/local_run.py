"""A run on this machine with everything it needs: its folder, certificates and processes."""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from impala_tf import config as configs
from impala_tf.checkpoint import files
from impala_tf.config import Config, ConfigError, Given, command_line, user_commands
from impala_tf.learner import user_callbacks
from impala_tf.machine import certificates, process_output
from impala_tf.machine.node import TICK_S, Node, is_learner, run_end_command
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.machine.supervision import (
    ENDED_AS_TOLD,
    LEARNER_RESTARTS,
    Command,
    ProcessState,
    SupervisedProcess,
)
from impala_tf.monitoring import render, status_file
from impala_tf.monitoring.live_display import Display
from impala_tf.processes import (
    evaluator,
    mirroring,
    provenance,
    run_file,
    run_folder,
    tensorflow_startup,
    trained_flags,
    warm_start,
)
from impala_tf.processes.common import check_package, credentials_dir, logdir_of, resolve

# A learner that is asked to stop finishes its update and writes a checkpoint.
_STOP_S = 60.0
_ACTOR_STOP_S = 10.0
# A learner that fails earlier than this will most likely fail again.
_PROVEN_S = 60.0


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


def display_of(training: LocalTraining) -> Display:
    """Prints what a run trains on; returns its display, started."""
    path = training.logdir.status()
    interval_s = training.config.run.metrics_interval_s
    display = Display(lambda: status_file.read_status(path), interval_s=interval_s)
    display.say(f"{training.spec.level_name}: {training.spec.protocol}")
    display.say(configs.schedule_line(training.config))
    display.start()
    return display


def _train(training: LocalTraining) -> int:
    """Trains in a folder that this process holds; returns the exit status."""
    stop = StopRequest()
    stop.install()
    training.start()
    failure = training.follow(stop, display=display_of(training))
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
        print("to start again:", user_commands.impala("train", *resume))
        return
    test = [f"--logdir={logdir.path}"]
    if training.spec.renders:
        test.append("--video")
    if trained_flags.own_modules(given):
        test.append("--trust_level_module")  # this run has imported it already
    last = status_file.read_status(logdir.status())
    if last is not None and last["state"] != "done":
        print("to resume:  ", user_commands.impala("train", *resume))
    print("to evaluate:", user_commands.impala("test", *test))
    print("curves:     ", user_commands.installed("tensorboard", "--logdir", str(logdir.path)))


class LocalTraining:
    """Trains on this machine: a learner and its actors.

    Call `claim`, `start`, `follow` and finally `close`, even after an exception. Installs no signal
    handlers. The processes end with this one, however it ends. `given` are the user's flags without
    --fresh, which a resume must not repeat; `environment`, variables for the processes; `frames`,
    those of the run when it was claimed. Raises ConfigError: flags or a level that cannot be used.
    """

    def __init__(self, given: Given) -> None:
        self.config, self.spec = resolve(given)
        configs.check_batches(self.config)
        self.logdir = logdir_of(self.config)
        run_folder.check_usable(self.config)
        warm_start.check(self.config, self.spec, self.logdir)
        self.given = given.without("fresh")
        user_callbacks.load(self.config.run)
        if self.config.run.mirror:
            mirroring.check(self.config.run.mirror)
        evaluator.check(self.config, self.spec)
        if self.config.run.track == "wandb":
            check_package("--track=wandb", "wandb", "wandb")
        self.frames = 0
        self.environment: Mapping[str, str] = {}
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._held = contextlib.ExitStack()
        self._node: Node | None = None
        self._hours_passed = ""

    def claim(self) -> None:
        """Claims the run's folder until `close`, and restores a newer checkpoint from --mirror.

        Raises ConfigError: another run uses the folder, it holds another run, it cannot be written,
        no checkpoint is complete, --mirror cannot be used, or TensorFlow is missing.
        """
        tensorflow_startup.check_installed()
        config = self.config
        address = _learner_address(config)
        with contextlib.ExitStack() as held:
            claimed = run_folder.claimed(self.logdir, fresh=config.run.fresh)
            if (moved := held.enter_context(claimed)) is not None:
                print(f"the run that was in {self.logdir.path} is now in {moved}")
            mirroring.bring_back(config, self.spec, self.logdir, print)
            self.spec = provenance.keep_offsets(self.spec, provenance.read(self.logdir))
            self.frames = run_folder.frames_so_far(config, self.spec, self.logdir)
            self._held = held.pop_all()
        self.config = configs.replace(config, learner_hosts=address, fresh=False)

    @property
    def is_complete(self) -> bool:
        """Whether the run had all of its frames when it was claimed."""
        return self.frames >= self.config.run.total_environment_frames

    def start(self) -> None:
        """Starts the processes. Raises ConfigError: the folder cannot be written."""
        logdir = self.logdir
        try:
            logdir.processes.mkdir(exist_ok=True)
            logdir.status().unlink(missing_ok=True)  # of an earlier run
            run_file.write(logdir.run, self.config, self.spec)
        except OSError as error:
            raise ConfigError(
                f"--logdir={logdir.path}: cannot write there: {error.strerror}"
            ) from None
        certificates.ensure(credentials_dir(self.config))
        self._node = Node(self._on_event, self.config.cluster.max_hours)
        actors = [f"actor-{task}" for task in range(self.config.process.num_actors)]
        for name in ("learner-0", *actors):
            self._node.add(self._command(name)).start()

    def _command(self, name: str) -> Command:
        """Returns the command of a process, such as learner-0."""
        job_name, _, task = name.partition("-")
        command = Command(
            name,
            run_file.command(self.logdir.run, job_name, int(task)),
            workdir=str(Path.cwd()),
            log_path=str(self.logdir.processes / f"{name}.log"),
            environment=self.environment,
            stop_timeout_s=_ACTOR_STOP_S,
        )
        if not is_learner(name):
            return command
        return command._replace(
            max_restarts=LEARNER_RESTARTS,
            proven_after_s=_PROVEN_S,
            stop_timeout_s=_STOP_S,
        )

    def _on_event(self, command: Command, event: str) -> None:
        if not event.startswith("finished"):  # `_final_lines` says that the run is done
            self._events.put(f"{command.name} {event}; see {command.log_path}")

    def follow(
        self,
        should_stop: Callable[[], bool],
        should_kill: Callable[[], bool] = lambda: False,
        display: Display | None = None,
    ) -> str:
        """Watches the processes until the run is over; then releases the folder.

        After `should_stop`, the learner writes a checkpoint; `should_kill` ends all at once.
        Returns why the run failed, in lines for the user; '' if it did not. Raises ConfigError: a
        process found its flags or files unusable, or a callback raised.
        """
        node, note = self._running, display.note if display else lambda text: None
        try:
            while not self._over:
                if should_kill():
                    node.stop()
                    for process in node.processes.values():
                        process.stop()
                        process.kill()
                if should_stop() and not node.stopping:
                    note("stopping: the learner writes a checkpoint (Ctrl-C again: stop now)")
                    node.stop()
                if not node.stopping and node.is_late:
                    self._hours_passed = node.hours_passed
                    note(f"{self._hours_passed}: stopping")
                    node.stop()
                node.tick()
                self._note_events(note)
                if display:
                    display.update()
                time.sleep(TICK_S)
            self._note_events(note)
        finally:
            self.close()
            try:
                if display:
                    display.stop(self._final_lines())
            finally:
                self._run_end_command()
        self._raise_if_refused()
        return self._failure()

    @property
    def _running(self) -> Node:
        assert self._node is not None, "start() comes first"
        return self._node

    @property
    def _actors(self) -> list[ProcessState]:
        return [state for name, state in self._running.states.items() if not is_learner(name)]

    @property
    def _no_actor_is_left(self) -> bool:
        return all(actor.state == "failed" for actor in self._actors)

    @property
    def _over(self) -> bool:
        """Whether the learner is over, all actors failed, or one was refused."""
        refused = any(actor.state == "refused" for actor in self._actors)
        return self._running.processes["learner-0"].over or self._no_actor_is_left or refused

    def _note_events(self, note: Callable[[str], None]) -> None:
        # While the run stops, its processes end as intended, so nothing is noted.
        while not (self._running.stopping or self._events.empty()):
            note(self._events.get())

    def close(self) -> None:
        """Stops the processes, waits for them, and releases the folder. May be called twice."""
        try:
            if self._node is not None:
                self._node.close()
        finally:
            self._held.close()

    def _run_end_command(self) -> None:
        if command := self.config.cluster.end_command:
            with contextlib.suppress(OSError):  # it runs even if this cannot be printed
                print(f"--end_command: {command}", flush=True)
            run_end_command(command, str(self.logdir.path), self._running.states)

    def _raise_if_refused(self) -> None:
        for name, state in self._running.states.items():
            if state.state != "refused":
                continue
            prefix = "" if is_learner(name) else f"{name}: "
            problems = [
                prefix + line.partition(": ")[2]
                for line in _last_lines(self._running.processes[name], 20)
                if line.startswith(command_line.PROBLEM_PREFIXES)
            ]
            raise ConfigError(problems or [state.detail])

    def _failure(self) -> str:
        if self._no_actor_is_left:
            return f"no actor is left; the last one said:\n{self._actors[-1].detail}"
        learner = self._running.processes["learner-0"]
        # A learner that was asked to stop, and could not save its work or had to be killed.
        lost_work = learner.state.exit_status not in ENDED_AS_TOLD
        if learner.state.state != "failed" and not lost_work:
            return ""
        failed, lines = f"the learner failed: {learner.state.detail}", _last_lines(learner, 15)
        return "\n".join([f"{failed}; the last lines of", f"{learner.command.log_path}:", *lines])

    @property
    def complete_lines(self) -> str:
        """The message for a run that has all of its frames."""
        total = self.config.run.total_environment_frames
        return (
            f"{self.logdir.path}: this run is complete ({self.frames:,} frames; you asked for"
            f" {total:,}).\nTo train longer, give --total_environment_frames={2 * self.frames};"
            " to start again, --fresh."
        )

    @property
    def end_reason(self) -> str:
        """Which flag or callback ended the run before its last frame; '' if none did."""
        last = status_file.read_status(self.logdir.status())
        is_done = last is not None and last["state"] == "done"
        return last.get("end_reason", "") if last and is_done else self._hours_passed

    def _final_lines(self) -> str:
        """Returns why the run ended early, if it did, and its state, frames and return."""
        last, reason = status_file.read_status(self.logdir.status()), self.end_reason
        if reason == self._hours_passed:
            reason = ""  # that was noted when it happened
        if last is None:
            kept = f"stopped: nothing was added to the run's {self.frames:,} frames"
            return "\n".join(filter(None, [reason, kept if self.frames else "nothing was trained"]))
        parts = [f"{last['state']}: {render.frames_of(last)}"]
        if row := last["row"]:  # there may be none yet
            parts += [f"mean return {render.mean_return(row)}", render.skipped(row)]
        if evaluated := render.evaluation(last):
            parts.append(f"evaluation {evaluated}")
        return "\n".join(filter(None, [reason, ", ".join(filter(None, parts))]))


def _last_lines(process: SupervisedProcess, count: int) -> list[str]:
    """Returns the last lines of a process's output; [] if its log cannot be read."""
    try:
        lines = Path(process.command.log_path).read_text(errors="replace").splitlines()
    except OSError:  # the failure is reported without them
        return []
    printed = [line for line in lines if line.strip() and not line.startswith(process_output.EVENT)]
    return printed[-count:]


def _learner_address(config: Config) -> str:
    """Returns the learner's address: --learner_hosts, or a free port on this machine."""
    if not config.process.learner_hosts:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"
    return configs.split(config.process.learner_hosts)[0]
