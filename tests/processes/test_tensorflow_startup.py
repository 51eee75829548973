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

    def grow(gpu: SimpleNamespace, enable: bool) -> None:
        gpu.memory_grows = enable

    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: list(found))
    monkeypatch.setattr(tf.config, "set_visible_devices", show)
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda gpu: {"device_name": gpu.name}
    )
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", grow)
    return found


@pytest.mark.parametrize("device", ["auto", "gpu", "cpu"])
def test_gpus_are_used_if_they_are_asked_for(
    gpus: list[SimpleNamespace], log_of: Says, device: str
) -> None:
    both = [SimpleNamespace(name="H200"), SimpleNamespace(name="L4")]
    gpus += both
    (line,) = log_of(device)
    if device == "cpu":
        assert line.startswith("INFO computing on CPU, ")
        assert gpus == [], "a GPU that TensorFlow still sees would have its memory reserved"
    else:
        assert line == "INFO computing on GPU: H200, L4"
        assert all(gpu.memory_grows for gpu in both), "a second learner would have none"


@pytest.mark.parametrize(("variable", "warns"), [("0", True), ("-1", False), ("", False)])
def test_a_missing_gpu_that_was_asked_for_is_not_ignored(
    gpus: list[SimpleNamespace],
    log_of: Says,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    warns: bool,
) -> None:
    """A broken CUDA installation must not train on the CPU in silence."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    *lines, last = log_of("auto")
    assert [line.split()[0] for line in lines] == ["WARNING"] * warns
    assert last.startswith("INFO computing on CPU, ")
    with pytest.raises(ConfigError, match="^--device=gpu: TensorFlow finds no GPU; .+"):
        select_device("gpu")


def run_script(script: str, **variables: str) -> list[str]:
    """Returns what a script prints after our import; it may print no error."""
    imports = "from impala_tf.processes import tensorflow_startup as startup\n"
    environment = {name: each for name, each in os.environ.items() if name[:6] != "TF_CPP"}
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}startup.import_tensorflow()\n{script}"],
        capture_output=True, text=True, env={**environment, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


_KERAS = """
import sys
startup.select_device("auto")
print([name for name in ("keras", "matplotlib") if name in sys.modules])
import tensorflow as tf
print(tf.keras.layers.Dense(3)(tf.ones([1, 2])).shape)
"""


def test_keras_is_imported_only_for_those_who_use_it_and_no_gpu_is_no_error() -> None:
    """A level of the user may; our processes do not, and start a second earlier.

    The script has not set TensorFlow's log level, as our own commands do.
    """
    assert run_script(_KERAS, CUDA_VISIBLE_DEVICES="-1") == ["[]", "(1, 3)"]


_THREADS = """
import logging, os, sys
os.sched_getaffinity = lambda pid: {{0, 1}}
import tensorflow as tf
logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
{before}
startup.use_threads(1)
print(tf.config.threading.get_intra_op_parallelism_threads(), float(tf.reduce_sum(tf.ones([9, 9]))))
"""
IN_USE = "TensorFlow was in use already, so all cores compute each operation"


@pytest.mark.parametrize(
    ("before", "said"), [("", ["1 81.0"]), ("tf.zeros([])", [IN_USE, "0 81.0"])]
)
def test_operations_use_as_many_threads_as_actors_leave(before: str, said: list[str]) -> None:
    """A module of the user's own may use TensorFlow first; that costs speed, and not the run."""
    assert run_script(_THREADS.format(before=before))[: len(said)] == said
