"""The shape of the house: who may import whom, and what stays light."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = {"impala_tf.transport.impala_pb2", "impala_tf.transport.impala_pb2_grpc"}

# A file may import from lower layers. A package is in one layer as a whole.
LAYERS = {
    "impala_tf": 0,
    "impala_tf.types": 0,
    "impala_tf.config": 0,
    "impala_tf.vtrace": 0,
    "impala_tf.allreduce": 0,
    "impala_tf.frame_stack": 0,
    "impala_tf.heartbeat": 0,
    "impala_tf.logdir": 0,
    "impala_tf.metrics": 0,
    "impala_tf.status": 0,
    "impala_tf.panel": 0,
    "impala_tf.display": 0,
    "impala_tf.lifeline": 0,
    "impala_tf.shutdown": 0,
    "impala_tf.tf_config": 1,
    "impala_tf.flags": 2,
    "impala_tf.identity": 1,
    "impala_tf.learner_metrics": 1,
    "impala_tf.losses": 1,
    "impala_tf.networks": 1,
    "impala_tf.provenance": 1,
    "impala_tf.quiet": 1,
    "impala_tf.video": 1,
    "impala_tf.checkpoint_files": 1,
    "impala_tf.checkpoint": 1,
    "impala_tf.environments": 1,
    "impala_tf.transport": 1,
    "impala_tf.agents": 2,
    "impala_tf.recorder": 2,
    "impala_tf.unroll_queue": 2,
    "impala_tf.actor": 3,
    "impala_tf.learner": 3,
    "impala_tf.evaluation": 3,
    "impala_tf.processes": 4,
}
# Imports within a layer: (who, whom), and why it is no layer of its own.
SAME_LAYER = {
    ("impala_tf.config", "impala_tf.types"): "an agent is checked against an EnvironmentSpec",
    ("impala_tf.metrics", "impala_tf.config"): "a file that is another run's is a ConfigError",
    ("impala_tf.heartbeat", "impala_tf.config"): "a path that cannot be used is a ConfigError",
    ("impala_tf.metrics", "impala_tf.types"): "counts Episodes",
    ("impala_tf.metrics", "impala_tf.logdir"): "flushes its files to the disk",
    ("impala_tf.status", "impala_tf.logdir"): "writes its file atomically",
    ("impala_tf.panel", "impala_tf.status"): "draws a Status",
    ("impala_tf.display", "impala_tf.status"): "reads a Status",
    ("impala_tf.display", "impala_tf.panel"): "shows the panel",
    ("impala_tf.shutdown", "impala_tf.lifeline"): "ends with whoever started it",
    ("impala_tf.checkpoint", "impala_tf.checkpoint_files"): "the part without TensorFlow",
    ("impala_tf.evaluation", "impala_tf.actor"): "shows an agent the same, by the same signature",
}


def modules(*folders: str) -> dict[str, Path]:
    """Every module of the project below `folders`, generated code left out."""
    found = {}
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if name not in GENERATED:
                found[name] = path
    return found


MODULES = modules("impala_tf", "frontend")
OURS = {**MODULES, "run_experiment": ROOT / "run_experiment.py"}


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Yields (module, indentation) of every import in a file, those in functions too.

    `from package import module` counts as an import of the module.
    """
    for node in ast.walk(ast.parse(OURS[name].read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.col_offset) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name}: imports are absolute here"
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                is_module = below in OURS or below in GENERATED
                yield (below if is_module else node.module), node.col_offset


def unit(module: str) -> str:
    """What has a layer: impala_tf.transport.client -> impala_tf.transport."""
    return ".".join(module.split(".")[:2])


def top(module: str) -> str:
    return module.split(".")[0]


def of_project(name: str) -> set[str]:
    """The units of impala_tf that a module imports, its own left out."""
    units = {unit(module) for module, _ in imports(name) if top(module) == "impala_tf"}
    return units - {unit(name)}


def test_every_file_has_a_layer() -> None:
    """A new file belongs somewhere, and a file that is gone leaves no entry behind."""
    assert {unit(name) for name in modules("impala_tf")} == set(LAYERS)


@pytest.mark.parametrize("name", sorted(modules("impala_tf")))
def test_imports_come_from_lower_layers(name: str) -> None:
    """What everything stands on can be read, tested and changed without what stands on it."""
    for imported in of_project(name):
        if (unit(name), imported) not in SAME_LAYER:
            assert LAYERS[imported] < LAYERS[unit(name)], f"{name} imports {imported}"


def test_imports_within_a_layer_are_those_named() -> None:
    used = {
        (unit(name), imported) for name in modules("impala_tf") for imported in of_project(name)
    }
    assert set(SAME_LAYER) <= used
    assert all(LAYERS[who] == LAYERS[whom] for who, whom in SAME_LAYER)


def test_no_file_imports_itself_in_the_end() -> None:
    """Within a package too: a cycle works until somebody changes the order of two lines."""
    graph = {name: {module for module, _ in imports(name)} & set(OURS) for name in OURS}
    # A package's __init__ runs before its files and is no import of theirs.
    graphlib.TopologicalSorter({name: deps - {name} for name, deps in graph.items()}).prepare()


@pytest.mark.parametrize("name", sorted(modules("frontend")))
def test_the_front_end_knows_the_config_alone(name: str) -> None:
    """It must start anywhere within a moment; the rest of the project loads TensorFlow."""
    imported = {module for module, _ in imports(name) if top(module) not in sys.stdlib_module_names}
    ours = {module for module in imported if top(module) in ("impala_tf", "run_experiment")}
    assert ours <= {"impala_tf.config"}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_nothing_imports_what_stands_beside_it(name: str) -> None:
    """Examples and tests can be left out; the front end and the script only start things."""
    beside = {"sandbox", "tests"}
    if top(name) == "impala_tf":
        beside |= {"frontend", "run_experiment"}
    assert not {top(module) for module, _ in imports(name)} & beside


@pytest.mark.parametrize("name", ["impala_tf.types", "impala_tf.config"])
def test_the_foundation_needs_the_standard_library_alone(name: str) -> None:
    """The front end reads the flags on machines that have nothing else installed."""
    others = {top(module) for module, _ in imports(name)} - set(sys.stdlib_module_names)
    assert others <= {"impala_tf"}


def test_only_allreduce_imports_horovod_and_only_when_it_is_needed() -> None:
    """One learner must run where Horovod could not be built."""
    found = {
        name: column
        for name in OURS
        for module, column in imports(name)
        if top(module) == "horovod"
    }
    assert set(found) <= {"impala_tf.allreduce"}
    assert all(column > 0 for column in found.values())


def test_nothing_can_be_unpickled_and_no_shell_reads_a_command() -> None:
    """What comes over the wire or out of a file would run as code."""
    for name, path in OURS.items():
        assert not {top(module) for module, _ in imports(name)} & {
            "pickle", "cloudpickle", "dill", "marshal", "shelve",
        }, name  # fmt: skip
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
                assert isinstance(node.value, ast.Constant) and node.value.value is False, name
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("os", "system"), ("os", "popen")}, name


def test_an_installed_copy_is_whole() -> None:
    """A package that is missing from the list is missing from a wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = {
        name
        for top_level in ("frontend", "impala_tf")
        for name, path in modules(top_level).items()
        if path.stem == "__init__"
    }
    assert set(listed) == packages


def loaded_by(*names: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after importing `names`."""
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return {top(module) for module in done.stdout.split()}


def test_the_starter_of_a_local_run_is_light() -> None:
    """TensorFlow takes seconds and half a gigabyte, in a process that only watches others."""
    loaded = loaded_by(
        "run_experiment", "impala_tf.flags", "impala_tf.processes.local", "impala_tf.metrics"
    )
    assert "grpc" in loaded  # credentials are made before anything is started
    assert not loaded & {"tensorflow", "sonnet", "horovod", "keras"}


def test_the_front_end_is_light() -> None:
    loaded = loaded_by(*sorted(modules("frontend")))
    assert "impala_tf" in loaded
    assert not loaded & {"tensorflow", "sonnet", "horovod", "numpy", "gymnasium", "grpc"}
