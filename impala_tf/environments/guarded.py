"""Restarts environments that break or hang. What they returned then is never learned from."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tree

from impala_tf.config import ConfigError, LevelRaisedError
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.results import BrokenEnvironmentError, LevelCodeError, LevelError
from impala_tf.machine.restart_budget import RestartBudget
from impala_tf.types import LARGEST_REWARD, EnvOutput, Episode

MAX_RESTARTS = 5
"""How often an actor's environments may be restarted within an hour."""
GOOD_STEPS = 100_000
"""After so many agent steps without a break, all restarts are available again. Fast levels take
them in half a minute, of which a restart is a small part, so a level that breaks as rarely is worth
playing on. The time alone would end the actors of fast levels first."""
STEP_TIMEOUT_S = 120.0
"""How long a step may take. After that, an actor counts as hanging and is restarted."""
_MAKING = 4.0
"""How many times as long as a step the making of the environments may take. They are made in turn,
or in processes that share the cores while each imports the level's packages."""
_UNPROVEN_STEPS = 100
"""During the first steps pauses are short: waiting does not help a level that breaks at once."""
_UNPROVEN_PAUSE_S = 2.0
_POLL_S = 0.1

_log = logging.getLogger("impala_tf.actor.actor")


class BrokenTooOftenError(Exception):
    """An actor's environments have broken so often that another restart would not help."""


class GuardedEnvironment:
    """N environments, with the interface of `BatchedEnvironment`.

    If making them fails, it is retried. If a step raises or returns numbers that are not finite,
    all N are restarted, and the step returns their first observations. To the learner, this looks
    like truncated episodes.

    Worker processes end with the thread that made them (see `die_with_parent`), so create this in a
    thread that lives as long as the environments are used.

    Args:
      make: makes the environments. It gets the number of earlier restarts, to vary the seeds.
      level_names: the names of the levels, which `level_indices` refer to.
      timeout_s: the time limit for a step, in seconds; making the environments may take four times
        as long. After it the process ends, because nothing else stops a thread that hangs in
        foreign code.
      should_stop: ends the pause before a restart when it returns True.
      on_trouble: called with one line when the environments break: the cause, and what follows.

    Raises:
      ConfigError: `make` raised it, or the first reset or step does not fit the level.
      BrokenTooOftenError: the environments could not be made, despite retries.
    """

    def __init__(
        self,
        make: Callable[[int], BatchedEnvironment],
        level_names: Sequence[str],
        timeout_s: float,
        should_stop: Callable[[], bool] = lambda: False,
        on_trouble: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._make = make
        self._level_names = level_names
        self._should_stop = should_stop
        self._on_trouble = on_trouble
        self.restarts = 0
        self._steps = 0  # since the first environments were made
        self._good_steps = 0  # agent steps since the environments were made
        self._budget = RestartBudget(MAX_RESTARTS)
        self._last_actions: np.ndarray | None = None
        self._kept: list[Episode] = []
        self._watchdog = _Watchdog(timeout_s)
        self._played = ", ".join(level_names)
        try:
            self._environment = self._made(make)
        except BaseException:
            self._watchdog.close()
            raise
        played = {level_names[int(index)] for index in self.level_indices}
        self._played = ", ".join(sorted(played))
        # This thread lives until `close`; the one that steps the environments may end earlier.
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="make")

    @property
    def level_indices(self) -> np.ndarray:
        """The level of each environment, int32 [N]."""
        return self._environment.level_indices

    def reset(self) -> EnvOutput:
        """Starts new games everywhere and returns their first step. Raises what `step` raises."""
        return self._guarded(self._environment.reset)

    def step(self, actions: np.ndarray) -> EnvOutput:
        """Takes actions [N, *ActionSpec.shape] and returns the next step.

        Raises:
          BrokenTooOftenError: the environments have broken too often.
          ConfigError: the result of the first reset or step does not fit the level.
        """
        self._last_actions = actions
        output = self._guarded(lambda: self._environment.step(actions))
        self._steps += 1
        self._good_steps += len(actions)
        return output

    def pop_episodes(self) -> list[Episode]:
        """Returns the games that ended since the last call, oldest first."""
        kept, self._kept = self._kept, []
        return kept + self._finished()

    def close(self) -> None:
        """Closes the environments and their processes."""
        self._close_environment()
        self._watchdog.close()
        self._maker.shutdown()

    def _close_environment(self) -> None:
        with self._watchdog.expects("closing"):
            self._environment.close()

    def _finished(self) -> list[Episode]:
        """Returns the games that ended, without those with NaN or infinite rewards."""
        episodes = self._environment.pop_episodes()
        valid = [episode for episode in episodes if math.isfinite(episode.episode_return)]
        if len(valid) < len(episodes):
            _log.warning("games that do not count: %d had NaN or infinite rewards",
                         len(episodes) - len(valid))  # fmt: skip
        return valid

    def _made(self, make: Callable[[int], BatchedEnvironment]) -> BatchedEnvironment:
        """Returns new environments. Their code may raise anything, for example for a while."""
        while True:
            self._made_s = time.monotonic()
            try:
                with self._watchdog.expects("making", _MAKING):
                    return make(self.restarts)
            except Exception as error:
                if isinstance(error, ConfigError) and not isinstance(error, LevelRaisedError):
                    raise
                self._pause(error)

    def _guarded(self, act: Callable[[], EnvOutput]) -> EnvOutput:
        while True:
            try:
                with self._watchdog.expects("a step"):
                    output = act()
                self._check(output)
                return output
            except Exception as error:
                if isinstance(error, LevelError) and not self._steps:
                    # No step has worked, so none will.
                    raise ConfigError(f"--level_name={_advised(str(error))}") from error
                self._restart(error)
                act = self._environment.reset

    def _check(self, output: EnvOutput) -> None:
        named = {"reward": output.reward}
        for path, part in tree.flatten_with_path(output.observation):
            named[".".join(map(str, ("observation", *path)))] = part
        for name, array in named.items():
            if array.dtype.kind != "f":
                continue
            most = LARGEST_REWARD if name == "reward" else np.finfo(array.dtype).max
            fits = np.abs(array) <= most
            if not fits.all():
                where = int(np.argwhere(~fits)[0][0])
                level = self._level_names[int(self.level_indices[where])]
                actions = self._last_actions
                after = "the reset" if actions is None else f"action {actions[where]}"
                is_finite = np.isfinite(array[where]).all()
                what = f"beyond {most:g}" if is_finite else "NaN or infinite"
                raise BrokenEnvironmentError(
                    f"environment {where} of {level}: {name} is {what} after {after}"
                )

    def _restart(self, error: Exception) -> None:
        _log.warning("the environments broke after actions %s", self._last_actions)
        self._pause(error)
        self._kept += self._finished()
        self._close_environment()
        self._environment = self._made(
            lambda restarts: self._maker.submit(self._make, restarts).result()
        )

    def _pause(self, error: Exception) -> None:
        """Waits before a restart of the environments, which broke with an error.

        Raises:
          BrokenTooOftenError: the environments have broken too often.
        """
        text = str(error)
        if not isinstance(error, (BrokenEnvironmentError, LevelError, LevelRaisedError)):
            kind = "" if isinstance(error, LevelCodeError) else f"{type(error).__name__}: "
            text = f"{self._played}: {kind}{error}"
        text = _advised(text)
        if self._good_steps >= GOOD_STEPS:
            self._budget.refill()
        self._good_steps = 0
        pause_s = self._budget.pause_s(time.monotonic() - self._made_s)
        if pause_s is None:
            times = f"broke {self.restarts + 1} times, so this actor gives up"
            self._on_trouble(f"its environments {times}: {text}")
            raise BrokenTooOftenError(f"the environments {times}; at last {text}") from error
        if self._steps < _UNPROVEN_STEPS:
            pause_s = min(pause_s, _UNPROVEN_PAUSE_S)
        self.restarts += 1
        what_next = f"made again in {pause_s:.0f} s (restart {self.restarts})"
        _log.warning("%s; %s", text, what_next)
        self._on_trouble(f"its environments broke, and are {what_next}: {text}")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s and not self._should_stop():
            time.sleep(_POLL_S)


def _advised(text: str) -> str:
    """Returns what a level's code said, with advice if it is about threads."""
    # The advice comes first, because the end of a long line may be cut off.
    if any(words in text for words in ("main thread", "same thread", "thread that created")):
        return f"{text.partition(': ')[0]}: try --environment_processes: {text.partition(': ')[2]}"
    return text


class _Watchdog:
    """Ends the process, and prints its stacks, if foreign code does not return in time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # When it began, what is expected, and after how many seconds: set at once, because another
        # thread reads them.
        self._expected: tuple[float, str, float] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def expects(self, what: str, times: float = 1.0) -> Iterator[None]:
        """Returns a context that must end in time.

        Args:
          what: what "takes" long.
          times: how many times the time limit it may take.
        """
        self._expected = time.monotonic(), what, times * self._timeout_s
        try:
            yield
        finally:
            self._expected = None

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        # If it still ran when the process exits, the environments would not be freed.
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._timeout_s / 4)):
            if (expected := self._expected) is None:
                continue
            began_s, what, limit_s = expected
            if time.monotonic() - began_s > limit_s:
                faulthandler.dump_traceback(all_threads=True)
                _log.error(
                    "environments: %s takes longer than %g s; ending the process", what, limit_s,
                )  # fmt: skip
                os._exit(1)
