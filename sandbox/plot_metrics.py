"""Draws learning curves as an SVG file: python sandbox/plot_metrics.py OUT.svg [LABEL=]PATH ...

A path is a logdir, or a copy of its metrics.csv. Runs with the same label are seeds: their mean is
drawn with its 95 % interval, as in a report (`impala report`). Logdirs without a label are named by
agent, algorithm and the flags that differ. A copied CSV does not say what it is: give it a label.
It does not say whether its run had finished, either, and counts as if it had: where it is shorter
than other seeds, it keeps its last return, and the line is pale.
Without metrics-levels.csv, returns of an agent of several levels are means over all games.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from impala_tf.config import ConfigError
from impala_tf.logdir import write_atomically
from impala_tf.reporting import comparison, curves, runs
from impala_tf.reporting.comparison import Level, Setting


def level(arguments: Sequence[str]) -> Level:
    """Returns the level with the runs to draw.

    Args:
      arguments: words of the form [LABEL=]PATH.

    Raises:
      ConfigError: a path is not a run's, or the runs are of several levels.
    """
    labelled: dict[str, list[runs.Run]] = {}
    unlabelled: list[str] = []
    for argument in arguments:
        label, _, path = ("", "", argument) if Path(argument).exists() else argument.rpartition("=")
        if label:
            seeds = labelled.setdefault(label, [])
            seeds.append(_read(Path(path), seed=len(seeds) + 1))
        elif Path(path).is_file():
            raise ConfigError(f"{path}: say what it is, such as 'ShallowConvNetAgent={path}'")
        else:
            unlabelled.append(path)
    found = comparison.group(runs.find(",".join(unlabelled)))
    settings = [Setting(*pair) for pair in labelled.items()]
    settings += [setting for group in found for setting in group.settings]
    levels = {run.level_name: None for setting in settings for run in setting.runs}
    levels.pop("", None)  # of a copied CSV
    if len(levels) > 1:
        raise ConfigError(f"runs of several levels: {', '.join(levels)}")
    return Level(", ".join(levels), settings)


def _read(path: Path, seed: int) -> runs.Run:
    if path.is_dir():
        return runs.read(path)
    described = {"flags": {"level_name": "", "seed": seed}}
    return runs.from_files(path, described, {"state": "done"})


def main(arguments: Sequence[str]) -> int:
    """Writes the picture; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("paths", nargs="+", metavar="[LABEL=]PATH")
    options = parser.parse_args(arguments)
    try:
        picture = curves.picture(level(options.paths))
        if picture is None:
            raise ConfigError("no run has two rows in which a game had finished")
    except ConfigError as error:
        print(*(f"plot_metrics.py: {line}" for line in error.problems), sep="\n", file=sys.stderr)
        return 2
    write_atomically(options.out, picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
