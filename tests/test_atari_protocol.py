"""Scores on Atari mean something only under the standard protocol (arXiv 1802.01561, table G.1)."""

from typing import Any

import ale_py
import cv2
import numpy as np
import pytest
from ale_py import roms
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorEnv

from impala_tf.config import EnvironmentConfig
from impala_tf.environments import atari, suites
from impala_tf.environments.atari import LifeLoss
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.rendering import RenderedGame
from impala_tf.types import EnvOutput


def pong(**flags: Any) -> EnvironmentConfig:
    return EnvironmentConfig(level_name="PongNoFrameskip-v4", **flags)


def breakout(**flags: Any) -> EnvironmentConfig:
    return EnvironmentConfig(level_name="ALE/Breakout-v5", **flags)


def stream_of(env: EnvironmentConfig, num_envs: int = 1, seed: int = 1) -> BatchedEnvironment:
    return BatchedEnvironment(suites.make(env, num_envs, seed))


def random_steps(stream: BatchedEnvironment, num_actions: int, count: int) -> list[EnvOutput]:
    """Returns the first step and `count` more, from the same random actions every time."""
    rng = np.random.default_rng(0)
    steps = [stream.reset()]
    for _ in range(count):
        chosen = rng.integers(0, num_actions, len(steps[0].reward))
        steps.append(stream.step(chosen.astype(np.int32)))
    return steps


def observations(env: EnvironmentConfig, count: int = 40) -> np.ndarray:
    return np.stack([step.observation for step in random_steps(stream_of(env), 3, count)])


# Levels.


@pytest.mark.parametrize(
    ("name", "rom"),
    [
        ("PongNoFrameskip-v4", "pong"),
        ("Pong-v4", "pong"),
        ("PongDeterministic-v4", "pong"),
        ("ALE/MsPacman-v5", "ms_pacman"),
        ("ale_py:ALE/UpNDown-v5", "up_n_down"),
        ("TetrisNoFrameskip-v4", "tetris"),
    ],
)
def test_every_id_means_the_standard_protocol(name: str, rom: str) -> None:
    """Ids that differ only by habit must not be different experiments."""
    spec = suites.spec(EnvironmentConfig(level_name=name))
    assert (spec.kind, spec.observation_shape, spec.observation_dtype) == (
        "atari", (84, 84, 4), "uint8",
    )  # fmt: skip
    assert (spec.stacked_frames, spec.frames_per_step) == (4, 4)
    assert spec.protocol == (
        f"ALE {rom} 84x84 grey, action repeat 4 (max of last 2 frames), 4 stacked, 0-30 no-ops, "
        f"life loss ends learning episodes, minimal actions ({spec.num_actions}), "
        "no sticky actions, at most 108000 frames"
    )


def test_one_action_repeat_is_the_standard_protocol() -> None:
    """As people type it for the TF1 code, whose Atari steps were four frames whatever the flag."""
    assert suites.spec(pong(num_action_repeats=1)) == suites.spec(pong())
    assert "action repeat 8 (max" in suites.spec(pong(num_action_repeats=2)).protocol


def test_flags_change_the_protocol_and_say_so() -> None:
    """A score is reported with this line: it must tell the truth about every flag."""
    spec = suites.spec(
        pong(
            frame_skip=1,
            width=64,
            height=48,
            stacked_frames=2,
            noop_max=0,
            max_episode_frames=999,
            repeat_action_probability=0.25,
            full_action_space=True,
            terminal_on_life_loss=False,
        )
    )
    assert (spec.observation_shape, spec.num_actions, spec.frames_per_step) == ((48, 64, 2), 18, 1)
    assert spec.protocol == (
        "ALE pong 64x48 grey, action repeat 1, 2 stacked, no no-ops, whole games, "
        "full actions (18), sticky actions 0.25, at most 999 frames"
    )


def test_an_id_brings_no_sticky_actions() -> None:
    """Gymnasium binds them to v5; here the flag alone decides, so that scores can be compared."""
    v5 = EnvironmentConfig(level_name="ALE/Pong-v5")
    np.testing.assert_array_equal(observations(v5), observations(pong()))
    sticky = EnvironmentConfig(level_name="ALE/Pong-v5", repeat_action_probability=0.25)
    assert (observations(sticky) != observations(v5)).any()


# What the agent sees and earns.


@pytest.mark.parametrize(("frame_skip", "repeats"), [(1, 1), (2, 1), (4, 1), (1, 2), (4, 2)])
def test_preprocessing_is_the_literal_one(frame_skip: int, repeats: int) -> None:
    """Against the emulator itself, frame by frame: repeat, maximum, grey, resize, stack, reward."""
    env = pong(
        frame_skip=frame_skip, num_action_repeats=repeats, noop_max=0, max_episode_frames=10**6
    )
    frames = suites.spec(env).frames_per_step
    assert frames == frame_skip * repeats
    steps = random_steps(stream_of(env), 6, count=250)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 1)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("pong"))
    ale.reset_game()
    screens = [ale.getScreenGrayscale()]
    stack = [np.zeros((84, 84), np.uint8)] * 3 + [resized(screens)]
    for step in steps[1:]:
        action = ale.getMinimalActionSet()[step.last_action[0]]
        reward = 0
        for _ in range(frames):
            reward += ale.act(action)
            screens = [screens[-1], ale.getScreenGrayscale()]
        stack = [*stack[1:], resized(screens if frames > 1 else screens[1:])]
        np.testing.assert_array_equal(step.observation[0], stack)
        assert step.reward[0] == reward
    if frames >= 4:
        assert {-1.0} <= {float(step.reward[0]) for step in steps}


def resized(screens: list[np.ndarray]) -> np.ndarray:
    return cv2.resize(np.max(screens, axis=0), (84, 84), interpolation=cv2.INTER_AREA)


def test_rewards_are_not_clipped() -> None:
    """The reported return is the game's score: a pill of Ms. Pacman counts 10."""
    stream = stream_of(EnvironmentConfig(level_name="ALE/MsPacman-v5"))
    assert {float(step.reward[0]) for step in random_steps(stream, 9, 100)} >= {0.0, 10.0}


def test_a_game_starts_with_no_ops() -> None:
    """0 to --noop_max of them, both ends included: else all games of a run begin alike."""
    games = suites.make(pong(noop_max=2, max_episode_frames=1), num_envs=3, seed=1)
    _, info = games.reset()
    started_at = set(info["episode_frame_number"].tolist())
    for _ in range(40):
        _, _, _, truncated, info = games.step(np.zeros(3, np.int32))
        if not truncated.any():
            started_at |= set(info["episode_frame_number"].tolist())
    assert started_at == {0, 1, 2}


def test_a_long_game_is_cut() -> None:
    """A cut at 30 minutes is no end: the value of the last position still counts."""
    stream = stream_of(pong(max_episode_frames=40), num_envs=2)
    steps = random_steps(stream, 6, 25)
    cut = np.stack([step.truncated for step in steps])
    assert np.flatnonzero(cut[:, 0]).tolist() == [10, 21]  # 10 steps and the reset, again
    assert not np.stack([step.terminated for step in steps]).any()
    resets = np.stack([step.autoreset for step in steps])
    assert np.flatnonzero(resets[:, 1]).tolist() == [0, 11, 22]
    assert [episode.episode_length for episode in stream.pop_episodes()] == [10] * 4


# Lives.


@pytest.mark.parametrize("life_loss_ends", [True, False])
def test_a_lost_life_ends_the_episode_but_not_the_game(life_loss_ends: bool) -> None:
    """Learning needs the end at every life; the score needs the whole game of five."""
    env = breakout(terminal_on_life_loss=life_loss_ends)
    stream = stream_of(env, num_envs=2)
    played = random_steps(stream, 4, 600)
    episodes = stream.pop_episodes()
    terminated, autoreset, start, reward = (
        np.stack([getattr(step, name) for step in played])
        for name in ("terminated", "autoreset", "episode_start", "reward")
    )
    assert len(episodes) >= 4
    whole_games = []
    for n in range(2):
        begins = np.flatnonzero(autoreset[:, n])
        for begin, after in zip(begins[:-1], begins[1:], strict=True):
            game = slice(begin, after)
            # Five lives: the last one ends the game, the others only where learning wants it so.
            assert terminated[game, n].sum() == (5 if life_loss_ends else 1)
            assert terminated[after - 1, n]
            # A life that begins does so on the step that ended the one before, without a reset.
            between_lives = terminated[begin : after - 1, n]
            np.testing.assert_array_equal(start[begin + 1 : after - 1, n], between_lives[1:])
            assert start[begin, n]
            assert not start[after - 1, n]
            whole_games.append((reward[game, n].sum(), after - begin - 1))
    assert sorted(episodes) == sorted(whole_games)


class Lives(VectorEnv[Any, Any, Any]):
    """Stands for a game whose lives come and go as given: (lives, terminated, truncated) a step."""

    num_envs = 1
    single_action_space = Discrete(2)
    single_observation_space = Box(0, 255, (1, 2, 2), np.uint8)

    def __init__(self, script: list[tuple[int, bool, bool]]) -> None:
        self._script = iter(script)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        observation, _, _, _, info = self.step(np.zeros(1, np.int32))
        return observation, info

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        lives, terminated, truncated = (np.array([value]) for value in next(self._script))
        picture = np.zeros((1, 1, 2, 2), np.uint8)
        return picture, np.zeros(1, np.int32), terminated, truncated, {"lives": lives}


@pytest.mark.parametrize(
    ("script", "terminated", "truncated", "starts"),
    [
        # A life lost, a life won.
        ([(3, 0, 0), (2, 0, 0), (3, 0, 0), (3, 0, 0)], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]),
        # Qbert shows 0 lives while the last one is still being played.
        ([(1, 0, 0), (0, 0, 0), (0, 0, 0), (0, 1, 0)], [0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]),
        # A game with an extra life is cut: the next one begins with fewer, which is no loss.
        ([(3, 0, 0), (4, 0, 1), (3, 0, 0), (3, 0, 0)], [0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0]),
        # A life is lost in the very step that is cut: nothing of value comes after.
        ([(3, 0, 0), (2, 0, 1), (3, 0, 0), (3, 0, 0)], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]),
        # Some games end with lives left.
        ([(3, 0, 0), (2, 1, 0), (3, 0, 0), (3, 0, 0)], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]),
    ],
)
def test_which_changes_of_lives_end_an_episode(
    script: list[tuple[int, int, int]],
    terminated: list[int],
    truncated: list[int],
    starts: list[int],
) -> None:
    """Each of these is a game in which a careless rule ends, or misses, an episode."""
    stream = BatchedEnvironment(
        LifeLoss(Lives([(n, bool(end), bool(cut)) for n, end, cut in script]))
    )
    steps = [stream.reset()] + [stream.step(np.zeros(1, np.int32)) for _ in range(3)]
    assert [step.terminated.item() for step in steps] == terminated
    assert [step.truncated.item() for step in steps] == truncated
    assert [step.episode_start.item() for step in steps] == starts
    assert [step.autoreset.item() for step in steps] == [1, *(n | m for _, n, m in script[:-1])]


# Videos.


def test_the_game_that_is_filmed_is_the_one_that_is_played() -> None:
    """The film is of a second emulator: it must be the same game, sticky actions and all."""
    env = breakout(repeat_action_probability=0.25, max_episode_frames=500)
    game = RenderedGame(env, seed=5)
    assert game.fps == 15
    played_alone = random_steps(stream_of(env, seed=5), 4, 300)
    played = []
    rng = np.random.default_rng(0)
    output = game.environment.reset()
    for _ in range(301):
        played.append(output)
        screen = game.frame()
        assert (screen.shape, screen.dtype) == ((210, 160, 3), np.uint8)
        # The agent's picture is the screen in grey; Breakout's walls and bricks differ in colour.
        grey = cv2.resize(
            cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY), (84, 84), interpolation=cv2.INTER_AREA
        )
        assert np.abs(grey.astype(int) - output.observation[0, -1]).max() <= 3
        output = game.environment.step(rng.integers(0, 4, 1).astype(np.int32))
    for alone, filmed in zip(played_alone, played, strict=True):
        for ours, theirs in zip(alone, filmed, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert len(game.environment.pop_episodes()) >= 2
    game.close()


def test_a_film_has_the_size_of_the_screen() -> None:
    """Not every console's picture is 210 lines high."""
    game = RenderedGame(EnvironmentConfig(level_name="ALE/JourneyEscape-v5"), seed=1)
    game.environment.reset()
    assert game.frame().shape == (230, 160, 3)
    game.close()


def test_a_film_of_another_game_is_refused() -> None:
    """Should the two emulators ever part, the video would show what the agent never did."""
    twin = atari.render_twin(breakout(max_episode_frames=44))
    stream = BatchedEnvironment(
        suites.Seeded(atari.Twin(atari.make(breakout(), 1, 1), twin), seed=1)
    )
    with pytest.raises(RuntimeError, match="no longer the game that the agent plays"):
        random_steps(stream, 4, 11)
