"""Attaches this terminal to a launched run: to its progress, or to tmux on one of its machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from impala_tf.config import ConfigError
from impala_tf.frontend import overview
from impala_tf.frontend.launcher import Launcher
from impala_tf.frontend.monitor import MakeDisplay, Monitor
from impala_tf.frontend.parallel import connected, problems
from impala_tf.frontend.record import load


def watch(logdir: Path, make_display: MakeDisplay, accept_new_host_keys: bool = False) -> int:
    """Shows a run until it ends, as the launcher does; Ctrl-C leaves it running.

    Args:
      logdir: the run's logdir, on this machine.
      make_display: see `impala_tf.frontend.launch.launch`.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.

    Returns:
      0 if all learners finished or were stopped, or the run was left running; 1 if a learner
      failed, or may not have saved what it has learned.
    """
    record = load(logdir)
    with connected(record.plan.nodes, record.passwords(), accept_new_host_keys) as machines:
        for line in problems(machines.found):
            print(line, file=sys.stderr)
        return Monitor(Launcher(record, logdir), machines, logdir.resolve(), make_display).run()


def attach(logdir: Path, host: str) -> int:
    """Attaches this terminal to the run's tmux session on a machine, with OpenSSH."""
    record = load(logdir)
    node = overview.machine_called(record.plan, host)
    command = ["tmux", "attach", "-t", f"={record.plan.tmux_sess}"]
    if not node.is_local:
        ssh = ["ssh", "-t"]
        ssh += ["-p", str(node.ssh_port)] if node.ssh_port else []
        ssh += ["-l", node.ssh_username] if node.ssh_username else []
        ssh += ["-i", str(Path(node.key_filename).expanduser())] if node.key_filename else []
        # Quoted: zsh would take =impala for the path of a program.
        command = [*ssh, node.ssh_host, " ".join(f"'{word}'" for word in command)]
    if shutil.which(command[0]) is None:
        raise ConfigError(f"attach: needs the command {command[0]}, and there is none here")
    environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
    return subprocess.run(command, env=environment).returncode
