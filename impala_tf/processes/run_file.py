"""LOGDIR/run.json: what a run has resolved, once, for all of its processes on this machine.

The parent writes it and starts each process with --run=FILE --job_name=ROLE --task=N. Such a
process takes all flags and its level's spec from there, so it resolves nothing, and makes no level
only to look at it. A process that is started by hand takes plain flags, and resolves them itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, Given, user_commands
from impala_tf.logdir import read_json, replace_file
from impala_tf.types import EnvironmentSpec


def write(path: Path, config: Config, spec: EnvironmentSpec) -> None:
    """Writes a run's file, which only this user may read. Raises OSError if that fails."""
    content = {
        "flags": configs.to_dict(config),
        "level": spec.to_json(),
        "command": sys.argv,  # what a person typed
    }
    replace_file(path, json.dumps(content, indent=1).encode())


def command(path: Path, job_name: str, task: int = 0) -> tuple[str, ...]:
    """Returns the command that starts a process of the run that a file describes."""
    role = (f"--job_name={job_name}", f"--task={task}")
    return (sys.executable, *user_commands.program(), f"--run={path.absolute()}", *role)


def read(words: Sequence[str]) -> Given:
    """Returns what a process gets that `command` has started with these words.

    The user has consented to the modules that the flags name when the parent was started. Records
    of the run name the command that started the parent, so it becomes this process's, too. Raises
    ConfigError: the file is not a run's.
    """
    told = dict(word.removeprefix("--").split("=", 1) for word in words)
    try:
        content = read_json(Path(told["run"]))
        flags = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in content["flags"].items()
        }
        role = {"job_name": told["job_name"], "task": int(told["task"])}
        given = Given({**flags, **role}, EnvironmentSpec.from_json(content["level"]))
        sys.argv[:] = map(str, content["command"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"--run={told['run']}: is not a run's file ({error!r})") from None
    return given
