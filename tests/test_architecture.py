"""What stays light and what stays safe. `lint-imports` checks the layers (see pyproject.toml)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.config import ALGORITHMS
from tests.helpers.runs import PROJECT

FILES = [
    *PROJECT.glob("impala_tf/**/*.py"),
    *PROJECT.glob("frontend/*.py"),
    PROJECT / "run_experiment.py",
]
TESTS = [*PROJECT.glob("tests/**/*.py")]
FRONTEND = [
    ".".join(path.relative_to(PROJECT).with_suffix("").parts)
    for path in PROJECT.glob("impala_tf/cluster/**/[a-z]*.py")
]
PICKLES = PROJECT / "impala_tf" / "api" / "objects.py"
"""Writes a function of a notebook to a module, which users consent to import; reads none."""
HEAVY = {"tensorflow", "sonnet", "horovod", "keras"}


def loaded_by(*modules: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after importing `modules`."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {module.partition(".")[0] for module in done.stdout.split()}


def test_the_parent_process_of_a_local_run_is_light() -> None:
    """TensorFlow takes seconds to import and half a gigabyte; this process only watches others."""
    loaded = loaded_by(
        "run_experiment",
        "impala_tf.processes.local_run",
        "impala_tf.monitoring.writers",
        "impala_tf.monitoring.live_display",
    )
    assert "cryptography" in loaded  # it makes the run's certificates
    assert not loaded & (HEAVY | {"grpc"})


def test_the_front_end_is_light() -> None:
    """It must start within a moment, also on machines with few packages."""
    of_learners = ("impala_tf.cluster.node.group", "impala_tf.cluster.node.rendezvous")
    loaded = loaded_by(*(name for name in FRONTEND if name not in of_learners))
    assert "impala_tf" in loaded
    assert not loaded & (HEAVY | {"numpy", "gymnasium", "grpc"})


def test_an_actor_imports_tensorflow_only_if_it_computes_with_it() -> None:
    """Then it starts within a moment, and needs a fifth of the memory."""
    loaded = loaded_by("impala_tf.processes.actor_main")
    assert "grpc" in loaded
    assert not loaded & HEAVY
    assert not loaded_by("impala_tf.measure.parts") & HEAVY


def test_the_record_of_an_algorithm_is_read_without_tensorflow() -> None:
    """Launchers and actors read its defaults and checks."""
    assert not loaded_by(*ALGORITHMS.values()) & HEAVY


def test_one_learner_needs_no_horovod() -> None:
    """Horovod has to be compiled, so it may be missing: import it only for several learners."""
    loaded = loaded_by("impala_tf.learner.learner_group")
    assert "tensorflow" in loaded
    assert "horovod" not in loaded


def test_tests_ask_the_public_interface() -> None:
    """A test of private names fails when code moves, not when it breaks. Few need them."""
    of_namedtuples = {"_replace", "_asdict", "_fields", "_make"}
    found = []
    for path in TESTS:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or node.attr in of_namedtuples:
                continue
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if re.match("_[^_]", node.attr) and owner not in ("self", "cls", "os"):
                found.append(f"{path.relative_to(PROJECT)}:{node.lineno}: {node.attr}")
    assert len(found) < 10, "\n".join(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_nothing_is_unpickled_and_no_shell_reads_a_command(path: Path) -> None:
    """Data from the network or from a file would run as code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported = {node.module or ""}
        else:
            imported = set()
        if path == PICKLES:
            imported -= {"cloudpickle"}
            assert not isinstance(node, ast.Attribute) or not node.attr.startswith("load")
        assert not imported & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
        if isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
            assert isinstance(node.value, ast.Constant) and node.value.value is False
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("os", "system"), ("os", "popen")}
