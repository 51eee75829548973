"""Environments that break or hang: they are made again, and reported, but never learned from."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import tree

from impala_tf.config import ConfigError
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.supervision import RestartBudget
from impala_tf.types import EnvOutput, Episode

MAX_RESTARTS = 5
"""How often the environments of an actor are made again in an hour."""
_POLL_S = 0.1

_log = logging.getLogger("impala_tf.actor")


class BrokenEnvironmentError(Exception):
    """An environment returned something that no agent can learn from."""


class GuardedEnvironment:
    """N environments, with the interface of `BatchedEnvironment`.

    If a step raises or returns numbers that are not finite, all N are made again, and the step
    returns their first observations. To the learner that looks as if the episodes were truncated.

    Args:
      make: makes them; called with how often they were made before, so that they get other seeds.
      level_names: of the levels that `BatchedEnvironment.level_indices` means.
      timeout_s: how long a step may take. Then the process ends: a thread that hangs in foreign
        code cannot be stopped in another way.
      should_stop: ends the pause before a restart.
      on_hang: ends the process.
      budget: of the restarts.
      seed_of: returns the seed that `make` uses, to be named when the environments break.
    """

    def __init__(
        self,
        make: Callable[[int], BatchedEnvironment],
        level_names: Sequence[str],
        timeout_s: float,
        should_stop: Callable[[], bool] = lambda: False,
        on_hang: Callable[[], None] = lambda: os._exit(1),
        budget: RestartBudget | None = None,
        seed_of: Callable[[int], int] | None = None,
    ) -> None:
        self._make = make
        self._seed_of = seed_of
        self.restarts = 0
        self._level_names = level_names
        self._should_stop = should_stop
        self._budget = budget or RestartBudget(MAX_RESTARTS)
        self._environment = make(0)
        self._made_s = time.monotonic()
        self._last_actions: np.ndarray | None = None
        self._shapes: list[tuple[int, ...]] | None = None  # of rewards and observations
        self._kept: list[Episode] = []
        self._watchdog = _Watchdog(timeout_s, self._describe, on_hang)

    @property
    def level_indices(self) -> np.ndarray:
        """As of BatchedEnvironment: int32 [N]."""
        return self._environment.level_indices

    def reset(self) -> EnvOutput:
        """Starts new games everywhere and returns their first step."""
        return self._guarded(self._environment.reset)

    def step(self, actions: np.ndarray) -> EnvOutput:
        """Takes actions and returns the step that follows.

        Raises:
          ConfigError: the environments have broken too often.
        """
        self._last_actions = actions
        return self._guarded(lambda: self._environment.step(actions))

    def pop_episodes(self) -> list[Episode]:
        """Returns the whole games that finished since the last call, oldest first."""
        kept, self._kept = self._kept, []
        return kept + self._environment.pop_episodes()

    def close(self) -> None:
        """Closes the environments and the processes that they run in."""
        self._watchdog.close()
        self._environment.close()

    def _guarded(self, act: Callable[[], EnvOutput]) -> EnvOutput:
        while True:
            try:
                with self._watchdog:
                    output = act()
                self._check(output)
                return output
            except ConfigError:
                raise
            except Exception as error:
                self._restart(error)
                act = self._environment.reset

    def _check(self, output: EnvOutput) -> None:
        named = {"reward": output.reward}
        for path, part in tree.flatten_with_path(output.observation):
            named[".".join(map(str, ("observation", *path)))] = part
        shapes = [array.shape for array in named.values()]
        self._shapes = self._shapes or shapes
        if shapes != self._shapes:
            raise BrokenEnvironmentError(
                f"{self._describe()}: reward and observation have shapes {shapes}, not"
                f" {self._shapes}"
            )
        for name, array in named.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                where = int(np.argwhere(~np.isfinite(array))[0][0])
                raise BrokenEnvironmentError(
                    f"environment {where} of {self._level_of(where)}: {name} is NaN or infinite"
                    f" after {self._action_of(where)}"
                )

    def _restart(self, error: Exception) -> None:
        text = str(error) if isinstance(error, BrokenEnvironmentError) else self._describe()
        if not isinstance(error, BrokenEnvironmentError):
            text += f": {type(error).__name__}: {error}"
        pause_s = self._budget.pause_s(time.monotonic() - self._made_s)
        if pause_s is None:
            raise ConfigError(
                f"--level_name: its environments have broken {self.restarts + 1} times;"
                f" at last {text}"
            ) from error
        self.restarts += 1
        _log.warning("%s; made again in %.0f s (restart %d)", text, pause_s, self.restarts)
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s and not self._should_stop():
            time.sleep(_POLL_S)
        self._kept += self._environment.pop_episodes()
        try:
            self._environment.close()
        except Exception as problem:  # What is broken may not close either.
            _log.warning("the broken environments did not close: %s", problem)
        self._environment = self._make(self.restarts)
        self._made_s = time.monotonic()

    def _describe(self) -> str:
        levels = {self._level_of(n) for n in range(len(self.level_indices))}
        actions = "no action" if self._last_actions is None else f"actions {self._last_actions}"
        seed = f", seed {self._seed_of(self.restarts)}," if self._seed_of else ""
        return f"environments of {', '.join(sorted(levels))}{seed} after {actions}"

    def _level_of(self, number: int) -> str:
        return self._level_names[int(self.level_indices[number])]

    def _action_of(self, number: int) -> str:
        actions = self._last_actions
        return "the reset" if actions is None else f"action {actions[number]}"


class _Watchdog:
    """A context; if it is not left in time, the process ends, and its stacks are printed."""

    def __init__(
        self, timeout_s: float, describe: Callable[[], str], on_hang: Callable[[], None]
    ) -> None:
        self._timeout_s = timeout_s
        self._describe = describe
        self._on_hang = on_hang
        self._began_s: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._began_s = None

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        # Still running when the process exits, it would keep the environments from being freed.
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._timeout_s / 4)):
            began_s = self._began_s
            if began_s is not None and time.monotonic() - began_s > self._timeout_s:
                _log.error(
                    "%s: a step takes longer than --environment_timeout_s=%g; ending the process",
                    self._describe(), self._timeout_s,
                )  # fmt: skip
                faulthandler.dump_traceback(all_threads=True)
                self._on_hang()
                return
