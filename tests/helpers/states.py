"""The state of a checkpoint."""

from __future__ import annotations

from typing import Any

GAMES = {"count": 1, "last": [[1.5, 7, 0, 0, [None, 2.0]]]}


def state(updates: int = 0, **others: Any) -> dict[str, Any]:
    """Returns what a run saves after so many updates and ten times as many frames."""
    counters = {"agent_steps": 10 * updates, "environment_frames": 10 * updates, "kl_factor": 1.0}
    return {
        "identity": {},
        "run_id": "one",
        "counters": {"learner_updates": updates, **counters},
        "recorder": {"wall_time_s": 1.0, "episodes": GAMES, "level_episodes": None},
        **others,
    }
