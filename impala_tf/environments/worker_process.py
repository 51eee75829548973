"""What every process that runs an environment for an actor or an evaluation has in common."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium

from impala_tf.process_lifetime import die_with_parent


def ends_with_parent(env: gymnasium.Env[Any, Any], parent_pid: int) -> gymnasium.Env[Any, Any]:
    """Makes a worker process end with its parent, and only then; returns `env`.

    AsyncVectorEnv also makes one environment in the parent itself; nothing changes there.
    """
    if os.getpid() != parent_pid:
        # Ctrl-C and a closed terminal reach all processes; only the parent acts on them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        die_with_parent(parent_pid)
    return env
