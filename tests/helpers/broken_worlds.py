"""Levels that break, hang or cannot be used. Gymnasium finds them as its own: `MODULE:NAME`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete, Graph
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from tests.helpers.worlds import Pictures, Samples, register

_WRONG: dict[str, Callable[..., Any]] = {
    "nan": lambda seen, *others: (seen * np.nan, *others),
    "inf": lambda seen, reward, *others: (seen, np.inf, *others),
    "huge": lambda seen, reward, *others: (seen, 2e15, *others),
    "end": lambda seen, reward, terminated, *others: (seen, np.nan, True, *others),
    "shape": lambda seen, *others: (seen[:3], *others),
    "values": lambda seen, one, *others: (seen, *others),
    "raise": lambda *result: _raise(RuntimeError("the pole is broken")),
    "exit": lambda *result: sys.exit(0),
    "odd": lambda *result: _raise(OddError("simulator", 7)),
    "die": lambda *result: os._exit(3),
    "hang": lambda *result: time.sleep(1000),
}
"""{a fault: what a step returns instead of its result}."""


class OddError(Exception):
    """Cannot be unpickled, as many errors with arguments of their own."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(f"no {name} at port {port}")


def _raise(error: Exception) -> None:
    raise error


class FaultyCartPole(CartPoleEnv):
    """CartPole that breaks at one step of its life.

    Args:
      fault: a key of _WRONG; "end" ends a game with NaN as its last reward.
      at_step: when; the first step is 1.
    """

    def __init__(self, fault: str = "nan", at_step: int = 1) -> None:
        super().__init__()
        self._wrong, self._at_step = _WRONG[fault], at_step
        self._steps = 0

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self._steps += 1
        return self._wrong(*result) if self._steps == self._at_step else result


class SeedlessCartPole(CartPoleEnv):
    """Resets as levels of the old gym did."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


def limited(**settings: Any) -> gymnasium.Env[Any, Any]:
    """FaultyCartPole in a wrapper that unpacks what it returns."""
    return TimeLimit(FaultyCartPole(**settings), 100)


class BrokenOnceCartPole(FaultyCartPole):
    """Breaks at its 30th step, unless the file that IMPALA_TF_TEST_BROKEN names is there."""

    def __init__(self) -> None:
        super().__init__("raise", 30)
        self._broken = Path(os.environ["IMPALA_TF_TEST_BROKEN"])

    def step(self, action: Any) -> Any:
        if self._broken.exists():
            self._at_step = -1
        if self._steps + 1 == self._at_step:
            self._broken.touch()
        return super().step(action)


class NanPictures(Pictures):
    """Shows float pictures, the fourth one with NaN in one place."""

    def __init__(self) -> None:
        super().__init__((24, 32, 3), "float32")
        self._shown = 0

    def _picture(self) -> Any:
        picture = np.full((24, 32, 3), 7, np.float32)
        if self._shown == 3:
            picture[2, 3, 1] = np.nan
        self._shown += 1
        return picture


class DoesNotClose(Pictures):
    """Hangs when it is closed, once it has been stepped."""

    _step = 0

    def close(self) -> None:
        time.sleep(3600 if self._step else 0)


def needs_file() -> None:
    """Needs a file that is not there."""
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


register("DoesNotClose-v0", DoesNotClose)
register("FaultyCartPole-v1", FaultyCartPole, max_episode_steps=500, kwargs={"at_step": 30})
register("BrokenAtOnceCartPole-v1", FaultyCartPole, kwargs={"at_step": 3})
register("BrokenOnceCartPole-v1", BrokenOnceCartPole, max_episode_steps=500)
register("NanPictures-v0", NanPictures)
register("NeedsFile-v0", needs_file)
register("NoLicence-v1", NoLicence, max_episode_steps=500)
register("NoAutoreset-v0", vector=NoAutoreset)
register("DictActions-v0", Pictures, kwargs={"action_space": Dict({"legs": Discrete(3)})})
for _name, _space in {
    "Graph": Graph(Discrete(3), None),
    "Blind": Box(0, 255, (24, 32, 3), np.uint8),
}.items():
    register(f"{_name}-v0", Samples, kwargs={"observation_space": _space})
