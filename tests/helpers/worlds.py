"""Small levels for tests. Gymnasium finds them as `tests.helpers.worlds:NAME`."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.wrappers import TransformObservation


def masked_cart_pole(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """CartPole without its velocities: to balance the pole, an agent must remember."""
    limits = np.array([4.8, np.pi / 7.5], np.float32)  # as in CartPole
    return TransformObservation(
        CartPoleEnv(render_mode=render_mode), lambda seen: seen[[0, 2]], Box(-limits, limits)
    )


class PacedCartPoleVector(CartPoleVectorEnv):
    """CartPole whose steps take at least 100 ms, however many environments there are."""

    _PAUSE_S = 0.1

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 500) -> None:
        super().__init__(num_envs=num_envs, max_episode_steps=max_episode_steps)

    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        time.sleep(self._PAUSE_S)
        return super().step(action)


class CalmCartPoleVector(PacedCartPoleVector):
    """CartPole for runs that only have to stay alive: it leaves the processors to other tests."""

    _PAUSE_S = 0.01


def acrobot() -> gymnasium.Env[Any, Any]:
    """A level of the user's own, with the time limit of a registered one."""
    return gymnasium.make("Acrobot-v1")


class Scripted(gymnasium.Env[np.ndarray, Any]):
    """Ends its episodes as the script says; observes (episode, step, last action as received).

    Step k of an episode rewards with k. Actions are called 5, 6 and 7.
    """

    def __init__(self, script: tuple[tuple[int, bool, bool], ...]) -> None:
        """`script`: (steps, terminated, truncated) of every episode; repeated from the start."""
        self._script = script
        self._episode = -1
        self.observation_space = Box(-1, 1000, (3,), np.float64)
        self.action_space = Discrete(3, start=5)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**kwargs)
        self._episode, self._step = self._episode + 1, 0
        return np.array([self._episode, 0.0, -1.0]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        steps, terminated, truncated = self._script[self._episode % len(self._script)]
        over = self._step == steps
        observation = np.array([self._episode, self._step, action], np.float64)
        return observation, float(self._step), over and terminated, over and truncated, {}


class Pictures(gymnasium.Env[np.ndarray, Any]):
    """Shows pictures that get a little brighter at each step; episodes last 7 steps.

    Rewards with the sum of the action, as it was received.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        shape: tuple[int, ...] = (24, 32, 3),
        dtype: str = "uint8",
        high: float = 255,
        render_mode: str | None = None,
        action_space: Any = Discrete(2),  # noqa: B008
    ) -> None:
        self.render_mode = render_mode
        self.observation_space = Box(0, high, shape, np.dtype(dtype).type)
        self.action_space = action_space

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**kwargs)
        self._step = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._step += 1
        return self._picture(), float(np.sum(action)), self._step == 7, False, {}

    def render(self) -> np.ndarray:
        return self._picture()

    def _picture(self) -> np.ndarray:
        space = self.observation_space
        assert space.shape is not None
        slope = np.arange(np.prod(space.shape)).reshape(space.shape) % 100
        return (slope + 20 * self._step).astype(space.dtype)


class ArrayRewards(Pictures):
    """Returns what formulas with arrays return: a reward and flags of shape (1,)."""

    def step(self, action: Any) -> tuple[np.ndarray, Any, Any, Any, dict[str, Any]]:
        picture, _, over, _, info = super().step(action)
        return picture, np.array([0.5 * action]), np.array([over]), np.array([False]), info


class Catch(gymnasium.Env[np.ndarray, Any]):
    """A ball falls; a paddle at the bottom, moved left, right or not at all, has to catch it.

    Images uint8 [40, 40, 1], of 10 x 10 cells. A game takes 9 steps; its return is 1 if the ball
    was caught, and -1 if not. A random agent's mean is about -0.8.
    """

    observation_space = Box(0, 255, (40, 40, 1), np.uint8)
    action_space = Discrete(3)
    _CELLS, _PIXELS = 10, 4

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = 0
        self._ball, self._paddle = (int(c) for c in self.np_random.integers(0, self._CELLS, 2))
        return self._image(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._CELLS - 1)
        self._row += 1
        landed = self._row == self._CELLS - 1
        reward = (1.0 if self._ball == self._paddle else -1.0) if landed else 0.0
        return self._image(), reward, landed, False, {}

    def _image(self) -> np.ndarray:
        cells = np.zeros((self._CELLS, self._CELLS), np.uint8)
        cells[self._CELLS - 1, self._paddle] = 128
        cells[self._row, self._ball] = 255
        return cells.repeat(self._PIXELS, 0).repeat(self._PIXELS, 1)[..., None]


class Samples(gymnasium.Env[Any, Any]):
    """Shows samples of a space, the same in each episode of 7 steps."""

    def __init__(self, observation_space: Any, action_space: Any = Discrete(3)) -> None:  # noqa: B008
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**kwargs)
        self.observation_space.seed(0)
        self._step = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        seen = self.observation_space.sample()
        return seen, float(np.sum(action)), self._step == 7, False, {}


class Locked(gymnasium.Env[Any, Any]):
    """A corridor of doors, of which two of six are open at a time; the lower one is worth 1.

    Its code raises if a closed door is chosen, so a run that does so breaks.
    """

    action_space = Discrete(6)

    def __init__(self, mask_in: str = "observation") -> None:
        self._in_observation = mask_in == "observation"
        seen = Box(0.0, 1.0, (6,), np.float32)
        masked = Dict({"observation": seen, "action_mask": Box(0, 1, (6,), np.int8)})
        self.observation_space = masked if self._in_observation else seen

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**kwargs)
        self._step = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._mask[action], f"door {action} is closed"
        reward = float(action == self._mask.argmax())
        self._step += 1
        observation, info = self._seen()
        return observation, reward, self._step == 10, False, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        self._mask = np.zeros(6, np.int8)
        self._mask[self.np_random.choice(6, 2, replace=False)] = 1
        seen = self._mask.astype(np.float32)
        if self._in_observation:
            return {"observation": seen, "action_mask": self._mask}, {}
        return seen, {"action_mask": self._mask}


class WithSimulator(CartPoleEnv):
    """Starts a process, as levels with a simulator do."""

    def __init__(self) -> None:
        super().__init__()
        context = multiprocessing.get_context("spawn")
        self._simulator = context.Process(target=time.sleep, args=(60,), daemon=True)
        self._simulator.start()

    def close(self) -> None:
        self._simulator.kill()


class CountedCartPole(CartPoleEnv):
    """Adds a dot to the file that IMPALA_TF_TEST_MADE names, whenever one is made."""

    def __init__(self) -> None:
        super().__init__()
        with Path(os.environ["IMPALA_TF_TEST_MADE"]).open("a") as file:
            file.write(".")


# Episodes: 3 steps, truncated; 2 steps, terminated; 4 steps with both flags.
SCRIPT = ((3, False, True), (2, True, False), (4, True, True))


class SeedsCartPole(CartPoleEnv):
    """Adds its seeds to the file that IMPALA_TF_TEST_SEEDS names."""

    def reset(self, *, seed: int | None = None, **settings: Any) -> Any:
        if seed is not None:
            with Path(os.environ["IMPALA_TF_TEST_SEEDS"]).open("a") as file:
                file.write(f"{seed}\n")
        return super().reset(seed=seed, **settings)


def register(name: str, single: Any = None, *, vector: type | None = None, **settings: Any) -> None:
    """Makes a level known to Gymnasium: its environment, its native vector environment, or both."""
    entry_point, vector_entry_point = (
        None if each is None else f"{each.__module__}:{each.__name__}" for each in (single, vector)
    )
    gymnasium.register(
        name,
        entry_point=entry_point,
        vector_entry_point=vector_entry_point,
        disable_env_checker=True,
        **settings,
    )


register("MaskedCartPole-v1", masked_cart_pole, max_episode_steps=500)
register("SeedsCartPole-v1", SeedsCartPole, max_episode_steps=500)
register("ShortCartPole-v1", CartPoleEnv, vector=CartPoleVectorEnv, max_episode_steps=100)
register("Locked-v0", Locked)
register("LockedInfo-v0", Locked, kwargs={"mask_in": "info"})
register("Scripted-v0", Scripted, kwargs={"script": SCRIPT})
register("Pictures-v0", Pictures)
register("UnboundedPictures-v0", Pictures, kwargs={"dtype": "float32", "high": np.inf})
register("ArrayRewards-v0", ArrayRewards)
register("Catch-v0", Catch)
register(
    "Everything-v0",
    Samples,
    kwargs={
        "observation_space": Dict(
            {"picture": Box(0, 255, (24, 32, 3), np.uint8), "text": Text(20), "choice": Discrete(3)}
        ),
        "action_space": MultiDiscrete([2, 3]),
    },
)
# Parts as levels with goals name them, and in other ways that need not be variables.
_NAMES = ("observation", "achieved_goal", "two words", "two-words", "größe")
register(
    "Goals-v0",
    Samples,
    kwargs={"observation_space": Dict({name: Box(-1, 1, (2,)) for name in _NAMES})},
)
for _name, _space in {
    "ThreeActions": Discrete(3),
    "ContinuousPictures": Box(-1, 1, (1,)),
    "NarrowEcho": Box(-1, 1, (2,)),
    "WideEcho": Box(-2, 4, (2, 1), np.float64),
    "FromZeroEcho": MultiDiscrete([2, 3]),
    "FromFiveEcho": MultiDiscrete([2, 3], start=[5, 7]),
    "BitsEcho": MultiBinary(2),
    "TwoTwoEcho": MultiDiscrete([2, 2], start=[1, 1]),
}.items():
    register(f"{_name}-v0", Pictures, kwargs={"action_space": _space})
register("CountedCartPole-v1", CountedCartPole, max_episode_steps=500)
register("PacedCartPole-v1", vector=PacedCartPoleVector)
register("CalmCartPole-v1", vector=CalmCartPoleVector)
