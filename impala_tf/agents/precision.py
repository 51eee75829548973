"""--precision: what the torsos of this process compute in."""

from __future__ import annotations

import logging
from pathlib import Path

import tensorflow as tf

from impala_tf.agents.torsos import RESIDUAL_TORSOS
from impala_tf.config import AGENTS, AgentConfig

# As Linux names them, on x86 and on Arm. Without these, bfloat16 would be emulated.
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}

_log = logging.getLogger("impala_tf.precision")


def torso_dtype(agent: AgentConfig, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns --precision, or float32 if nothing on this machine computes in bfloat16.

    The processes of a run may differ: V-trace corrects for the policy that really acted.
    """
    if agent.precision != "bfloat16":
        return agent.precision
    if not (tf.config.get_visible_devices("GPU") or _CPU_FLAGS & _cpu_flags(cpuinfo)):
        _log.warning("--precision=bfloat16: this processor does not support it; using float32")
        return "float32"
    return "bfloat16"


def disable_failing_fusion(agent: AgentConfig) -> None:
    """Switches off TensorFlow's remapper for residual blocks.

    TensorFlow 2.18 fails to fuse them and prints that as an error; without it they are as fast.
    """
    if AGENTS[agent.agent_name].torso in RESIDUAL_TORSOS:
        tf.config.optimizer.set_experimental_options({"remapping": False})


def _cpu_flags(cpuinfo: Path) -> set[str]:
    """Returns the features of the first processor in /proc/cpuinfo; {} if there is no file."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    found = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return set(next(found, "").split())
