"""Files on a machine that only the run's user may read."""

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

    Machines that share the logdir may write at the same time. The lock keeps a certificate and its
    key together.
    """
    folder = logdir / "credentials"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    with files.locked(files.processes_folder(logdir), "credentials"):
        for name, text in contents.items():
            replace_file(folder / name, text.encode())


def write_secrets(orders: Orders, values: Mapping[str, str]) -> None:
    """Stores a run's secrets for restarts, until it ends; not in the logdir, which may be shared.

    Args:
      orders: the node's orders.
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
    """Stores the secrets of a run again if they were removed when it ended.

    Args:
      orders: the node's orders.
      values: {name: value} of the secrets in the launcher's shell.

    Raises:
      AgentError: a secret is missing.
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
    """Removes the file of `write_secrets`, if there is one."""
    _secrets_path(orders).unlink(missing_ok=True)


def _secrets_path(orders: Orders) -> Path:
    return Path.home() / ".impala_tf" / "secrets" / f"{orders.run_id}-{orders.node}.json"
