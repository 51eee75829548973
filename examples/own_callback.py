"""A callback of one's own: adds two metrics, prints the best return, and ends the run in time.

    cd examples    # Python finds the module in the current folder
    impala train --level_name=CartPole-v1 --callbacks=own_callback:Watch

In Python: impala_tf.train("CartPole-v1", callbacks=[Watch(minutes=5)]).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.callbacks import Callback

GAMES = 100


class Watch(Callback):
    """Lives in the process of the first learner; --callbacks makes it without arguments."""

    def __init__(self, minutes: float = 30.0) -> None:
        self.minutes = minutes
        self.best = float("-inf")
        self.batches = 0

    def on_update(self, statistics: Mapping[str, float]) -> None:
        """Counts; anything slow here would slow down the run."""
        self.batches += 1

    def on_row(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Adds two metrics to callback_metrics.csv and TensorBoard."""
        if row["episode_return_games"] >= GAMES:  # the mean of a few games says little
            self.best = max(self.best, row["episode_return_mean"])
        if row["wall_time_s"] > 60 * self.minutes:
            self.stop()
        return {"best_return": self.best, "batches_seen": self.batches}

    def on_checkpoint(self, path: Path) -> None:
        """Prints to the learner's log, processes/learner-0.log."""
        print(f"{path.name}: best return so far {self.best:.1f}", flush=True)

    def on_end(self, row: Mapping[str, Any] | None) -> None:
        """Prints once more."""
        print(f"the run had {self.batches:,} batches", flush=True)
