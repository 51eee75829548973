"""Ray: a cluster places each process of a run, and restarts it elsewhere when its node is lost.

Learners and the first actor get room together. Every other actor waits until a node has room for
it, perhaps a node that autoscaling adds, or that joins later. Ray copies the project to its nodes;
they need its packages, and the same version of Ray.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from impala_tf import config as configs
from impala_tf.cluster import code, status
from impala_tf.cluster.engines import ray_cluster
from impala_tf.cluster.engines.engine import (
    print_commands,
    trains_there,
)
from impala_tf.cluster.engines.ray_member import Run, Seen
from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.plain import from_plain, to_plain
from impala_tf.cluster.plan import LAUNCH_ONLY, columns, credentials_of, sizes
from impala_tf.cluster.record import Launch, earlier, write
from impala_tf.cluster.runner import ClusterError
from impala_tf.config import ConfigError, Given, user_commands
from impala_tf.config.engine_flags import amounts
from impala_tf.logdir import moved_aside
from impala_tf.printable import log_printer

_NAME = "ray"
_POLL_S = 1.0
_TAIL_BYTES = 20_000


class Job(NamedTuple):
    """A run that was submitted."""

    logdir: Path
    address: str
    """The address of the cluster."""
    run: Run


def render(given: Given) -> str:
    """Returns a table of the processes to place; see `engine.Engine`."""
    run = _run(given)
    rows = [("process", "takes", "room", "command")]
    for name in run.names:
        role, _, task = name.partition("-")
        together = role == "learner" or task == "0"
        own = f"--job_name={role} --task={task}"
        room = "first, together" if together else "when a node has it"
        takes = given["ray_learner_resources"] if role == "learner" else "CPU=1"
        rows.append((name, takes, room, f"python {user_commands.SCRIPT} {own}"))
    shared = " ".join(run.flags)
    return f"{columns(rows)}flags of all, besides --learner_hosts: {shared}\n"


def submit(given: Given, *_: object) -> int:
    """Hands a run to a Ray cluster; returns 0. See `engine.Engine`."""
    run = _run(given)
    logdir = Path(run.logdir)
    before = earlier(logdir, _NAME)
    with _code(given) as code, _connected("auto", code) as address:
        if before is not None and ray_cluster.ask(job(before, logdir).run, "look") is not None:
            raise trains_there(logdir, "a run on Ray")
        try:
            if given["fresh"] and (moved := moved_aside(logdir)):
                print(f"the run that was in {logdir} is now in {moved}", file=sys.stderr)
            logdir.mkdir(parents=True, exist_ok=True)
            record = {"address": address, "run": to_plain(run)}
            launch = Launch(_NAME, str(logdir.resolve()), run.started_unix_s, record)
            write(run.namespace.removeprefix("impala-"), launch)
        except OSError as error:
            raise ConfigError(f"--logdir={logdir}: cannot write there: {error.strerror}") from None
        of_learner = amounts(given["ray_learner_resources"])
        try:
            ray_cluster.create(run, {"learner": of_learner, "actor": {"CPU": 1.0}})
        except Exception as error:
            raise ClusterError(f"Ray refuses the run: {error}") from error
    print(f"submitted to the Ray cluster {address}; learners: {run.learners}, actors: {run.actors}")
    print_commands(given, ["status"], ["logs", "learner-0"], ["stop"])
    return 0


def job(launch: Launch, logdir: Path) -> Job:
    """Returns the job of a launch; see `engine.Engine`."""
    return Job(logdir, launch.job["address"], from_plain(Run, launch.job["run"]))


def show_status(job: Job) -> int:
    """Prints the state and the node of every process; returns 0."""
    with _connected(job.address):
        answers: dict[str, Seen] | None = ray_cluster.ask(job.run, "look")
    if answers is None:
        print("the run has left Ray; what its processes have written in the logdir:")
        status.print_run(status.run_in(job.logdir, is_there=False))
        return 0
    now_s = time.time()
    seen = [
        status.see(answers[name].state, answers[name].host, now_s)
        if name in answers
        else status.Seen(name, "", "waits for room", detail="or its node was lost")
        for name in job.run.names
    ]
    text = answers["learner-0"].status if "learner-0" in answers else ""
    learner = status.parse_status(text)
    status.print_run(status.Run(seen, {0: learner} if learner else {}))
    return 0


def follow_log(job: Job, name: str, follow: bool) -> int:
    """Prints the end of a process's log, wherever its node is; returns 0.

    Raises ClusterError if there is no such log. `follow` ends when the run has left Ray, too.
    """
    if name not in job.run.names:
        raise ClusterError(f"{name}: no such process; the run has {', '.join(job.run.names)}")
    show, offset = log_printer(), None
    with _connected(job.address):
        while (answer := ray_cluster.ask(job.run, "log", name, offset)) is not None:
            offset, content = answer
            show(content)
            if offset is None or not follow:
                break
            time.sleep(_POLL_S)
    if offset is None:
        show(_old_log(job, name))
    return 0


def stop(job: Job) -> int:
    """Stops the whole run, with a checkpoint; returns 0."""
    with _connected(job.address):
        saves = ray_cluster.ask(job.run, "stop")
    if saves is None:
        print("the run has left Ray already")
    elif saves:
        print("the run stops: the learners write a checkpoint")
    else:
        print("the run is cancelled: learner 0 had no room, or its node was lost")
    return 0


def _run(given: Given) -> Run:
    logdir = Path(given["logdir"]).absolute()
    learners, actors = given["num_learners"] or 1, given["num_actors"] or 1
    own = sizes(given, learners, [given["envs_per_actor"]] * actors)
    kept = {name: given[name] for name in ("max_hours",) if name in given}
    shared = given.without(*LAUNCH_ONLY).replace(logdir=str(logdir), **own, **kept)
    if source := given["start_from"]:  # processes run in the folder of the code
        shared = shared.replace(start_from=str(Path(source).expanduser().absolute()))
    return Run(
        namespace=f"impala-{secrets.token_hex(8)}",
        logdir=str(logdir),
        credentials=str(credentials_of(given)),
        learners=learners,
        actors=actors,
        flags=tuple(configs.to_flags(shared)),
        started_unix_s=time.time(),
    )


@contextlib.contextmanager
def _connected(address: str, code: Path | None = None) -> Iterator[str]:
    """Connects to a cluster; yields its address.

    Ray prints events of its nodes to standard output, which is only for the command's own lines.
    """
    with contextlib.redirect_stdout(sys.stderr):
        full_address = ray_cluster.connect(address, code)
        try:
            yield full_address
        finally:
            ray_cluster.disconnect()


@contextlib.contextmanager
def _code(given: Given) -> Iterator[Path]:
    """Yields a folder with the files of the project and of the user's own modules."""
    with tempfile.TemporaryDirectory(prefix="impala-code-") as folder:
        for name, path in code.files(code.own_names(given)).items():
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        yield Path(folder)


def _old_log(job: Job, name: str) -> bytes:
    path = files.log_path(job.logdir, name)
    if not path.is_file():
        raise ClusterError(f"{name}: waits for room, or its log is on a node; not here: {path}")
    return path.read_bytes()[-_TAIL_BYTES:]
