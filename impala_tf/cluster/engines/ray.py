"""Ray: a cluster gives a run its nodes, and replaces those that it loses.

Ray copies the project to its nodes; they need its packages, the same version of Ray, and the
logdir. A run starts when all of its nodes have room. Each starts the supervisor of `--join`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from impala_tf import config as configs
from impala_tf.cluster import code, status
from impala_tf.cluster.engines.engine import make_logdir, print_commands, print_log, trains_there
from impala_tf.cluster.engines.ray_node import ANSWER_S, Run, ask, create, is_there, remove
from impala_tf.cluster.join import written
from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.plain import from_plain, to_plain
from impala_tf.cluster.plan import LAUNCH_ONLY, credentials_of, sizes
from impala_tf.cluster.record import Launch, earlier, write
from impala_tf.cluster.runner import ClusterError
from impala_tf.config import ConfigError, Given, user_commands
from impala_tf.config.addresses import split_host_port
from impala_tf.config.engine_flags import amounts
from impala_tf.printable import columns

_NAME = "ray"
_STOP_S = 60.0
"""How long a learner has to answer a stop on a busy node: if it does not, it saves nothing."""


def render(given: Given) -> str:
    """Returns a table of the nodes to place; see `engine.Engine`."""
    run = _run(given)
    rows = [("node", "takes", "runs")]
    for name in run.nodes:
        _, job, task = name.split("-")
        if job == "learner":
            rows.append((name, given["ray_learner_resources"], f"learner-{task}"))
        else:
            count = run.actors_on(int(task))
            rows.append((name, f"CPU={count}", f"{count} actor(s)"))
    return f"{columns(rows)}flags of all: {' '.join(run.flags)}\n"


def submit(given: Given, *_: object) -> int:
    """Hands a run to a Ray cluster; returns 0. See `engine.Engine`."""
    run = _run(given)
    logdir = Path(given["logdir"]).absolute()
    before = earlier(logdir, _NAME)
    with _code(given) as code, _connected("auto", run.namespace, code) as address:
        if before is not None and is_there(_run_of(before)):
            raise trains_there(logdir, "a run on Ray")
        with written(logdir):
            make_logdir(given)
            record = {"address": address, "run": to_plain(run)}
            launch = Launch(_NAME, str(logdir.resolve()), time.time(), record)
            write(run.namespace.removeprefix("impala-"), launch)
        try:
            there = create(run, amounts(given["ray_learner_resources"]))
        except Exception as error:
            raise ClusterError(f"Ray refuses the run: {error}") from error
    print(
        f"submitted to the Ray cluster {address}, which has {there} node(s); the run needs"
        f" {len(run.nodes)} with room"
    )
    print_commands(given, ["status"], ["logs", "learner-0"], ["stop"])
    return 0


def show_status(launch: Launch) -> int:
    """Prints the state and the host of every process, and the nodes without room; returns 0."""
    run = _run_of(launch)
    with _connected(launch.job["address"], run.namespace):
        has_run = is_there(run)
        seen = ask(run, run.nodes, "look")
    if not has_run:
        print("the run has left Ray; what its processes have written in the logdir:")
    for name in run.nodes if has_run else []:
        if name not in seen:
            print(f"{name}: waits for room, or its Ray node was lost")
        elif seen[name].problem:
            print(f"{name}: {seen[name].problem}")
    hosts = {name: each.host for name, each in seen.items()}
    known = status.run_in(Path(launch.logdir), has_run, hosts)
    if known.processes:
        status.print_run(known)
    return 0


def follow_log(launch: Launch, name: str, follow: bool) -> int:
    """Prints the end of a process's log, from the logdir."""
    return print_log(files.log_path(launch.logdir, name), follow)


def stop(launch: Launch) -> int:
    """Stops the whole run, with a checkpoint; returns 0."""
    run = _run_of(launch)
    with _connected(launch.job["address"], run.namespace):
        has_run = is_there(run)
        learners = ask(run, run.nodes[: run.learners], "stop", _STOP_S)
        saves = "node-learner-0" in learners
        if not saves:
            remove(run)
    if not has_run:
        print("the run has left Ray already")
    elif saves:
        print("the run stops: the learners write a checkpoint")
    else:
        print("the run is cancelled: learner 0 had no room, or its node was lost")
    return 0


def _run_of(launch: Launch) -> Run:
    run: Run = from_plain(Run, launch.job["run"])
    return run


def _run(given: Given) -> Run:
    logdir = Path(given["logdir"]).absolute()
    learners, actors = given["num_learners"] or 1, given["num_actors"] or 1
    own = sizes(given, learners, [given["envs_per_actor"]] * actors)
    kept = {name: given[name] for name in ("max_hours",) if name in given}
    shared = given.without(*LAUNCH_ONLY).replace(
        logdir=str(logdir), credentials=str(credentials_of(given)), **own, **kept
    )
    if source := given["start_from"]:  # processes run in the folder of the code
        shared = shared.replace(start_from=str(Path(source).expanduser().absolute()))
    return Run(
        namespace=f"impala-{secrets.token_hex(8)}",
        learners=learners,
        actor_nodes=-(-actors // (given["actors_per_node"] or actors)),
        actors=actors,
        port=20_000 + 2 * secrets.randbelow(5000),  # runs may share a node
        flags=tuple(configs.to_flags(shared)),
    )


@contextlib.contextmanager
def _connected(address: str, namespace: str, code: Path | None = None) -> Iterator[str]:
    """Connects to a cluster; yields the address at which other commands can find it.

    Ray prints events of its nodes to standard output, which is only for the command's own lines.

    Args:
      address: the cluster's, or auto for what RAY_ADDRESS says, or the one that runs here.
      namespace: the run's.
      code: to submit a run, a folder with all the code that nodes need, which Ray copies to them.

    Raises:
      ConfigError: Ray is not installed, or RAY_ADDRESS names no cluster.
      ClusterError: the cluster of a run is gone, or refuses this version of Ray or Python.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            f"--engine=ray: needs the extra ray: {user_commands.install_extra('ray')}"
        ) from None
    # Checked here, because Ray itself would wait for minutes.
    named = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    if "://" in named:
        raise ConfigError(
            f"RAY_ADDRESS={named}: must be HOST:PORT; run this on a node of the cluster"
        )
    environment = {} if code is None else {"working_dir": str(code)}
    with contextlib.redirect_stdout(sys.stderr):
        try:
            if named != "auto":
                socket.create_connection(split_host_port(named), ANSWER_S).close()
            ray.init(
                address,
                namespace=namespace,
                runtime_env=environment,
                log_to_driver=False,
                logging_level="error",
            )
        except (OSError, ValueError) as error:
            text = f"no Ray cluster answers there ({_first_line(error)})"
            if code is None:
                raise ClusterError(f"{named}: {text}") from None
            raise ConfigError(
                f"RAY_ADDRESS={named}: {text}; ray start --head starts one on this machine, and"
                " RAY_ADDRESS=HOST:PORT names another one"
            ) from None
        except RuntimeError as error:
            raise ClusterError(f"{named}: {_first_line(error)}") from None
        try:
            yield str(ray.get_runtime_context().gcs_address)
        finally:
            ray.shutdown()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def _code(given: Given) -> Iterator[Path]:
    """Yields a folder with the files of the project and of the user's own modules."""
    with tempfile.TemporaryDirectory(prefix="impala-code-") as folder:
        for name, path in code.files(code.own_names(given)).items():
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        yield Path(folder)
