"""Scores on Atari mean something only under the standard protocol (arXiv 1802.01561, table G.1)."""

from typing import Any

import ale_py
import cv2
import numpy as np
import pytest
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv

from impala_tf.config import Given
from impala_tf.environments import suites
from impala_tf.environments.atari import Games
from impala_tf.types import ActionSpec, ObservationSpec
from tests.helpers.games import (
    batched,
    breakout,
    environment_of,
    level,
    pong,
    random_steps,
    vector_of,
)


@pytest.mark.parametrize(
    ("name", "rom"),
    [
        ("PongNoFrameskip-v4", "pong"),
        ("ale_py:ALE/UpNDown-v5", "up_n_down"),
    ],
)
def test_every_id_of_a_game_means_the_standard_protocol(name: str, rom: str) -> None:
    """Gymnasium's names for one game must not be different experiments."""
    spec = suites.spec(level(name))
    assert (spec.kind, spec.observation) == ("atari", ObservationSpec("image", (84, 84, 4)))
    assert (spec.stacked_frames, spec.frames_per_step) == (4, 4)
    assert spec.protocol == (
        f"ALE {rom} 84x84 grey, action repeat 4 (max of last 2 frames), 4 stacked, 0-30 no-ops, "
        f"life loss ends learning episodes, minimal actions ({spec.actions.sizes[0]}), "
        "no sticky actions, at most 108000 frames; --protocol=classic"
    )


def test_the_protocol_line_names_every_flag_that_changes_it() -> None:
    """Scores are reported with this line, so it must be true."""
    changed = {
        "frame_skip": 1, "width": 64, "height": 48, "stacked_frames": 2, "noop_max": 0,
        "max_episode_frames": 999, "repeat_action_probability": 0.25, "full_action_space": True,
        "terminal_on_life_loss": False,
    }  # fmt: skip
    spec = suites.spec(pong(**changed))
    assert (spec.observation, spec.actions, spec.frames_per_step) == (
        ObservationSpec("image", (48, 64, 2)), ActionSpec("discrete", (18,)), 1,
    )  # fmt: skip
    assert spec.protocol == (
        "ALE pong 64x48 grey, action repeat 1, 2 stacked, no no-ops, whole games, "
        "full actions (18), sticky actions 0.25, at most 999 frames; --protocol=classic but for "
        "--width=64 --height=48 --frame_skip=1 --stacked_frames=2 --noop_max=0 "
        "--max_episode_frames=999 --repeat_action_probability=0.25 --full_action_space "
        "--no_terminal_on_life_loss"
    )
    sticky = Given({"level_name": "ALE/Pong-v5", "protocol": "sticky", "noop_max": 30})
    line = suites.spec(sticky.environment).protocol
    assert line.endswith("; --protocol=sticky but for --noop_max=30")


@pytest.mark.parametrize(("frame_skip", "repeats"), [(1, 1), (4, 1), (1, 2)])
def test_preprocessing_equals_the_protocol_done_by_hand(frame_skip: int, repeats: int) -> None:
    """Compared with the emulator frame by frame: repeat, maximum, grey, resize, stack, reward."""
    env = pong(
        frame_skip=frame_skip, num_action_repeats=repeats, noop_max=0, max_episode_frames=10**6
    )
    frames = suites.spec(env).frames_per_step
    assert frames == frame_skip * repeats
    steps = random_steps(environment_of(env), 6, count=250)
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


def test_games_start_with_0_to_noop_max_no_ops() -> None:
    """Without them, all games of a run would start in the same way."""
    games = vector_of(pong(noop_max=2, max_episode_frames=1), 3)
    _, info = games.reset(seed=1)
    started_at = set(info["episode_frame_number"].tolist())
    for _ in range(40):
        _, _, _, truncated, info = games.step(np.zeros(3, np.int32))
        if not truncated.any():
            started_at |= set(info["episode_frame_number"].tolist())
    assert started_at == {0, 1, 2}


def test_a_long_game_is_truncated_and_not_terminated() -> None:
    """The value of the last position still counts after a time limit."""
    environment = environment_of(pong(max_episode_frames=40), num_envs=2)
    steps = random_steps(environment, 6, 25)
    cut = np.stack([step.truncated for step in steps])
    assert np.flatnonzero(cut[:, 0]).tolist() == [10, 21]  # 10 steps and the reset, twice
    assert not np.stack([step.terminated for step in steps]).any()
    resets = np.stack([step.autoreset for step in steps])
    assert np.flatnonzero(resets[:, 1]).tolist() == [0, 11, 22]
    assert [episode.episode_length for episode in environment.pop_episodes()] == [10] * 4


@pytest.mark.parametrize("life_loss_ends", [True, False])
def test_a_lost_life_ends_the_episode_but_not_the_game(life_loss_ends: bool) -> None:
    """Learning needs an end at every life; the score needs the whole game of five lives."""
    env = breakout(terminal_on_life_loss=life_loss_ends)
    environment = environment_of(env, num_envs=2)
    played = random_steps(environment, 4, 600)
    episodes = environment.pop_episodes()
    terminated, autoreset, reward = (
        np.stack([getattr(step, name) for step in played])
        for name in ("terminated", "autoreset", "reward")
    )
    assert len(episodes) >= 4
    whole_games = []
    for n in range(2):
        begins = np.flatnonzero(autoreset[:, n])
        for begin, after in zip(begins[:-1], begins[1:], strict=True):
            game = slice(begin, after)
            # The last of five lives ends the game. The others end an episode if the flag says so.
            assert terminated[game, n].sum() == (5 if life_loss_ends else 1)
            assert terminated[after - 1, n]
            whole_games.append((reward[game, n].sum(), after - begin - 1))
    assert sorted(episode[:2] for episode in episodes) == sorted(whole_games)


class Lives:
    """A game that follows a script of (lives, terminated, truncated) per step."""

    def __init__(self, script: list[tuple[int, bool, bool]]) -> None:
        self._script = iter(script)

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        observation, _, _, _, info = self.step(np.zeros(1, np.int32))
        return observation, info

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        lives, terminated, truncated = (np.array([value]) for value in next(self._script))
        picture = np.zeros((1, 1, 2, 2), np.uint8)
        return picture, np.zeros(1, np.int32), terminated, truncated, {"lives": lives}


@pytest.mark.parametrize(
    ("script", "terminated", "starts"),
    [
        # A life is lost, then a life is won.
        ([(3, 0, 0), (2, 0, 0), (3, 0, 0), (3, 0, 0)], [0, 1, 0, 0], [1, 1, 0, 0]),
        # Qbert shows 0 lives while the last one is being played.
        ([(1, 0, 0), (0, 0, 0), (0, 0, 0), (0, 1, 0)], [0, 0, 0, 1], [1, 0, 0, 0]),
        # A game with an extra life is truncated. The next one starts with fewer: nothing was lost.
        ([(3, 0, 0), (4, 0, 1), (3, 0, 0), (3, 0, 0)], [0, 0, 0, 0], [1, 0, 1, 0]),
        # A life is lost in the step that is truncated: the episode has ended.
        ([(3, 0, 0), (2, 0, 1), (3, 0, 0), (3, 0, 0)], [0, 1, 0, 0], [1, 1, 1, 0]),
    ],
)
def test_which_changes_of_lives_end_an_episode(
    script: list[tuple[int, int, int]],
    terminated: list[int],
    starts: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In each of these games, a simpler rule would end an episode wrongly or miss an end."""
    lives = Lives([(n, bool(end), bool(cut)) for n, end, cut in script])
    monkeypatch.setattr(AtariVectorEnv, "reset", lambda self, **kwargs: lives.reset())
    monkeypatch.setattr(AtariVectorEnv, "step", lambda self, actions: lives.step(actions))
    environment = batched(Games(breakout(), 1, 1))
    steps = [environment.reset()] + [environment.step(np.zeros(1, np.int32)) for _ in range(3)]
    assert [step.terminated.item() for step in steps] == terminated
    assert [step.episode_start.item() for step in steps] == starts
