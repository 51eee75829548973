"""Gymnasium levels whose environments run in processes of their own."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gymnasium.vector import AsyncVectorEnv

from impala_tf.config import EnvironmentConfig, LevelRaisedError
from impala_tf.environments.simplify import LevelCodeError
from tests.helpers.games import (
    BROKEN_WORLDS,
    WORLDS,
    actions,
    batched,
    environment_of,
    level,
    vector_of,
)
from tests.helpers.runs import PROJECT


def in_processes(name: str) -> EnvironmentConfig:
    return level(f"{WORLDS}:{name}", environment_processes=True)


def test_a_level_may_start_processes_in_its_own() -> None:
    """Daemons may not, but levels with a simulator are those that need a process."""
    environment = environment_of(in_processes("WithSimulator"), num_envs=2)
    assert environment.reset().observation.shape == (2, 4)
    environment.close()


def test_an_environment_that_cannot_be_made_in_its_process_says_why() -> None:
    """Its parent only saw that a connection had broken."""
    env = level(f"{BROKEN_WORLDS}:NoLicence-v1", environment_processes=True)
    with pytest.raises(LevelRaisedError, match="NoLicence-v1.* raised OSError: no licence left"):
        vector_of(env, 2)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("die", r"a process .* ended; exit codes: \[3\]"),  # or -9: by the kernel, for memory
        ("odd", "OddError: no simulator at port 7 .broken_worlds.py, line"),
    ],
)
def test_a_process_whose_level_breaks_says_why(fault: str, cause: str) -> None:
    """Not that a connection is broken, or an error cannot be unpickled."""
    kwargs = f'{{"fault": "{fault}"}}'
    name = f"{BROKEN_WORLDS}:FaultyCartPole"
    env = level(name, level_kwargs=kwargs, environment_processes=True)
    environment = environment_of(env, num_envs=1)
    environment.reset()
    with pytest.raises(LevelCodeError, match=cause):
        environment.step(actions(0))
    environment.close()


UNGUARDED = f"""
print("the script runs", flush=True)
from tests.helpers.games import environment_of, level
environment = environment_of(
    level("{WORLDS}:Pictures-v0", environment_processes=True), num_envs=2
)
print(environment.reset().observation.shape, flush=True)
"""


def test_processes_do_not_run_the_user_s_script_again_nor_outlive_it(tmp_path: Path) -> None:
    """Without a guard, each would make environments, too, and fail: a notebook's habit."""
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["the script runs", "(2, 24, 32, 3)"], done.stderr


def test_processes_survive_ctrl_c() -> None:
    """Ctrl-C reaches every process. The actor finishes its unroll, so it still needs them."""
    # Where tests run in the background, shells ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    env = vector_of(in_processes("Pictures-v0"), 2)
    signal.signal(signal.SIGINT, before)
    environment = batched(env)
    environment.reset()
    assert isinstance(env.unwrapped, AsyncVectorEnv)
    for process in env.unwrapped.processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGHUP)
    assert environment.step(actions(0, 1)).reward.tolist() == [0, 1]
    environment.close()
