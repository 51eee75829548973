"""The flags of a run, or of an exported agent, that is played: read without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.config import (
    BUILT_IN,
    AgentConfig,
    ConfigError,
    EnvironmentConfig,
    EvaluationConfig,
    ExportConfig,
    Given,
    ReportConfig,
    command_line,
    plug_ins,
)
from impala_tf.environments import suites
from impala_tf.logdir import Logdir, no_run
from impala_tf.processes import own_modules, provenance

# What a run's flags say about its own processes and machines, and what only the user at the
# terminal decides: someone else's config.json must not say that its code is trusted.
_NOT_KEPT = (
    *("mode", "job_name", "learner_hosts", "task", "seed", "logdir", "device", "track"),
    *(field.name for field in dataclasses.fields(EvaluationConfig)),
    *(field.name for field in dataclasses.fields(ReportConfig)),
    *(field.name for field in dataclasses.fields(ExportConfig)),
)


def as_trained(given: Given) -> Given:
    """Returns the given flags with the level, protocol and agent of the run in --logdir.

    A level and its wrappers may name Python modules. If the run names one, and not the command, the
    user is asked: the logdir may come from someone else, and importing a module runs its code.

    Args:
      given: the flags of the command line, which stay as they are.

    Raises:
      ConfigError: there is no run, its level's module is not trusted, or the module that is found
        here is another one than the run's.
    """
    if given["logdir"] is None:
        raise ConfigError(f"--mode={given['mode']}: needs --logdir of a run")
    logdir = Logdir(Path(given["logdir"]))
    if logdir.is_exported:
        raise ConfigError(
            f"--logdir={logdir.path}: holds an exported agent, which plays with --mode=test; to"
            f" {given['mode']}, give the logdir of its run"
        )
    described = provenance.read(logdir)
    if not described:
        raise ConfigError(f"--logdir={logdir.path}: {no_run(logdir.path)}")
    # Runs from before there were presets are of the paper's.
    flags = {"preset": "paper", **described["flags"]}
    kept = {name: flags[name] for name in flags if name in BUILT_IN and name not in _NOT_KEPT}
    merged = _trusted(given, Given({**_checked(kept, logdir.config).flags, **given.flags}))
    # One that the command line names is the user's own, which may be another one.
    named = own_modules.names(merged) - _named(given)
    own_modules.look_where_recorded(described, str(logdir.path), sorted(named))
    return merged


def as_exported(given: Given, flags: Mapping[str, Any]) -> Given:
    """Returns the given flags with the level and protocol of the exported agent in --logdir.

    Asks, as `as_trained` does, before modules are imported that the level names.

    Args:
      given: the flags of the command line, which stay as they are.
      flags: those of agent.json.

    Raises:
      ConfigError: a flag of agent.json is wrong, one of the command line would change the agent, or
        the level's module is not trusted.
    """
    logdir = Logdir(Path(given["logdir"]))
    fixed = [*(field.name for field in dataclasses.fields(AgentConfig)), "algorithm", "checkpoint"]
    if wrong := [name for name in fixed if given[name] != BUILT_IN[name]]:
        raise ConfigError(
            f"--{wrong[0]}: {logdir.path} is an exported agent, which is fixed; leave the flag out"
        )
    of_level = {field.name for field in dataclasses.fields(EnvironmentConfig)}
    if unknown := sorted(flags.keys() - of_level):
        raise ConfigError(f"{logdir.agent}: {unknown[0]}: is no flag of a level")
    return _trusted(given, Given({**_checked(dict(flags), logdir.agent).flags, **given.flags}))


def _trusted(given: Given, merged: Given) -> Given:
    """Returns `merged` if its modules are trusted; see `as_trained`."""
    folder = Path(given["logdir"])
    _check_trusted(given, merged)
    # One that the command line names is the user's own: what the folder has was not asked about.
    use_modules_of(folder, merged.environment, but=suites.modules(given.environment))
    return merged


def use_modules_of(folder: Path, environment: EnvironmentConfig, but: Collection[str] = ()) -> None:
    """Makes the level's modules in a folder the ones that are imported.

    A module that `impala_tf.train` wrote for a function of a notebook may have the same name in
    every run: this one takes the place of another run's. Any other module in the folder is found
    after all that Python and the current folder have.

    Args:
      folder: of a run, or of an exported agent; trusted.
      environment: names the level.
      but: modules that are not taken from the folder.

    Raises:
      ConfigError: a module cannot be imported.
    """
    names = [name for name in suites.modules(environment) if name not in but]
    found = {name: folder / f"{name}.py" for name in names if (folder / f"{name}.py").is_file()}
    if not found:
        return
    for other in _folders_of_modules:
        with contextlib.suppress(ValueError):
            sys.path.remove(other)
    _folders_of_modules[:] = [str(folder)]
    sys.path.append(str(folder))  # for processes that environments run in, too
    for name, path in found.items():
        if name.startswith(plug_ins.WRITTEN):
            _load(name, path)


def _load(name: str, path: Path) -> None:
    """Imports a file as a module, in place of another one of its name."""
    before = sys.modules.get(name)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise ConfigError(f"{path}: {plug_ins.cannot_import(name, error)}") from error


_folders_of_modules: list[str] = []  # that `use_modules_of` has added to sys.path


def _checked(flags: dict[str, Any], file: Path) -> Given:
    """Returns what a command line with these flags gives; refuses what it would."""
    try:
        return command_line.parse(configs.to_flags(Given(flags)))
    except ConfigError as error:
        raise ConfigError([f"{file}: {problem}" for problem in error.problems]) from None


def _named(typed: Given) -> set[str]:
    return {*suites.modules(typed.environment), *plug_ins.modules(typed.everything())}


def _check_trusted(typed: Given, given: Given) -> None:
    """Asks before modules are imported that the run names, and the command line does not."""
    named = _named(typed)
    modules = sorted(own_modules.names(given) - named)
    if not modules or given.evaluation.trust_level_module:
        return
    logdir = given["logdir"]
    if sys.stdin.isatty():
        question = f"{logdir} imports {', '.join(modules)}, whose code runs here. Import? [y/N] "
        with contextlib.suppress(EOFError):  # Ctrl-D
            if input(question).strip().lower() in ("y", "yes"):
                return
    raise ConfigError(
        f"--logdir={logdir}: it imports the Python module {modules[0]}, whose code would run"
        " here; if you trust it, add --trust_level_module (in Python: trust_level_module=True)"
    )
