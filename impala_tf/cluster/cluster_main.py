"""The launcher's commands: `python -m frontend COMMAND`, or `impala cluster COMMAND`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from impala_tf import __version__
from impala_tf.cluster import doctor, fetch, operate, setup, status, watch
from impala_tf.cluster.engines.engine import engine_called
from impala_tf.cluster.launch import STOP_S
from impala_tf.cluster.plan import as_text, plan_of
from impala_tf.cluster.record import SSH, Launch, find, load, newest
from impala_tf.cluster.runner import ClusterError
from impala_tf.config import ClusterConfig, ConfigError, Given, command_line, user_commands

_ABOUT = "Sets up machines for a run, and looks after the run."
_EXTRAS = ("worlds", "procgen", "retro", "wandb", "mirror", "tensorflow")
Options = argparse.Namespace


def main(arguments: Sequence[str], prog: str = "") -> int:
    """Runs a subcommand. Returns 0, 1 for failures, or 2 for unusable flags or files.

    Args:
      arguments: the subcommand and its words.
      prog: the program's name in messages; default: the command that a user types.
    """
    try:
        options = parser(prog).parse_args(arguments)
        return int(options.run(options))
    except (ConfigError, ClusterError) as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has closed the pipe, as in `logs actor-0 -f | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed at the end
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def parser(prog: str = "") -> argparse.ArgumentParser:
    """Returns the parser of all subcommands."""
    parser = command_line.OneLineParser(
        prog=prog or user_commands.frontend(), description=_ABOUT, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"impala_tf {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[Options], int], text: str) -> Callable[..., Any]:
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(run=run, word=name)
        return command.add_argument

    def add_of_run(name: str, run: Callable[[Options], int], text: str) -> Callable[..., Any]:
        option = add(name, run, text)
        newest = "logdir of the run; default: the newest launch in the session"
        option("--logdir", type=folder, help=newest)
        option("--tmux_sess", default=ClusterConfig.tmux_sess, help="tmux session of the run")
        return option

    csv: dict[str, Any] = {"required": True, "metavar": "FILE", "help": "CSV of the machines"}
    option = add("setup", _setup, "copy the project to every machine, install its packages")
    option("--workers_csv_path", **csv)
    extras = "packages that levels (worlds, procgen, retro) or flags (wandb, mirror) need"
    option("--extras", default="", metavar="NAME[,NAME...]", help=extras)
    option = add("doctor", _doctor, "check every machine before a launch")
    option("--workers_csv_path", **csv)
    option("--logdir", type=folder, default="runs", help="logdir of the launch")

    target = "a process, such as actor-2, or a machine"
    option = add_of_run("status", _status, "show the state of every process of a run")
    option("-f", "--follow", action="store_true", help="keep showing what is new")
    option("targets", metavar="NAME|HOST", nargs="*", help=f"{target}; default: all")
    option("--problems", action="store_true", help="only processes that need attention")
    add_of_run("watch", _watch, "show a run until it ends, as the terminal that launched it does")
    option = add_of_run("logs", _logs, "print the output of a process")
    option("-f", "--follow", action="store_true", help="keep showing what is new")
    option("name", metavar="NAME", help="a process, such as actor-2, or supervisor")
    option("host", metavar="HOST", nargs="?", help="the machine of the supervisor")
    option = add_of_run("stop", _stop, "stop the processes of a run, and nothing else")
    option("target", metavar="NAME|HOST", nargs="?", help=f"{target}; default: the whole run")
    option("--timeout_s", type=float, help=f"how long to wait; default: {STOP_S:g}")
    option = add_of_run("restart", _over_ssh(operate.restart, "target"), f"restart {target}")
    option("target", metavar="NAME|HOST", help=target)
    add_of_run("add", _over_ssh(operate.add), "start the actors of rows added to the workers CSV")
    option = add_of_run("revoke", _over_ssh(operate.revoke, "host"), "shut a machine out of a run")
    option("host", metavar="HOST", help="a machine with actors")
    option = add_of_run("fetch", _over_ssh(fetch.fetch, "to"), "copy the run's files to here")
    option("--to", type=folder, metavar="FOLDER", help="default: the logdir here")
    option = add_of_run("attach", _over_ssh(operate.attach, "host"), "show the run's tmux session")
    option("host", metavar="HOST", help="a machine of the run")
    return parser


def folder(text: str) -> Path:
    """Returns a path; argparse shows the function's name in messages."""
    if text.startswith("~"):
        raise argparse.ArgumentTypeError(f"{text}: shells leave ~ as it is there; write $HOME/...")
    return Path(text)


def _setup(options: Options) -> int:
    extras = tuple(name for name in options.extras.split(",") if name)
    for name in extras:
        if name not in _EXTRAS:
            raise ConfigError(f"--extras={name}: must be some of {', '.join(_EXTRAS)}")
    given = Given({"workers_csv_path": options.workers_csv_path, "logdir": "runs"})
    return setup.set_up(*plan_of(given, sys.executable), extras)


def _doctor(options: Options) -> int:
    flags = {"workers_csv_path": options.workers_csv_path, "logdir": str(options.logdir)}
    plan, passwords = plan_of(Given(flags), sys.executable)
    print(as_text(plan), end="")
    return doctor.examine(plan, passwords, options.logdir, options.workers_csv_path)


def _found(options: Options, *only_ssh: str) -> Launch:
    """Returns the run that is meant. Raises ConfigError for what its engine lacks.

    Its logdir is as the user calls it.

    Args:
      options: the options.
      only_ssh: options that only runs over SSH have; '' for the command itself.
    """
    logdir = options.logdir
    launch = newest(options.tmux_sess) if logdir is None else find(logdir)
    launch = launch._replace(logdir=str(logdir or launch.logdir))
    for name in only_ssh if launch.engine != SSH else ():
        value = getattr(options, name.lstrip("-")) if name else True
        if value is not None and value is not False and value != []:
            raise ConfigError(
                f"{options.word} {name}".rstrip() + f": only for runs over SSH;"
                f" {launch.logdir} has a run of --engine={launch.engine}"
            )
    return launch


def _over_ssh(function: Callable[..., int], *names: str) -> Callable[[Options], int]:
    """Returns a command for runs over SSH: the function, with a logdir and these options."""
    return lambda options: function(
        Path(_found(options, "").logdir), *(getattr(options, name) for name in names)
    )


def _status(options: Options) -> int:
    launch = _found(options, "--follow", "targets", "--problems")
    if launch.engine != SSH:
        return engine_called(launch.engine).show_status(launch)
    logdir, targets = Path(launch.logdir), tuple(options.targets)
    return status.show_status(logdir, options.follow, targets, options.problems)


def _watch(options: Options) -> int:
    from impala_tf.monitoring.live_display import Display

    logdir = Path(_found(options, "").logdir)
    interval_s = command_line.parse(load(logdir).flags)["metrics_interval_s"]
    return watch.watch(logdir, lambda source: Display(source, interval_s=interval_s))


def _logs(options: Options) -> int:
    launch = _found(options, "host")
    if launch.engine != SSH:
        return engine_called(launch.engine).follow_log(launch, options.name, options.follow)
    return operate.follow_log(Path(launch.logdir), options.name, options.follow, options.host)


def _stop(options: Options) -> int:
    launch = _found(options, "target", "--timeout_s")
    if launch.engine != SSH:
        return engine_called(launch.engine).stop(launch)
    timeout_s = STOP_S if options.timeout_s is None else options.timeout_s
    return operate.stop(Path(launch.logdir), options.target, timeout_s)
