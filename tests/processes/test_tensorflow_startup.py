"""What TensorFlow is started with: the device that the user asked for, and nothing unneeded."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import tensorflow as tf

from impala_tf.config import ConfigError
from impala_tf.processes.tensorflow_startup import select_device

Says = Callable[[str], list[str]]


@pytest.fixture
def log_of(caplog: pytest.LogCaptureFixture) -> Says:
    """Selects a device; returns what was logged."""

    def select(device: str) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, "impala_tf"):
            select_device(device)
        return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]

    return select


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """The GPUs that TensorFlow finds; none unless the test adds some."""
    found: list[SimpleNamespace] = []

    def show(devices: list[SimpleNamespace], kind: str) -> None:
        assert kind == "GPU"
        found[:] = devices

    def details(gpu: SimpleNamespace) -> dict[str, str]:
        return {"device_name": gpu.name}

    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: list(found))
    monkeypatch.setattr(tf.config, "set_visible_devices", show)

    def grow(gpu: SimpleNamespace, enable: bool) -> None:
        gpu.memory_grows = enable

    monkeypatch.setattr(tf.config.experimental, "get_device_details", details)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", grow)
    return found


@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_gpus_are_used_and_named(gpus: list[SimpleNamespace], log_of: Says, device: str) -> None:
    gpus += [SimpleNamespace(name="H200"), SimpleNamespace(name="L4")]
    assert log_of(device) == ["INFO computing on GPU: H200, L4"]
    assert [gpu.memory_grows for gpu in gpus] == [True, True], "a second learner would have none"


def test_on_request_gpus_are_not_used(gpus: list[SimpleNamespace], log_of: Says) -> None:
    """A GPU that TensorFlow still sees would have its memory reserved."""
    gpus.append(SimpleNamespace(name="H200"))
    (line,) = log_of("cpu")
    assert line.startswith("INFO computing on CPU, ")
    assert gpus == []


def test_a_gpu_that_was_asked_for_and_is_missing_is_an_error(gpus: list[SimpleNamespace]) -> None:
    with pytest.raises(ConfigError, match="^--device=gpu: TensorFlow finds no GPU; .+"):
        select_device("gpu")


@pytest.mark.parametrize(("variable", "warns"), [("0", True), ("-1", False), ("", False)])
def test_a_missing_gpu_that_the_machine_was_told_to_use_is_a_warning(
    gpus: list[SimpleNamespace],
    log_of: Says,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    warns: bool,
) -> None:
    """A broken CUDA installation must not train on the CPU in silence."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    *lines, last = log_of("auto")
    starts = ["WARNING expected a GPU", "INFO check nvidia-smi"] if warns else []
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts
    assert last.startswith("INFO computing on CPU, ")


_DEVICE = """
from impala_tf.processes import tensorflow_startup
tensorflow_startup.import_tensorflow()
tensorflow_startup.select_device("auto")
"""


def test_a_script_on_a_machine_without_a_gpu_prints_no_error() -> None:
    """It has not set TensorFlow's log level, as our own commands do."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-c", _DEVICE], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")


_THREADS = """
import logging, os, sys
os.sched_getaffinity = lambda pid: {{0, 1}}
from impala_tf.processes import tensorflow_startup
tensorflow_startup.cores_here = lambda: {cores}
tensorflow_startup.import_tensorflow()
import tensorflow as tf
logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
{before}
tensorflow_startup.use_threads({threads})
from tensorflow.python.eager import context
print(context.context().config.experimental.disable_thread_spinning)
print(tf.config.threading.get_intra_op_parallelism_threads(), float(tf.reduce_sum(tf.ones([9, 9]))))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threads", "cores", "before", "said"),
    [
        (1, 2, "", ["True", "1 81.0"]),
        (1_000, 2, "", ["False", "0 81.0"]),
        (1, 2, "tf.zeros([])",
         ["TensorFlow was in use already, so all cores compute each operation", "False", "0 81.0"]),
    ],
)  # fmt: skip
def test_threads_that_share_cores_with_actors_do_not_wait_busily(
    threads: int, cores: int, before: str, said: list[str]
) -> None:
    """A module of the user's own may use TensorFlow first; that costs speed, and not the run."""
    script = _THREADS.format(threads=threads, cores=cores, before=before)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == said, done.stderr


_IMPORTS = """
import sys
from impala_tf.processes import tensorflow_startup
tensorflow_startup.import_tensorflow()
print([name for name in ("keras", "matplotlib") if name in sys.modules])
import tensorflow as tf
print(tf.keras.layers.Dense(3)(tf.ones([1, 2])).shape)
"""


@pytest.mark.slow
def test_keras_is_imported_only_for_those_who_use_it() -> None:
    """A level of the user may; our processes do not, and start a second earlier."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "(1, 3)"], done.stderr
