"""Tells whether this container's process works: the HEALTHCHECK of the images.

The entry point leaves a note about the process that it started. `python docker/health.py` reads it,
prints one line and exits with 0 (healthy) or 1. A healthy learner has written its status recently
and presents its own certificate on its port. A healthy actor has updated its heartbeat recently.
Uses only the standard library: it runs every few seconds next to a process that needs the
processor.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOTE = Path(tempfile.gettempdir()) / "impala_tf-process.json"
STATUS_MAX_AGE_S = 30.0
"""A learner writes its status every second, even on a busy machine."""
UPDATE_MAX_AGE_S = 60.0
"""Much longer than an update takes, if there are unrolls."""
SUPERVISOR_MAX_AGE_S = 30.0
"""A supervisor writes its state every 2 s."""
HEARTBEAT_MAX_AGE_S = 180.0
"""An actor updates its heartbeat after every step of its environments, which may take
two minutes, and at every call to the learner, which may wait a minute for room in the
learner's queue."""


def note_about(
    heartbeats: Mapping[str, str], supervisor: Path | None = None, **learner: str
) -> dict[str, Any]:
    """Returns the note about the processes of a container.

    Args:
      heartbeats: {actor: file of its heartbeat}.
      supervisor: the file with their supervisor's state; None without one.
      **learner: of a learner, which has a supervisor: "status": its status file, "address":
        host:port, "ca": file of its CA certificate, "name": its TLS name.
    """
    return {"heartbeats": dict(heartbeats), "supervisor": supervisor and str(supervisor), **learner}


def trouble(note: dict[str, Any], uptime_s: float, answer_s: float = 5.0) -> str:
    """Returns what is wrong with the processes that a note describes, or ''.

    Args:
      note: the result of `note_about`.
      uptime_s: seconds of the monotonic clock, which the processes use, too, and which is never
        adjusted.
      answer_s: how long a learner's port may take to answer.
    """
    running = list(note["heartbeats"])
    if note["supervisor"]:  # it restarts those that do not run, or waits with them
        try:
            state = json.loads(Path(note["supervisor"]).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return "the supervisor has not started yet"
        # The supervisor uses this clock, which counts suspended time, unlike the monotonic clock.
        age_s = float(Path("/proc/uptime").read_text().split()[0]) - state["uptime_s"]
        if not -1 <= age_s <= SUPERVISOR_MAX_AGE_S:
            return f"the supervisor's state is {age_s:.0f} s old"
        states = {name: process["state"] for name, process in state["processes"].items()}
        running = [name for name, state in states.items() if state == "running"]
    if "status" in note:
        if not running:
            return ""
        return _status_trouble(Path(note["status"]), uptime_s) or _port_trouble(note, answer_s)
    for name in running:
        if text := _heartbeat_trouble(Path(note["heartbeats"][name]), uptime_s):
            return f"{name}: {text}"
    return ""


def _heartbeat_trouble(path: Path, uptime_s: float) -> str:
    limit_s = float(os.environ.get("IMPALA_TF_HEARTBEAT_MAX_AGE_S", HEARTBEAT_MAX_AGE_S))
    try:
        age_s = uptime_s - float(path.read_text())
    except (FileNotFoundError, ValueError):  # ValueError: it is being written
        return "has not started yet"
    return f"its last heartbeat is {age_s:.0f} s old" if age_s > limit_s else ""


def _status_trouble(path: Path, uptime_s: float) -> str:
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "the learner has not started yet"
    age_s = uptime_s - status["updated_uptime_s"]
    if age_s < -1:
        return f"{path} is from before this machine started"
    if age_s > STATUS_MAX_AGE_S:
        return f"{path} is {age_s:.0f} s old"
    updated_s = status.get("last_update_unix_s")
    waits = status.get("state") != "training" or status.get("starving_since_unix_s") is not None
    if waits or updated_s is None:
        return ""
    stuck_s = status["updated_unix_s"] - updated_s + age_s
    if stuck_s <= UPDATE_MAX_AGE_S:
        return ""
    return f"the learner has not updated its parameters for {stuck_s:.0f} s"


def _port_trouble(note: dict[str, Any], answer_s: float) -> str:
    """Checks only the TLS handshake: a learner rejects clients without a certificate after that."""
    host, _, port = note["address"].rpartition(":")
    try:
        context = ssl.create_default_context(cafile=note["ca"])
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host.strip("[]"), int(port)), answer_s) as connection,
            context.wrap_socket(connection, server_hostname=note["name"]),
        ):
            return ""
    except OSError as error:  # TLS errors too
        return f"{note['address']} does not answer: {error}"


def main() -> int:
    """Prints whether the process works; returns the exit status for Docker and Kubernetes."""
    try:
        note = json.loads(NOTE.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print("no learner or actor was started in this container")
        return 1
    problem = trouble(note, time.monotonic())
    print(problem or "healthy")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
