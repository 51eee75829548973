"""How much processor time does a retro game take?

    python sandbox/benchmark_retro.py [GAME] [STEPS]

Plays GAME (default: Airstriker-Genesis-v0) with random actions, in one process and in eight, for
STEPS agent steps (default: 2000) in total. Prints the processor time of all processes per step,
without starting them.
"""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from impala_tf.config import EnvironmentConfig  # noqa: E402
from impala_tf.environments import suites  # noqa: E402


def processor_s() -> float:
    """Returns the processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def play(game: str, num_envs: int, steps: int) -> float:
    """Returns the processor seconds of `steps` steps of every game, with their start and end."""
    before = processor_s()
    level = EnvironmentConfig(level_name=f"retro:{game}")
    num_actions = suites.spec(level).actions.sizes[0]
    env = suites.make(level, num_envs, 1)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(steps):
        env.step(rng.integers(0, num_actions, num_envs))
    env.close()
    return processor_s() - before


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("game", nargs="?", default="Airstriker-Genesis-v0", metavar="GAME")
    parser.add_argument("steps", nargs="?", type=int, default=2000, metavar="STEPS")
    options = parser.parse_args(arguments)
    game, total = options.game, options.steps
    for num_envs in (1, 8):
        steps = total // num_envs
        start_s = play(game, num_envs, 1)
        used_s = play(game, num_envs, steps + 1) - start_s
        milliseconds = 1e3 * used_s / (steps * num_envs)
        print(
            f"{game}, {num_envs} process(es): {milliseconds:.1f} ms of processor time per agent "
            f"step; to start: {start_s:.1f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
