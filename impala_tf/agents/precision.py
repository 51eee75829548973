"""--precision: the dtype in which this process computes torsos."""

from __future__ import annotations

import logging
from pathlib import Path

import tensorflow as tf

from impala_tf.config import AgentConfig, composition

# Linux's names, on x86 and on Arm. Processors without these features would emulate bfloat16.
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_AMPERE = (8, 0)
"""The compute capability of NVIDIA's first GPUs with bfloat16."""

_log = logging.getLogger("impala_tf.precision")


def torso_dtype(agent: AgentConfig, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns what --precision means on this machine: "float32" or "bfloat16".

    The processes of a run may differ: V-trace corrects for the policy that chose the actions.

    Args:
      agent: the flags of the agent, --precision among them.
      cpuinfo: the file that names the processor's features.
    """
    if agent.precision == "float32" or composition(agent.agent_name).torso.takes != "images":
        return "float32"
    gpus = tf.config.get_visible_devices("GPU")
    supported = bool(_CPU_FLAGS & _cpu_flags(cpuinfo))
    if agent.precision == "auto" and gpus:
        # On GPUs, bfloat16 speeds up residual networks, but not networks with few convolutions
        # (measured, see sandbox/speed.md).
        details = tf.config.experimental.get_device_details(gpus[0])
        has_bfloat16 = details.get("compute_capability", (0, 0)) >= _AMPERE
        is_residual = composition(agent.agent_name).torso.is_residual
        return "bfloat16" if has_bfloat16 and is_residual else "float32"
    if gpus or supported:
        return "bfloat16"
    if agent.precision == "bfloat16":
        _log.warning("--precision=bfloat16: this processor does not support it; using float32")
    return "float32"


def disable_failing_fusion(agent: AgentConfig) -> None:
    """Switches off TensorFlow's remapper for residual networks.

    The remapper of TensorFlow 2.18 fails to fuse residual blocks, and prints an error each time.
    Without it they are as fast.
    """
    if composition(agent.agent_name).torso.is_residual:
        tf.config.optimizer.set_experimental_options({"remapping": False})


def _cpu_flags(cpuinfo: Path) -> set[str]:
    """Returns the features of the first processor in /proc/cpuinfo; empty if there is no file."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return set(next(flags, "").split())
