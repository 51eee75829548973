"""The entry point: runs what a command line asks for, such as training, an evaluation, a report."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

# This project reports a port in use or an unreachable learner itself.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Levels render to images. Without this, SDL would complain if there is no screen.
if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

from impala_tf.config import user_commands

user_commands.require_packages(user_commands.SCRIPT)  # before the imports that need packages

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, Given, LevelRaisedError, command_line
from impala_tf.config.limits import checked
from impala_tf.machine.process_lifetime import (
    exit_in_time,
    ignore_stop_requests,
    say_done,
    stop_with_parent,
)

_HELP = ("-h", "--help")
_RUN = "--run="

# Imported when needed: the parent process of a local run does not load TensorFlow, and actors load
# it only with some flags.
_MAINS = {
    "train": "processes.local_run",
    "learner": "processes.learner_main",
    "actor": "processes.actor_main",
    "evaluator": "processes.evaluator_main",
    "test": "processes.evaluate_main",
    "report": "reporting.report_main",
    "export": "sharing.export_main",
    "describe": "measure.describe_main",
    "benchmark": "measure.benchmark_main",
}
"""{--job_name of a run, or --mode: its module}."""

_AFTER_BREAKS = """
# Readline begins a new word at = and at :, and replaces only the last one.
_impala() {
  local line="${COMP_LINE:0:COMP_POINT}" COMP_WORDS
  read -ra COMP_WORDS <<< "${line//=/ }"
  [[ $line == *[[:space:]=] ]] && COMP_WORDS+=("")
  local COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  local word="${COMP_WORDS[-1]}"
  _shtab_impala
  [[ $word == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}")
}
complete -o bashdefault -F _impala impala
"""


def run(given: Given) -> int:
    """Runs what the flags ask for; returns the exit status."""
    try:
        return _run(given)
    except LevelRaisedError as error:
        if not given["job_name"]:
            raise
        # This is a process of a run: its parent or supervisor restarts it.
        command_line.fail(error)
        return 1


def _run(given: Given) -> int:
    if given["join"]:  # this is a node of a job that an engine has started
        from impala_tf.cluster.engines import places
        from impala_tf.cluster.join import run_node

        given = checked(places.applied(given, os.environ))
        config, _ = _checked(given)
        return run_node(given.replace(logdir=config.run.logdir), config)
    what = given["mode"]
    if what == "train" and given["job_name"]:
        what = given["job_name"]
    if given["engine"] or (what == "train" and given.cluster.workers_csv_path):
        return submit(given)
    if what not in ("train", "actor", "test", "export"):
        from impala_tf.processes import tensorflow_startup

        tensorflow_startup.import_tensorflow()
    status: int = importlib.import_module(f"impala_tf.{_MAINS[what]}").main(given)
    return status


def submit(given: Given) -> int:
    """Submits a run to its engine, or prints what it gets (--dry_run); returns the exit status."""
    from impala_tf.cluster.engines.engine import engine_called
    from impala_tf.cluster.record import SSH
    from impala_tf.cluster.runner import ClusterError
    from impala_tf.learner import user_callbacks
    from impala_tf.monitoring.live_display import Display
    from impala_tf.processes import mirroring, run_folder

    config, spec = _checked(given)
    user_callbacks.load(config.run)
    if config.run.mirror:
        mirroring.check(config.run.mirror)
        if config.run.fresh:
            raise ConfigError(
                "--fresh: in a launch, --mirror would bring the old run back; give another --logdir"
                " and --mirror"
            )
    given = given.replace(
        logdir=config.run.logdir,
        envs_per_actor=config.process.envs_per_actor,
        algorithm=config.loss.algorithm,
    )
    engine = engine_called(given["engine"] or SSH)
    if given.cluster.dry_run:
        print(engine.render(given), end="")
        return 0
    try:
        return engine.submit(
            given,
            lambda status: Display(status, interval_s=config.run.metrics_interval_s),
            lambda run, logdir: run_folder.differences(run, logdir, config, spec),
        )
    except ClusterError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 1


def _checked(given: Given) -> tuple[Config, Any]:
    """Returns what `resolve` returns, after further checks, before anything is started."""
    from impala_tf.processes import run_folder
    from impala_tf.processes.common import resolve

    config, spec = resolve(given)
    run_folder.check_usable(config)
    return config, spec


def _values(given: Given) -> Mapping[str, Any]:
    """Returns the values of all flags on the given level, for --help."""
    from impala_tf.processes.common import resolve

    return {**configs.to_dict(resolve(given)[0]), "logdir": given["logdir"]}


def _command(arguments: list[str], is_child: bool) -> int:
    """Runs a command line, with or without a subcommand; returns the exit status.

    Only a process whose parent has started it (`is_child`) may name a run's file. Raises
    ConfigError: the command or an argument is invalid.
    """
    name, rest = arguments[0] if arguments else "", arguments[1:]
    if is_child and name.startswith(_RUN):
        from impala_tf.processes import run_file

        return run(run_file.read(arguments))
    if command_line.program() != "impala" or (name.startswith("-") and name not in _HELP):
        return run(command_line.parse(arguments, _values))
    from impala_tf.config import help_pages

    if name == "cluster":
        from impala_tf.cluster import cluster_main as launcher

        return launcher.main(rest, "impala cluster")
    if name in ("compare", "reproduce", "sweep"):
        study = importlib.import_module(f"impala_tf.studies.{name}_main")
        return int(study.main(rest))
    other = name in help_pages.OTHER_COMMANDS
    if name in ("", *_HELP) or (other and set(rest) & set(_HELP)):
        command_line.print_for_reader(help_pages.overview("impala"))
        return 0
    if name == "completion":
        command_line.print_for_reader(_completion(rest))
        return 0
    if other:
        from impala_tf.processes import listings

        return listings.main(name, rest)
    if name not in help_pages.COMMANDS:
        known = [*help_pages.COMMANDS, *help_pages.OTHER_COMMANDS]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else "; see impala --help"
        raise ConfigError(f"{name}: no such command{hint}")
    if any(word.partition("=")[0] == "--mode" for word in rest):
        raise ConfigError(f"--mode: the command is {name}; leave the flag out")
    return run(command_line.parse([f"--mode={name}", *rest], _values))


def _completion(shell: list[str]) -> str:
    """Returns a script for bash or zsh that completes commands, flags and their values."""
    if shell not in (["bash"], ["zsh"]):
        raise ConfigError("completion: name a shell, bash or zsh")
    import shtab

    from impala_tf.cluster import cluster_main as launcher
    from impala_tf.config import help_pages
    from impala_tf.environments import suites

    is_bash = shell == ["bash"]
    end, colon, after = ("", ":", _AFTER_BREAKS) if is_bash else ("=", "\\:", "")
    levels = [name for suite in suites.SUITES for name in (*suite.lists, *suite.installed())]
    choices = {
        "agent_name": list(configs.AGENTS),
        "algorithm": list(configs.ALGORITHMS),
        "level_name": [name.replace(":", colon) for name in levels],
    }
    cluster = launcher.parser("impala cluster")
    parser = help_pages.command_parser("impala", cluster, choices, end=end)
    script: str = shtab.complete(parser, shell[0])
    return script + after


def main() -> int:
    """Parses the flags and runs; invalid input is reported in one line per problem, status 2."""
    is_child = stop_with_parent()
    try:
        status = _command(sys.argv[1:], is_child)
        say_done()
        return status
    except ConfigError as error:
        return command_line.fail(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        ignore_stop_requests()


def _open_standard_streams() -> None:
    """Opens /dev/null for standard streams that the parent has closed, as daemons do."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # so its number is the lowest that is free
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, closefd=False))


def program() -> NoReturn:
    """Runs `main` and exits the process with its status."""
    _open_standard_streams()
    status: int | str | None = 1
    try:
        status = main()
    except SystemExit as done:  # raised by --help, for example
        status = done.code
    finally:
        exit_in_time(status if isinstance(status, int) else int(status is not None))
    sys.exit(status)
