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
from impala_tf.environments import suites
from impala_tf.logdir import Logdir
from impala_tf.processes import provenance, run_file
from impala_tf.processes.common import resolve
from impala_tf.processes.trained_flags import as_trained
from tests.helpers.games import WORLDS
from tests.helpers.runs import PROJECT, Run


@pytest.mark.end_to_end
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


FAR = f"{WORLDS}:FarAway-v0"
SHOWS = """
import sys
from impala_tf.processes import run_file
from impala_tf.environments import suites
given = run_file.read(sys.argv[1:])
observation, _ = suites.make(given.environment, 1, seed=3).reset()
print(sys.argv[0], given["task"], *observation[0].tolist())
"""


def test_a_process_subtracts_what_its_run_does(tmp_path: Path) -> None:
    """Numbers far from zero differ by less than float32 can tell. A clock's offset moves on."""
    config, spec = resolve(Given({"level_name": FAR, "logdir": str(tmp_path)}))
    assert spec.offsets == ({"": [4999168.0] * 4},)
    spec = spec._replace(offsets=({"": [4e6] * 4},))
    run_file.write(tmp_path / "run.json", config, spec)
    words = run_file.command(tmp_path / "run.json", "actor", 7)[-3:]
    done = subprocess.run(
        [sys.executable, "-c", SHOWS, *words], capture_output=True, text=True, cwd=PROJECT
    )
    program, task, *observation = done.stdout.split()
    assert (program, task) == (sys.argv[0], "7"), done.stderr
    np.testing.assert_allclose([float(each) for each in observation], 1e6, atol=0.1)


def test_a_resumed_run_and_an_evaluation_subtract_what_the_run_did(tmp_path: Path) -> None:
    config, spec = resolve(Given({"level_name": FAR, "logdir": str(tmp_path)}))
    before = spec._replace(offsets=({"": [3e6] * 4},))
    described = provenance.describe(config, before, {}, 0, "CPU")
    (tmp_path / "config.json").write_text(json.dumps(described))

    provenance.keep_offsets(config.environment, provenance.read(Logdir(tmp_path)))
    now = suites.spec(config.environment)
    assert now.offsets == before.offsets and "3000000.0" in now.protocol
    suites.keep_offsets(config.environment, spec.offsets)
    tested = as_trained(Given({"mode": "test", "logdir": str(tmp_path)}))
    assert suites.spec(tested.environment).offsets == before.offsets

    cases: tuple[Any, ...] = (
        [{"": [3e6]}],
        [{"": "many"}],
        [{"": [float("nan")] * 4}],
        7,
        [{}, {}],
    )
    for wrong in cases:
        described["level"]["offsets"] = wrong
        (tmp_path / "config.json").write_text(json.dumps(described))
        with pytest.raises(ConfigError, match=f"^--level_name={FAR}: "):
            suites.spec(as_trained(Given({"mode": "test", "logdir": str(tmp_path)})).environment)
