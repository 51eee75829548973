"""Does anything grow while actors are killed again and again?

    python sandbox/soak.py OUT --minutes=60 --kill_every_s=10 --num_actors=4

Runs a learner and actors on CartPole with small unrolls. Every few seconds, kills an actor
(SIGKILL) and restarts it at once. Every 5 s, records the learner's memory, descriptors and threads,
and the logdir's bytes. Writes OUT.csv and OUT.png. Exits with 1 if memory grew by more than 5 % in
the second half of the time, or descriptors or threads by more than a few.
"""

from __future__ import annotations

import argparse
import csv
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import many_runs
import matplotlib
import psutil

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

DRAWN = ("memory_mb", "descriptors", "threads", "logdir_mb", "agent_steps_per_s", "restarts")
COLUMNS = ("minutes", "agent_steps", *DRAWN)
INTERVAL_S = 5.0


def start(logdir: Path, address: str, job_name: str, task: int = 0) -> subprocess.Popen[bytes]:
    """Starts a process of the run; its output is in LOGDIR/processes."""
    flags = [f"--logdir={logdir}", f"--learner_hosts={address}", "--level_name=CartPole-v1",
             "--total_environment_frames=1000000000000", "--envs_per_actor=4",
             "--unroll_length=5", "--batch_size=16", "--checkpoint_interval_s=10",
             "--metrics_interval_s=5", f"--job_name={job_name}", f"--task={task}"]  # fmt: skip
    return many_runs.start(flags, logdir / "processes" / f"{job_name}-{task}.log")


def sample(learner: subprocess.Popen[bytes], logdir: Path) -> dict[str, float]:
    """Returns a row of measurements."""
    process = psutil.Process(learner.pid)
    status = many_runs.status(logdir)
    row = (status["row"] if status else None) or {}
    return {
        "memory_mb": process.memory_info().rss / 2**20,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "logdir_mb": sum(path.stat().st_size for path in logdir.rglob("*")) / 2**20,
        "agent_steps": status["agent_steps"] if status else 0,
        "agent_steps_per_s": row.get("agent_steps_per_s") or 0.0,
    }


def growth(rows: list[dict[str, float]], column: str) -> tuple[float, float]:
    """Returns the medians of the third and the last quarter of a column."""
    quarter = max(1, len(rows) // 4)
    third, last = rows[-2 * quarter : -quarter] or rows, rows[-quarter:]
    return statistics.median(r[column] for r in third), statistics.median(r[column] for r in last)


def write(rows: list[dict[str, float]], out: Path) -> None:
    """Writes the rows as a table and as a picture over the minutes."""
    with out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({name: round(value, 2) for name, value in row.items()} for row in rows)
    figure, all_axes = plt.subplots(2, 3, figsize=(12, 6), sharex=True)
    for axes, column in zip(all_axes.flat, DRAWN, strict=True):
        axes.plot([row["minutes"] for row in rows], [row[column] for row in rows])
        axes.set(title=column, ylim=(0, None))
        axes.grid(alpha=0.3)
    for axes in all_axes[-1]:
        axes.set(xlabel="minutes")
    figure.tight_layout()
    figure.savefig(out.with_suffix(".png"), dpi=90)
    plt.close(figure)


def soak(options: argparse.Namespace, logdir: Path) -> list[dict[str, float]]:
    """Runs the processes, kills actors, and returns the measurements."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    (logdir / "processes").mkdir()
    processes = [learner := start(logdir, address, "learner")]
    rows: list[dict[str, float]] = []
    try:
        key, log = logdir / "credentials" / "actor.key", logdir / "processes" / "learner-0.log"
        many_runs.wait_for(key.exists, learner, log)
        for task in range(options.num_actors):
            processes.append(start(logdir, address, "actor", task))
        began = killed = time.monotonic()
        restarts = 0
        while (elapsed_s := time.monotonic() - began) < 60 * options.minutes:
            time.sleep(INTERVAL_S)
            if learner.poll() is not None:
                sys.exit(log.read_text()[-3000:])
            if time.monotonic() - killed >= options.kill_every_s:
                killed, restarts = time.monotonic(), restarts + 1
                task = random.randrange(options.num_actors)
                processes[1 + task].kill()
                processes[1 + task].wait()
                processes[1 + task] = start(logdir, address, "actor", task)
            row = {"minutes": elapsed_s / 60, "restarts": restarts, **sample(learner, logdir)}
            rows.append(row)
            write(rows, options.out)
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)
    return rows


def main(arguments: list[str]) -> int:
    """Soaks, writes and compares; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kill_every_s", type=float, default=10.0)
    parser.add_argument("--num_actors", type=int, default=4)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="impala_tf-soak-") as folder:
        rows = soak(options, Path(folder))
    medians = {name: growth(rows, name) for name in ("memory_mb", "descriptors", "threads")}
    for name, (before, after) in medians.items():
        print(f"{name}: {before:,.0f} in the third quarter, {after:,.0f} in the last")
    print(f"{rows[-1]['restarts']:,.0f} actors killed, {rows[-1]['agent_steps']:,.0f} agent steps")
    (mb_before, mb_after), *counts = medians.values()
    is_flat = mb_after < 1.05 * mb_before and all(after - before < 10 for before, after in counts)
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
