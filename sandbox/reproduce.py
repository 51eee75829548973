"""Does the default command still learn? Trains several seeds and compares them with a band.

    make reproduce LEVEL=PongNoFrameskip-v4 SEEDS=3
    python sandbox/reproduce.py LEVEL [--seeds=1,2,3] [--to=FOLDER] [--write_band] [FLAG ...]

`impala compare` trains the seeds and draws their curves; the same command resumes.
sandbox/bands/LEVEL.csv holds the flags of a level, and the returns that a seed must have after
given numbers of agent steps. Exits with 1 if a seed is below. --write_band makes the file from
these seeds.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from impala_tf.config import ConfigError, command_line, slug
from impala_tf.monitoring.returns import scores
from impala_tf.studies import compare_main

PROJECT = Path(__file__).resolve().parents[1]
MILESTONES = 8
# A band is lower than its seeds by this share of their gain, as the next seeds may have less luck.
ROOM = 0.15
# Runs end with a whole batch, so they differ a little in length.
WHOLE_RUN = 0.98
Curve = list[tuple[int, float]]  # agent steps and mean return, row by row


def read_band(path: Path) -> tuple[list[str], Curve]:
    """Returns the flags of a band, and the lowest return after given numbers of agent steps.

    Raises:
      ConfigError: the file is no band.
    """
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        rows = csv.DictReader(lines)
        minima = [(int(row["agent_steps"]), float(row["minimum_return"])) for row in rows]
    except (KeyError, OSError, TypeError, ValueError):
        minima = []
    if not minima:
        raise ConfigError(f"--band={path}: is not a band, which --write_band makes")
    return first.removeprefix("# flags:").split(), minima


def at(curve: Curve, steps: int) -> float | None:
    """Returns the mean return after a number of agent steps; None if the run ended before."""
    return next((mean for done, mean in curve if done >= steps), None)


def write_band(path: Path, flags: list[str], curves: list[Curve]) -> None:
    """Writes a band for later seeds: the returns of these seeds, less some room."""
    last = min(curve[-1][0] for curve in curves)
    gain = max(mean for curve in curves for _, mean in curve) - min(c[0][1] for c in curves)
    lines = [f"# flags: {' '.join(flags)}", "agent_steps,minimum_return"]
    for part in range(1, MILESTONES + 1):
        steps = int(WHOLE_RUN * last * part / MILESTONES)
        lowest = min(mean for curve in curves if (mean := at(curve, steps)) is not None)
        lines.append(f"{steps},{round(lowest - ROOM * gain, 2)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"written to {path}")


def main(arguments: list[str]) -> int:
    """Trains, draws and compares; returns the exit status.

    Raises:
      ConfigError: an argument is wrong.
    """
    about = "Trains seeds and compares them with a band."
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)
    parser.add_argument("level")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--band", type=Path, help="default: sandbox/bands/LEVEL.csv")
    parser.add_argument("--write_band", action="store_true")
    options, given = parser.parse_known_args(arguments)
    band = options.band or PROJECT / "sandbox" / "bands" / f"{slug(options.level)}.csv"
    usual, minima = ([], []) if options.write_band and not band.exists() else read_band(band)
    flags = [*dict.fromkeys([*usual, *given])]  # the last value of a flag wins
    folder = options.to or Path("runs", "reproduce")
    words = [f"--level_name={options.level}", f"--seeds={options.seeds}", f"--to={folder}"]
    # A band is over steps, which other programs do not change.
    if compare_main.main([*words, "--allow_busy", *flags]):
        return 1
    curves = {
        run.parent.name: [(int(row["agent_steps"]), mean) for row, mean in scores(run)[1]]
        for run in sorted(folder.glob(f"{slug(options.level)}/*/*/metrics.csv"))
    }
    if options.write_band:
        write_band(band, flags, list(curves.values()))
        usual, minima = read_band(band)
    if flags != usual:
        print(f"the band is that of other flags: {' '.join(usual) or 'none'}")
    status = 0
    for seed, curve in curves.items():
        for steps, minimum in minima:
            if (mean := at(curve, steps)) is None or mean < minimum:
                got = "ended before" if mean is None else f"{mean:.2f}"
                print(f"{seed}, {steps:,} agent steps: {got}; the band starts at {minimum}")
                status = 1
    print("a seed is below the band" if status else "every seed is inside the band")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ConfigError as error:
        sys.exit(command_line.fail(error))
