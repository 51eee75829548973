"""python -m frontend setup|doctor|status|logs|stop|workers: manages runs on several machines."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from frontend import control, doctor, fleet, hosts, setup
from frontend.errors import ClusterError
from frontend.record import find
from impala_tf.config import ClusterConfig, Config, ConfigError, RunConfig

_TABLE_WIDTH = 140


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}; see {self.prog} --help")


def main(arguments: Sequence[str]) -> int:
    """Runs a subcommand. Returns 0, 1 for failures, or 2 for unusable flags or files."""
    try:
        options = _parser().parse_args(arguments)
        return int(options.run(options))
    except (ConfigError, ClusterError) as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m frontend", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for name, run, text in (
        ("setup", _setup, "copy the project to every machine and install its packages there"),
        ("doctor", _doctor, "check every machine before a launch"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(run=run)
        command.add_argument(
            "--workers_csv_path", required=True, metavar="FILE", help="CSV of the machines"
        )
        command.add_argument(
            "--accept_new_host_keys", action="store_true", help="trust machines unknown to SSH"
        )
        command.add_argument("--logdir", help="logdir of the launch")
        command.add_argument(
            "--rendezvous_port",
            type=int,
            help="port of the launch where several learners find each other",
        )
    for name, run, text in (
        ("status", _status, "show the state of every process of a run"),
        ("logs", _logs, "print the output of a process"),
        ("stop", _stop, "stop the processes of a run, and nothing else"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(run=run)
        command.add_argument(
            "--logdir", help="logdir of the run; default: the newest run in the session"
        )
        command.add_argument(
            "--tmux_sess", default=ClusterConfig.tmux_sess, help="tmux session of the run"
        )
        if name == "logs":
            command.add_argument("name", metavar="NAME", help="a process, such as actor-2")
            command.add_argument(
                "-f", "--follow", action="store_true", help="keep printing new output"
            )
        if name == "stop":
            command.add_argument(
                "--timeout_s", type=float, default=120.0, help="how long to wait for the processes"
            )
    _add_workers(commands.add_parser("workers", help="write a workers CSV", allow_abbrev=False))
    return parser


def _add_workers(command: argparse.ArgumentParser) -> None:
    command.description = "Writes a workers CSV from a list of machines."
    command.set_defaults(run=_workers)
    command.add_argument(
        "--learners", metavar="HOST[,HOST...]", help="default in a SLURM job: its first machine"
    )
    command.add_argument(
        "--actors",
        type=Path,
        metavar="FILE",
        help="file with one machine per line; default in a SLURM job: its machines",
    )
    command.add_argument("--actors_per_host", type=int, default=1, help="actors on each machine")
    command.add_argument(
        "--tf_port", type=int, default=8001, help="port of the first learner on each machine"
    )
    command.add_argument("--ssh_port", type=int, default=22, help="SSH port of every machine")
    command.add_argument("--ssh_username", default="", help="user on every machine")
    command.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")


def _launch_config(options: argparse.Namespace) -> Config:
    cluster = ClusterConfig(
        workers_csv_path=options.workers_csv_path,
        accept_new_host_keys=options.accept_new_host_keys,
        rendezvous_port=options.rendezvous_port,
    )
    return dataclasses.replace(Config(), run=RunConfig(logdir=options.logdir), cluster=cluster)


def _setup(options: argparse.Namespace) -> int:
    plan, passwords = fleet.plan_of(_launch_config(options), sys.executable)
    return setup.set_up(plan, passwords, options.accept_new_host_keys, Console())


def _doctor(options: argparse.Namespace) -> int:
    plan, passwords = fleet.plan_of(_launch_config(options), sys.executable)
    findings = doctor.examine(plan, passwords, options.accept_new_host_keys)
    return doctor.show(findings, _wide_console())


def _status(options: argparse.Namespace) -> int:
    return control.show_status(find(options.logdir, options.tmux_sess), _wide_console())


def _wide_console() -> Console:
    """For tables. A terminal that is too narrow wraps their lines instead of cutting them."""
    return Console(width=max(Console().width, _TABLE_WIDTH))


def _logs(options: argparse.Namespace) -> int:
    logdir = find(options.logdir, options.tmux_sess)
    return control.follow_logs(logdir, options.name, options.follow)


def _stop(options: argparse.Namespace) -> int:
    return control.stop(find(options.logdir, options.tmux_sess), options.timeout_s)


def _workers(options: argparse.Namespace) -> int:
    nodelist = os.environ.get("SLURM_JOB_NODELIST", "")
    if options.actors_per_host < 1:
        raise ConfigError(f"--actors_per_host={options.actors_per_host}: must be 1 or more")
    if options.actors is None and not nodelist:
        raise ConfigError(
            "--actors: name a file with one machine per line (this is not a SLURM job)"
        )
    machines = hosts.read_hosts(options.actors) if options.actors else hosts.slurm_hosts(nodelist)
    if options.learners is None and options.actors is not None:
        raise ConfigError("--learners: name the learners' machines, separated by commas")
    learners = options.learners.split(",") if options.learners else machines[:1]
    settings = (options.actors_per_host, options.tf_port, options.ssh_port, options.ssh_username)
    if options.output is None:
        hosts.write_workers(sys.stdout, learners, machines, *settings)
        return 0
    try:
        with options.output.open("x", encoding="utf-8") as file:
            rows = hosts.write_workers(file, learners, machines, *settings)
    except OSError as error:
        raise ConfigError(f"--output={options.output}: {error.strerror}") from error
    print(f"{options.output}: {rows} processes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
