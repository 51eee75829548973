"""Changes of a node's orders, by one command at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import AgentError, Orders


@contextlib.contextmanager
def changed_orders(path: Path) -> Iterator[tuple[Orders, Callable[[Orders], None]]]:
    """Yields a node's orders, and what replaces them; nobody else changes them meanwhile."""
    with locked(path.parent, path.name):
        try:
            orders = files.read_orders(path)
        except FileNotFoundError as error:
            raise AgentError(f"{path}: this machine has no part in the run") from error
        yield orders, lambda changed: files.write(path, changed)


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Holds a lock on a node's orders."""
    with (folder / f".{name.removesuffix('.orders.json')}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
