"""Compares one learner with two, and measures the cost of sending gradients.

    sudo python sandbox/benchmark_learners.py [--mbit=200] [--seconds=40] [FLAG ...]

Trains on this machine with one learner, and with two that have half the batch each, with gradients
as float32 and as float16. With --mbit, this happens in a network namespace whose loopback is
limited to that rate, which needs root. Prints agent steps per second and the share of the learners'
time in the all-reduce. Other flags are passed to run_experiment.py.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import many_runs

NAMESPACE = "impala-learners"
BATCH = 16  # unrolls of all learners together
ACTORS = 2
FLAGS = (
    "--level_name=PongNoFrameskip-v4", "--agent_name=NatureAgent", "--updates_per_batch=1",
    "--parameter_lag=8", "--total_environment_frames=1000000000", "--metrics_interval_s=2",
    "--tmux_sess=benchmark-learners", "--max_restarts=0",
)  # fmt: skip
WARM_UP_ROWS = 4
START_S = 35.0


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--mbit", type=int, help="limit of the loopback, in Mbit per second")
    parser.add_argument("--seconds", default=40.0, type=float, help="each run, after its start")
    options, flags = parser.parse_known_args(arguments)
    within = limited(options.mbit) if options.mbit else []
    try:
        for learners in (1, 2):
            own = f"--batch_size={BATCH // learners}"
            rate, share = measure(learners, [*FLAGS, own, *flags], options.seconds, within)
            print(
                f"{learners} learner(s) {rate:7,.0f} agent steps/s, all-reduce {share:4.0%}",
                flush=True,
            )
    finally:
        if within:
            subprocess.run(["ip", "netns", "delete", NAMESPACE], check=True)


def limited(mbit: int) -> list[str]:
    """Makes a network namespace with a slow loopback; returns words that run a command in it."""
    within = ["ip", "netns", "exec", NAMESPACE]
    for command in (
        ["ip", "netns", "add", NAMESPACE],
        [*within, "ip", "link", "set", "lo", "up"],
        [*within, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{mbit}mbit",
         "burst", "256kb", "latency", "100ms"],
    ):  # fmt: skip
        subprocess.run(command, check=True)
    return within


def measure(
    learners: int, flags: list[str], seconds: float, within: list[str]
) -> tuple[float, float]:
    """Returns agent steps per second, and the all-reduce's share of the learners' time."""
    with tempfile.TemporaryDirectory() as folder:
        workers, logdir = Path(folder, "workers.csv"), Path(folder, "run")
        rows = [f"learner,127.0.0.1,{8001 + 10 * n}" for n in range(learners)]
        rows += ["actor,127.0.0.1,"] * ACTORS
        workers.write_text("\n".join(["job,ip,tf_port", *rows, ""]))
        hours = (START_S + seconds) / 3600
        run = subprocess.run(
            [*within, sys.executable, str(many_runs.SCRIPT), *flags,
             f"--workers_csv_path={workers}", f"--logdir={logdir}", f"--max_hours={hours}"],
            cwd=many_runs.PROJECT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        rows_after_start = many_runs.rows(logdir)[WARM_UP_ROWS:-1]
        if len(rows_after_start) < 2:
            sys.exit(f"the run has not trained:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    shares = [float(row["learner_all_reduce_fraction"] or 0) for row in rows_after_start]
    return statistics.median(float(row["agent_steps_per_s"]) for row in rows_after_start), (
        statistics.median(shares)
    )


if __name__ == "__main__":
    main(sys.argv[1:])
