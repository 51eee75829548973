"""--precision: what the torsos of this process compute in."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_tf.config import AgentConfig, composition

# As Linux names them, on x86 and on Arm. Without these, bfloat16 would be emulated.
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
# auto: bfloat16 has to be faster by this factor to be worth its rounding.
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

    The processes of a run may differ: V-trace corrects for the policy that really acted.

    Args:
      agent: --precision and the network.
      cpuinfo: names the processor's instructions.
      measure: returns how many times as fast bfloat16 is; default: measures it, once a process.
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
    chosen = "bfloat16" if ratio >= _WORTHWHILE else "float32"
    _log.info("--precision=auto: %s (bfloat16 is %.1f times as fast here)", chosen, ratio)
    return chosen


def _on_gpu(agent: AgentConfig, details: dict[str, Any]) -> str:
    """Returns what --precision=auto means on a GPU.

    There, bfloat16 makes residual networks faster, and not those with few convolutions (measured,
    see sandbox/speed_records.md).
    """
    has_bfloat16 = details.get("compute_capability", (0, 0)) >= _AMPERE
    is_residual = composition(agent.agent_name).torso.is_residual
    return "bfloat16" if has_bfloat16 and is_residual else "float32"


def disable_failing_fusion(agent: AgentConfig) -> None:
    """Switches off TensorFlow's remapper for residual blocks.

    TensorFlow 2.18 fails to fuse them and prints that as an error; without it they are as fast.
    """
    if composition(agent.agent_name).torso.is_residual:
        tf.config.optimizer.set_experimental_options({"remapping": False})


@functools.cache
def speed_of_bfloat16() -> float:
    """Returns how many times as fast as in float32 a convolution and its gradients are.

    The two take turns and their best times count: other processes may be starting meanwhile.
    """
    works = [_convolution(dtype) for dtype in (tf.float32, tf.bfloat16)]
    for work in works:
        work()
    best = [
        min(times) for times in zip(*(map(_seconds, works) for _ in range(_TURNS)), strict=True)
    ]
    return best[0] / best[1]


def _convolution(dtype: tf.DType) -> Callable[[], object]:
    """Returns the work of a middle layer of a torso on 64 images."""
    images = tf.ones((64, 20, 20, 32), dtype)
    kernel = tf.ones((4, 4, 32, 64), dtype)

    def work() -> object:
        with tf.GradientTape() as tape:
            tape.watch((images, kernel))
            out = tf.nn.conv2d(images, kernel, 2, "VALID")
        return tape.gradient(out, (images, kernel))[1].numpy()

    return work


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _cpu_flags(cpuinfo: Path) -> set[str]:
    """Returns the features of the first processor in /proc/cpuinfo; {} if there is no file."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    found = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return set(next(found, "").split())
