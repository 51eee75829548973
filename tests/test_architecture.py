"""What stays light and what stays safe. `lint-imports` checks the layers (see pyproject.toml)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from impala_tf.config import ALGORITHMS
from tests.helpers.runs import PROJECT

FILES = [
    *PROJECT.glob("impala_tf/**/*.py"),
    *PROJECT.glob("frontend/*.py"),
    PROJECT / "run_experiment.py",
]
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


OF_LEARNERS = ("impala_tf.cluster.node.group", "impala_tf.cluster.node.rendezvous")
OF_A_LOCAL_RUN = (
    "run_experiment",
    "impala_tf.processes.local_run",
    "impala_tf.monitoring.writers",
    "impala_tf.monitoring.live_display",
)


@pytest.mark.parametrize(
    ("modules", "needed", "spared"),
    [
        (OF_A_LOCAL_RUN, "cryptography", HEAVY | {"grpc"}),
        ({*FRONTEND} - {*OF_LEARNERS}, "impala_tf", HEAVY | {"numpy", "gymnasium", "grpc"}),
        (["impala_tf.processes.actor_main", "impala_tf.measure.parts"], "grpc", HEAVY),
        (ALGORITHMS.values(), "impala_tf", HEAVY),
        (["impala_tf.learner.learner_group"], "tensorflow", {"horovod"}),
    ],
    ids=["a local run's parent", "the front end", "an actor", "an algorithm's record", "a learner"],
)
def test_processes_load_only_what_they_need(
    modules: Iterable[str], needed: str, spared: set[str]
) -> None:
    """TensorFlow takes seconds and half a gigabyte, and Horovod has to be compiled."""
    loaded = loaded_by(*modules)
    assert needed in loaded
    assert not loaded & spared


def test_nothing_is_unpickled_and_no_shell_reads_a_command() -> None:
    """Data from the network or from a file would run as code."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            _check(node, path)


def _check(node: ast.AST, path: Path) -> None:
    imported: set[str] = set()
    if isinstance(node, ast.Import):
        imported = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        imported = {node.module or ""}
    if path == PICKLES:
        imported -= {"cloudpickle"}
        assert not isinstance(node, ast.Attribute) or not node.attr.startswith("load"), path
    assert not imported & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}, path
    if isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
        assert isinstance(node.value, ast.Constant) and node.value.value is False, path
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        assert (node.value.id, node.attr) not in {("os", "system"), ("os", "popen")}, path
