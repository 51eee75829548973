"""Levels are found, refused with a reason, and streamed with the flags that learning relies on."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.rendering import RenderedGame
from impala_tf.types import EnvironmentSpec, EnvOutput, Episode
from tests import worlds

ROOT = Path(__file__).parents[1]


def level(name: str, **flags: Any) -> EnvironmentConfig:
    return EnvironmentConfig(level_name=name, **flags)


def stream_of(name: str, num_envs: int, seed: int = 1, **flags: Any) -> BatchedEnvironment:
    return BatchedEnvironment(suites.make(level(name, **flags), num_envs, seed))


def actions(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


# Levels and what is said about them.


def test_spec_of_a_vector_level() -> None:
    """The agent and the flags of a run are chosen from this."""
    assert suites.spec(level("tests.worlds:MaskedCartPole-v1")) == EnvironmentSpec(
        level_name="tests.worlds:MaskedCartPole-v1",
        kind="vector",
        observation_shape=(2,),
        observation_dtype="float32",
        num_actions=2,
        stacked_frames=0,
        frames_per_step=1,
        protocol="Gymnasium tests.worlds:MaskedCartPole-v1, vector 2, 2 actions, action repeat 1, "
        "at most 500 frames",
    )


@pytest.mark.parametrize(
    ("name", "shape"),
    [("Pictures-v0", (24, 32, 3)), ("GreyPictures-v0", (24, 32, 1))],
)
def test_spec_of_an_image_level(name: str, shape: tuple[int, ...]) -> None:
    """Grey pictures get the channel that convolutions need."""
    spec = suites.spec(level(f"tests.worlds:{name}", num_action_repeats=3))
    assert (spec.kind, spec.observation_shape, spec.observation_dtype) == ("image", shape, "uint8")
    assert (spec.stacked_frames, spec.frames_per_step) == (0, 3)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Breakot-v4", "no such level; near matches: Breakout-v4"),
        ("cartpole-v1", "no such level; near matches: CartPole-v1"),
        ("CartPole", "no such level; near matches: CartPole-v1"),
        ("ALE/Combat-v5", "no such level"),
        ("tests.worlds:MaskedCartpole-v1", "no such level; near matches: MaskedCartPole-v1"),
        ("#!?", "no such level; no id is similar"),
        ("no_such_module:Env-v0", "cannot import the module 'no_such_module'"),
        ("Pendulum-v1", r"has actions Box\(.*only discrete actions"),
        ("FrozenLake-v1", r"has observations Discrete\(16\); only discrete"),
        ("Blackjack-v1", r"has observations Tuple\("),
        ("tests.worlds:FloatPictures-v0", r"has observations Box\(.*float32\)"),
        ("tests.worlds:ChannelsFirst-v0", r"\(3, 24, 32\), which looks like channels first"),
        ("tests.worlds:SameStep-v0", "autoreset mode AutoresetMode.SAME_STEP; only .*NEXT"),
        ("tests.worlds:NeedsUninstalled-v0", "not installed: Moon .* run `pip install moon`"),
    ],
)
def test_levels_that_cannot_be_taken(name: str, problem: str) -> None:
    """A wrong level is one line that says what would be right, not a traceback after the launch."""
    with pytest.raises(ConfigError, match=problem) as caught:
        suites.spec(level(name))
    (line,) = caught.value.problems
    assert line.startswith("--level_name=")
    assert "\n" not in line


def test_levels_that_only_step_natively() -> None:
    """What such a level cannot do is said by the flags that ask for it."""
    gymnasium.register(
        "OnlyNative-v0",
        vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
    )
    suites.make(level("OnlyNative-v0"), 2, seed=0).close()
    with pytest.raises(ConfigError, match="leave out --num_action_repeats and --video"):
        suites.spec(level("OnlyNative-v0", num_action_repeats=2))


# The stream.


def scripted_stream() -> BatchedEnvironment:
    cut_first, ended_first = worlds.SCRIPT, worlds.SCRIPT[1:]
    scripts = (cut_first, ended_first)
    return BatchedEnvironment(
        SyncVectorEnv([lambda script=s: worlds.Scripted(script) for s in scripts])  # type: ignore[misc]
    )


def stacked(env_outputs: list[EnvOutput]) -> EnvOutput:
    """Returns env outputs as [N, T + 1, ...]."""
    return EnvOutput(*(np.stack(field, axis=1) for field in zip(*env_outputs, strict=True)))


def test_flags_of_every_step() -> None:
    """Which step an ending, a reward and an action belong to: off by one, and learning fails."""
    stream = scripted_stream()
    steps = [stream.reset()] + [stream.step(actions(t % 3, 2)) for t in range(8)]
    told = stacked(steps)
    yes, no = True, False
    # The first environment is cut after 3 steps, ends after 2; the second ends after 2, and after 4
    # it says both, which counts as an end.
    np.testing.assert_array_equal(
        told.reward, [[0, 1, 2, 3, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2, 3, 4, 0]]
    )
    np.testing.assert_array_equal(told.truncated, [[no, no, no, yes, no, no, no, no, no], [no] * 9])
    np.testing.assert_array_equal(
        told.terminated,
        [[no, no, no, no, no, no, yes, no, no], [no, no, yes, no, no, no, no, yes, no]],
    )
    resets = [[yes, no, no, no, yes, no, no, yes, no], [yes, no, no, yes, no, no, no, no, yes]]
    np.testing.assert_array_equal(told.autoreset, resets)
    np.testing.assert_array_equal(told.episode_start, resets)
    np.testing.assert_array_equal(
        told.last_action, [[0, 0, 1, 2, 0, 1, 2, 0, 1], [0, 2, 2, 2, 2, 2, 2, 2, 2]]
    )
    # (episode, step, the action as the environment got it: its actions are called 5, 6 and 7).
    np.testing.assert_array_equal(
        told.observation[0],
        [(0, 0, -1), (0, 1, 5), (0, 2, 6), (0, 3, 7)]  # the final observation is seen,
        + [(1, 0, -1), (1, 1, 6), (1, 2, 7)]  # the action on it is not
        + [(2, 0, -1), (2, 1, 6)],
    )
    assert [field.dtype for field in told] == [
        np.float32, np.bool_, np.bool_, np.bool_, np.bool_, np.float32, np.int32,
    ]  # fmt: skip


def test_episodes_are_whole_games() -> None:
    """The reported return and length are of what was played, without the ignored reset step."""
    stream = scripted_stream()
    stream.reset()
    for _ in range(4):
        stream.step(actions(0, 0))
    assert stream.pop_episodes() == [Episode(1.0 + 2.0, 2), Episode(1.0 + 2.0 + 3.0, 3)]
    assert stream.pop_episodes() == []
    for _ in range(4):
        stream.step(actions(0, 0))
    assert stream.pop_episodes() == [Episode(3.0, 2), Episode(1.0 + 2.0 + 3.0 + 4.0, 4)]


def test_a_reset_forgets_unfinished_games() -> None:
    """An evaluation that starts over must not add half a game to the next one's score."""
    stream = scripted_stream()
    stream.reset()
    stream.step(actions(0, 0))
    first = stream.reset()
    assert first.autoreset.all()
    assert not first.last_action.any()
    for _ in range(2):
        stream.step(actions(0, 0))
    assert stream.pop_episodes() == [Episode(3.0, 2)]


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("tests.worlds:Pictures-v0", (1, 24, 32, 3), np.uint8),
        ("tests.worlds:GreyPictures-v0", (1, 24, 32, 1), np.uint8),
        ("tests.worlds:Scripted-v0", (1, 3), np.float32),
        ("PongNoFrameskip-v4", (1, 4, 84, 84), np.uint8),
    ],
)
def test_observations_come_as_described(
    name: str, shape: tuple[int, ...], dtype: type[np.generic]
) -> None:
    """A wrong dtype or axis stops a run at its first step."""
    stream = stream_of(name, num_envs=1)
    for output in (stream.reset(), stream.step(actions(0))):
        assert (output.observation.shape, output.observation.dtype) == (shape, dtype)
    stream.close()


def test_the_seed_decides() -> None:
    """The same --seed repeats a run; no two environments of any two actors play the same games."""

    def start(seed: int) -> np.ndarray:
        pair = SyncVectorEnv([lambda: gymnasium.make("MountainCar-v0")] * 2)
        return BatchedEnvironment(suites.Seeded(pair, seed)).reset().observation

    np.testing.assert_array_equal(start(seed=7), start(seed=7))
    everybody = np.concatenate([start(seed=7), start(seed=8)])
    assert len(np.unique(everybody, axis=0)) == 4
    native = [stream_of("CartPole-v1", num_envs=2, seed=7).reset() for _ in range(2)]
    np.testing.assert_array_equal(native[0].observation, native[1].observation)


def test_native_environments_know_their_time_limit() -> None:
    """CartPole-v0 is cut at 200 steps: without the limit nothing would ever end."""
    stream = stream_of("CartPole-v0", num_envs=3)
    output = stream.reset()
    for _ in range(200):
        assert not (output.truncated | output.terminated).any()
        _, _, angle, angular_velocity = output.observation.T
        output = stream.step((angle + angular_velocity > 0).astype(np.int32))
    assert output.truncated.all()
    assert stream.pop_episodes() == [Episode(200.0, 200)] * 3


def test_masked_cartpole_is_the_same_world_natively_and_alone() -> None:
    """Training steps it natively, a video films it alone."""
    native = stream_of("tests.worlds:MaskedCartPole-v1", num_envs=2)
    film = RenderedGame(level("tests.worlds:MaskedCartPole-v1"), seed=1)
    for stream, num_envs in ((native, 2), (film.environment, 1)):
        output = stream.reset()
        lengths = 0
        while not stream.pop_episodes():
            assert output.observation.shape == (num_envs, 2)
            output = stream.step(np.ones(num_envs, np.int32))
            lengths += 1
        assert output.terminated.any()
        assert 5 < lengths < 20  # pushed one way, the pole falls soon
    film.close()


def test_actions_are_repeated_outside_atari() -> None:
    """Rewards in between count, and nothing is stepped past an episode's end."""
    stream = stream_of("tests.worlds:Scripted-v0", num_envs=1, num_action_repeats=2)
    stream.reset()
    steps = [stream.step(actions(1)) for _ in range(3)]
    assert [step.observation[0].tolist() for step in steps] == [[0, 2, 6], [0, 3, 6], [1, 0, -1]]
    assert [step.reward[0] for step in steps] == [1 + 2, 3, 0]
    assert stream.pop_episodes() == [Episode(6.0, 2)]


# Processes.


def test_processes_play_like_single_environments() -> None:
    """Actions, rewards and observations of one process must not end up in another's place."""
    stream = stream_of("tests.worlds:Pictures-v0", num_envs=3)
    alone = [gymnasium.make("Pictures-v0") for _ in range(3)]
    stream.reset()
    for env in alone:
        env.reset()
    for t in range(7):
        chosen = actions(t % 2, 1, 0)
        output = stream.step(chosen)
        for n, env in enumerate(alone):
            observation, reward, terminated, _, _ = env.step(chosen[n])
            np.testing.assert_array_equal(output.observation[n], observation)
            assert (output.reward[n], output.terminated[n]) == (reward, terminated)
    stream.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C through, which a test runner in the background may have been told to ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_processes_outlive_an_interrupt() -> None:
    """Ctrl-C reaches all processes: the actor finishes its unroll, so its environments must."""
    env = suites.make(level("tests.worlds:Pictures-v0"), 2, seed=1)
    stream = BatchedEnvironment(env)
    stream.reset()
    assert isinstance(env.unwrapped, AsyncVectorEnv)
    for process in env.unwrapped.processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGHUP)
    try:
        rewards = stream.step(actions(0, 1)).reward
    except KeyboardInterrupt:
        pytest.fail("the interrupt ended a process")
    assert rewards.tolist() == [0, 1]
    stream.close()


STEPS_FOREVER = """
import time, numpy as np
from impala_tf.config import EnvironmentConfig
from impala_tf.environments import suites
env = suites.make(EnvironmentConfig(level_name="tests.worlds:Hanging-v0"), 2, seed=1)
env.reset()
env.unwrapped.step_async(np.zeros(2, np.int64))
print(*[process.pid for process in env.unwrapped.processes], flush=True)
time.sleep(3600)
"""


def test_processes_die_with_a_killed_actor() -> None:
    """A killed actor that leaves processes behind fills the machine, launch after launch."""
    with subprocess.Popen(
        [sys.executable, "-c", STEPS_FOREVER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as actor:
        assert actor.stdout is not None
        workers = [os.pidfd_open(int(pid)) for pid in actor.stdout.readline().split()]
        actor.kill()
    try:
        assert len(workers) == 2
        for worker in workers:
            gone, _, _ = select.select([worker], [], [], 20)
            assert gone, "a process outlived the actor that it worked for"
    finally:
        for worker in workers:
            if not select.select([worker], [], [], 0)[0]:
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)


ORPHAN = """
import signal
from impala_tf.process_lifetime import die_with_parent
die_with_parent(parent_pid={pid}, signal_number=signal.SIGTERM)
"""


@pytest.mark.parametrize(("orphaned", "status"), [(True, -signal.SIGTERM), (False, 0)])
def test_a_parent_that_died_before_the_lifeline(orphaned: bool, status: int) -> None:
    """The kernel says nothing of a parent that ended already: such a process must notice itself."""
    pid = os.getppid() if orphaned else os.getpid()  # anything but the true parent
    program = [sys.executable, "-c", ORPHAN.format(pid=pid)]
    assert subprocess.run(program, cwd=ROOT, check=False).returncode == status


# Looking at a game.


def test_a_rendered_game_shows_the_step_at_hand() -> None:
    """Pictures of another moment than the stream's make a video of nothing that was played."""
    game = RenderedGame(level("tests.worlds:Pictures-v0"), seed=1)
    assert game.fps == 10
    output = game.environment.reset()
    for _ in range(9):
        np.testing.assert_array_equal(game.frame(), output.observation[0])
        output = game.environment.step(actions(0))
    game.close()


def test_a_rendered_cartpole() -> None:
    """A vector level is filmed by its own renderer, repeats counted in the speed."""
    game = RenderedGame(level("CartPole-v1", num_action_repeats=2), seed=1)
    game.environment.reset()
    before = game.frame()
    for _ in range(4):
        game.environment.step(actions(1))
    assert (before.shape, before.dtype, game.fps) == ((400, 600, 3), np.uint8, 25)
    assert (game.frame() != before).any()
    game.close()


def test_levels_that_cannot_be_filmed() -> None:
    """--video on such a level is refused before the game, not after it."""
    with pytest.raises(ConfigError, match=r"^--video: --level_name=tests.worlds:Blind-v0 has no"):
        RenderedGame(level("tests.worlds:Blind-v0"), seed=1)
