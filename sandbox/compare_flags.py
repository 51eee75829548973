"""Which flags train faster on this machine?

    python sandbox/compare_flags.py TURNS SECONDS [FLAG ...] -- [FLAG ...] -- [FLAG ...]

Trains on Pong for SECONDS with the flags before the first "--" and those after one of the others,
by turns, because machines are noisy. Prints agent steps/s once a run trains, and their medians.
"""

from __future__ import annotations

import statistics
import sys

from benchmark_speed import training_steps_per_s


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    turns, seconds = int(arguments[0]), float(arguments[1])
    groups: list[list[str]] = [[]]
    for argument in arguments[2:]:
        if argument == "--":
            groups.append([])
        else:
            groups[-1].append(argument)
    common, *variants = groups
    rates: list[list[float]] = [[] for _ in variants]
    for _ in range(turns):
        for flags, found in zip(variants, rates, strict=True):
            found.append(training_steps_per_s(seconds, [*common, *flags]))
            print(f"{found[-1]:8,.0f}  {' '.join(flags)}", flush=True)
    print("median:")
    for flags, found in zip(variants, rates, strict=True):
        print(f"{statistics.median(found):8,.0f}  {' '.join(flags)}")


if __name__ == "__main__":
    main(sys.argv[1:])
