"""--precision: the dtype in which this process computes torsos."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_tf.config import AgentConfig, composition

# Linux's names, on x86 and on Arm. Processors without these features would emulate bfloat16.
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
# With auto, bfloat16 must be this many times as fast to be worth its rounding.
_WORTHWHILE = 1.1
_TURNS = 5
_AMPERE = (8, 0)
"""The compute capability of NVIDIA's first GPUs with bfloat16."""

_log = logging.getLogger("impala_tf.precision")


def torso_dtype(
    agent: AgentConfig,
    cpuinfo: Path = Path("/proc/cpuinfo"),
    measure: Callable[[], float] | None = None,
) -> str:
    """Returns what --precision means on this machine: "float32" or "bfloat16".

    The processes of a run may differ: V-trace corrects for the policy that chose the actions.

    Args:
      agent: the flags of the agent, --precision among them.
      cpuinfo: the file that names the processor's features.
      measure: returns how many times as fast bfloat16 is; None: `speed_of_bfloat16`.
    """
    if agent.precision == "float32" or composition(agent.agent_name).torso.takes != "images":
        return "float32"
    gpus = tf.config.get_visible_devices("GPU")
    supported = bool(_CPU_FLAGS & _cpu_flags(cpuinfo))
    if agent.precision == "bfloat16":
        if gpus or supported:
            return "bfloat16"
        _log.warning("--precision=bfloat16: this processor does not support it; using float32")
        return "float32"
    if gpus:
        return _on_gpu(agent, tf.config.experimental.get_device_details(gpus[0]))
    if not supported:
        return "float32"
    ratio = (measure or speed_of_bfloat16)()
    dtype = "bfloat16" if ratio >= _WORTHWHILE else "float32"
    _log.info("--precision=auto: %s (bfloat16 is %.1f times as fast here)", dtype, ratio)
    return dtype


def _on_gpu(agent: AgentConfig, details: dict[str, Any]) -> str:
    """Returns what --precision=auto means on a GPU.

    On GPUs, bfloat16 speeds up residual networks, but not networks with few convolutions (measured,
    see sandbox/speed.md).
    """
    has_bfloat16 = details.get("compute_capability", (0, 0)) >= _AMPERE
    is_residual = composition(agent.agent_name).torso.is_residual
    return "bfloat16" if has_bfloat16 and is_residual else "float32"


def disable_failing_fusion(agent: AgentConfig) -> None:
    """Switches off TensorFlow's remapper for residual networks.

    The remapper of TensorFlow 2.18 fails to fuse residual blocks, and prints an error each time.
    Without it they are as fast.
    """
    if composition(agent.agent_name).torso.is_residual:
        tf.config.optimizer.set_experimental_options({"remapping": False})


@functools.cache
def speed_of_bfloat16() -> float:
    """Returns how many times as fast a convolution and its gradients are in bfloat16.

    Measured once per process. The two dtypes take turns and the best time of each counts, because
    other processes may be starting at the same time.
    """
    tasks = [_convolution(dtype) for dtype in (tf.float32, tf.bfloat16)]
    for task in tasks:  # warms up
        task()
    best = [
        min(times) for times in zip(*(map(_seconds, tasks) for _ in range(_TURNS)), strict=True)
    ]
    return best[0] / best[1]


def _convolution(dtype: tf.DType) -> Callable[[], object]:
    """Returns a function that does the work of a torso's middle layer on 64 images."""
    images = tf.ones((64, 20, 20, 32), dtype)
    kernel = tf.ones((4, 4, 32, 64), dtype)

    def task() -> object:
        with tf.GradientTape() as tape:
            tape.watch((images, kernel))
            out = tf.nn.conv2d(images, kernel, 2, "VALID")
        return tape.gradient(out, (images, kernel))[1].numpy()

    return task


def _seconds(task: Callable[[], object]) -> float:
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


def _cpu_flags(cpuinfo: Path) -> set[str]:
    """Returns the features of the first processor in /proc/cpuinfo; empty if there is no file."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return set(next(flags, "").split())
