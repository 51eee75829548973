"""Starts a node's processes again after a reboot, by a line in the user's crontab."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

from impala_tf.config import user_commands
from impala_tf.frontend.node.state import AgentError, Orders


def check() -> None:
    """Raises AgentError if there is no cron on this machine."""
    _crontab()


def install(orders: Orders) -> None:
    """Lets cron start the node's processes at boot; replaces the line of an earlier run here."""
    question = json.dumps({"logdir": orders.logdir, "node": orders.node})
    module = user_commands.module("impala_tf.frontend.node.agent")
    agent = shlex.join([sys.executable, *module, "rejoin"])
    command = f"cd {shlex.quote(orders.code)} && echo {shlex.quote(question)} | {agent}"
    escaped = command.replace("%", "\\%")  # crontab(5): a plain % would end the command
    lines = [line for line in _crontab() if not line.endswith(_mark(orders))]
    _replace([*lines, f"@reboot {escaped}{_mark(orders)}"])


def remove(orders: Orders) -> None:
    """Removes the line that `install` added, if there is one."""
    try:
        lines = _crontab()
    except AgentError:
        return
    remaining = [line for line in lines if not line.endswith(_mark(orders))]
    if remaining != lines:
        _replace(remaining)


def _mark(orders: Orders) -> str:
    return f" # impala_tf {orders.node} in {shlex.quote(orders.logdir)}"


def _crontab() -> list[str]:
    try:
        done = subprocess.run(["crontab", "-l"], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise AgentError("--start_at_boot: cron is missing; on Debian: apt-get install cron") from (
            error
        )
    if done.returncode != 0 and "no crontab" not in done.stderr:
        raise AgentError(f"--start_at_boot: crontab: {done.stderr.strip()}")
    return done.stdout.splitlines() if done.returncode == 0 else []


def _replace(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(["crontab", "-"], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise AgentError(f"--start_at_boot: crontab: {done.stderr.strip()}")
