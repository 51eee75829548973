"""Does the default command still learn? Trains several seeds and compares them with a band.

    make reproduce LEVEL=PongNoFrameskip-v4 SEEDS=3
    python sandbox/reproduce.py LEVEL [--seeds=N] [--folder=DIR] [--write_band] [FLAG ...]

Trains one seed after another with `run_experiment.py` and the given flags; complete runs are kept,
and others resume. Then writes to the folder (default: runs/reproduce/LEVEL):

    table.md      return after given numbers of steps, with minutes, per seed; machine and commit
    curves.png    every seed, with their mean and spread

sandbox/bands/LEVEL.csv holds the flags of a level, and the returns that a seed must have after
given numbers of agent steps. Exits with 1 if a seed is below. --write_band makes the file from
these seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import NamedTuple

import many_runs
import matplotlib
import numpy as np

matplotlib.use("Agg")
from many_runs import PROJECT  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402

from impala_tf.config import slug  # noqa: E402
from impala_tf.logdir import Logdir  # noqa: E402
from impala_tf.machine.process_lifetime import StopRequest  # noqa: E402
from impala_tf.monitoring.returns import Kind, scores  # noqa: E402
from impala_tf.processes import provenance  # noqa: E402
from impala_tf.studies import child_runs  # noqa: E402

MILESTONES = 8
# A band is lower than its seeds by this share of their gain, as the next seeds may have less luck.
ROOM = 0.15
# Runs end with a whole batch, so they differ a little in length.
WHOLE_RUN = 0.98


class Curve(NamedTuple):
    """One seed: agent steps, minutes and mean return, [rows] each."""

    seed: int
    agent_steps: np.ndarray
    minutes: np.ndarray
    returns: np.ndarray
    kind: Kind

    def at(self, agent_steps: float) -> tuple[float, float] | None:
        """Returns (return, minutes) after a number of steps; None if the run ended before."""
        if agent_steps > self.agent_steps[-1]:
            return None
        row = int(np.searchsorted(self.agent_steps, agent_steps))
        return float(self.returns[row]), float(self.minutes[row])


class Band(NamedTuple):
    """The returns that a level's seeds must reach."""

    flags: list[str]
    minima: list[tuple[int, float]]  # (agent steps, return)


def run_flags(level: str, seed: int, logdir: Path, flags: list[str]) -> list[str]:
    """Returns the flags of one seed's run."""
    return [f"--level_name={level}", f"--seed={seed}", f"--logdir={logdir}", *flags]


def train(level: str, seed: int, logdir: Path, flags: list[str], stop: StopRequest) -> None:
    """Trains or resumes one seed; exits with the run's status if that fails."""
    status = many_runs.run_experiment(run_flags(level, seed, logdir, flags), stop)
    if status:
        sys.exit(status)
    if not child_runs.is_done(logdir):
        sys.exit(f"seed {seed} was stopped; the same command resumes it")


def read_curve(seed: int, logdir: Path) -> Curve:
    """Reads a run's metrics; for several levels, the mean over the levels, as in a report."""
    kind, points = scores(Logdir(logdir).metrics)
    if not points:
        sys.exit(f"{logdir}: no game has finished, or none of some level; train longer")
    columns = ("agent_steps", "wall_time_s")
    steps, seconds = (np.array([float(row[name]) for row, _ in points]) for name in columns)
    return Curve(seed, steps, seconds / 60, np.array([mean for _, mean in points]), kind)


def read_band(path: Path) -> Band | None:
    """Reads a level's band; None if there is none.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is no band.
    """
    if not path.exists():
        return None
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        rows = csv.DictReader(lines)
        minima = [(int(row["agent_steps"]), float(row["minimum_return"])) for row in rows]
    except (KeyError, TypeError, ValueError):
        minima = []
    if not minima:
        raise ValueError("is not a band, which --write_band makes")
    return Band(first.removeprefix("# flags:").split(), minima)


def write_band(path: Path, flags: list[str], curves: list[Curve]) -> None:
    """Writes a band for later seeds: the returns of these seeds, less some room."""
    last = min(curve.agent_steps[-1] for curve in curves)
    low = min(curve.returns[0] for curve in curves)
    high = max(curve.returns.max() for curve in curves)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# flags: {' '.join(flags)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["agent_steps", "minimum_return"])
        for part in range(1, MILESTONES + 1):
            steps = int(WHOLE_RUN * last * part / MILESTONES)
            reached = min(point[0] for curve in curves if (point := curve.at(steps)))
            writer.writerow([steps, round(reached - ROOM * (high - low), 2)])
    print(f"written to {path}")


def merged(usual: list[str], given: list[str]) -> list[str]:
    """Returns both lists of --flag=value; a given flag replaces the usual one."""
    names = {flag.partition("=")[0] for flag in given}
    return [*(flag for flag in usual if flag.partition("=")[0] not in names), *given]


def misses(curves: list[Curve], band: Band) -> list[str]:
    """Returns one line for each seed and milestone below the band."""
    lines = []
    for curve in curves:
        for steps, minimum in band.minima:
            reached = curve.at(steps)
            if reached is None or reached[0] < minimum:
                got = "ended before" if reached is None else f"{reached[0]:.2f}"
                lines.append(
                    f"seed {curve.seed}, {steps:,} agent steps: {got}; the band starts at {minimum}"
                )
    return lines


def table(
    level: str, protocol: str, flags: list[str], curves: list[Curve], band: Band | None
) -> str:
    """Returns the table in Markdown."""
    last = max(curve.agent_steps[-1] for curve in curves)
    steps = [s for s, _ in band.minima] if band else np.linspace(0, last, MILESTONES + 1)[1:]
    minima = dict(band.minima) if band else {}
    lines = [
        f"`{level}`, flags: `{' '.join(flags) or 'none'}`",
        "",
        protocol,
        "",
        f"{provenance.machine()}; commit {provenance.git_commit()}",
        "",
        *([] if curves[0].kind is Kind.GAMES else [f"return: {curves[0].kind.value}", ""]),
        "| agent steps | " + " | ".join(f"seed {c.seed}" for c in curves) + " | band |",
        "|---" * (len(curves) + 2) + "|",
    ]
    for milestone in steps:
        cells = []
        for curve in curves:
            point = curve.at(milestone)
            cells.append("–" if point is None else f"{point[0]:.1f} ({point[1]:.1f} min)")
        lowest = minima.get(int(milestone))
        cells.append("–" if lowest is None else f"≥ {lowest}")
        lines.append(f"| {int(milestone):,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(path: Path, level: str, curves: list[Curve], band: Band | None) -> None:
    """Draws every seed, their mean and their spread, over steps and over minutes.

    A seed that took fewer minutes keeps its last return until the slowest one ends.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, name in zip(axes, ("agent_steps", "minutes"), strict=True):
        ends = [getattr(curve, name)[-1] for curve in curves]
        grid = np.linspace(0, max(ends), 300)
        lines = np.array([np.interp(grid, getattr(c, name), c.returns) for c in curves])
        axis.fill_between(grid, lines.min(axis=0), lines.max(axis=0), alpha=0.2)
        axis.plot(grid, lines.mean(axis=0), linewidth=2, label=f"mean of {len(curves)} seeds")
        for curve in curves:
            axis.plot(getattr(curve, name), curve.returns, linewidth=0.7, color="grey")
        axis.grid(alpha=0.3)
    if band:
        axes[0].plot(*zip(*band.minima, strict=True), "k_", label="band")
    axes[0].set(xlabel="agent steps", ylabel=curves[0].kind.value, title=level)
    axes[1].set(xlabel="minutes")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(arguments: list[str]) -> int:
    """Trains, writes and compares; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Trains seeds and compares them with a band.", allow_abbrev=False
    )
    parser.add_argument("level")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--band", type=Path, help="default: sandbox/bands/LEVEL.csv")
    parser.add_argument("--write_band", action="store_true")
    options, flags = parser.parse_known_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds={options.seeds}: must be 1 or more")
    folder = options.folder or Path("runs", "reproduce", slug(options.level))
    band_path = options.band or PROJECT / "sandbox" / "bands" / f"{slug(options.level)}.csv"
    if options.band and not options.write_band and not options.band.exists():
        parser.error(f"--band={options.band}: no such file; --write_band makes it")
    try:
        band = read_band(band_path)
    except OSError as error:
        parser.error(f"--band={band_path}: cannot be read: {error.strerror}")
    except ValueError as error:
        parser.error(f"--band={band_path}: {error}")
    flags = merged(band.flags if band else [], flags)
    child_runs.refuse_wrong_flags(run_flags(options.level, 1, folder / "seed-1", flags))
    many_runs.refuse_other_runs(folder, {"commit": provenance.git_commit(), "flags": flags})
    stop = StopRequest()
    stop.install()
    curves = []
    for seed in range(1, options.seeds + 1):
        logdir = folder / f"seed-{seed}"
        train(options.level, seed, logdir, flags, stop)
        curves.append(read_curve(seed, logdir))
    if options.write_band:
        write_band(band_path, flags, curves)
        band = read_band(band_path)
    described = json.loads((folder / "seed-1" / "config.json").read_text(encoding="utf-8"))
    text = table(options.level, described["protocol"], flags, curves, band)
    (folder / "table.md").write_text(text, encoding="utf-8")
    draw(folder / "curves.png", options.level, curves, band)
    print(f"\n{text}\nwritten to {folder}: table.md, curves.png")
    if band is None:
        print(f"there is no band for this level; --write_band keeps these seeds' in {band_path}")
        return 0
    if flags != band.flags:
        print(f"the band is that of other flags: {' '.join(band.flags) or 'none'}")
    lines = misses(curves, band)
    print("\n".join(lines) or "every seed is inside the band")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
