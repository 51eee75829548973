"""`impala reproduce`: does a level still learn as it did? Compares seeds with a band of returns.

    impala reproduce --level_name=PongNoFrameskip-v4 --seeds=1,2,3

A band is a file with flags, and the lowest mean return that a seed may have after given numbers of
agent steps. Some levels have one in the package; for others, --write_band=FILE makes it from seeds
that train now, and --band=FILE compares with it. `impala compare` trains and draws the seeds, so
the same command resumes. Exits with 1 if a seed is below the band.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from impala_tf.config import ConfigError, command_line, slug
from impala_tf.monitoring.returns import scores
from impala_tf.studies import compare_main

_BANDS = Path(__file__).with_name("bands")
_MILESTONES = 8
_ROOM = 0.15  # of the gain of a band's seeds: later ones may have less luck
_WHOLE_RUN = 0.98  # runs end with a whole batch, so they differ a little in length
Curve = list[tuple[int, float]]  # agent steps and mean return, row by row


def main(words: Sequence[str]) -> int:
    """Trains, draws and compares; returns 0, or 1 if a seed is below the band or did not train.

    Raises:
      ConfigError: an argument is wrong, or there is no band.
    """
    options, given = _parse(words)
    path = options.band or _BANDS / f"{slug(options.level_name)}.csv"
    usual, minima = (given, []) if options.write_band else _read(path)
    flags = [*dict.fromkeys([*usual, *given])]  # the last value of a flag wins
    seeds = ",".join(map(str, options.seeds))
    study = [f"--level_name={options.level_name}", f"--seeds={seeds}", f"--to={options.to}"]
    # A band is over steps, which other programs do not change.
    if compare_main.main([*study, "--allow_busy", *flags]):
        return 1
    curves = {
        run.parent.name: [(int(row["agent_steps"]), mean) for row, mean in scores(run)[1]]
        for run in sorted(options.to.glob(f"{slug(options.level_name)}/*/*/metrics.csv"))
    }
    if options.write_band:
        _write(options.write_band, flags, list(curves.values()))
        return 0
    if flags != usual:
        print(f"the band is that of other flags: {' '.join(usual) or 'none'}")
    status = 0
    for seed, curve in curves.items():
        for steps, minimum in minima:
            if (mean := _at(curve, steps)) is None or mean < minimum:
                got = "ended before" if mean is None else f"{mean:.2f}"
                print(f"{seed}, {steps:,} agent steps: {got}; the band starts at {minimum}")
                status = 1
    print("a seed is below the band" if status else "every seed is inside the band")
    return status


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = command_line.OneLineParser(
        "impala reproduce",
        "impala reproduce --level_name=LEVEL [options] [--flag=VALUE ...]",
        description=str(__doc__).partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--level_name", required=True)
    parser.add_argument("--seeds", type=compare_main.seeds, default=[1, 2, 3], metavar="1,2,3")
    parser.add_argument("--to", type=Path, default=Path("runs/reproduce"), metavar="FOLDER")
    parser.add_argument("--band", type=Path, metavar="FILE", help="compare with this band")
    parser.add_argument("--write_band", type=Path, metavar="FILE", help="make a band")
    return parser.parse_known_args(words)


def _read(path: Path) -> tuple[list[str], Curve]:
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
        raise ConfigError(f"--band={path}: is missing, or is no band; --write_band=FILE makes one")
    return first.removeprefix("# flags:").split(), minima


def _write(path: Path, flags: list[str], curves: list[Curve]) -> None:
    """Writes a band for later seeds: the returns of these seeds, less some room."""
    last = min(curve[-1][0] for curve in curves)
    gain = max(mean for curve in curves for _, mean in curve) - min(c[0][1] for c in curves)
    lines = [f"# flags: {' '.join(flags)}", "agent_steps,minimum_return"]
    for part in range(1, _MILESTONES + 1):
        steps = int(_WHOLE_RUN * last * part / _MILESTONES)
        lowest = min(mean for curve in curves if (mean := _at(curve, steps)) is not None)
        lines.append(f"{steps},{round(lowest - _ROOM * gain, 2)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"written to {path}")


def _at(curve: Curve, steps: int) -> float | None:
    """Returns the mean return after a number of agent steps; None if the run ended before."""
    return next((mean for done, mean in curve if done >= steps), None)
