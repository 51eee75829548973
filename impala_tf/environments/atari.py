"""Atari 2600 games, preprocessed by ALE (protocol: arXiv 1802.01561, table G.1)."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import VectorEnv

from impala_tf import config as configs
from impala_tf.config import EnvironmentConfig, Given
from impala_tf.environments.batched import LIFE_LOST
from impala_tf.environments.scores import ATARI57, ATARI_SCORES
from impala_tf.environments.suite import Suite
from impala_tf.types import ActionSpec, EnvironmentSpec, ObservationSpec

_EMULATOR_FPS = 60  # NTSC
# Flags that affect which scores are possible.
_OF_PROTOCOL = (
    "protocol num_action_repeats width height frame_skip stacked_frames noop_max max_episode_frames"
    " repeat_action_probability full_action_space terminal_on_life_loss"
)

_LEVEL = re.compile(
    r"(?:ale_py:)?(?:ALE/(?P<v5>\w+)-v5|(?P<legacy>\w+?)(?:NoFrameskip|Deterministic)?-v[04])"
)


class Atari(Suite):
    """The games of ALE. An action, a frame skip and sticky actions are as flags say."""

    about = "Atari games"
    lists = {"atari57": ATARI57}

    def owns(self, level_name: str) -> bool:
        """Returns whether it is the id of an Atari game."""
        return rom_of(level_name) is not None

    def spec(self, env: EnvironmentConfig) -> EnvironmentSpec:
        """Describes an Atari level."""
        num_actions = int(Games(env, num_envs=1, num_threads=1).single_action_space.n)
        rules = (
            f"{'life loss ends learning episodes' if env.terminal_on_life_loss else 'whole games'},"
            f" {'full' if env.full_action_space else 'minimal'} actions ({num_actions})"
        )
        return console_spec(env, f"ALE {rom_of(env.level_name)}", num_actions, rules)

    def make(
        self, env: EnvironmentConfig, spec: EnvironmentSpec, num_envs: int, num_threads: int
    ) -> VectorEnv[Any, Any, Any]:
        """Returns N games."""
        return Games(env, num_envs, num_threads)

    def make_rendered(
        self, env: EnvironmentConfig, spec: EnvironmentSpec
    ) -> VectorEnv[Any, Any, Any]:
        """Returns one game that is rendered in colour."""
        return FilmedGame(env)

    def installed(self) -> list[str]:
        """Returns the names of ALE's games."""
        return [f"{name}NoFrameskip-v4" for name in sorted(_roms_by_name())]

    def score_range(self, env: EnvironmentConfig) -> tuple[float, float] | None:
        """Returns the scores of a random agent and of a human tester."""
        return ATARI_SCORES.get(rom_of(env.level_name) or "")


class Games(AtariVectorEnv):
    """N games, with observations uint8 [N, K, H, W] and unclipped rewards int32 [N].

    After a reset, the stack is the first frame after zeros. Every step returns new arrays.

    With --terminal_on_life_loss, info[LIFE_LOST], bool [N], says whether a life was lost and the
    game continues. (ALE's own `episodic_life` would restart the whole game at every lost life.)
    """

    def __init__(
        self, env: EnvironmentConfig, num_envs: int, num_threads: int, **changes: Any
    ) -> None:
        """Makes the games; `changes` replaces settings of ALE."""
        settings = {
            "max_num_frames_per_episode": env.max_episode_frames,
            "repeat_action_probability": env.repeat_action_probability,
            "full_action_space": env.full_action_space,
            "img_height": env.height,
            "img_width": env.width,
            "stack_num": env.stacked_frames,
            "frameskip": frames_per_step(env),
            # The maximum is over two frames.
            "maxpool": frames_per_step(env) > 1,
            "noop_max": env.noop_max + 1,  # ALE draws from 0 to noop_max - 1
            "episodic_life": False,
            "use_fire_reset": False,
            "reward_clipping": False,
            **changes,
        }
        super().__init__(rom_of(env.level_name), num_envs, num_threads=num_threads, **settings)
        self._ends_at_life_loss = env.terminal_on_life_loss

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Resets all games."""
        observation, info = super().reset(**kwargs)
        self._lives = info["lives"]
        self._game_over = np.zeros(self.num_envs, np.bool_)
        return observation, info

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all games."""
        observation, reward, terminated, truncated, info = super().step(actions)
        if self._ends_at_life_loss:
            lives = info["lives"]
            # Qbert continues for some frames at 0 lives, and a new game may have fewer lives than a
            # truncated one had.
            lost = (lives < self._lives) & (lives > 0)
            info[LIFE_LOST] = lost & ~self._game_over & ~terminated
            self._lives, self._game_over = lives, terminated | truncated
        return observation, reward, terminated, truncated, info


class FilmedGame(Games):
    """A game, and a second one that equals it, whose observations are the screen in colour.

    The emulator is deterministic: with the same seed and actions, both games are the same.
    """

    def __init__(self, env: EnvironmentConfig) -> None:
        super().__init__(env, num_envs=1, num_threads=1)
        emulator = ale_py.ALEInterface()
        emulator.loadROM(roms.get_rom_path(rom_of(env.level_name)))
        height, width = emulator.getScreenDims()
        screen = {"grayscale": False, "img_height": height, "img_width": width, "stack_num": 1}
        self._twin = Games(env, num_envs=1, num_threads=1, **screen)
        self.metadata = {**AtariVectorEnv.metadata, "render_fps": _EMULATOR_FPS}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Resets both."""
        self._screen, _ = self._twin.reset(**kwargs)
        return super().reset(**kwargs)

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps both."""
        self._screen, *_ = self._twin.step(actions)
        return super().step(actions)

    def render(self) -> tuple[np.ndarray]:
        """Returns the current screen, (uint8 [H, W, 3],)."""
        return (self._screen[0, 0],)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes both."""
        self._twin.close(**kwargs)
        super().close_extras(**kwargs)


def rom_of(level_name: str) -> str | None:
    """Returns the ROM of an Atari id, such as 'pong' for 'PongNoFrameskip-v4'; None for other ids.

    The rest of the id has no effect: here frame skip and sticky actions, which it implies in
    Gymnasium, are flags.
    """
    match = _LEVEL.fullmatch(level_name)
    return _roms_by_name().get(match["v5"] or match["legacy"]) if match else None


def console_spec(
    env: EnvironmentConfig, game: str, num_actions: int, rules: str
) -> EnvironmentSpec:
    """Describes a game of any emulator that is preprocessed like Atari games.

    Args:
      env: the level's flags.
      game: the emulator and the game, for the protocol.
      num_actions: A.
      rules: what ends an episode, and which actions exist, for the protocol.
    """
    repeats, sticky = frames_per_step(env), env.repeat_action_probability
    named = f"--protocol={env.protocol}"
    flags = {name: getattr(env, name) for name in _OF_PROTOCOL.split()}
    differing = [flag for flag in configs.to_flags(Given(flags)) if flag != named]
    return EnvironmentSpec(
        level_name=env.level_name,
        kind="atari",
        observation=ObservationSpec("image", (env.height, env.width, env.stacked_frames)),
        actions=ActionSpec("discrete", (num_actions,)),
        stacked_frames=env.stacked_frames,
        frames_per_step=repeats,
        protocol=f"{game} {env.width}x{env.height} grey, action repeat {repeats}"
        + (" (max of last 2 frames), " if repeats > 1 else ", ")
        + f"{env.stacked_frames} stacked, "
        + (f"0-{env.noop_max} no-ops, " if env.noop_max else "no no-ops, ")
        + f"{rules}, "
        + (f"sticky actions {sticky:g}, " if sticky else "no sticky actions, ")
        + f"at most {env.max_episode_frames} frames; {named}"
        + (f" but for {' '.join(differing)}" if differing else ""),
        time_limit=math.ceil(env.max_episode_frames / repeats),
        renders=True,
    )


def frames_per_step(env: EnvironmentConfig) -> int:
    """Returns the number of emulator frames per agent step."""
    return env.frame_skip * env.num_action_repeats


@functools.cache
def _roms_by_name() -> dict[str, str]:
    """Returns {name of a game: its ROM}, such as {'MsPacman': 'ms_pacman'}."""
    return {
        registered.name: registered.kwargs["game"]
        for registered in gymnasium.registry.values()
        if registered.entry_point == "ale_py.env:AtariEnv" and registered.namespace == "ALE"
    }
