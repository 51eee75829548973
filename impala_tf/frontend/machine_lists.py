"""Writes a workers CSV from a plain list of machines."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TextIO

from impala_tf.config import ConfigError
from impala_tf.config.slurm_nodes import HOST

_HEADER = ("job", "ip", "tf_port", "cuda_visible_devices", "ssh_port", "ssh_username",
           "ssh_password")  # fmt: skip
_LAST_PORT = 65535


def write_workers(
    out: TextIO,
    learners: list[str],
    actors: list[str],
    actors_per_host: int,
    first_port: int,
    ssh_port: int | None,
    ssh_username: str,
) -> int:
    """Writes one row per process, without passwords; returns the number of rows.

    Args:
      out: the file to write.
      learners: the machine of each learner. A machine named twice runs two learners, on consecutive
        ports.
      actors: machines, each of which runs `actors_per_host` actors, without a GPU.
      actors_per_host: 1 or more.
      first_port: port of the first learner on each machine.
      ssh_port: the SSH port of every machine; None: the one in ~/.ssh/config.
      ssh_username: the user on every machine; '' for the user who launches the run.
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_HEADER)
    for index, host in enumerate(learners):
        port = first_port + learners[:index].count(host)
        device = learners[:index].count(host)
        writer.writerow(("learner", host, port, device, ssh_port, ssh_username, ""))
    # The machines take turns, so that each learner's actors are spread over all of them.
    rows = [host for _ in range(actors_per_host) for host in actors]
    for host in rows:
        writer.writerow(("actor", host, "", -1, ssh_port, ssh_username, ""))
    return len(learners) + len(rows)


def check(learners: list[str], first_port: int, ssh_port: int | None) -> None:
    """Checks what `write_workers` is given.

    Raises:
      ConfigError: --learners has an empty name, or a port is out of range; one line for each.
    """
    lines = []
    if not all(host.strip() for host in learners):
        lines.append("--learners: has an empty name; give names, separated by commas")
    last_port = first_port - 1 + max(learners.count(host) for host in learners)
    if first_port < 1 or last_port > _LAST_PORT:
        lines.append(f"--tf_port={first_port}: learners' ports must be from 1 to {_LAST_PORT}")
    if ssh_port is not None and not 1 <= ssh_port <= _LAST_PORT:
        lines.append(f"--ssh_port={ssh_port}: must be a port from 1 to {_LAST_PORT}")
    if lines:
        raise ConfigError(lines)


def read_hosts(path: Path) -> list[str]:
    """Returns the first word of each line of a file. Lines that start with '#' are comments.

    Raises:
      ConfigError: a line does not start with a host; one line for each.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--actors={path}: {getattr(error, 'strerror', error)}") from error
    words = [(n, re.split(r"[\s,;]", line.strip())[0]) for n, line in enumerate(lines, 1)]
    named = [(number, word) for number, word in words if word and not word.startswith("#")]
    problems = [f"{path}:{n}: {w!r}: must be an address or a host name" for n, w in named
             if not re.fullmatch(HOST, w)]  # fmt: skip
    if problems or not named:
        raise ConfigError(problems or f"--actors={path}: lists no machine; name one per line")
    return [word for _, word in named]
