"""The folders with the code of runs on this machine: PARENT/DIGEST in the workdir.

Every run leaves a mark in the folder that it uses. The next launch removes folders without a run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from impala_tf.frontend.node import state as files
from impala_tf.frontend.node.state import Orders
from impala_tf.logdir import replace_file
from impala_tf.machine.supervision import OVER

PARENT = ".code"
_MARK = ".run-"
_FRESH_S = 600.0
"""How long after its last use a folder may belong to a launch that has just begun."""
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)
"""Errors from reading a file that a power cut has emptied, or another version has written."""
_FOREIGN_S = 30 * 24 * 3600.0
"""How long to trust the mark of a run that cannot be checked: a damaged one, or another
machine's."""


def touch(folder: Path) -> None:
    """Keeps a folder that a launch is about to use."""
    if folder.is_dir():
        folder.touch()


def mark(orders: Orders) -> None:
    """Marks a run's folder as used, if the run has a folder of its own."""
    folder = Path(orders.code)
    if folder.parent.name != PARENT:
        return
    note = {"run_id": orders.run_id, "node": orders.node, "logdir": orders.logdir,
            "machine": socket.gethostname()}  # fmt: skip
    replace_file(_mark_of(orders), json.dumps(note).encode())


def remove_unused(orders: Orders) -> None:
    """Removes the folders of runs that have ended, and those of interrupted launches.

    Args:
      orders: the orders of a run whose folder is marked. That folder is kept, and so are folders
        that were used in the last ten minutes.
    """
    parent = Path(orders.workdir) / PARENT
    # A file server's clock may differ by minutes from this machine's.
    own = _mark_of(orders)
    now_s = own.stat().st_mtime if own.exists() else time.time()
    for folder in parent.iterdir() if parent.is_dir() else ():
        # Another machine may share the folder, and remove it at the same time.
        with contextlib.suppress(FileNotFoundError):
            marks = folder.glob(f"{_MARK}*")
            if not _is_fresh(folder, now_s) and not any(_is_used(note, now_s) for note in marks):
                shutil.rmtree(folder, ignore_errors=True)


def _mark_of(orders: Orders) -> Path:
    return Path(orders.code) / f"{_MARK}{orders.run_id}-{orders.node}"


def _is_fresh(path: Path, now_s: float, fresh_s: float = _FRESH_S) -> bool:
    return now_s - path.stat().st_mtime < fresh_s


def _is_used(note_file: Path, now_s: float) -> bool:
    try:
        note = json.loads(note_file.read_text())
        state = files.read_state(files.state_path(note["logdir"], note["node"]))
        run_id, stopped = _ordered(note)
        if run_id != note["run_id"]:
            # A later run has taken over the logdir, or the logdir is on another machine's disk.
            is_foreign = note.get("machine", socket.gethostname()) != socket.gethostname()
            return is_foreign and _is_fresh(note_file, now_s, _FOREIGN_S)
    except (PermissionError, *_DAMAGED):  # it cannot be checked whether a run uses it
        return _is_fresh(note_file, now_s, _FOREIGN_S)
    if state is None or state.run_id != note["run_id"]:
        return _is_fresh(note_file, now_s)
    # A machine that was down restarts its processes, so only those that are over count as ended.
    return any(
        process.state not in OVER and name not in stopped
        for name, process in state.processes.items()
    )


def _ordered(note: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Returns the run's id and the stopped processes, from a node's orders."""
    try:
        orders = files.read_orders(files.orders_path(note["logdir"], note["node"]))
    except FileNotFoundError:
        return "", ()
    return orders.run_id, orders.stopped
