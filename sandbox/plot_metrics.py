"""Draws learning curves as an SVG file: python sandbox/plot_metrics.py OUT.svg [LABEL=]PATH ...

A path is a logdir, or a copy of its metrics.csv. Runs with the same label are seeds: their mean is
drawn with its 95 % interval, as in a report (--mode=report). Logdirs without a label are named by
agent, algorithm and the flags that differ. A copied CSV does not say what it is: give it a label.
It does not say whether its run had finished, either, and counts as if it had: where it is shorter
than other seeds, it keeps its last return, and the line is pale.
Without metrics-levels.csv, returns of an agent of several levels are means over all games.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from impala_tf.config import ConfigError
from impala_tf.logdir import write_atomically
from impala_tf.reporting import curves, facts, runs, settings
from impala_tf.reporting.settings import Level, Setting
from impala_tf.reporting.summary import Exhibit, summarize_level


def level(arguments: Sequence[str]) -> Level:
    """Returns the level with the runs to draw.

    Args:
      arguments: words of the form [LABEL=]PATH.

    Raises:
      ConfigError: a path is not a run's, or the runs are of several levels.
    """
    given = [_split(argument) for argument in arguments]
    labelled = [Setting(name, tuple(_runs(name, given))) for name in _labels(given)]
    logdirs = ",".join(str(path) for label, path in given if not label)
    unlabelled = settings.group(runs.find(logdirs)) if logdirs else []
    read = [run.level_name for setting in labelled for run in setting.runs]
    names = dict.fromkeys([*read, *(group.name for group in unlabelled)])
    names.pop(runs.UNKNOWN, None)  # of a copied CSV
    if len(names) > 1:
        raise ConfigError(f"runs of several levels: {', '.join(names)}")
    name, more_settings = (unlabelled[0].name, unlabelled[0].settings) if unlabelled else ("", ())
    return settings.on_one_scale(Level(name, (*labelled, *more_settings)))


def _split(argument: str) -> tuple[str, Path]:
    label, _, path = argument.rpartition("=")
    if Path(argument).exists():
        label, path = "", argument
    if not Path(path).exists():
        raise ConfigError(f"{argument}: there is no such file or folder")
    if not label and not Path(path).is_dir():
        raise ConfigError(f"{argument}: say what it is, such as 'ShallowConvNetAgent={argument}'")
    return label, Path(path)


def _labels(given: Sequence[tuple[str, Path]]) -> list[str]:
    return [label for label in dict.fromkeys(label for label, _ in given) if label]


def _runs(name: str, given: Sequence[tuple[str, Path]]) -> Iterator[runs.Run]:
    paths = [path for label, path in given if label == name]
    for seed, path in enumerate(paths, start=1):
        yield runs.read(path) if path.is_dir() else runs.read_csv(path, seed)


def main(arguments: Sequence[str]) -> int:
    """Writes the picture; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("paths", nargs="+", metavar="[LABEL=]PATH")
    options = parser.parse_args(arguments)
    if options.out.suffix != ".svg":
        parser.error(f"{options.out}: the picture's name must end with .svg")
    try:
        drawn = level(options.paths)
    except ConfigError as error:
        print("\n".join(f"plot_metrics.py: {line}" for line in error.problems), file=sys.stderr)
        return 2
    picture = curves.picture(summarize_level(drawn, {s: Exhibit() for s in drawn.settings}, None))
    if picture is None:
        print(f"plot_metrics.py: {facts.NO_CURVES}", file=sys.stderr)
        return 2
    try:
        write_atomically(options.out, picture)
    except OSError as error:
        print(f"plot_metrics.py: {options.out}: cannot write: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
