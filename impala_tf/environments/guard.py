"""What happens when environments break or hang: they are made again, or their process ends."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from impala_tf.config import ConfigError, LevelRaisedError
from impala_tf.environments.simplify import BrokenEnvironmentError, LevelCodeError, LevelError
from impala_tf.machine.supervision import RestartBudget

STEP_TIMEOUT_S = 120.0
"""How long a step may take. After that, an actor counts as hanging and is restarted."""
MAX_RESTARTS = 5
"""How often an actor's environments may be restarted within an hour."""
GOOD_STEPS = 100_000
"""After so many agent steps without a break, all restarts are available again. Fast levels take
them in half a minute, of which a restart is a small part, so a level that breaks as rarely is worth
playing on. The time alone would end the actors of fast levels first."""
_MAKING = 4.0
"""How many times as long as a step the making of the environments may take. They are made in turn,
or in processes that share the cores while each imports the level's packages."""
_UNPROVEN_STEPS = 100
"""During the first steps pauses are short: waiting does not help a level that breaks at once."""
_UNPROVEN_PAUSE_S = 2.0
_POLL_S = 0.1

_log = logging.getLogger("impala_tf.actor.actor")
Made = TypeVar("Made")


class BrokenTooOftenError(Exception):
    """An actor's environments have broken so often that another restart would not help."""


class Guard:
    """Says when environments are made again, and ends the process if they hang.

    Nothing else than the process's end stops a thread that hangs in foreign code.

    Args:
      level_names: the names of all levels, which `BatchedEnvironment.level_indices` refer to.
      timeout_s: the time limit for a step, in seconds; making the environments may take four times
        as long.
      should_stop: ends the pause before a restart when it returns True.
      on_trouble: called with one line when the environments break: the cause, and what follows.

    Attributes:
      level_names: as given.
      restarts: how often the environments were made again.
    """

    def __init__(
        self,
        level_names: Sequence[str],
        timeout_s: float,
        should_stop: Callable[[], bool],
        on_trouble: Callable[[str], None],
    ) -> None:
        self.restarts = 0
        self.level_names = level_names
        self._timeout_s = timeout_s
        self._should_stop = should_stop
        self._on_trouble = on_trouble
        self._steps = 0  # since the first environments were made
        self._good_steps = 0  # agent steps since the environments were made
        self._made_s = 0.0
        self._budget = RestartBudget(MAX_RESTARTS)
        # When it began, what is expected, and after how many seconds: set at once, because another
        # thread reads them.
        self._expected: tuple[float, str, float] | None = None
        self._closed = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._watchdog.start()
        # Worker processes end with the thread that made them (see `die_with_parent`): the main one,
        # or this one, as the one that steps the environments may end earlier.
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="make")

    def make(self, make: Callable[[], Made]) -> Made:
        """Returns new environments. Their code may raise anything, for example for a while.

        Raises:
          ConfigError: `make` raised it.
          BrokenTooOftenError: they could not be made, despite retries.
        """
        while True:
            self._made_s = time.monotonic()
            try:
                with self.expects("making", _MAKING):
                    if threading.current_thread() is threading.main_thread():
                        return make()
                    return self._maker.submit(make).result()
            except Exception as error:
                if isinstance(error, ConfigError) and not isinstance(error, LevelRaisedError):
                    raise
                self._pause(error, ", ".join(self.level_names))

    @contextlib.contextmanager
    def expects(self, what: str, times: float = 1.0) -> Iterator[None]:
        """Returns a context that must end in time, or the process ends with its stacks printed.

        Args:
          what: what "takes" long.
          times: how many times the time limit it may take.
        """
        self._expected = time.monotonic(), what, times * self._timeout_s
        try:
            yield
        finally:
            self._expected = None

    def count(self, agent_steps: int) -> None:
        """Counts a good step of all environments."""
        self._steps += 1
        self._good_steps += agent_steps

    def handle(self, error: Exception, levels: np.ndarray) -> None:
        """Returns after a pause if environments that broke shall be made again.

        Raises:
          ConfigError: the result of the first reset or step does not fit the level.
          BrokenTooOftenError: the environments have broken too often.
        """
        if isinstance(error, LevelError) and not self._steps:
            # No step has worked, so none will.
            raise ConfigError(f"--level_name={error}") from error
        self._pause(error, ", ".join(sorted({self.level_names[level] for level in levels})))

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        # If it still ran when the process exits, the environments would not be freed.
        self._watchdog.join()
        self._maker.shutdown()

    def _pause(self, error: Exception, played: str) -> None:
        text = str(error)
        if not isinstance(error, (BrokenEnvironmentError, LevelError, LevelRaisedError)):
            kind = "" if isinstance(error, LevelCodeError) else f"{type(error).__name__}: "
            text = f"{played}: {kind}{error}"
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

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._timeout_s / 4)):
            if (expected := self._expected) is None:
                continue
            began_s, what, limit_s = expected
            if time.monotonic() - began_s > limit_s:
                faulthandler.dump_traceback(all_threads=True)
                limit = f"{what} takes longer than {limit_s:g} s"
                _log.error("environments: %s; ending the process", limit)
                os._exit(1)
