"""How much of the emulator's own speed does training keep?

    python sandbox/benchmark_speed.py [SECONDS] [FLAG ...]

Steps ALE's native vector environment alone, with one thread per core, before and after training for
SECONDS (default: 90) on the same machine with the given flags. Prints the ratio of agent steps per
second. Machines are noisy: only ratios from one run are meaningful.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import many_runs
import numpy as np

from impala_tf.config import EnvironmentConfig, cores_here
from impala_tf.environments import suites

LEVEL = "PongNoFrameskip-v4"
NUM_ENVS = 64
ALONE_S = 15.0
WARM_UP_ROWS = 5


def emulator_steps_per_s() -> float:
    """Returns the agent steps per second of the environment alone, with random actions."""
    env = suites.make(EnvironmentConfig(level_name=LEVEL), NUM_ENVS, 1, num_threads=cores_here())
    env.reset()
    actions = np.random.default_rng(0).integers(0, 6, (1000, NUM_ENVS)).astype(np.int32)
    steps, started = 0, time.monotonic()
    while time.monotonic() - started < ALONE_S:
        env.step(actions[steps % len(actions)])
        steps += 1
    rate = steps * NUM_ENVS / (time.monotonic() - started)
    env.close()
    return rate


def training_steps_per_s(seconds: float, flags: list[str]) -> float:
    """Returns the agent steps per second that the learner learned from, without the start."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen(
            [
                sys.executable,
                str(many_runs.SCRIPT),
                f"--level_name={LEVEL}",
                f"--logdir={folder}/run",
                "--metrics_interval_s=3",
                *flags,
            ],
            stdout=subprocess.DEVNULL,
        )
        time.sleep(seconds)
        run.terminate()
        run.wait()
        rows = [float(row["agent_steps_per_s"]) for row in many_runs.rows(Path(folder, "run"))]
    if len(rows) < WARM_UP_ROWS + 2:
        sys.exit(f"{len(rows)} rows in {seconds:g} s are too few: give it more SECONDS")
    return statistics.fmean(rows[WARM_UP_ROWS:-1])


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [-h] [SECONDS] [FLAG ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("seconds", nargs="?", type=float, default=90.0, metavar="SECONDS")
    options, flags = parser.parse_known_args(many_runs.joined(arguments))
    before = emulator_steps_per_s()
    training = training_steps_per_s(options.seconds, flags)
    after = emulator_steps_per_s()
    alone = (before + after) / 2
    print(f"ALE alone:   {before:8,.0f} and {after:8,.0f} agent steps/s before and after")
    print(f"training:    {training:8,.0f} agent steps/s")
    print(f"ratio:       {training / alone:8.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
