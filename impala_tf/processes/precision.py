"""What the torsos of this process compute on images in."""

from __future__ import annotations

import logging
from pathlib import Path

import tensorflow as tf

from impala_tf.config import AGENTS, AgentConfig

# As Linux names them, on x86 and on Arm. Without them bfloat16 would be emulated.
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_RESIDUAL_TORSOS = ("impala", "impoola")

_log = logging.getLogger("impala_tf.precision")


def choose(agent: AgentConfig, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns --precision, or float32 where this machine has nothing that computes in bfloat16.

    Processes of a run need not agree: the learner corrects for what actors really did.
    """
    if agent.precision != "bfloat16":
        return agent.precision
    if not (tf.config.get_visible_devices("GPU") or _CPU_FLAGS & _cpu_flags(cpuinfo)):
        _log.warning("--precision=bfloat16: not on this processor; computes in float32")
        return "float32"
    if AGENTS[agent.agent_name].torso in _RESIDUAL_TORSOS:
        # TensorFlow 2.18 fails to fuse residual blocks in bfloat16, and prints that as an error.
        tf.config.optimizer.set_experimental_options({"remapping": False})
    return "bfloat16"


def _cpu_flags(cpuinfo: Path) -> set[str]:
    """Returns what the first processor of /proc/cpuinfo can do; nothing where there is none."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    found = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return set(next(found, "").split())
