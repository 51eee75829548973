"""What every process that runs an environment for an actor or an evaluation has in common."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from impala_tf.machine.process_lifetime import die_with_parent

_CLOSE_S = 1.0
"""How long closing waits for a step that was not finished. It comes never if a worker has gone."""

_log = logging.getLogger("impala_tf.environments")


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


def close(vector: VectorEnv[Any, Any, Any]) -> None:
    """Closes environments, also if some of their worker processes have gone."""
    inner = vector.unwrapped
    if not isinstance(inner, AsyncVectorEnv):
        vector.close()
        return
    try:
        vector.close(timeout=_CLOSE_S)
    except (EOFError, OSError) as error:
        _log.warning("a worker process of the environments had ended before: %r", error)
    finally:
        for process in inner.processes:
            process.kill()
            process.join()
        inner.closed = True
