"""What nobody but the run's user may read on a machine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import AgentError, Orders
from impala_tf.logdir import replace_file


def check_owner(logdir: Path) -> None:
    """Raises AgentError if another user could read the run's keys, or replace its files."""
    for folder in (logdir, logdir / "credentials", files.processes_folder(logdir)):
        with contextlib.suppress(FileNotFoundError):
            owner = folder.stat().st_uid
            if owner not in (os.geteuid(), 0):
                raise AgentError(f"{folder} belongs to another user (uid {owner})")


def write_credentials(logdir: Path, contents: Mapping[str, str]) -> None:
    """Writes {file name: text} into a folder that only the user can open.

    Machines that share the logdir write there at the same time. A certificate and a key that fit
    each other come from one of them.
    """
    folder = logdir / "credentials"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    with files.locked(files.processes_folder(logdir), "credentials"):
        for name, text in contents.items():
            replace_file(folder / name, text.encode())


def write_secrets(orders: Orders, values: Mapping[str, str]) -> None:
    """Keeps the secrets of a run for restarts, until it ends; the logdir is no place for them.

    Args:
      orders: the node's.
      values: {name: value} of all secrets that the orders name.
    """
    path = _secrets_path(orders)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    replace_file(path, json.dumps({name: values[name] for name in orders.secrets}).encode())


def read_secrets(orders: Orders) -> dict[str, str]:
    """Returns {name: value}. Raises FileNotFoundError if they were removed."""
    if not orders.secrets:
        return {}
    return json.loads(_secrets_path(orders).read_text(encoding="utf-8"))


def renew_secrets(orders: Orders, values: Mapping[str, str]) -> None:
    """Makes sure that the secrets of a run that had ended are there again.

    Args:
      orders: the node's.
      values: {name: value} of those that the shell of the launcher has.

    Raises:
      AgentError: if one is missing.
    """
    with contextlib.suppress(FileNotFoundError):
        read_secrets(orders)
        return
    if missing := [name for name in orders.secrets if name not in values]:
        raise AgentError(
            f"--secret={missing[0]}: was removed when the run ended, and is not set in the shell "
            "that restarts it"
        )
    write_secrets(orders, values)


def remove_secrets(orders: Orders) -> None:
    """Removes what `write_secrets` wrote, if that is there."""
    _secrets_path(orders).unlink(missing_ok=True)


def _secrets_path(orders: Orders) -> Path:
    return Path.home() / ".impala_tf" / "secrets" / f"{orders.run_id}-{orders.node}.json"
