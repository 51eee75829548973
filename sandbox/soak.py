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
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import many_runs

COLUMNS = ("minutes", "memory_mb", "descriptors", "threads", "logdir_mb", "agent_steps",
           "agent_steps_per_s", "restarts")  # fmt: skip
INTERVAL_S = 5.0


class Processes:
    """A learner, started by hand, and its actors, started by `start_actors`."""

    def __init__(self, logdir: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._logdir = logdir
        self._flags = [f"--logdir={logdir}", f"--learner_hosts={address}",
                       "--level_name=CartPole-v1",
                       "--total_environment_frames=1000000000000", "--envs_per_actor=4",
                       "--unroll_length=5", "--batch_size=16", "--checkpoint_interval_s=10",
                       "--metrics_interval_s=5"]  # fmt: skip
        self.learner = self._start("learner", 0)
        self.actors: list[subprocess.Popen[bytes]] = []
        self.restarts = 0

    def start_actors(self, count: int) -> None:
        """Starts actors once the learner has written their key; exits if the learner has ended."""
        key = self._logdir / "credentials" / "actor.key"
        many_runs.wait_for(key.exists, self.learner, self._log("learner", 0))
        self.actors = [self._start("actor", task) for task in range(count)]

    def kill_one(self) -> None:
        """Kills an actor, whatever it is doing, and starts it again."""
        task = random.randrange(len(self.actors))
        self.actors[task].kill()
        self.actors[task].wait()
        self.actors[task] = self._start("actor", task)
        self.restarts += 1

    def end(self) -> None:
        """Stops the learner with a checkpoint, and the actors."""
        for process in (self.learner, *self.actors):
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    def _start(self, job_name: str, task: int) -> subprocess.Popen[bytes]:
        log = self._log(job_name, task)
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(many_runs.SCRIPT), *self._flags]
        with log.open("ab") as output:
            return subprocess.Popen(
                [*command, f"--job_name={job_name}", f"--task={task}"],
                cwd=many_runs.PROJECT, stdout=output, stderr=output,
            )  # fmt: skip

    def _log(self, job_name: str, task: int) -> Path:
        return self._logdir / "processes" / f"{job_name}-{task}.log"


def sample(processes: Processes, logdir: Path, began: float) -> dict[str, float]:
    """Returns a row of measurements."""
    proc = Path(f"/proc/{processes.learner.pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    run_status = json.loads((logdir / "status.json").read_text())
    files = [path.stat().st_size for path in logdir.rglob("*") if path.is_file()]
    return {
        "minutes": (time.monotonic() - began) / 60,
        "memory_mb": int(status["VmRSS"].split()[0]) / 1024,
        "descriptors": len(list((proc / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "logdir_mb": sum(files) / 2**20,
        "agent_steps": run_status["agent_steps"],
        "agent_steps_per_s": (run_status["row"] or {}).get("agent_steps_per_s") or 0.0,
        "restarts": processes.restarts,
    }


def growth(rows: list[dict[str, float]], column: str) -> tuple[float, float]:
    """Returns the medians of the third and the last quarter of a column."""
    quarter = max(1, len(rows) // 4)
    third, last = rows[-2 * quarter : -quarter] or rows, rows[-quarter:]
    return statistics.median(r[column] for r in third), statistics.median(r[column] for r in last)


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """Writes a picture of all columns over the minutes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, all_axes = plt.subplots(2, 3, figsize=(12, 6), sharex=True)
    columns = ("memory_mb", "descriptors", "threads", "logdir_mb", "agent_steps_per_s", "restarts")
    for axes, column in zip(all_axes.flat, columns, strict=True):
        axes.plot([row["minutes"] for row in rows], [row[column] for row in rows])
        axes.set(title=column, ylim=(0, None))
        axes.grid(alpha=0.3)
    for axes in all_axes[-1]:
        axes.set(xlabel="minutes")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kill_every_s", type=float, default=10.0)
    parser.add_argument("--num_actors", type=int, default=4)
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="impala_tf-soak-") as folder:
        logdir = Path(folder)
        processes = Processes(logdir)
        try:
            processes.start_actors(options.num_actors)
            began = killed = time.monotonic()
            while time.monotonic() - began < 60 * options.minutes:
                time.sleep(INTERVAL_S)
                if processes.learner.poll() is not None:
                    print((logdir / "processes" / "learner-0.log").read_text()[-3000:])
                    return 1
                if time.monotonic() - killed >= options.kill_every_s:
                    killed = time.monotonic()
                    processes.kill_one()
                if (logdir / "status.json").exists():
                    rows.append(sample(processes, logdir, began))
                    with options.out.with_suffix(".csv").open("w", newline="") as file:
                        writer = csv.DictWriter(file, COLUMNS)
                        writer.writeheader()
                        writer.writerows({k: round(v, 2) for k, v in row.items()} for row in rows)
        finally:
            processes.end()
    draw(rows, options.out.with_suffix(".png"))
    medians = {name: growth(rows, name) for name in ("memory_mb", "descriptors", "threads")}
    for name, (before, after) in medians.items():
        print(f"{name}: {before:,.0f} in the third quarter, {after:,.0f} in the last")
    print(f"{processes.restarts} actors killed, {rows[-1]['agent_steps']:,.0f} agent steps")
    before, after = medians["memory_mb"]
    flat = after < 1.05 * before
    return 0 if flat and all(b - a < 10 for a, b in list(medians.values())[1:]) else 1


if __name__ == "__main__":
    sys.exit(main())
