"""Prints the Atari-5 score of runs: python sandbox/atari5.py ROM=PATH ...

A path is a logdir, or a copy of its metrics.csv; a game's paths are seeds, whose last mean returns
are averaged. ROM is the game as ALE names it, such as battle_zone. The score estimates the median
of human normalised scores over 57 games, in percent (Aitchison et al., 2022, arXiv 2210.02019).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from impala_tf.config import ConfigError
from impala_tf.environments.atari import rom_of
from impala_tf.environments.scores import ATARI_SCORES
from impala_tf.reporting import runs

WEIGHTS = {
    "battle_zone": 0.382,
    "double_dunk": 0.068,
    "name_this_game": 0.311,
    "phoenix": 0.124,
    "qbert": 0.080,
}
"""{ROM: weight of the logarithm of its score}."""
COPIED = {"flags": {"level_name": "", "seed": 1}}
"""What is known of a run with a metrics.csv only."""


def normalized(rom: str, mean_return: float) -> float:
    """Returns a game's human normalised score in percent: 0 is random play, 100 a human tester."""
    random, human = ATARI_SCORES[rom]
    return 100.0 * (mean_return - random) / (human - random)


def atari5(returns: Mapping[str, float]) -> float:
    """Returns the Atari-5 score of {ROM: mean return}; games below random play count as 0."""
    logarithms = (
        weight * math.log10(1.0 + max(0.0, normalized(rom, returns[rom])))
        for rom, weight in WEIGHTS.items()
    )
    return 10.0 ** sum(logarithms) - 1.0


def _returns(arguments: Sequence[str]) -> dict[str, list[float]]:
    returns: dict[str, list[float]] = {rom: [] for rom in WEIGHTS}
    for argument in arguments:
        rom, _, name = argument.partition("=")
        if rom not in WEIGHTS or not Path(name).exists():
            raise ConfigError(f"{argument}: give ROM=PATH, with ROM one of {', '.join(WEIGHTS)}")
        returns[rom].append(_last_return(rom, Path(name)))
    if missing := [rom for rom, values in returns.items() if not values]:
        raise ConfigError(f"no runs of {', '.join(missing)}: give ROM=PATH for each game")
    return returns


def _last_return(rom: str, path: Path) -> float:
    """Returns the last mean return of a run; says so on stderr if it has not finished.

    Raises:
      ConfigError: it is not a run, or is of another game, or has no return yet.
    """
    # A copied CSV does not say its level, nor how long the run should be.
    run = runs.read(path) if path.is_dir() else runs.from_files(path, COPIED, {"state": "done"})
    if path.is_dir() and rom_of(run.level_name) != rom:
        raise ConfigError(f"{rom}={path}: its level is {run.level_name}; give a run of {rom}")
    if (last_return := run.curve.last_return) is None:
        raise ConfigError(f"{rom}={path}: no episode has finished")
    if not run.is_finished:
        total = run.flags["total_environment_frames"]
        line = f"{rom}={path}: has not finished: {run.frames:,} of {total:,} frames"
        print(f"atari5.py: {line}", file=sys.stderr)
    return last_return


def main(arguments: Sequence[str]) -> int:
    """Prints each game's mean return, its seeds' range and the score; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="ROM=PATH", help="each game needs one or more")
    try:
        seeds_of = _returns(parser.parse_args(arguments).runs)
    except ConfigError as error:
        print(*(f"atari5.py: {line}" for line in error.problems), sep="\n", file=sys.stderr)
        return 2
    returns = {rom: statistics.fmean(seeds) for rom, seeds in seeds_of.items()}
    for rom, seeds in seeds_of.items():
        line = f"{rom:<15}{returns[rom]:>10,.1f}{normalized(rom, returns[rom]):>8.1f} %"
        apart = f"  {len(seeds)} seeds, {min(seeds):,.1f} to {max(seeds):,.1f}"
        print(line + (apart if len(seeds) > 1 else ""))
    print(f"Atari-5 score: {atari5(returns):.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
