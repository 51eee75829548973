"""Gymnasium levels whose environments run in processes of their own."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import psutil
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


def test_processes_behave_like_single_environments() -> None:
    """An action, reward or observation must not reach another environment than its own."""
    environment = environment_of(in_processes("Pictures-v0"), num_envs=3)
    alone = [gymnasium.make("Pictures-v0") for _ in range(3)]
    environment.reset()
    for env in alone:
        env.reset()
    for t in range(7):
        chosen = actions(t % 2, 1, 0)
        output = environment.step(chosen)
        for n, env in enumerate(alone):
            observation, reward, terminated, _, _ = env.step(chosen[n])
            np.testing.assert_array_equal(output.observation[n], observation)
            assert (output.reward[n], output.terminated[n]) == (reward, terminated)
    environment.close()


def test_a_level_may_start_processes_in_its_own() -> None:
    """Daemons may not, but levels with a simulator are those that need a process."""
    environment = environment_of(in_processes("WithSimulator"), num_envs=2)
    assert environment.reset().observation.shape == (2, 4)
    environment.close()


@pytest.mark.parametrize("processes", [True, False])
def test_a_level_is_made_once_for_its_spec_and_once_for_each_environment(
    processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulator may take minutes to start, or have a licence for each."""
    made = tmp_path / "made"
    monkeypatch.setenv("IMPALA_TF_TEST_MADE", str(made))
    env = level(f"{WORLDS}:CountedCartPole-v1", environment_processes=processes)
    environment = environment_of(env, num_envs=3)
    environment.reset()
    environment.close()
    assert made.read_text() == "." * 4


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("licence", r"^--level_name=.*NoLicence-v1.* raised OSError: no licence left for this"),
        ("die", r"a process .* ended; exit codes: \[.*7.*\]"),
    ],
)
def test_an_environment_that_cannot_be_made_in_its_process_says_why(
    cause: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent only saw that a connection had broken."""
    monkeypatch.setenv("IMPALA_TF_TEST_NO_LICENCE", cause)
    env = level(f"{BROKEN_WORLDS}:NoLicence-v1", environment_processes=True)
    with pytest.raises((LevelCodeError, LevelRaisedError), match=said):
        vector_of(env, 2)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("die", r"a process .* ended; exit codes: \[3\]"),  # or -9: by the kernel, for memory
        ("exit", "SystemExit: 0 .broken_worlds.py, line"),
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


STEPS_FOREVER = f"""
import time, numpy as np
from impala_tf.config import EnvironmentConfig, LevelRaisedError
from impala_tf.environments import suites
config = EnvironmentConfig(level_name="{BROKEN_WORLDS}:Hanging-v0", environment_processes=True)
env = suites.make(config, suites.spec(config), 2)
env.reset()
env.unwrapped.step_async(np.zeros(2, np.int64))
print(*[process.pid for process in env.unwrapped.processes], flush=True)
time.sleep(3600)
"""


def test_processes_end_with_a_killed_actor() -> None:
    """Otherwise every killed actor would leave processes that fill the machine."""
    with subprocess.Popen(
        [sys.executable, "-c", STEPS_FOREVER], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as actor:
        assert actor.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in actor.stdout.readline().split()]
        actor.kill()
    gone, alive = psutil.wait_procs(workers, timeout=20)
    for worker in alive:
        worker.kill()
    assert (len(gone), alive) == (2, [])
