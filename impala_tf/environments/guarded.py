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
from impala_tf.environments.results import BrokenEnvironmentError, LevelError
from impala_tf.machine.restart_budget import RestartBudget
from impala_tf.types import EnvOutput, Episode

MAX_RESTARTS = 5
"""How often an actor's environments may be restarted within an hour."""
GOOD_STEPS = 100_000
"""After so many agent steps without a break, all restarts are available again. Fast levels take
them in half a minute, of which a restart is a small part, so a level that breaks as rarely is worth
playing on. The time alone would end the actors of fast levels first."""
_MAKING_S = 5.0
"""How much longer making the environments may take for each of them, in seconds. They are made in
turn, or in processes that share the cores while each imports the level's packages."""
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
      timeout_s: the time limit for a step, in seconds; making the environments may take 5 s more
        for each. After it the process ends, because nothing else stops a thread that hangs in
        foreign code.
      should_stop: ends the pause before a restart when it returns True.
      on_hang: ends the process.
      budget: how many restarts are allowed, and how long to pause before each.
      seed_of: takes the number of restarts, returns the seed that `make` uses, for messages.
      on_trouble: called with one line when the environments break: the cause, and what follows.
      proven_after: pauses stay short during this many steps, because waiting does not help a level
        that breaks at once.
      first_pause_s: the longest pause until then, in seconds.
      num_envs: N, for the time limit; 0: making them has that of a step.

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
        on_hang: Callable[[], None] = lambda: os._exit(1),
        budget: RestartBudget | None = None,
        seed_of: Callable[[int], int] | None = None,
        on_trouble: Callable[[str], None] = lambda line: None,
        proven_after: int = 1,
        first_pause_s: float = 2.0,
        num_envs: int = 0,
    ) -> None:
        self._make = make
        self._seed_of = seed_of
        self._on_trouble = on_trouble
        self._unproven_steps = self._proven_after = proven_after
        self._first_pause_s = first_pause_s
        self._good_steps = 0  # agent steps since the environments were made
        self.restarts = 0
        self._level_names = level_names
        self._should_stop = should_stop
        self._budget = budget or RestartBudget(MAX_RESTARTS)
        self._last_actions: np.ndarray | None = None
        self._shapes: list[tuple[int, ...]] | None = None  # of rewards and observations
        self._kept: list[Episode] = []
        self._watchdog = _Watchdog(timeout_s, on_hang)
        self._num_envs = num_envs
        try:
            self._environment = self._first()
        except BaseException:
            self._watchdog.close()
            raise
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
        self._unproven_steps -= 1
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
        names = ", ".join(self._level_names)
        with self._watchdog.expects(lambda: f"environments of {names}: closing takes"):
            self._environment.close()

    def _finished(self) -> list[Episode]:
        """Returns the games that ended, without those with NaN or infinite rewards."""
        episodes = self._environment.pop_episodes()
        valid = [episode for episode in episodes if math.isfinite(episode.episode_return)]
        if len(valid) < len(episodes):
            _log.warning("games that do not count: %d had NaN or infinite rewards",
                         len(episodes) - len(valid))  # fmt: skip
        return valid

    def _first(self) -> BatchedEnvironment:
        while True:
            self._made_s = time.monotonic()
            try:
                with self._making():
                    return self._make(self.restarts)
            except LevelRaisedError as error:
                self._pause(str(error), error)
            except ConfigError:
                raise
            except LevelError as error:
                raise _refused(error) from error
            except Exception as error:  # the level's code runs here, to be timed
                names = ", ".join(self._level_names)
                self._pause(f"environments of {names}: {_cause(error)}", error)

    def _guarded(self, act: Callable[[], EnvOutput]) -> EnvOutput:
        while True:
            try:
                with self._watchdog.expects(lambda: f"{self._describe()}: a step takes"):
                    output = act()
                self._check(output)
                return output
            except ConfigError:
                raise
            except Exception as error:
                if isinstance(error, LevelError) and self._unproven_steps == self._proven_after:
                    raise _refused(error) from error  # no step has worked, so none will
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
        if isinstance(error, (BrokenEnvironmentError, LevelError)):
            self._pause(str(error), error)
        else:  # only the log gets the actions of all environments
            cause = _cause(error)
            self._pause(f"{self._describe()}: {cause}", error, cause)
        self._kept += self._finished()
        self._close_environment()
        self._made_s = time.monotonic()
        try:
            with self._making():
                self._environment = self._maker.submit(self._make, self.restarts).result()
        except Exception as next_error:  # from the level's code; the budget ends the recursion
            self._restart(next_error)

    def _pause(self, text: str, error: Exception, short: str = "") -> None:
        """Waits before a restart of the environments.

        Args:
          text: which environments broke, and how.
          error: the cause.
          short: a shorter text to report; '': `text`.

        Raises:
          BrokenTooOftenError: the environments have broken too often.
        """
        if self._good_steps >= GOOD_STEPS:
            self._budget.refill()
        self._good_steps = 0
        pause_s = self._budget.pause_s(time.monotonic() - self._made_s)
        if pause_s is None:
            times = f"broke {self.restarts + 1} times, so this actor gives up"
            self._on_trouble(f"its environments {times}: {short or text}")
            raise BrokenTooOftenError(f"the environments {times}; at last {text}") from error
        if self._unproven_steps > 0:
            pause_s = min(pause_s, self._first_pause_s)
        self.restarts += 1
        what_next = f"made again in {pause_s:.0f} s (restart {self.restarts})"
        _log.warning("%s; %s", text, what_next)
        self._on_trouble(f"its environments broke, and are {what_next}: {short or text}")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s and not self._should_stop():
            time.sleep(_POLL_S)

    def _making(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that must end in the time that making the environments may take."""
        names = ", ".join(self._level_names)
        what = f"environments of {names}: making, resetting or timing takes"
        return self._watchdog.expects(lambda: what, self._num_envs)

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


def _refused(error: LevelError) -> ConfigError:
    return ConfigError(f"--level_name={error}")


def _cause(error: Exception) -> str:
    """Returns the text of an error of a level's code, with advice if it is about threads."""
    cause = f"{type(error).__name__}: {error}"
    # The advice comes first, because the end of a long line may be cut off.
    if any(words in cause for words in ("main thread", "same thread", "thread that created")):
        return f"try --environment_processes=always: {cause}"
    return cause


class _Watchdog:
    """Ends the process, and prints its stacks, if foreign code does not return in time."""

    def __init__(self, timeout_s: float, on_hang: Callable[[], None]) -> None:
        self._timeout_s = timeout_s
        self._on_hang = on_hang
        # When it began, what is expected, and how many environments are made: set at once, because
        # another thread reads them.
        self._expected: tuple[float, Callable[[], str], int] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def expects(self, describe: Callable[[], str], made: int = 0) -> Iterator[None]:
        """Returns a context that must end in time.

        Args:
          describe: returns what "takes" long.
          made: how many environments are made in it.
        """
        self._expected = time.monotonic(), describe, made
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
            began_s, describe, made = expected
            if time.monotonic() - began_s > self._timeout_s + _MAKING_S * made:
                faulthandler.dump_traceback(all_threads=True)
                more = f" and {_MAKING_S:g} s for each of {made}" if made else ""
                _log.error(
                    "%s longer than --environment_timeout_s=%g%s; ending the process",
                    describe(), self._timeout_s, more,
                )  # fmt: skip
                self._on_hang()
                return
