"""A run on this machine: starts a learner and actors, shows how they do, leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from impala_tf import checkpoint_files, flags, status
from impala_tf import config as configs
from impala_tf.config import Config, ConfigError
from impala_tf.display import Display
from impala_tf.identity import check_identity
from impala_tf.logdir import Logdir
from impala_tf.metrics import in_use
from impala_tf.processes.common import (
    credentials_dir,
    going_on,
    identity_of,
    logdir_of,
    resolve,
)
from impala_tf.shutdown import PARENT_VARIABLE, StopRequest
from impala_tf.transport import credentials
from impala_tf.types import EnvironmentSpec

_SCRIPT = Path(__file__).resolve().parents[2] / "run_experiment.py"
_POLL_S = 0.25
# A learner that was asked to stop finishes its update and writes a checkpoint.
_STOP_S = 60.0
_ACTOR_STOP_S = 10.0
_FIRST_RESTART_S, _LAST_RESTART_S = 1.0, 60.0


class Child:
    """A process of the run; what it prints goes to processes/NAME.log.

    Args:
      name: such as actor-0.
      config: of the process.
      logdir: of the run.
    """

    def __init__(self, name: str, config: Config, logdir: Logdir) -> None:
        self.name = name
        self.log = logdir.processes / f"{name}.log"
        self._command = [sys.executable, str(_SCRIPT), *configs.to_flags(config)]
        self._restart_s = _FIRST_RESTART_S
        self._restart_at: float | None = None
        self.start()

    def start(self) -> None:
        """Starts the process in a session of its own: Ctrl-C reaches the starter alone."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            )
        self._restart_at = None

    def poll(self) -> int | None:
        """Returns the exit status, None while the process runs; negative: ended by a signal."""
        return self._process.poll()

    def restart_when_due(self) -> str | None:
        """Starts an ended process again, later each time; returns what to tell, if anything."""
        now = time.monotonic()
        if self._restart_at is None:
            self._restart_at = now + self._restart_s
            self._restart_s = min(2 * self._restart_s, _LAST_RESTART_S)
            left = self._restart_at - now
            return f"{self.name} ended with {self.poll()}, again in {left:.0f} s; see {self.log}"
        if now >= self._restart_at:
            self.start()
        return None

    def terminate(self) -> None:
        """Asks the process to stop."""
        if self.poll() is None:
            self._process.terminate()

    def end(self, patience_s: float) -> None:
        """Waits for the process, then ends it and whatever it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_lines(self, count: int) -> list[str]:
        """Returns the end of what the process printed."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-count:]

    def problems(self) -> list[str]:
        """Returns why the process ended with status 2: what `flags.fail` printed at its end."""
        lines = [line for line in self.last_lines(20) if line.startswith(flags.PROBLEM_PREFIX)]
        return [line.removeprefix(flags.PROBLEM_PREFIX) for line in lines]


def main(config: Config) -> int:
    """Trains on this machine; returns the exit status.

    Raises:
      ConfigError: flags, level or logdir that cannot be used; nothing has been started then.
    """
    resolved, spec = resolve(config)
    logdir = logdir_of(resolved)
    if in_use(logdir.metrics):
        raise ConfigError(f"--logdir={logdir.path}: another run is writing there; choose another")
    frames = _look_at_checkpoint(resolved, spec, logdir)
    if frames >= configs.known(resolved.run.total_environment_frames):
        print(f"{logdir.path} has had all of its {frames:,} frames; for more, raise")
        print("--total_environment_frames or choose another --logdir")
        return 0
    _prepare(logdir)
    resolved = configs.replace(resolved, learner_hosts=_learner_address(resolved))
    credentials.ensure(credentials_dir(resolved))
    stop = StopRequest()
    stop.install()
    display = Display(
        lambda: status.read_status(logdir.status()), interval_s=resolved.run.metrics_interval_s
    )
    print(f"{spec.level_name}: {spec.protocol}", flush=True)
    children: list[Child] = []
    display.start()
    try:
        children.append(_start(resolved, logdir, "learner", 0))
        for task in range(configs.known(resolved.process.num_actors)):
            children.append(_start(resolved, logdir, "actor", task))
        code = _watch(children, stop, display)
    finally:
        for child in children[1:]:
            child.terminate()
        for child in children:
            child.end(_ACTOR_STOP_S)
        display.stop(_final_line(logdir))
    if code == 2:
        raise ConfigError(children[0].problems())
    if code:
        print(f"the learner failed; the end of {children[0].log}:", file=sys.stderr)
        print("\n".join(children[0].last_lines(15)), file=sys.stderr)
    else:
        _say_what_next(config, logdir)
    return code


def _look_at_checkpoint(config: Config, spec: EnvironmentSpec, logdir: Logdir) -> int:
    """Returns the frames that the run goes on from, having said so.

    Raises:
      ConfigError: it is another level's or network's run, or no checkpoint is whole.
    """
    found = checkpoint_files.find(logdir.checkpoints)
    if found is None:
        return 0
    check_identity(found.state["identity"], identity_of(config, spec), logdir.path)
    for path, reason in found.damaged.items():
        print(checkpoint_files.damage_line(path, reason, found.path))
    frames: int = found.state["counters"]["environment_frames"]
    if frames:
        print(going_on(found.path, frames))
    return frames


def _prepare(logdir: Logdir) -> None:
    try:
        logdir.processes.mkdir(parents=True, exist_ok=True)
        probe = logdir.path / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"--logdir={logdir.path}: cannot write there: {error.strerror}") from None
    with contextlib.suppress(FileNotFoundError):
        logdir.status().unlink()  # of an earlier run


def _learner_address(config: Config) -> str:
    """Returns where the learner listens: as asked, or a free port of this machine."""
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


def _start(config: Config, logdir: Logdir, job_name: str, task: int) -> Child:
    mine = configs.replace(config, job_name=job_name, task=task)
    return Child(f"{job_name}-{task}", mine, logdir)


def _watch(children: list[Child], stop: StopRequest, display: Display) -> int:
    """Waits for the learner's end, restarting actors; returns the learner's exit status."""
    learner, actors = children[0], children[1:]
    asked_at: float | None = None
    while (code := learner.poll()) is None:
        if stop() and asked_at is None:
            asked_at = time.monotonic()
            display.note("stopping: the learner writes a checkpoint (Ctrl-C again: stop now)")
            learner.terminate()
        if asked_at is not None and time.monotonic() - asked_at > _STOP_S:
            display.note(f"the learner did not stop within {_STOP_S:.0f} s and is ended")
            learner.end(0)
        for actor in actors:
            if asked_at is not None or actor.poll() is None:
                continue
            if actor.poll() == 2:
                raise ConfigError([f"{actor.name}: {line}" for line in actor.problems()])
            if actor.poll() != 0 and (event := actor.restart_when_due()):
                display.note(event)
        display.update()
        time.sleep(_POLL_S)
    return code if code >= 0 else 1


def _final_line(logdir: Logdir) -> str:
    last = status.read_status(logdir.status())
    if last is None:
        return "nothing was trained"
    frames = f"{last['environment_frames']:,} of {last['total_environment_frames']:,} frames"
    mean = (last["row"] or {}).get("episode_return_mean")
    score = "no episode finished" if mean is None else f"mean return {mean:.1f} (last 100 episodes)"
    return f"{last['state'] if last['state'] != 'stopping' else 'stopped'}: {frames}, {score}"


def _say_what_next(config: Config, logdir: Logdir) -> None:
    again = configs.to_flags(configs.replace(config, logdir=str(logdir.path)))
    test = ["--mode=test", f"--logdir={logdir.path}", "--video"]
    last = status.read_status(logdir.status())
    if last is not None and last["state"] != "done":
        print("to go on:    python run_experiment.py", shlex.join(again))
    print("to evaluate: python run_experiment.py", shlex.join(test))
    print("curves:      tensorboard --logdir", shlex.quote(str(logdir.path)))
