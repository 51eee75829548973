"""The schedules of the learning rate and the entropy cost: linear up to --schedule_frames."""

from __future__ import annotations

from impala_tf.config.flags import Config

KL_RANGE = 10.0
"""The most that --learning_rate_schedule=kl may divide the learning rate by."""


def linear(start: float, end: float, frames: int, last_frame: int) -> float:
    """Returns a value that goes linearly from `start` at frame 0 to `end` at `last_frame`."""
    return end + (start - end) * max(0.0, 1.0 - frames / last_frame)


def schedule_line(config: Config) -> str:
    """Returns what changes over a run, and until when, in words."""
    changes = [f"{what} goes from {start:g} to {end:g}" for what, start, end in _scheduled(config)]
    last = config.run.schedule_frames
    line = (
        f"{' and '.join(changes)} at {last:,} frames (--schedule_frames)"
        if changes
        else "learning rate and entropy cost are constant"
    )
    if config.optimizer.learning_rate_schedule == "kl":
        line += f"; up to {KL_RANGE:g} times less learning rate while the KL divergence is large"
    return line


def _scheduled(config: Config) -> list[tuple[str, float, float]]:
    """Returns (name, value at frame 0, value at the last frame) of what changes linearly."""
    optimizer, loss = config.optimizer, config.loss
    changes = []
    if optimizer.learning_rate_schedule != "constant":
        start, end = optimizer.learning_rate, optimizer.learning_rate_end
        changes.append(("the learning rate", start, end))
    start, end = loss.entropy_cost, loss.entropy_cost_end
    changes.append(("the entropy cost", start, end))
    return [change for change in changes if change[1] != change[2]]
