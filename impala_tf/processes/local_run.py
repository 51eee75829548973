"""A run on this machine: starts a learner and actors, shows their progress, ends all of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import time

from impala_tf import config as configs
from impala_tf.checkpoint import files as checkpoint_files
from impala_tf.checkpoint.compatibility import check_compatible, signature_of
from impala_tf.config import Config, ConfigError, resolved
from impala_tf.logdir import Logdir
from impala_tf.monitoring import status
from impala_tf.monitoring.live_display import Display
from impala_tf.monitoring.writers import in_use
from impala_tf.process_lifetime import StopRequest
from impala_tf.processes.child_process import Child
from impala_tf.processes.common import credentials_dir, logdir_of, resolve, resume_message
from impala_tf.transport import credentials
from impala_tf.types import EnvironmentSpec

_POLL_S = 0.25
# A learner that is asked to stop finishes its update and writes a checkpoint.
_STOP_S = 60.0
_ACTOR_STOP_S = 10.0


def main(config: Config) -> int:
    """Trains on this machine; returns the exit status.

    Raises:
      ConfigError: flags, level or logdir that cannot be used; nothing was started then.
    """
    given = config
    config, spec = resolve(config)
    configs.check_batches(config)
    logdir = logdir_of(config)
    if in_use(logdir.metrics):
        raise ConfigError(f"--logdir={logdir.path}: another run is writing there; choose another")
    frames = _check_checkpoint(config, spec, logdir)
    if frames >= resolved(config.run.total_environment_frames):
        print(f"{logdir.path} has already had all of its {frames:,} frames; to continue, raise")
        print("--total_environment_frames or choose another --logdir")
        return 0
    _prepare(logdir)
    config = configs.replace(config, learner_hosts=_learner_address(config))
    credentials.ensure(credentials_dir(config))
    stop = StopRequest()
    stop.install()
    display = Display(
        lambda: status.read_status(logdir.status()), interval_s=config.run.metrics_interval_s
    )
    print(f"{spec.level_name}: {spec.protocol}", flush=True)
    children: list[Child] = []
    display.start()
    try:
        children.append(_start(config, logdir, "learner", 0))
        for task in range(resolved(config.process.num_actors)):
            children.append(_start(config, logdir, "actor", task))
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
        print(f"the learner failed; the last lines of {children[0].log}:", file=sys.stderr)
        print("\n".join(children[0].last_lines(15)), file=sys.stderr)
    else:
        _print_next_commands(given, logdir)
    return code


def _check_checkpoint(config: Config, spec: EnvironmentSpec, logdir: Logdir) -> int:
    """Returns the environment frames of the newest checkpoint (0: none), and prints its name.

    Raises:
      ConfigError: it belongs to another level or network, or no checkpoint is whole.
    """
    found = checkpoint_files.find(logdir.checkpoints)
    if found is None:
        return 0
    check_compatible(found.state["identity"], signature_of(config, spec), logdir.path)
    for path, reason in found.damaged.items():
        print(checkpoint_files.damage_line(path, reason, found.path))
    frames: int = found.state["counters"]["environment_frames"]
    if frames:
        print(resume_message(found.path, frames))
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


def _start(config: Config, logdir: Logdir, job_name: str, task: int) -> Child:
    config = configs.replace(config, job_name=job_name, task=task)
    return Child(f"{job_name}-{task}", config, logdir)


def _watch(children: list[Child], stop: StopRequest, display: Display) -> int:
    """Restarts actors until the learner ends; returns the learner's exit status."""
    learner, actors = children[0], children[1:]
    asked_at: float | None = None
    while (code := learner.poll()) is None:
        if stop() and asked_at is None:
            asked_at = time.monotonic()
            display.note("stopping: the learner writes a checkpoint (Ctrl-C again: stop now)")
            learner.terminate()
        if asked_at is not None and time.monotonic() - asked_at > _STOP_S:
            display.note(f"the learner did not stop within {_STOP_S:.0f} s; killing it")
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
    return f"{last['state']}: {frames}, {score}"


def _print_next_commands(config: Config, logdir: Logdir) -> None:
    resume = configs.to_flags(configs.replace(config, logdir=str(logdir.path)))
    test = ["--mode=test", f"--logdir={logdir.path}", "--video"]
    last = status.read_status(logdir.status())
    if last is not None and last["state"] != "done":
        print("to resume:   python run_experiment.py", shlex.join(resume))
    print("to evaluate: python run_experiment.py", shlex.join(test))
    print("curves:      tensorboard --logdir", shlex.quote(str(logdir.path)))
