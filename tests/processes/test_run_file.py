"""A run is resolved once: its processes make no level to look at, and subtract the same offsets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impala_tf.config import ConfigError, Given
from impala_tf.logdir import Logdir
from impala_tf.processes import provenance, run_file
from impala_tf.processes.common import resolve
from tests.helpers.games import WORLDS
from tests.helpers.runs import PROJECT, Run


def test_a_run_makes_its_levels_and_one_to_look_at(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """A simulator may take a minute to start, or a licence."""
    made = tmp_path / "made"
    flags = (f"--level_name={WORLDS}:CountedCartPole-v1", f"--logdir={tmp_path / 'run'}")
    code, out, err = start(
        *flags, "--num_actors=1", "--envs_per_actor=3", "--total_environment_frames=3000",
        environment={"IMPALA_TF_TEST_MADE": str(made)},
    ).wait()  # fmt: skip
    assert code == 0, err + out
    assert made.read_text() == "." * (3 + 1)
    assert (tmp_path / "run" / "run.json").stat().st_mode & 0o777 == 0o600
    command = json.loads((tmp_path / "run" / "config.json").read_text())["command"]
    assert flags[0] in command, "what a person typed"


FAR = "tests.environments.test_spaces:Far"
SHOWS = """
import sys
from impala_tf.processes import run_file
from impala_tf.processes.common import resolve
given = run_file.read(sys.argv[1:])
config, spec = resolve(given)
print(sys.argv[0], config.process.task, spec.offsets)
"""


def test_a_process_knows_its_run_from_the_file(tmp_path: Path) -> None:
    """Numbers far from zero differ by less than float32 can tell. A clock's offset moves on."""
    config, spec = resolve(Given({"level_name": FAR, "logdir": str(tmp_path)}))
    assert spec.offsets
    spec = spec._replace(offsets={"": [4e6, 0.0]})
    run_file.write(tmp_path / "run.json", config, spec)
    words = run_file.command(tmp_path / "run.json", "actor", 7)[-3:]
    done = subprocess.run(
        [sys.executable, "-c", SHOWS, *words], capture_output=True, text=True, cwd=PROJECT
    )
    assert done.stdout == f"{sys.argv[0]} 7 {spec.offsets}\n", done.stderr


def test_a_resumed_run_subtracts_what_it_did(tmp_path: Path) -> None:
    config, now = resolve(Given({"level_name": FAR, "logdir": str(tmp_path)}))
    offsets = {name: (np.asarray(each) + 4096).tolist() for name, each in now.offsets.items()}
    before = now._replace(offsets=offsets, protocol="as before")
    described = provenance.describe(config, before, {}, 0, "CPU")
    (tmp_path / "config.json").write_text(json.dumps(described))
    described = provenance.read(Logdir(tmp_path))
    assert provenance.keep_offsets(now, described) == before
    assert provenance.keep_offsets(now._replace(level_name="Other-v0"), described) != before

    cases: tuple[Any, ...] = ({"n": [3e6]}, {"n": "many"}, {"x": [float("nan")] * 2}, 7, {"y": [1]})
    for wrong in cases:
        described["level"]["offsets"] = wrong
        with pytest.raises(ConfigError, match=f"^--level_name={FAR}: "):
            provenance.keep_offsets(now, described)
