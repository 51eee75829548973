"""How fast do Procgen's engines step?

    python sandbox/benchmark_procgen.py [GAME] [SECONDS]

Steps GAME (default: coinrun) with random actions, for SECONDS (default: 5) each, in this project's
environments (EnvPool), with 16 and 64 games on one and two threads. Where the package
procgen-mirror is installed, OpenAI's own vector environment takes turns with it. That package needs
older versions of NumPy and gym, so give it a virtual environment of its own, and there run

    pip install --no-deps procgen-mirror==0.10.7 gym3==0.3.3 gym==0.26.2 gym-notices==0.1.0

Each line is the median of three rounds: steps per second, which need an otherwise idle machine, and
steps per second of processor time, which depend less on other work.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from impala_tf.config import EnvironmentConfig  # noqa: E402
from impala_tf.environments import suites  # noqa: E402

ROUNDS = 3
Step = Callable[[np.ndarray], object]


def envpool(game: str, num_envs: int, num_threads: int) -> Step:
    env = suites.make(
        EnvironmentConfig(level_name=f"procgen:{game}"), num_envs, 1, num_threads=num_threads
    )
    env.reset()
    return env.step


def mirror(game: str, num_envs: int, num_threads: int) -> Step:
    from procgen import ProcgenGym3Env

    env = ProcgenGym3Env(
        num=num_envs,
        env_name=game,
        num_levels=200,
        distribution_mode="easy",
        num_threads=num_threads,
        rand_seed=1,
    )

    def step(actions: np.ndarray) -> object:
        env.act(actions)
        return env.observe()

    return step


def measure(
    step: Step, num_envs: int, seconds: float, num_actions: int = 15
) -> tuple[float, float]:
    """Returns steps per second, and steps per second of processor time on all threads."""
    actions = np.random.default_rng(0).integers(0, num_actions, (1000, num_envs)).astype(np.int32)
    for t in range(50):
        step(actions[t])
    started, busy, steps = time.monotonic(), time.process_time(), 0
    while time.monotonic() - started < seconds:
        step(actions[steps % len(actions)])
        steps += 1
    steps *= num_envs
    return steps / (time.monotonic() - started), steps / (time.process_time() - busy)


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("game", nargs="?", default="coinrun", metavar="GAME")
    parser.add_argument("seconds", nargs="?", type=float, default=5.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    game, seconds = options.game, options.seconds
    engines = {"EnvPool": envpool}
    if importlib.util.find_spec("procgen") is not None:
        engines["procgen-mirror"] = mirror
    for num_envs, num_threads in itertools.product((16, 64), (1, 2)):
        steps = {name: make(game, num_envs, num_threads) for name, make in engines.items()}
        take_turns(steps, num_envs, num_threads, seconds)


def take_turns(
    steps: Mapping[str, Step],
    num_envs: int,
    num_threads: int,
    seconds: float,
    num_actions: int = 15,
) -> None:
    """Measures engines in turn, three rounds, and prints the medians."""
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _, (name, step) in itertools.product(range(ROUNDS), steps.items()):
        results[name].append(measure(step, num_envs, seconds, num_actions))
    for name, rounds in results.items():
        rate, efficiency = map(statistics.median, zip(*rounds, strict=True))
        print(
            f"{name:15} {num_envs} games, {num_threads} thread(s): {rate:8,.0f} steps/s, "
            f"{efficiency:8,.0f} per second of processor time"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
