"""The actors whose unrolls a learner takes, and the refusal of those that break its updates."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tree

from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.monitoring.status_file import FOR_USER
from impala_tf.transport import RefusedUnroll

REFUSED_S = 60.0
_ABSURD = 1e9
"""Gradients overflow only with numbers that are much larger. No usual level has any beyond it."""

_log = logging.getLogger("impala_tf.learner")


class Senders:
    """Marks what arrives with its actor, and finds out who sent what an update was skipped for.

    Args:
      clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}  # by name, in the order of the actors' first unrolls
        self._refused_until: dict[str, float] = {}

    def admit(self, actor: str) -> int:
        """Returns the number that marks an actor's unrolls (see `Unroll.actor`). Thread-safe.

        Raises:
          RefusedUnroll: an update was skipped for what it has sent, less than a minute ago.
        """
        if self._clock() < self._refused_until.get(actor, 0.0):
            raise RefusedUnroll(
                f"gradients of earlier ones were not finite; none is taken for {REFUSED_S:.0f} s"
            )
        with self._lock:
            return self._numbers.setdefault(actor, len(self._numbers))

    def explain(self, minibatch: Any, group: LearnerGroup) -> bool:
        """Names and refuses the actors that a skipped gradient step is due to.

        All learners call it together. Rows with absurd numbers explain the step, unless all actors
        send such rows: then it is the level, or the training itself.

        Args:
          minibatch: this learner's part of the step's input; None: it had none.
          group: the learners.

        Returns:
          whether it is explained.
        """
        everyones = group.gather([*self._actors_in(minibatch), len(self._numbers)])
        guilty, present = (
            sorted(set(itertools.chain(*(found[part] for found in everyones)))) for part in (0, 1)
        )
        known = sum(found[2] for found in everyones)
        if not guilty or known == 1 or (guilty == present and len(guilty) > 1):
            _log.warning("a gradient is not finite; in its batch: %s", ", ".join(present) or "none")
            return False
        for actor in guilty:
            is_first = actor not in self._refused_until
            self._refused_until[actor] = self._clock() + REFUSED_S
            if is_first:
                _log.warning(
                    "%s: an update was skipped, as numbers that it sent gave gradients that are not"
                    " finite; its unrolls are refused for %.0f s, and again if it happens again",
                    actor,
                    REFUSED_S,
                    extra=FOR_USER,
                )
        return True

    def _actors_in(self, minibatch: Any) -> tuple[list[str], list[str]]:
        """Returns the actors with absurd rows [b, ...], and all actors; neither if not marked."""
        marks = np.asarray(getattr(getattr(minibatch, "unrolls", minibatch), "actor", ()), int)
        is_absurd = np.zeros(len(marks), bool)
        for part in tree.flatten(minibatch) if len(marks) else ():
            if (array := np.asarray(part)).dtype.kind == "f" and array.size:
                rows = np.abs(array).reshape(len(marks), -1).max(axis=1)
                is_absurd |= ~(rows <= _ABSURD)  # comparisons with NaN are false
        names = list(self._numbers)
        return [names[mark] for mark in set(marks[is_absurd])], [names[mark] for mark in set(marks)]


def unmarked(minibatch: Any) -> Any:
    """Returns the input of a gradient step without the numbers of its actors, if it has any."""
    if hasattr(minibatch, "unrolls"):
        return minibatch._replace(unrolls=unmarked(minibatch.unrolls))
    return minibatch._replace(actor=()) if hasattr(minibatch, "actor") else minibatch
