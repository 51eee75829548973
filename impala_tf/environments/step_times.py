"""How long a level's steps take, and whether they compute or wait."""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

from gymnasium.vector import VectorEnv

# A step that computes for a smaller share of its time waits, so a core can do several at once.
# Where other processes compute, a step is waiting for a part of its time, too.
_COMPUTING_SHARE = 0.5
_PROBE_S = 0.25
_PROBE_STEPS = 200


def measured(probe: VectorEnv[Any, Any, Any]) -> tuple[float, float, bool]:
    """Returns a step's duration, how long this process computes in it, and whether it mostly waits.

    They are medians, in seconds, because means would depend on the machine's other load. A step
    that only computes is slow on a busy machine, too, but never gives up its core of itself.

    Args:
      probe: environments that are stepped with random actions, for a quarter of a second or 200
        steps.
    """
    durations: list[float] = []
    computing: list[float] = []
    gave_up: list[int] = []
    probe.reset(seed=0)
    probe.action_space.seed(0)
    while len(durations) < _PROBE_STEPS and sum(durations) < _PROBE_S:
        before, computed = _times_given_up(), time.process_time()
        started = time.perf_counter()
        probe.step(probe.action_space.sample())
        durations.append(time.perf_counter() - started)
        computing.append(time.process_time() - computed)
        gave_up.append(_times_given_up() - before)
    step_s, computing_s = statistics.median(durations), statistics.median(computing)
    is_counted = _times_given_up() > 0  # not by every system
    waits = computing_s < _COMPUTING_SHARE * step_s
    return step_s, computing_s, waits and (not is_counted or statistics.median(gave_up) > 0)


def _times_given_up() -> int:
    """Returns how often this thread has waited for something other than a core."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
