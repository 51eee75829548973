"""Starts TensorFlow: chooses devices, and hides messages of native libraries."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from impala_tf.config import ConfigError, cores_here, user_commands
from impala_tf.machine.process_output import silenced_stderr
from impala_tf.monitoring.status_file import FOR_USER

_log = logging.getLogger("impala_tf.device")
_HINT = (
    "check nvidia-smi and CUDA_VISIBLE_DEVICES (TF_CPP_MIN_LOG_LEVEL=0 shows TensorFlow's own"
    f" messages), or {user_commands.install('tensorflow[and-cuda]')}"
)
_NVIDIA = Path("/dev/nvidiactl")


def import_tensorflow(extra: str = "learner") -> None:
    """Imports TensorFlow without the messages that its GPU plugins print at any log level.

    Keras is left out: it would import Matplotlib, and take a third of the time and 85 MB. It can
    still be imported later. Raises ConfigError: see `check_installed`.
    """
    check_installed(extra)
    with silenced_stderr(), _without("keras"):
        import tensorflow  # noqa: F401


def check_installed(extra: str = "learner") -> None:
    """Raises ConfigError, which names the extra, if this machine has no TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        raise ConfigError(
            "this needs TensorFlow, but this machine has only what most actors need; install it"
            f" with {user_commands.install_extra(extra)}, or on a cluster with --extras={extra}"
        )


def start_xla() -> None:
    """Compiles a first function without XLA's messages about itself.

    After this, the numbers of threads and the visible devices can no longer be changed.
    """
    import tensorflow as tf

    with silenced_stderr(), tf.device("CPU"):
        tf.function(lambda: tf.zeros([]), jit_compile=True, autograph=False)()


def select_device(device: str) -> str:
    """Makes TensorFlow compute on --device; logs and returns the names of the GPUs, or "CPU".

    A GPU's memory is allocated as needed, so that processes can share it, unless this process has
    used the GPU before. Raises ConfigError: --device=gpu, but TensorFlow finds no GPU.
    """
    import tensorflow as tf

    with silenced_stderr():  # without a GPU, TensorFlow complains about CUDA's driver
        gpus = tf.config.get_visible_devices("GPU")
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        gpus = []
    elif not gpus and device == "gpu":
        raise ConfigError(f"--device=gpu: TensorFlow finds no GPU; {_HINT}")
    elif not gpus and _gpu_expected():
        message = "expected a GPU, but TensorFlow finds none, so the CPU computes; %s"
        _log.warning(message, _HINT, extra=FOR_USER)
    if gpus:
        for gpu in gpus:
            # Otherwise a process takes all of a GPU's memory, so that a second learner, or
            # `impala test` beside a run, cannot use it. The errors: a script has used the GPU
            # before, or has limited its memory.
            with contextlib.suppress(RuntimeError, ValueError):
                tf.config.experimental.set_memory_growth(gpu, True)
        details = map(tf.config.experimental.get_device_details, gpus)
        names = ", ".join(str(each.get("device_name")) for each in details)
        _log.info("computing on GPU: %s", names)
        return names
    threads = tf.config.threading.get_intra_op_parallelism_threads()  # 0: not set
    suffix = f", {threads} for each operation" if threads else ""
    _log.info("computing on CPU, %d cores%s", cores_here(), suffix)
    return "CPU"


def use_threads(count: int) -> None:
    """Makes each operation use `count` threads. If there are more cores, threads do not spin.

    TensorFlow's threads spin for a while before they sleep, which takes cores from actors. Call
    this before anything else uses TensorFlow; otherwise, it has no effect.
    """
    import tensorflow as tf

    if count >= len(os.sched_getaffinity(0)):  # as many as TensorFlow makes: it knows no quota
        return
    options = tf.compat.v1.ConfigProto()
    options.experimental.disable_thread_spinning = True
    # Only who enables eager execution can give these options.
    tf.compat.v1.disable_eager_execution()
    try:
        tf.compat.v1.enable_eager_execution(config=options)
    except (ValueError, AttributeError):  # the latter is a slip in TensorFlow's error message
        # A module of the user's own has used it. This brings its eager execution back.
        tf.compat.v1.disable_eager_execution()
        tf.compat.v1.enable_eager_execution()
        _log.info("TensorFlow was in use already, so all cores compute each operation")
        return
    tf.config.threading.set_intra_op_parallelism_threads(count)


def use_one_cpu_thread() -> None:
    """Uses one thread, for actors: one per core is faster than one actor with many threads."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")


def _gpu_expected() -> bool:
    """Whether the user chose GPUs, or the machine has an NVIDIA driver and no GPU is hidden."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return _NVIDIA.exists() if chosen is None else chosen not in ("", "-1")


@contextlib.contextmanager
def _without(module: str) -> Iterator[None]:
    """Makes imports of a module fail, unless it was imported before."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # see importlib's documentation
    try:
        yield
    finally:
        del sys.modules[module]
