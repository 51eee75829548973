"""Runs a container's command: `learner|actor|join FLAGS`, `credentials ...`, or any other command.

FLAGS are those of `impala train`. The entry point adds what a container needs in addition: the
role, an actor's number, and a note for the health check (docker/health.py). `join` is for a node of
a job, such as a pod (examples/kubernetes.yaml); a learner is such a node.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import health

from impala_tf import config as configs
from impala_tf.config import ConfigError, command_line
from impala_tf.machine import certificates

ROOT = Path(__file__).resolve().parent.parent
_TASKS = 2**31 - 1
WORK = Path(tempfile.gettempdir())


def task_of(hostname: str) -> int:
    """Returns an actor's number, which depends only on the host name.

    The replicas of a service get the same flags, but each has a different host name.
    """
    return int.from_bytes(hashlib.sha256(hostname.encode()).digest()[:4], "big") % _TASKS


def command(role: str, arguments: Sequence[str]) -> list[str]:
    """Returns the command of a role, and leaves a note for the health check.

    Raises:
      ConfigError: the flags are unusable.
    """
    # Tells the actors where to leave heartbeats.
    beats = os.environ.setdefault("IMPALA_TF_HEARTBEATS", str(WORK / "impala_tf-heartbeat"))
    if role == "credentials":
        return [sys.executable, str(ROOT / "docker" / "credentials.py"), *arguments]
    if role == "actor":
        words = ["--job_name=actor"]
        if not any(word == "--task" or word.startswith("--task=") for word in arguments):
            words.append(f"--task={task_of(socket.gethostname())}")
        words += arguments
        task = command_line.parse(words)["task"]
        note = health.note_about({"actor": f"{beats}-{task}"})
    elif role in ("learner", "join"):
        words = ["--join", *["--job_name=learner"] * (role == "learner"), *arguments]
        note = _node_note(words, beats)
    else:
        return [role, *arguments]
    health.NOTE.write_text(json.dumps(note), encoding="utf-8")
    return [sys.executable, str(ROOT / "run_experiment.py"), *words]


def _node_note(words: Sequence[str], beats: str) -> dict[str, Any]:
    from impala_tf.cluster import join
    from impala_tf.cluster.engines import places
    from impala_tf.cluster.node import state
    from impala_tf.logdir import Logdir

    given = places.applied(command_line.parse(words), os.environ)
    if given["logdir"] is None or not given["job_name"]:
        raise ConfigError(
            "--logdir: name a folder on a volume, or the run is lost with its container"
            if given["job_name"]
            else "join: needs a job of at least two nodes"
        )
    logdir, task = Logdir(Path(given["logdir"]).absolute()), given["task"]
    supervisor = state.state_path(logdir.path, join.node_name(given))
    if given["job_name"] == "actor":
        numbers = join.tasks(given)
        return health.note_about({f"actor-{n}": f"{beats}-{n}" for n in numbers}, supervisor)
    return health.note_about(
        {},
        supervisor,
        status=str(logdir.status(task)),
        address=configs.split(given["learner_hosts"])[task],
        ca=str(Path(given["credentials"] or logdir.credentials) / "ca.pem"),
        name=certificates.LEARNER_NAME,
    )


def main(arguments: Sequence[str]) -> int:
    """Replaces this process by the command; returns an exit status only if that fails."""
    if not arguments:
        return command_line.fail(ConfigError("name a role: learner, actor, join or credentials"))
    try:
        words = command(arguments[0], arguments[1:])
    except ConfigError as error:
        return command_line.fail(error)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        return command_line.fail(ConfigError(f"{words[0]}: {error.strerror}"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
