"""Which flags train faster on this machine?

    python sandbox/compare_flags.py TURNS SECONDS [FLAG ...] -- [FLAG ...] -- [FLAG ...]

Each group of flags after a "--" is a variant. Trains on Pong for SECONDS with the flags before the
first "--" and those of each variant, in turn, because machines are noisy. Prints agent steps/s
after the start, and their medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from benchmark_speed import training_steps_per_s


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [-h] TURNS SECONDS [FLAG ...] -- [FLAG ...] -- [FLAG ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("turns", type=int, metavar="TURNS")
    parser.add_argument("seconds", type=float, metavar="SECONDS")
    groups: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "--":
            groups.append([])
        else:
            groups[-1].append(argument)
    first, *variants = groups
    options, common = parser.parse_known_args(first)
    rates: list[list[float]] = [[] for _ in variants]
    for _ in range(options.turns):
        for flags, measured in zip(variants, rates, strict=True):
            measured.append(training_steps_per_s(options.seconds, [*common, *flags]))
            print(f"{measured[-1]:8,.0f}  {' '.join(flags)}", flush=True)
    print("median:")
    for flags, measured in zip(variants, rates, strict=True):
        print(f"{statistics.median(measured):8,.0f}  {' '.join(flags)}")


if __name__ == "__main__":
    main(sys.argv[1:])
