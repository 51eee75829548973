"""python -m frontend setup|doctor|status|logs|stop|workers: looks after runs on many machines."""

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
    """Runs a subcommand; returns the exit status: 2 for unusable flags or files, 1 for failures."""
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
        ("setup", _setup, "copy the project and its packages to every machine"),
        ("doctor", _doctor, "check every machine before a launch"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(run=run)
        command.add_argument("--workers_csv_path", required=True, metavar="FILE")
        command.add_argument("--accept_new_host_keys", action="store_true")
        command.add_argument("--logdir", help="of the launch to come")
        command.add_argument("--rendezvous_port", type=int)
    for name, run, text in (
        ("status", _status, "show how each process of a launched run does"),
        ("logs", _logs, "print what a process printed"),
        ("stop", _stop, "end the processes of a launched run, and nothing else"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(run=run)
        command.add_argument("--logdir", help="of the run; default: the newest in the session")
        command.add_argument("--tmux_sess", default=ClusterConfig.tmux_sess)
        if name == "logs":
            command.add_argument("name", metavar="NAME", help="such as learner-0, actor-2")
            command.add_argument("-f", "--follow", action="store_true")
        if name == "stop":
            command.add_argument("--timeout_s", type=float, default=120.0)
    _add_workers(commands.add_parser("workers", help="write a workers CSV", allow_abbrev=False))
    return parser


def _add_workers(command: argparse.ArgumentParser) -> None:
    command.description = "Writes a workers CSV for a list of machines."
    command.set_defaults(run=_workers)
    command.add_argument(
        "--learners", metavar="HOST[,HOST...]", help="default with SLURM: the first"
    )
    command.add_argument("--actors", type=Path, metavar="FILE", help="a machine a line")
    command.add_argument("--actors_per_host", type=int, default=1)
    command.add_argument("--tf_port", type=int, default=8001, help="of a machine's first learner")
    command.add_argument("--ssh_port", type=int, default=22)
    command.add_argument("--ssh_username", default="")
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
    """For tables: a narrow terminal folds their lines, but nothing is left out."""
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
        raise ConfigError("--actors: name a file with a machine a line (there is no SLURM job)")
    machines = hosts.read_hosts(options.actors) if options.actors else hosts.slurm_hosts(nodelist)
    if options.learners is None and options.actors is not None:
        raise ConfigError("--learners: name the machines of the learners, comma separated")
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
