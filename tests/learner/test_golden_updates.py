"""Every algorithm's updates move parameters, statistics and slots as they did when recorded.

A refactoring that changes how anything learns fails here. Where a change is meant to change it, run
the commands of tests/helpers/golden_updates.py again and say in the commit what moved, and why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.runs import PROJECT

RECORDED = Path(__file__).with_name("golden_updates.json")


def run(path: Path, learners: int) -> dict[str, Any]:
    """Returns what this many real learners, of one group, write."""
    bin_folder = Path(sys.executable).parent
    horovodrun = [str(bin_folder / "horovodrun"), "-np", str(learners)] if learners > 1 else []
    command = [*horovodrun, sys.executable, "-m", "tests.helpers.golden_updates", str(path)]
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=PROJECT, env=environment, timeout=1500, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.timeout(1600)
@pytest.mark.parametrize(
    "learners",
    [
        pytest.param(1, marks=pytest.mark.always),
        pytest.param(2, marks=pytest.mark.xdist_group("horovod")),
    ],
)
def test_updates_are_those_that_were_recorded(learners: int, tmp_path: Path):
    recorded = json.loads(RECORDED.read_text())[str(learners)]
    found = run(tmp_path / "found.json", learners)
    assert list(found) == list(recorded)
    for case, parts in recorded.items():
        del found[case]["digest"]  # the last bits depend on the processor
        assert found[case].pop("same"), f"{case}: learners have trained apart"
        assert set(found[case]) == set(parts), case
        for part, (length, place) in parts.items():
            # Processors round differently, which 64 steps of Adam enlarge to 3 %.
            close = pytest.approx([length, place], rel=0, abs=0.1 * length)
            assert found[case][part] == close, f"{case}: {part}"
