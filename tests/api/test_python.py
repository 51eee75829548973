"""The Python interface: wrong input, and a run that is stopped, resumed, loaded and evaluated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import pytest

import impala_tf as impala
from impala_tf.api.objects import Objects
from impala_tf.config import python_values
from impala_tf.environments import suites
from impala_tf.processes import trained_flags
from tests.helpers.games import vector_of
from tests.helpers.runs import PROJECT, status
from tests.helpers.waiting import wait_until

CARTPOLE = "CartPole-v1"


def impala_given(**flags):
    return python_values.given(flags)


@pytest.mark.parametrize(
    ("level", "flags", "problem"),
    [
        (CARTPOLE, {"btach_size": 1}, "btach_size: no such argument; did you mean batch_size?"),
        (CARTPOLE, {"batch_size": "many"}, "batch_size=many: must be a whole number"),
        (CARTPOLE, {"mode": "test"}, "mode: train does not take it"),
        ("CartPoel-v1", {}, "level_name=CartPoel-v1: no such level; near matches: CartPole-v1"),
        (CARTPOLE, {"agent": 3}, "agent=3: must be a network's name, or a class or function"),
        (CARTPOLE, {"algorithm": 3}, "algorithm=notebook_int:int: must be a record"),
        (CARTPOLE, {"callbacks": [3]}, "callbacks=notebook_int:int: must be a subclass"),
        (3, {}, "level=3: must be a level's name, or a function or class that makes an"),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(tmp_path, level, flags, problem):
    with pytest.raises(impala.ConfigError) as caught:
        impala.train(level, logdir=tmp_path / "run", **flags)
    (line,) = caught.value.problems
    assert line.startswith(problem), line
    assert not (tmp_path / "run").exists()


def test_functions_of_one_name_are_not_taken_for_each_other(tmp_path):
    """Two runs of a notebook have a module of one name; each plays its own."""

    def level(length):
        def make_level():
            return gymnasium.make(CARTPOLE, max_episode_steps=length)

        return make_level

    for length in (3, 5):
        (tmp_path / str(length)).mkdir()
        own = Objects()
        name = own.name("level", level(length))
        own.write(tmp_path / str(length))
    environment = impala_given(level_name=name).environment
    for length in (3, 5, 3):
        trained_flags.use_modules_of(tmp_path / str(length), suites.modules(environment))
        assert suites.spec(environment).time_limit == length
    assert sum(str(tmp_path) in each for each in sys.path) == 1


def test_a_file_in_a_foreign_run_takes_no_installed_packages_place(tmp_path):
    """Who trusts a run to import a package that is installed has not seen that file."""
    (tmp_path / "minigrid.py").write_text("raise RuntimeError('this must not run')")
    given = impala_given(level_name="minigrid:MiniGrid-Empty-5x5-v0")
    trained_flags.use_modules_of(tmp_path, ["minigrid"])
    vector_of(given.environment).close()
    assert sys.modules["minigrid"].__file__ != str(tmp_path / "minigrid.py")
    sys.path.remove(str(tmp_path))
    trained_flags.use_modules_of(tmp_path, ["minigrid"])  # although the path has changed
    sys.path.remove(str(tmp_path))


def test_what_cannot_be_loaded_or_acted_on_is_named(tmp_path):
    for use in (impala.load, impala.evaluate):
        with pytest.raises(impala.ConfigError, match="holds no run"):
            use(tmp_path)
    cartpole, pong = (impala.load(PROJECT / "examples" / name) for name in ("cartpole", "pong"))
    with pytest.raises(ValueError, match=r"has the shape \(2, 4\), but CartPole-v1 has \(4,\)"):
        cartpole.act(np.zeros((2, 4), np.float32))
    pixels = np.zeros(pong.observation_space.shape or ())
    with pytest.raises(ValueError, match="^observation: has the dtype float64, but images must"):
        pong.act(pixels)
    same = [pong.act(each, greedy=True) for each in (pixels.astype(np.uint8), pixels.astype(int))]
    assert same[0] == same[1]


def test_a_run_can_be_watched_stopped_resumed_loaded_and_evaluated(tmp_path, capfd):
    flags = {"logdir": tmp_path / "run", "num_actors": 1, "metrics_interval_s": 1.0}
    run = impala.train(CARTPOLE, wait=False, **flags)
    wait_until(lambda: run.progress.frames > 5_000)
    assert run.progress.state == "training"
    assert run.wait(0.01) is False
    with pytest.raises(impala.ConfigError, match="another run is writing there"):
        impala.train(CARTPOLE, wait=False, **flags)
    run.stop()
    stopped = run.progress
    assert (stopped.state, run.over) == ("stopped", True)

    resumed = impala.train(CARTPOLE, stop_at_return=60.0, **flags)
    assert resumed.progress.state == "done"
    assert resumed.progress.frames > stopped.frames
    assert resumed.end_reason.startswith("stop_at_return=60 is reached: the mean return is ")
    assert f"\n--{resumed.end_reason}" in capfd.readouterr().out
    table = resumed.metrics()
    assert (np.diff(table["environment_frames"]) >= 0).all()
    assert table["episode_return_mean"].iloc[-1] >= 60

    agent = impala.load(resumed.logdir)
    env = gymnasium.make(CARTPOLE)
    lengths = [len(game(agent, env, seed)) for seed in range(3)]
    played = impala.evaluate(resumed.logdir, num_episodes=3, policy="greedy")
    assert played.lengths == tuple(int(each) for each in played.returns)
    # The same policy in the same level: an agent that acts at random has 22.
    assert np.mean(lengths) > 30
    assert played.mean > 30


SCRIPT = """
import gymnasium
import sonnet as snt
import tensorflow as tf
import impala_tf as impala
from impala_tf.algorithms.appo import ALGORITHM as APPO

def make(steps=50):
    return gymnasium.make("CartPole-v1", max_episode_steps=steps)

class Torso(snt.Module):
    def __init__(self):
        super().__init__(name="own")
        self.layer = snt.Linear(8)

    def __call__(self, observation):
        return tf.tanh(self.layer(observation))

class Stops(impala.Callback):
    def __init__(self, frames):
        self.frames = frames

    def on_row(self, row):
        if row["environment_frames"] > self.frames:
            self.stop()
        return {"wanted": self.frames}

OWN = type(APPO)(**{**vars(APPO), "about": "of one's own"})
run = impala.train(make, agent=Torso, algorithm=OWN, callbacks=[Stops(1_000), Stops(2_000)],
                   num_actors=1, logdir="run", level_kwargs={"steps": 20}, metrics_interval_s=1)
print("wanted:", run.metrics()["wanted"].iloc[-1], run.end_reason)
print("longest:", max(impala.evaluate("run", 2).lengths), impala.load("run").action_space)
"""


def test_a_level_a_torso_an_algorithm_and_callbacks_of_a_script_or_a_notebook(tmp_path):
    """Its calls need no guard, because no other process imports it; others need consent."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wanted: 2000.0 callbacks: Stops has called stop()" in done.stdout
    assert "longest: 20 Discrete(2)" in done.stdout
    flags = json.loads((tmp_path / "run" / "config.json").read_text())["flags"]
    assert (flags["agent_name"], flags["algorithm"]) == (
        "notebook_Torso:Torso",
        "notebook_OWN:OWN",
    )
    for name in ("make", "Torso", "OWN", "Stops", "Stops_"):
        assert (tmp_path / "run" / f"notebook_{name}.py").stat().st_mode & 0o777 == 0o600
    with pytest.raises(impala.ConfigError, match="imports the Python module notebook_"):
        impala.load(tmp_path / "run")
    assert impala.load(tmp_path / "run", trust_level_module=True).level_name == "notebook_make:make"


FLASHES = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

class Flashes(gymnasium.Env):
    observation_space = Dict({
        "seen": Tuple([Box(0, 1, (3, 84, 84), np.float64), Discrete(3, start=-1)]),
        "said": MultiDiscrete([2, 2]),
    })
    action_space = MultiDiscrete([2, 3], start=[5, 7])

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._left, shown = 8, int(self.np_random.integers(2))
        return shows(shown), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._left -= 1
        return shows(0), 1.0, self._left == 0, False, {}

def shows(shown):
    picture = np.full((3, 84, 84), shown, np.float64)
    return {"seen": (picture, -1), "said": np.array([1, 0])}
"""


def game(agent: impala.Agent, env: gymnasium.Env[Any, Any], seed: int) -> list[Any]:
    """Plays a game as a reader of the README would; returns its actions."""
    observation, _ = env.reset(seed=seed)
    actions, over = [], False
    while not over:
        actions.append(agent.act(observation, greedy=True))
        observation, _, terminated, truncated, _ = env.step(actions[-1])
        over = terminated or truncated
    return actions


def test_an_agent_acts_on_the_levels_own_observations_and_remembers(tmp_path, monkeypatch):
    """Without its state, it cannot know what the first picture was."""
    (tmp_path / "flashes.py").write_text(FLASHES)
    monkeypatch.chdir(tmp_path)
    run = impala.train(
        "flashes:Flashes", agent_name="ShallowConvNetLSTMAgent", total_environment_frames=500,
        num_actors=1, envs_per_actor=4, batch_size=4, logdir=tmp_path / "run", show=False,
    )  # fmt: skip
    agent = impala.load(run.logdir, trust_level_module=True)
    env: Any = agent.make_env()
    games = [game(agent, env, seed) for seed in (1, 1)]
    assert len(games[0]) == 8
    np.testing.assert_array_equal(games[0], games[1])  # no memory of the game before

    shows, cores = sys.modules["flashes"].shows, []
    for first in (0, 1):
        agent.reset()
        agent.act(shows(first))
        agent.act(shows(0), reward=0.0)
        cores.append(np.concatenate([np.ravel(part) for part in agent._core]))
    assert not np.allclose(*cores)  # it still knows which one it was
    with pytest.raises(ValueError, match="^reward: ShallowConvNetLSTMAgent .*make_env"):
        agent.act(shows(0))
    with pytest.raises(ValueError, match="said"):
        agent.act({"seen": shows(0)["seen"]})


HANGING = """
import time
import impala_tf as impala

class Hangs(impala.Callback):
    def on_end(self, row):
        open("stopping", "w").close()
        time.sleep(600)

if __name__ == "__main__":
    impala.train("CartPole-v1", num_actors=1, logdir="run", callbacks="my_script:Hangs",
                 metrics_interval_s=1.0)
"""


def test_a_second_interrupt_kills_a_run_that_does_not_stop(tmp_path, start):
    """The first one asks; a learner that hangs would keep the terminal for a minute."""
    (tmp_path / "my_script.py").write_text(HANGING)
    run = start(script=["my_script.py"], cwd=tmp_path)
    run.wait_until(lambda: status(tmp_path / "run").get("state") == "training")
    learner = run.pid_of("--job_name=learner")
    run.process.send_signal(signal.SIGINT)
    run.wait_until((tmp_path / "stopping").exists)
    asked = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait(60)
    assert time.monotonic() - asked < 30
    assert (code, "KeyboardInterrupt" in err) == (-signal.SIGINT, True), out + err
    assert not run.alive()
    with pytest.raises(ProcessLookupError):
        os.kill(learner, 0)
