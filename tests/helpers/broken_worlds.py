"""Levels that break, hang or cannot be used. Gymnasium finds them as its own: `MODULE:NAME`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete, Graph
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from tests.helpers.worlds import Pictures, register


class FaultyCartPole(CartPoleEnv):
    """CartPole that breaks at one step of its life.

    Args:
      fault: "raise", "exit", "nan" (in the observation), "inf" (as the reward), "reward" (NaN),
        "end" (NaN as the last reward of a game), "shape" or "hang".
      at_step: when.
    """

    def __init__(self, fault: str = "nan", at_step: int = 30) -> None:
        super().__init__()
        self._fault, self._at_step, self._steps = fault, at_step, 0

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        self._steps += 1
        if self._steps == self._at_step:
            if self._fault == "raise":
                raise RuntimeError("the pole is broken")
            if self._fault == "exit":
                sys.exit(0)
            if self._fault == "hang":
                time.sleep(1000)
            observation = observation * (np.nan if self._fault == "nan" else 1)
            reward = np.inf if self._fault == "inf" else reward
            reward = np.nan if self._fault in ("reward", "end") else reward
            terminated = terminated or self._fault == "end"
            observation = observation[:3] if self._fault == "shape" else observation
        return observation, reward, terminated, truncated, info


class MisfitCartPole(CartPoleEnv):
    """CartPole that returns something else than it must.

    Args:
      fault: "shape", "none" (no observation), "values" (too few), "nothing" (None), "info" (no
        dictionary).
      method: "reset" or "step".
      at_step: when.
    """

    def __init__(self, fault: str, method: str = "step", at_step: int = 1) -> None:
        super().__init__()
        self._fault, self._method, self._at_step, self._steps = fault, method, at_step, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        found = super().reset(seed=seed, options=options)
        return self._changed(*found) if self._method == "reset" else found

    def step(self, action: Any) -> Any:
        found = super().step(action)
        self._steps += 1
        at_fault = self._method == "step" and self._steps == self._at_step
        return self._changed(*found) if at_fault else found

    def _changed(self, observation: Any, *others: Any) -> Any:
        if self._fault == "values":
            return (observation, *others[1:])
        if self._fault == "nothing":
            return None
        if self._fault == "info":
            return (observation, *others[:-1], "nothing")
        return (observation[:3] if self._fault == "shape" else None, *others)


class SeedlessCartPole(CartPoleEnv):
    """Resets as levels of the old gym did."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


def limited(**settings: Any) -> gymnasium.Env[Any, Any]:
    """MisfitCartPole in a wrapper that unpacks what it returns."""
    return TimeLimit(MisfitCartPole(**settings), 100)


class BrokenSixTimesCartPole(FaultyCartPole):
    """Shows NaN at its 30th step five times, and the sixth time so late that much is learned."""

    breaks, broke = 0, False  # in this process: several of them are made at once

    def __init__(self) -> None:
        its = BrokenSixTimesCartPole
        its.breaks, its.broke = its.breaks + its.broke, False
        super().__init__("nan", 30 if its.breaks < 5 else 3_000)

    def step(self, action: Any) -> Any:
        seen = super().step(action)
        BrokenSixTimesCartPole.broke |= self._steps == self._at_step
        return seen


class BrokenOnceCartPole(FaultyCartPole):
    """Breaks at its 30th step, unless the file that IMPALA_TF_TEST_BROKEN names is there."""

    def __init__(self) -> None:
        super().__init__("raise")
        self._broken = Path(os.environ["IMPALA_TF_TEST_BROKEN"])

    def step(self, action: Any) -> Any:
        if self._broken.exists():
            self._at_step = -1
        if self._steps + 1 == self._at_step:
            self._broken.touch()
        return super().step(action)


class NanPictures(Pictures):
    """Shows float pictures, one of them with NaN in one place: at `at_step` of its life."""

    def __init__(self, at_step: int = 3, part: str = "") -> None:
        super().__init__((24, 32, 3), "float32")
        self._at_step, self._steps, self._part = at_step, 0, part
        self._pictures = self.observation_space
        if part:
            self.observation_space: Any = Dict({part: self._pictures})

    def _picture(self) -> Any:
        picture = np.full(self._pictures.shape, 7, np.float32)
        if self._steps == self._at_step:
            picture[2, 3, 1] = np.nan
        self._steps += 1
        return {self._part: picture} if self._part else picture


class HugeRewardsCartPole(CartPoleEnv):
    """Gives rewards whose squares are infinite in float32."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 1e30, terminated, truncated, info


class Hanging(Pictures):
    """Takes an hour for a step."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(3600)
        return super().step(action)


class DoesNotClose(Pictures):
    """Raises, exits or hangs when it is closed; it hangs only once it has been stepped."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault, self._step = fault, 0

    def close(self) -> None:
        if self._fault == "hang":
            time.sleep(3600 if self._step else 0)
            return
        if self._fault == "exit":
            sys.exit(0)
        raise RuntimeError("it is closed already")


class Blind(Pictures):
    """Has images as observations, but cannot be rendered."""

    metadata: dict[str, Any] = {"render_modes": []}


class Empty(CartPoleEnv):
    """Has observations without numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(-1, 1, (0,), np.float32)


class NeedsUninstalled(Pictures):
    """Needs a package that is not installed."""

    def __init__(self) -> None:
        raise gymnasium.error.DependencyNotInstalled(
            "Moon is not installed,\nrun `pip install moon`"
        )


class NeedsFile(Pictures):
    """Needs a file that is not there."""

    def __init__(self) -> None:
        raise FileNotFoundError(2, "No such file or directory", "maze.txt")


class NoLicence(CartPoleEnv):
    """Cannot be made in a process that another one has started."""

    def __init__(self) -> None:
        if multiprocessing.parent_process():
            raise OSError("no licence left for this process")
        super().__init__()


class NoAutoreset(CartPoleVectorEnv):
    """Claims an autoreset mode that is not supported."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}


class DictActions(Pictures):
    """Has actions that no policy is made for."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Dict({"legs": Discrete(3)})


class GraphObservations(Pictures):
    """Has observations that no torso is made for."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space: Any = Graph(Discrete(3), None)


register("DoesNotClose-v0", DoesNotClose)
register("FaultyCartPole-v1", FaultyCartPole, max_episode_steps=500)
register("BrokenSixTimesCartPole-v1", BrokenSixTimesCartPole, max_episode_steps=500)
register("BrokenAtOnceCartPole-v1", FaultyCartPole, kwargs={"at_step": 3})
register("BrokenOnceCartPole-v1", BrokenOnceCartPole, max_episode_steps=500)
register("NanPictures-v0", NanPictures)
register("HugeRewardsCartPole-v1", HugeRewardsCartPole, max_episode_steps=500)
register("Hanging-v0", Hanging)
register("Blind-v0", Blind)
register("NeedsUninstalled-v0", NeedsUninstalled)
register("NeedsFile-v0", NeedsFile)
register("NoLicence-v1", NoLicence, max_episode_steps=500)
register("NoAutoreset-v0", vector=NoAutoreset)
register("DictActions-v0", DictActions)
register("Graph-v0", GraphObservations)
