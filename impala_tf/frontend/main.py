"""The launcher's commands: `python -m frontend COMMAND`, or `impala cluster COMMAND`."""

from __future__ import annotations

import argparse
import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from impala_tf import __version__
from impala_tf.config import ClusterConfig, ConfigError, Given, command_line, user_commands
from impala_tf.frontend import (
    doctor,
    fetch,
    monitor,
    operate,
    setup,
)
from impala_tf.frontend.engines import registry
from impala_tf.frontend.plan import as_text, plan_of, wide_console
from impala_tf.frontend.record import SSH, load
from impala_tf.frontend.runner import ClusterError

_ABOUT = "Sets up machines for a run, and looks after the run."
_LONGEST_S = 86400
_EXTRAS = ("worlds", "procgen", "retro", "wandb", "mirror", "tensorflow")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str], prog: str = "") -> int:
    """Runs a subcommand. Returns 0, 1 for failures, or 2 for unusable flags or files.

    Args:
      arguments: the subcommand and its words.
      prog: the program's name in messages; default: the command that a user types.
    """
    try:
        options = parser(prog).parse_args(arguments)
        _check_folders(options)
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
    parser = _Parser(prog=prog or user_commands.frontend(), description=_ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"impala_tf {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(run=run, word=name)
        return command

    for command in (
        add("setup", _setup, "copy the project to every machine, install its packages"),
        add("doctor", _doctor, "check every machine before a launch"),
    ):
        csv = "CSV of the machines"
        command.add_argument("--workers_csv_path", required=True, metavar="FILE", help=csv)
    for name, run, text in _OF_A_RUN:
        command = add(name, run, text)
        command.add_argument(
            "--logdir",
            help="logdir of the run; default: the newest launch in the session",
        )
        command.add_argument(
            "--tmux_sess", default=ClusterConfig.tmux_sess, help="tmux session of the run"
        )

    def option(name: str, *words: str, **settings: Any) -> None:
        commands.choices[name].add_argument(*words, **settings)

    option("setup", "--extras", default="", metavar="NAME[,NAME...]",
           help="packages that levels need: worlds, procgen, retro; wandb: for --track=wandb; "
           "mirror: for --mirror=s3://...; tensorflow: for actors, too")  # fmt: skip
    option("doctor", "--logdir", default="runs", help="--logdir of the launch, to check its disk")
    for name in ("status", "logs"):
        option(name, "-f", "--follow", action="store_true", help="keep showing what is new")
    option("status", "targets", metavar="NAME|HOST", nargs="*",
           help="processes, such as actor-2, or machines; default: all")  # fmt: skip
    option("status", "--problems", action="store_true", help="only processes that need attention")
    option("logs", "name", metavar="NAME", help="a process, such as actor-2, or supervisor")
    option("logs", "host", metavar="HOST", nargs="?", help="the machine of the supervisor")
    option("stop", "target", metavar="NAME|HOST", nargs="?",
           help="a process, such as actor-2, or a machine; default: the whole run")  # fmt: skip
    option("stop", "--timeout_s", type=float,
           help=f"how long to wait for the processes; default: {operate.STOP_S:g}")  # fmt: skip
    option("restart", "target", metavar="NAME|HOST",
           help="a process, such as actor-2, or a machine")  # fmt: skip
    option("revoke", "host", metavar="HOST", help="a machine with actors")
    option("fetch", "--to", type=Path, metavar="FOLDER", help="default: the logdir here")
    option("attach", "host", metavar="HOST", help="a machine of the run")
    return parser


def _check_folders(options: argparse.Namespace) -> None:
    for name in ("logdir", "to"):
        path = str(getattr(options, name, ""))
        if path.startswith("~"):
            raise ConfigError(
                f"--{name}={path}: shells leave ~ as it is there; write --{name}=$HOME/..."
            )


def _given(options: argparse.Namespace) -> Given:
    logdir = getattr(options, "logdir", None) or "runs"
    return Given({"workers_csv_path": options.workers_csv_path, "logdir": logdir})


def _setup(options: argparse.Namespace) -> int:
    extras = tuple(name for name in options.extras.split(",") if name)
    for name in extras:
        if name not in _EXTRAS:
            raise ConfigError(f"--extras={name}: must be some of {', '.join(_EXTRAS)}")
    plan, passwords = plan_of(_given(options), sys.executable)
    return setup.set_up(plan, passwords, extras)


def _doctor(options: argparse.Namespace) -> int:
    plan, passwords = plan_of(_given(options), sys.executable)
    print(as_text(plan), end="")
    findings = doctor.examine(plan, passwords)
    return doctor.show(findings, wide_console())


def _run_of(options: argparse.Namespace) -> Path:
    """Returns the logdir of a run over SSH, for commands that other engines lack."""
    run = registry.found(options.logdir, options.tmux_sess)
    if run.name != SSH:
        raise _only_over_ssh(options.word, run)
    return Path(run.job)


def _only_over_ssh(what: str, run: registry.Run) -> ConfigError:
    return ConfigError(
        f"{what}: only for runs over SSH; {run.job.logdir} has a run of --engine={run.name}"
    )


def _by_engine(
    options: argparse.Namespace, verb: str, *words: object, **own: tuple[str, object]
) -> int:
    """Lets the engine that has the run do something.

    Args:
      options: the options, which name the run.
      verb: a function of `engine.Engine`.
      words: its arguments after the job.
      own: {argument: (option, value)}, for options that some engines lack.
    """
    run = registry.found(options.logdir, options.tmux_sess)
    function = getattr(run.engine, verb)
    given = {name: value for name, (_, value) in own.items()
             if value is not None and value is not False}  # fmt: skip
    for name in given.keys() - inspect.signature(function).parameters.keys():
        raise _only_over_ssh(f"{options.word} {own[name][0]}", run)
    return int(function(run.job, *words, **given))


def _status(options: argparse.Namespace) -> int:
    return _by_engine(
        options,
        "show_status",
        follow=("--follow", options.follow),
        targets=(" ".join(options.targets), tuple(options.targets) or None),
        problems=("--problems", options.problems),
    )


def _watch(options: argparse.Namespace) -> int:
    from impala_tf.monitoring.live_display import Display

    logdir = _run_of(options)
    interval_s = command_line.parse(load(logdir).flags)["metrics_interval_s"]
    return monitor.watch(
        logdir,
        lambda status: Display(status, interval_s=interval_s),
    )


def _logs(options: argparse.Namespace) -> int:
    words = options.name, options.follow
    return _by_engine(options, "follow_log", *words, host=("HOST", options.host))


def _stop(options: argparse.Namespace) -> int:
    if options.timeout_s is not None and not 0 <= options.timeout_s <= _LONGEST_S:  # nan is neither
        raise ConfigError(f"--timeout_s={options.timeout_s:g}: must be from 0 to {_LONGEST_S}")
    target, timeout = (options.target, options.target), ("--timeout_s", options.timeout_s)
    return _by_engine(options, "stop", target=target, timeout_s=timeout)


_OF_A_RUN: tuple[tuple[str, Callable[[argparse.Namespace], int], str], ...] = (
    ("status", _status, "show the state of every process of a run"),
    ("watch", _watch, "show a run until it ends, as the terminal that launched it does"),
    ("logs", _logs, "print the output of a process"),
    ("stop", _stop, "stop the processes of a run, and nothing else"),
    ("restart", lambda o: operate.restart(_run_of(o), o.target),
     "restart a process, or all processes of a machine"),
    ("add", lambda o: operate.add(_run_of(o)),
     "start the actors of rows that were appended to the workers CSV"),
    ("revoke", lambda o: operate.revoke(_run_of(o), o.host),
     "shut a machine out of a run: learners refuse its certificate"),
    ("fetch", lambda o: fetch.fetch(_run_of(o), o.to),
     "copy the run's files from its machines to this one"),
    ("attach", lambda o: operate.attach(_run_of(o), o.host),
     "attach this terminal to the tmux session on a machine"),
)  # fmt: skip
"""The commands that look after a run: (name, function, help)."""
