"""Draws the learning curve of one or more runs: python sandbox/plot_metrics.py OUT.png CSV ..."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def read(path: Path, column: str) -> tuple[list[float], list[float], list[float]]:
    """Returns minutes, million frames and `column` of the rows that have a value there."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[column]]
    return (
        [float(row["wall_time_s"]) / 60 for row in rows],
        [float(row["environment_frames"]) / 1e6 for row in rows],
        [float(row[column]) for row in rows],
    )


def main(out: str, *paths: str) -> None:
    figure, (over_time, over_frames) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for path in map(Path, paths):
        minutes, frames, returns = read(path, "episode_return_mean")
        over_time.plot(minutes, returns, label=path.stem)
        over_frames.plot(frames, returns, label=path.stem)
    over_time.set(xlabel="minutes", ylabel="mean return of the last 100 episodes")
    over_frames.set(xlabel="million environment frames")
    for axes in (over_time, over_frames):
        axes.grid(alpha=0.3)
    if len(paths) > 1:
        over_time.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
