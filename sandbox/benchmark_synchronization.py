"""What does waiting cost? Measures the settings of the paper's table 1 on this machine.

    python sandbox/benchmark_synchronization.py [--seconds=30] [--turns=2] [FLAG ...]

Trains with the same network, environments, batches and loss. Only what processes wait for
(--synchronization) and where actions are chosen (--inference) change. The levels are Pong, whose
steps are cheap and steady, and a Pong whose games start slowly and unevenly (uneven.py). The
settings take turns. Prints a table of environment frames per second, as medians of the turns,
beside those of the paper. Other flags are passed to run_experiment.py.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import many_runs

TASKS = {"steady": "PongNoFrameskip-v4", "uneven": "sandbox.uneven:UnevenPong-v0"}
ACTORS, ENVIRONMENTS = 4, 4  # processes, and environments of each
FLAGS = (
    "--algorithm=impala", "--agent_name=ShallowConvNetAgent", f"--num_actors={ACTORS}",
    f"--envs_per_actor={ENVIRONMENTS}", f"--batch_size={ACTORS * ENVIRONMENTS}",
    "--unroll_length=20", "--updates_per_batch=1", "--observation_normalization=none",
    "--total_environment_frames=1000000000", "--metrics_interval_s=1",
)  # fmt: skip
# Flags, and the paper's frames per second of IMPALA on its two tasks: with 48 actors, 48 cores, and
# a GPU where inference is batched.
SETTINGS: dict[str, tuple[tuple[str, ...], str]] = {
    # In A3C, a gradient is computed from one actor's environments.
    "A3C": (("--algorithm=a3c", f"--batch_size={ENVIRONMENTS}"), ""),
    "batched A2C, sync. step": (("--synchronization=step", "--inference=learner"), ""),
    "batched A2C, sync. trajectory": (("--synchronization=trajectory",), ""),
    "batched A2C, dynamic batching": (
        ("--synchronization=trajectory", "--inference=learner"),
        "",
    ),
    "IMPALA": ((), "17K 20.5K"),
    "IMPALA, dynamic batching": (("--inference=learner",), "21K 24K"),
}
START_S = 120.0
WARM_UP_ROWS = 5
FRAMES_PER_STEP = 4


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", default=30.0, type=float, help="each run, after its start")
    parser.add_argument("--turns", default=2, type=int)
    options, flags = parser.parse_known_args(arguments)
    rates_of: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.turns):
        for task, level_name in TASKS.items():
            for name, (own, _) in SETTINGS.items():
                rate = measure(
                    [f"--level_name={level_name}", *FLAGS, *own, *flags], options.seconds
                )
                rates_of.setdefault((name, task), []).append(rate)
                print(f"{name}, {task}: {rate:,.0f} frames/s", file=sys.stderr, flush=True)
    print(f"| frames/s | {' | '.join(TASKS)} | the paper's two tasks |\n|---|---|---|---|")
    for name, (_, paper) in SETTINGS.items():
        rates = [f"{statistics.median(rates_of[name, task]):,.0f}" for task in TASKS]
        print(f"| {name} | {' | '.join(rates)} | {paper.replace(' ', ', ')} |")


def measure(flags: list[str], seconds: float) -> float:
    """Returns the environment frames per second of a run, after its start."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(many_runs.SCRIPT), *flags,
                   f"--logdir={folder}/run"]  # fmt: skip
        with Path(folder, "out").open("w") as out:
            run = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, cwd=many_runs.PROJECT
            )
        try:
            deadline = time.monotonic() + START_S
            while len(steps(Path(folder))) < WARM_UP_ROWS:
                if run.poll() is not None or time.monotonic() > deadline:
                    sys.exit(Path(folder, "out").read_text()[-2000:])
                time.sleep(0.5)
            time.sleep(seconds)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait()
        points = steps(Path(folder))[WARM_UP_ROWS - 1 : -1]
        (start_s, start), (end_s, end) = points[0], points[-1]
        return FRAMES_PER_STEP * (end - start) / (end_s - start_s)


def steps(folder: Path) -> list[tuple[float, int]]:
    """Returns (seconds, agent steps) of every row so far."""
    rows = many_runs.rows(folder / "run")
    try:
        return [(float(row["wall_time_s"]), int(row["agent_steps"])) for row in rows]
    except (ValueError, TypeError):  # a row is being written
        return []


if __name__ == "__main__":
    main(sys.argv[1:])
