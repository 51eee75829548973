"""The flags for playing a run or an exported agent, read without TensorFlow."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.config import (
    BUILT_IN,
    AgentConfig,
    ConfigError,
    EnvironmentConfig,
    Given,
    command_line,
    config_file,
    plug_ins,
)
from impala_tf.config.flags import HERE, PLAYER
from impala_tf.environments import suites
from impala_tf.logdir import Logdir, no_run
from impala_tf.processes import provenance


def as_trained(given: Given) -> Given:
    """Returns the given flags with the level, protocol and agent of the run in --logdir.

    A level and its wrappers may name Python modules. If the run names one that the command does
    not, the user is asked: the logdir may come from someone else, and importing runs code.

    Raises:
      ConfigError: there is no run, or its level's module is not trusted.
    """
    if given["logdir"] is None:
        raise ConfigError(f"impala {given['mode']}: needs --logdir of a run")
    logdir = Logdir(Path(given["logdir"]))
    described = provenance.read(logdir)
    if not described:
        raise ConfigError(f"--logdir={logdir.path}: {no_run(logdir.path)}")
    # Somebody else's config.json must not declare its own code trusted, either.
    not_kept = configs.flags_of(HERE | PLAYER)
    flags = {name: value for name, value in described["flags"].items() if name not in not_kept}
    return _trusted(given, flags, logdir.config)


def own_modules(given: Given) -> set[str]:
    """Returns the user's own modules that playing a run with these flags imports."""
    flags = given.without("callbacks").everything()  # only training calls these
    return {*suites.modules(given.environment), *plug_ins.modules(flags)}


def as_exported(given: Given, flags: Mapping[str, Any]) -> Given:
    """Returns the given flags with the level and protocol of the exported agent in --logdir.

    These are the `flags` in its agent.json; asks as `as_trained` does. Raises ConfigError: one of
    them is wrong, a given flag would change the agent, or a module is not trusted.
    """
    logdir = Logdir(Path(given["logdir"]))
    fixed = [*(field.name for field in dataclasses.fields(AgentConfig)), "algorithm", "checkpoint"]
    if names := [name for name in fixed if given[name] != BUILT_IN[name]]:
        raise ConfigError(
            f"--{names[0]}: {logdir.path} is an exported agent, which is fixed; leave the flag out"
        )
    of_level = {field.name for field in dataclasses.fields(EnvironmentConfig)}
    if unknown := sorted(flags.keys() - of_level):
        raise ConfigError(f"{logdir.agent}: {unknown[0]}: is no flag of a level")
    return _trusted(given, flags, logdir.agent)


def _trusted(typed: Given, flags: Mapping[str, Any], file: Path) -> Given:
    """Returns the flags of a file, checked like typed ones, with the typed ones in front.

    Asks before it makes modules importable that the file names and the command line does not.
    """
    if unknown := sorted(flags.keys() - BUILT_IN.keys()):
        raise ConfigError(f"{file}: {unknown[0]}: is no flag of this version of impala_tf")
    try:
        of_file = command_line.parse(configs.to_flags(Given(flags)), environment={})
    except ConfigError as error:
        raise ConfigError([f"{file}: {problem}" for problem in error.problems]) from None
    merged, logdir = Given({**of_file.flags, **typed.flags}), typed["logdir"]
    modules = sorted(own_modules(merged) - own_modules(typed))
    question = f"{logdir} imports {', '.join(modules)}, whose code runs here. Import?"
    is_trusted = not modules or merged["trust_level_module"]
    if not (is_trusted or config_file.confirmed(question)):
        raise ConfigError(
            f"--logdir={logdir}: it imports the Python module {modules[0]}, whose code would run"
            " here; if you trust it, add --trust_level_module"
        )
    # A module that the command line names is the user's own, so the folder's copy was not
    # confirmed.
    use_modules_of(Path(logdir), modules)
    return merged


def use_modules_of(folder: Path, names: Iterable[str]) -> None:
    """Makes the user's modules in a trusted folder importable.

    A module that `impala_tf.train` wrote for an object of a notebook may have the same name in
    every run, so it is imported again. Others come after those of Python and of the current folder.
    """
    found = [name for name in names if (folder / f"{name}.py").is_file()]
    if not found:
        return
    plug_ins.look_in_current_folder()
    sys.path[:] = [each for each in sys.path if each not in _folders_of_modules]
    _folders_of_modules[:] = [str(folder)]
    sys.path.append(str(folder))  # processes of environments inherit it
    importlib.invalidate_caches()
    for name in found:
        if name.startswith(plug_ins.WRITTEN):
            sys.modules.pop(name, None)


_folders_of_modules: list[str] = []  # added to sys.path by `use_modules_of`
