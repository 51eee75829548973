"""Starting TensorFlow: devices, and native libraries that print to standard error on the way."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from impala_tf.config import ConfigError, cores_here, user_commands
from impala_tf.machine.silence import silenced_stderr
from impala_tf.monitoring.notes import FOR_USER

_log = logging.getLogger("impala_tf.device")
_NVIDIA = Path("/dev/nvidiactl")
# Of these, a machine with a GPU and its driver has one: NVIDIA, NVIDIA Jetson, Windows' Linux, AMD,
# and others.
GPU_DRIVERS = (
    _NVIDIA, Path("/dev/nvhost-gpu"), Path("/dev/nvgpu"), Path("/dev/dxg"), Path("/dev/kfd"),
    Path("/dev/dri"),
)  # fmt: skip


def is_installed() -> bool:
    """Returns whether this machine has TensorFlow; one that only has actors may have none."""
    return importlib.util.find_spec("tensorflow") is not None


def check_installed() -> None:
    """Raises ConfigError if this machine has no TensorFlow."""
    if not is_installed():
        raise ConfigError(
            "this needs TensorFlow, but this machine has only what actors need; install the rest"
            f" with {user_commands.install_extra('learner')}"
        )


def check_gpu(device: str) -> None:
    """Raises ConfigError for --device=gpu if this machine surely has no GPU.

    Quick. What only TensorFlow knows, such as whether CUDA's libraries are installed, is left to
    `select_device`.
    """
    if device != "gpu":
        return
    if sys.platform.startswith("linux") and not any(map(Path.exists, GPU_DRIVERS)):
        raise ConfigError(
            "--device=gpu: this machine has no GPU, or no driver of one (nvidia-smi shows both);"
            " leave the flag out"
        )
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen in ("", "-1"):
        raise ConfigError(
            f"--device=gpu: CUDA_VISIBLE_DEVICES={chosen} hides all GPUs; unset the variable"
        )


def import_tensorflow() -> None:
    """Imports TensorFlow without the messages that its GPU plugins print whatever the log level.

    Python exceptions still surface. Keras is left out, which would import Matplotlib: a third of
    the time, and 85 MB. Whoever imports it later gets it.

    Raises:
      ConfigError: this machine has no TensorFlow.
    """
    check_installed()
    with silenced_stderr(), _without("keras"):
        import tensorflow  # noqa: F401


def start_xla() -> None:
    """Compiles a first function without XLA's messages about itself.

    This fixes the numbers of threads and the visible devices: set them before.
    """
    import tensorflow as tf

    with silenced_stderr(), tf.device("CPU"):
        tf.function(lambda: tf.zeros([]), jit_compile=True, autograph=False)()


def select_device(device: str) -> str:
    """Makes TensorFlow compute on --device; logs and returns what that is: names of GPUs, or "CPU".

    A GPU's memory is taken as it is needed, so that several processes can share it, unless this
    process has used it before.

    Raises:
      ConfigError: --device=gpu, but TensorFlow finds no GPU.
    """
    import tensorflow as tf

    with silenced_stderr():  # without a GPU, CUDA's driver is missed there
        gpus = tf.config.get_visible_devices("GPU")
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        gpus = []
    elif not gpus and device == "gpu":
        raise ConfigError(f"--device=gpu: TensorFlow finds no GPU; {_gpu_hint(tf)}")
    elif not gpus and _gpu_expected():
        what = "expected a GPU, but TensorFlow finds none, so the CPU computes; %s"
        _log.warning(what, _gpu_hint(tf), extra=FOR_USER)
    if gpus:
        for gpu in gpus:
            # Otherwise a process takes all of a GPU's memory, and nothing else can use it: neither
            # a second learner nor --mode=test beside a run. A script may have used it before, or
            # have limited its memory.
            with contextlib.suppress(RuntimeError, ValueError):
                tf.config.experimental.set_memory_growth(gpu, True)
        names = [tf.config.experimental.get_device_details(gpu).get("device_name") for gpu in gpus]
        found = ", ".join(map(str, names))
        _log.info("computing on GPU: %s", found)
        return found
    threads = tf.config.threading.get_intra_op_parallelism_threads()  # 0: not set
    each = f", {threads} for each operation" if threads else ""
    _log.info("computing on CPU, %d cores%s", cores_here(), each)
    return "CPU"


def use_threads(count: int) -> None:
    """Divides each operation among so many threads. If there are more cores, none waits busily.

    TensorFlow's threads spin for a while before they sleep, which takes the core from actors. Call
    this before anything else uses TensorFlow; otherwise, it changes nothing.
    """
    import tensorflow as tf

    if count >= cores_here():
        return
    # TensorFlow 2 has no public way to set this option.
    from tensorflow.python.eager import context

    if context.context_safe() is not None:  # an imported module of the user's own has used it
        _log.info("TensorFlow was in use already, so all cores compute each operation")
        return
    options = tf.compat.v1.ConfigProto()
    options.experimental.disable_thread_spinning = True
    context.context()._config = options
    tf.config.threading.set_intra_op_parallelism_threads(count)


def use_one_cpu_thread() -> None:
    """For actors: as many of them as cores run faster than one with many threads."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")


def _gpu_expected() -> bool:
    """Whether the user chose GPUs, or the machine has an NVIDIA driver and nobody hid its GPUs."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return _NVIDIA.exists() if chosen is None else chosen not in ("", "-1")


def _gpu_hint(tf: Any) -> str:
    install = user_commands.install("tensorflow[and-cuda]")
    if not tf.test.is_built_with_cuda():
        return f"this TensorFlow is built without CUDA: {install}"
    return (
        f"install CUDA's libraries ({install}), check nvidia-smi and "
        "CUDA_VISIBLE_DEVICES; TF_CPP_MIN_LOG_LEVEL=0 shows TensorFlow's own messages"
    )


@contextlib.contextmanager
def _without(module: str) -> Iterator[None]:
    """Makes imports of a module fail, unless it was imported before."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # as Python's documentation says
    try:
        yield
    finally:
        del sys.modules[module]
