"""`workers`: writes a workers CSV from a plain list of machines."""

from __future__ import annotations

import argparse
import csv
import ipaddress
import os
import re
import sys
from pathlib import Path
from typing import TextIO

from impala_tf.config import ConfigError
from impala_tf.config.addresses import valid_host
from impala_tf.config.slurm_nodes import slurm_hosts

_HEADER = ("job", "ip", "tf_port", "cuda_visible_devices", "ssh_port", "ssh_username",
           "ssh_password")  # fmt: skip
_LAST_PORT = 65535
_MUST = ("must be an address or a host name; a user or an SSH port goes into --ssh_username or"
         " --ssh_port")  # fmt: skip


def add_to(command: argparse.ArgumentParser) -> None:
    """Makes a parser that of `workers`."""
    command.description = "Writes a workers CSV from a list of machines."
    command.set_defaults(run=_workers)
    command.add_argument(
        "--learners", metavar="HOST[,HOST...]", help="default in a Slurm job: its first machine"
    )
    command.add_argument(
        "--actors",
        type=Path,
        metavar="FILE",
        help="file with one machine per line; default in a Slurm job: its machines",
    )
    command.add_argument("--actors_per_host", type=int, default=1, help="actors on each machine")
    command.add_argument(
        "--tf_port", type=int, default=8001, help="port of the first learner on each machine"
    )
    command.add_argument(
        "--ssh_port", type=int, help="SSH port of every machine; default: what ~/.ssh/config says"
    )
    command.add_argument("--ssh_username", default="", help="user on every machine")
    command.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")


def _workers(options: argparse.Namespace) -> int:
    nodelist = os.environ.get("SLURM_JOB_NODELIST", "")
    if options.actors_per_host < 1:
        raise ConfigError(f"--actors_per_host={options.actors_per_host}: must be 1 or more")
    if options.actors is None and not nodelist:
        raise ConfigError(
            "--actors: name a file with one machine per line (this is not a Slurm job)"
        )
    machines = read_hosts(options.actors) if options.actors else slurm_hosts(nodelist)
    if options.learners is None and options.actors is not None:
        raise ConfigError("--learners: name the learners' machines, separated by commas")
    named = options.learners.split(",") if options.learners else machines[:1]
    learners = [host.strip() for host in named]
    check(learners, options.tf_port, options.ssh_port)
    settings = (options.actors_per_host, options.tf_port, options.ssh_port, options.ssh_username)
    if options.output is None:
        write_workers(sys.stdout, learners, machines, *settings)
        return 0
    try:
        with options.output.open("x", encoding="utf-8") as file:
            rows = write_workers(file, learners, machines, *settings)
    except OSError as error:
        raise ConfigError(f"--output={options.output}: {error.strerror}") from error
    print(f"{options.output}: {rows} processes")
    return 0


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
      ConfigError: --learners has what is no machine's name, or a port is out of range; one line for
        each.
    """
    lines = []
    if not all(host.strip() for host in learners):
        lines.append("--learners: has an empty name; give names, separated by commas")
    lines += [f"--learners: {host!r}: {_MUST}" for host in learners
              if host.strip() and not _is_host(host)]  # fmt: skip
    last_port = first_port - 1 + max(learners.count(host) for host in learners)
    if first_port < 1 or last_port > _LAST_PORT:
        lines.append(f"--tf_port={first_port}: learners' ports must be from 1 to {_LAST_PORT}")
    if ssh_port is not None and not 1 <= ssh_port <= _LAST_PORT:
        lines.append(f"--ssh_port={ssh_port}: must be a port from 1 to {_LAST_PORT}")
    if lines:
        raise ConfigError(lines)


def _is_host(text: str) -> bool:
    """Tells whether a machine's `ip` in a workers CSV may be `text`."""
    is_in_brackets = text.startswith("[") and text.endswith("]")
    try:
        address = ipaddress.ip_address(text[1:-1] if is_in_brackets else text)
    except ValueError:
        return valid_host(text) and not text.startswith("-")
    return not address.is_unspecified and not address.is_multicast


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
    problems = [f"{path}:{n}: {w!r}: {_MUST}" for n, w in named if not _is_host(w)]
    if problems or not named:
        raise ConfigError(problems or f"--actors={path}: lists no machine; name one per line")
    return [word for _, word in named]
