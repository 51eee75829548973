"""What only the user may decide: a file of flags, or a run's folder, may be somebody else's.

Code of somebody else's runs, other machines are reached, and files are written in other places,
only with --trust_level_module on the command line, or after a question on a terminal.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from typing import Any

from impala_tf.config import plug_ins
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import ENGINE_FLAGS

_OF_USER = {
    "workers_csv_path", "accept_new_host_keys", "end_command", "env", "secret", *ENGINE_FLAGS,
    "mirror", "to",
    "job_name", "join", "learner_hosts", "actor_hosts", "credentials",
    "trust_level_module",
}  # fmt: skip
_MAY_NAME_CODE = ("level_name", "level_wrappers", *plug_ins.FLAGS)
_SUITES = re.compile(r"(^|,)\s*(procgen|retro|gym):")


def check_file(
    file: str, typed: Mapping[str, Any], in_file: Mapping[str, Any], places: Mapping[str, str]
) -> None:
    """Asks before flags of a --config file are used that only the user may decide.

    Args:
      file: its name.
      typed: {flag: value} of the command line.
      in_file: {flag: value} of the file, for flags that the command line does not give.
      places: {flag: its place in the file}.

    Raises:
      ConfigError: the user does not trust the file; one line for each of these flags.
    """
    asked = [
        name
        for name, value in in_file.items()
        if (name in _OF_USER and value)
        or (name in _MAY_NAME_CODE and ":" in _SUITES.sub("", str(value)))
    ]
    if not asked or typed.get("trust_level_module"):
        return
    settings = ", ".join(f"{name}={in_file[name]}" for name in asked)
    if confirmed(f"{file} sets {settings}. Use it?"):
        return
    raise ConfigError([
        f"{places[name]}: {name}: may run somebody's code, or reach other machines and folders; if"
        " you trust the file, add --trust_level_module"
        for name in asked
    ])  # fmt: skip


def confirmed(question: str) -> bool:
    """Asks a question on the terminal; returns whether the answer is yes. Without one, it is no."""
    if not sys.stdin.isatty():
        return False
    with contextlib.suppress(EOFError):  # Ctrl-D
        printable = "".join(c if c.isprintable() else "?" for c in question)
        return input(f"{printable} [y/N] ").strip().lower() in ("y", "yes")
    return False
