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


def test_the_package_offers_its_interface_and_stays_light():
    code = "import sys, impala_tf; print(impala_tf.__all__ == [n for n in impala_tf.__all__ if n in"
    code += " dir(impala_tf)], *sorted({'tensorflow', 'numpy', 'gymnasium'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT)
    assert done.stdout == "True\n", done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        impala.trian  # noqa: B018


@pytest.mark.parametrize(
    ("level", "flags", "problem"),
    [
        (CARTPOLE, {"btach_size": 1}, "btach_size: no such argument; did you mean batch_size?"),
        (CARTPOLE, {"batch_size": "many"}, "batch_size=many: must be a whole number"),
        (CARTPOLE, {"batch_size": 0}, "batch_size=0: must be greater than 0"),
        (CARTPOLE, {"discounting": float("nan")}, "discounting=nan: must be a number"),
        (CARTPOLE, {"device": "tpu"}, "device=tpu: must be one of auto, cpu, gpu"),
        (CARTPOLE, {"mode": "test"}, "mode: train does not take it"),
        (
            CARTPOLE,
            {"level_kwargs": {"a": {1, 2}}},
            "level_kwargs={'a': {1, 2}}: ",
        ),
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


def test_keywords_of_a_level_are_one_text_however_they_are_given():
    texts = [
        {"sutton_barto_reward": True},
        {"sutton_barto_reward": np.bool_(True)},
        '{"sutton_barto_reward":true}',
    ]
    given = [impala_given(level_name=CARTPOLE, level_kwargs=each) for each in texts]
    assert {each["level_kwargs"] for each in given} == {'{"sutton_barto_reward": true}'}


def test_what_cannot_be_loaded_or_is_no_argument(tmp_path):
    for use in (impala.load, impala.evaluate):
        with pytest.raises(impala.ConfigError, match="holds no run"):
            use(tmp_path)
    for flag in ("test_policy", "test_num_episodes", "mode"):  # they have other names in Python
        with pytest.raises(TypeError, match=flag):
            wrong: Any = {flag: 3}
            impala.evaluate(PROJECT / "examples" / "cartpole", **wrong)


def test_what_an_agent_cannot_take_is_named():
    cartpole, pong = (impala.load(PROJECT / "examples" / name) for name in ("cartpole", "pong"))
    with pytest.raises(ValueError, match="could not convert string to float"):
        cartpole.act(np.zeros(4), reward="a")
    for reward in (None, 1, np.ones(1), [np.float32(0.5)]):
        assert cartpole.action_space.contains(cartpole.act([0, 0, 0, 0], reward=reward))
    pixels = np.zeros(pong.observation_space.shape or ())
    with pytest.raises(ValueError, match="^observation: has the dtype float64, but images must"):
        pong.act(pixels)
    same = [pong.act(each, greedy=True) for each in (pixels.astype(np.uint8), pixels.astype(int))]
    assert same[0] == same[1]


def test_a_run_can_be_watched_stopped_resumed_loaded_and_evaluated(tmp_path, capfd, monkeypatch):
    flags = {"logdir": tmp_path / "run", "num_actors": 1, "metrics_interval_s": 1.0}
    run = impala.train(CARTPOLE, wait=False, total_environment_frames=2_000_000, **flags)
    wait_until(lambda: run.progress.frames > 5_000)
    assert run.progress.state == "training"
    assert run.progress.total == 2_000_000
    assert run.wait(0.01) is False
    with pytest.raises(impala.ConfigError, match="another run is writing there"):
        impala.train(CARTPOLE, wait=False, total_environment_frames=2_000_000, **flags)
    run.stop()
    stopped = run.progress
    assert (stopped.state, run.over) == ("stopped", True)

    total = stopped.frames + 100_000
    resumed = impala.train(CARTPOLE, total_environment_frames=total, **flags)
    assert (resumed.progress.state, resumed.end_reason) == ("done", "")
    assert f" of {total:,} frames" in capfd.readouterr().out
    metrics = resumed.logdir / "metrics.csv"
    whole = metrics.read_text()
    metrics.write_text(f"{whole}12.5,300")  # a row that is being written
    assert len(resumed.metrics()) == whole.count("\n") - 1
    metrics.write_text(whole)
    table = resumed.metrics()
    frames = np.asarray(table["environment_frames"])
    assert frames[-1] >= total
    assert (np.diff(frames) >= 0).all()
    pandas = pytest.importorskip("pandas")
    assert isinstance(table, pandas.DataFrame)
    assert table["episode_return_mean"].iloc[-1] > 0
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        plain = resumed.metrics()
    assert isinstance(plain, np.recarray)
    assert (plain.environment_frames == frames).all()
    assert resumed.evaluations() is None
    rows = "environment_frames,played,return_mean\n200,unseen levels,9.5\n400,unseen levels,\n"
    (resumed.logdir / "evaluation.csv").write_text(rows)
    evaluations = resumed.evaluations()
    assert list(evaluations["played"]) == ["unseen levels"] * 2
    assert evaluations["return_mean"].dropna().tolist() == [9.5]

    agent = impala.load(resumed.logdir)
    env = gymnasium.make(CARTPOLE)
    lengths = [len(game(agent, env, seed)) for seed in range(3)]
    with pytest.raises(ValueError, match=r"has the shape \(2, 4\), but CartPole-v1 has \(4,\)"):
        agent.act(np.zeros((2, 4), np.float32))
    played = impala.evaluate(resumed.logdir, num_episodes=3, policy="greedy")
    assert played.lengths == tuple(int(each) for each in played.returns)
    # The same policy in the same level: an agent that acts at random has 22.
    assert np.mean(lengths) > 30
    assert played.mean > 30

    ended = impala.train(CARTPOLE, total_environment_frames=10 * total, stop_at_return=1.0, **flags)
    assert ended.end_reason.startswith("stop_at_return=1 is reached: the mean return is ")
    assert f"\n--{ended.end_reason}" in capfd.readouterr().out


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
        self._at, self._shown = 0, int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._at += 1
        return self._observation(), float(action[0] == 5 + self._shown), self._at == 8, False, {}

    def _observation(self):
        picture = np.full((3, 84, 84), self._shown * (self._at == 0), np.float64)
        return {"seen": (picture, -1), "said": np.array([1, 0])}
"""


def game(agent: impala.Agent, env: gymnasium.Env[Any, Any], seed: int, **how: Any) -> list[Any]:
    """Plays a game as a reader of the README would; returns its actions."""
    observation, _ = env.reset(seed=seed)
    actions, over = [], False
    while not over:
        actions.append(agent.act(observation, greedy=True, **how))
        observation, _, terminated, truncated, _ = env.step(actions[-1])
        over = terminated or truncated
    return actions


def test_an_agent_acts_on_the_levels_own_observations_and_remembers(tmp_path, monkeypatch):
    """Only the first picture says which action is right: without its state, it cannot know."""
    (tmp_path / "flashes.py").write_text(FLASHES)
    monkeypatch.chdir(tmp_path)
    run = impala.train(
        "flashes:Flashes", agent_name="ShallowConvNetLSTMAgent", total_environment_frames=500,
        num_actors=1, envs_per_actor=4, batch_size=4, logdir=tmp_path / "run", show=False,
    )  # fmt: skip
    agent = impala.load(run.logdir, trust_level_module=True)
    env: Any = agent.make_env()
    assert env.observation_space["seen"][0].shape == (3, 84, 84)
    games = [game(agent, env, seed) for seed in (1, 1)]
    assert len(games[0]) == 8
    np.testing.assert_array_equal(games[0], games[1])  # no memory of the game before

    (observation, _), plain = env.reset(seed=1), env.unwrapped
    cores = []
    for first in (0.0, 1.0):
        agent.reset()
        observation["seen"] = (np.full((3, 84, 84), first), -1)
        agent.act(observation)
        black = plain._observation()
        black["seen"] = (np.zeros((3, 84, 84)), -1)
        agent.act(black, reward=0.0)
        cores.append(np.concatenate([np.ravel(part) for part in agent._core]))
    assert not np.allclose(*cores)  # it still knows which one it was
    with pytest.raises(ValueError, match="^reward: ShallowConvNetLSTMAgent .*make_env"):
        agent.act(black)
    with pytest.raises(ValueError, match="said"):
        agent.act({"seen": black["seen"]})
    played = impala.evaluate(run.logdir, 2, trust_level_module=True)
    assert played.lengths == (8, 8)


def test_an_agent_looks_after_lives_in_an_emulator():
    """Where a life was lost, an episode began in training."""
    agent = impala.load(PROJECT / "examples" / "pong")
    env = agent.make_env()
    observation, info = env.reset(seed=1)
    assert agent.observation_space.contains(observation)
    for _ in range(3):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        assert (type(reward), terminated, truncated) == (float, False, False)
    env.close()


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
