"""Changes the code in small ways, one at a time, and counts the changes that no test notices.

    python sandbox/mutants.py [--number=60] [--seed=1] [FILE ...]

A mutant is a copy of the code with one other comparison, operator, constant, condition or call of
min or max. It is killed if a test fails that imports the file, or is of its package or of the
algorithms, which use all of the learner.
Without FILE, mutants are drawn from the mathematics and the protocol. Exit status 1: more than a
tenth of them are alive.
"""

from __future__ import annotations

import argparse
import ast
import copy
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import scipy.stats  # noqa: F401  # before the first fork
import tensorflow  # noqa: F401

PROJECT = Path(__file__).resolve().parents[1]
FILES = (
    "impala_tf/learner/*.py",
    "impala_tf/algorithms/**/*.py",
    "impala_tf/agents/*.py",
    "impala_tf/checkpoint/*.py",
    "impala_tf/transport/codec.py",
    "impala_tf/transport/wire.py",
)
NEVER = "docker or long or faults or cluster or zoo or slurm or ray"
STEPS = (f"not (slow or {NEVER})", f"slow and not ({NEVER})")  # of the tests
NO_TESTS = 5  # pytest's exit status
TIMEOUT_S = 600  # a test that hangs notices the mutant, too
OTHER: dict[type, Any] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


class Mutant(NamedTuple):
    """A file, the text to replace in it, and its new text."""

    path: Path
    line: int
    start: int  # of the text, in bytes from the file's beginning
    old: str
    new: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yields every mutant of a file."""
    source = path.read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    for node in _walk(ast.parse(source)):
        changed = _changed(copy.deepcopy(node))
        if changed is not None and isinstance(node, ast.expr):
            old = ast.get_source_segment(source, node)
            assert old is not None
            start = starts[node.lineno - 1] + node.col_offset
            yield Mutant(path, node.lineno, start, old, f"({ast.unparse(changed)})")


def _changed(node: ast.AST) -> ast.AST | None:
    """Changes a node; returns None if there is nothing to change."""
    match node:
        case ast.Compare(ops=[operator, *rest]) if type(operator) in OTHER:
            node.ops = [OTHER[type(operator)](), *rest]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in OTHER:
            node.op = OTHER[type(operator)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value) | float(value)):
            node.value = 2 if value == 1 else value * 2 or 1
        case ast.Call(func=ast.Name(id=name) as function) if name in CALLS:
            function.id = CALLS[name]
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in CALLS:
            function.attr = CALLS[name]
        case _:
            return None
    return node


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that run: not annotations, errors, logs and text."""
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for each in child if isinstance(child, list) else [child]:
            if not isinstance(each, ast.AST) or isinstance(each, ast.Raise | ast.JoinedStr):
                continue
            if isinstance(each, ast.Call) and ast.unparse(each.func).startswith("_log."):
                continue
            if isinstance(each, ast.keyword) and each.arg == "strict":  # of zip: a check
                continue
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]).endswith("_S"):
                continue  # a time limit: no test waits that long
            yield each
            yield from _walk(each)


def is_killed(mutant: Mutant, project: Path) -> bool:
    """Returns whether a test fails on the mutant; fast ones come first.

    Args:
      mutant: the change.
      project: a copy of the project; it is as before afterwards.
    """
    inside = mutant.path.relative_to(PROJECT)
    file, package = project / inside, inside.parts[1]
    whole = file.read_bytes()
    end = mutant.start + len(mutant.old.encode())
    assert whole[mutant.start : end].decode() == mutant.old
    file.write_bytes(whole[: mutant.start] + mutant.new.encode() + whole[end:])
    # Tests that name the module, wherever they are, come first.
    module = f"impala_tf.{package}.{inside.stem}"
    from_package = re.compile(rf"impala_tf\.{package} import .*\b{inside.stem}\b|{module}\b")
    tests = [
        test
        for test in sorted((project / "tests").rglob("test_*.py"), key=lambda path: path.parts)
        if {package, "algorithms"} & {*test.parts} or from_package.search(test.read_text())
    ]
    tests.sort(key=lambda test: (not from_package.search(test.read_text()), str(test)))
    try:
        for step in STEPS:
            child = multiprocessing.Process(target=_test, args=(project, step, tests))
            child.start()
            child.join(TIMEOUT_S)
            child.kill()
            child.join()
            if child.exitcode not in (0, NO_TESTS):
                return True
    finally:
        file.write_bytes(whole)
    return False


def _test(project: Path, step: str, tests: list[Path]) -> None:
    """Runs tests in this process, which a fork has given TensorFlow, but nothing of the project."""
    os.chdir(project)
    sys.path.insert(0, str(project))
    os.environ.update(PYTHONPATH=str(project), PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os._exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", step, *map(str, tests)]))


def main() -> int:
    """Tries the mutants; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--number", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("files", nargs="*", metavar="FILE", help="where to draw from")
    flags = parser.parse_args()
    paths = [Path(file).resolve() for file in flags.files] or [
        path for pattern in FILES for path in sorted(PROJECT.glob(pattern))
    ]
    every = [mutant for path in paths for mutant in mutants_of(path)]
    chosen = random.Random(flags.seed).sample(every, min(flags.number, len(every)))
    print(f"{len(chosen)} of {len(every)} mutants")
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".git", ".venv", "runs", "site", "__pycache__", ".*_cache")
        shutil.copytree(PROJECT, project, symlinks=True, ignore=ignored)
        for number, mutant in enumerate(chosen, 1):
            killed = is_killed(mutant, project)
            alive += not killed
            place = f"{mutant.path.relative_to(PROJECT)}:{mutant.line}"
            change = " ".join(f"{mutant.old} -> {mutant.new}".split())
            print(f"{number:3} {'killed' if killed else 'ALIVE '} {place}: {change}", flush=True)
    print(f"{alive} of {len(chosen)} are alive")
    return int(alive > 0.1 * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
