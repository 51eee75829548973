"""The flags' defaults on each kind of level, for each algorithm and preset, are on record."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, get_args

import pytest

from impala_tf import config as configs
from impala_tf.config import ALGORITHMS, PRESETS, Given, to_dict
from impala_tf.types import Kind
from tests.helpers.cores import pretend

DEFAULTS = Path(__file__).with_name("defaults.txt")


def table_of_defaults() -> str:
    """Returns a row for each algorithm, preset and kind of level, on two cores.

    It has the flags that differ from the first row, which has all.
    """
    first: dict[str, Any] = {}
    rows = []
    levels = [*zip(get_args(Kind), 4 * [False], strict=True), ("vector", True)]
    for algorithm, preset, (kind, continuous) in itertools.product(ALGORITHMS, PRESETS, levels):
        given = Given({"algorithm": algorithm, "preset": preset, "num_actors": 2, "logdir": "run"})
        flags = to_dict(configs.resolve(given, kind, continuous))
        changed = [f"{name}={flags[name]}" for name in flags if flags[name] != first.get(name, ...)]
        rows.append(" ".join([algorithm, preset, kind, *continuous * ["continuous"], *changed]))
        first = first or flags
    return "\n".join(rows) + "\n"


def test_defaults_are_those_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """They change only by the protocol in docs/learning.md.

    After that, python -m tests.algorithms.test_defaults writes them anew.
    """
    pretend(monkeypatch, 2)
    assert table_of_defaults() == DEFAULTS.read_text()


if __name__ == "__main__":
    DEFAULTS.write_text(table_of_defaults())
