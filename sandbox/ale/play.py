"""Plays every Atari game at random; prints a digest of what was seen, and the cost of a step.

    A/bin/python sandbox/ale/play.py 200 > a.csv
    B/bin/python sandbox/ale/play.py 200 a.csv > b.csv

A and B are environments with two builds of ale_py; 200 is the number of steps that four copies of
each game take (default: 500). Prints a row for each game: its name, a digest of all observations,
rewards and ends, and microseconds of a core per agent step. The second command compares its rows
with those of the first, and exits with status 1 if a digest differs.
"""

from __future__ import annotations

import csv
import hashlib
import sys
import time
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv

NUM_ENVS = 4
gymnasium.register_envs(ale_py)


def play(game: str, steps: int) -> tuple[str, float]:
    """Returns the digest of `steps` random steps of a game, and core µs per agent step."""
    games = AtariVectorEnv(game, NUM_ENVS, num_threads=1)
    random = np.random.default_rng(1)
    digest = hashlib.sha256(games.reset(seed=1)[0].tobytes())
    took = 0.0
    for _ in range(steps):
        actions = random.integers(games.single_action_space.n, size=NUM_ENVS)
        start = time.process_time()
        results = games.step(actions)[:4]
        took += time.process_time() - start
        for result in results:
            digest.update(result.tobytes())
    games.close()
    return digest.hexdigest()[:16], took / (NUM_ENVS * steps) * 1e6


def main(arguments: list[str]) -> int:
    """Prints the table; returns 1 if the digests in the file `arguments[1]` differ, else 0."""
    steps = int(arguments[0]) if arguments else 500
    other = (
        {row[0]: row for row in csv.reader(Path(arguments[1]).read_text().splitlines())}
        if len(arguments) > 1
        else {}
    )
    ratios, differing = [], []
    levels = [spec for spec in gymnasium.registry.values() if spec.namespace == "ALE"]
    for game in sorted({level.kwargs["game"] for level in levels}):
        digest, cost = play(game, steps)
        print(f"{game},{digest},{cost:.1f}", flush=True)
        if game in other:
            ratios.append(float(other[game][2]) / cost)
            differing += [game] if digest != other[game][1] else []
    if other:
        print(
            f"{len(ratios)} games, {len(differing)} with other bytes {differing};"
            f" {np.median(ratios):.2f} times as fast (median; {min(ratios):.2f} to"
            f" {max(ratios):.2f})",
            file=sys.stderr,
        )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
