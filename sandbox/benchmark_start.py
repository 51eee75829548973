"""How long does a run take until its first update, and how much memory do its processes need?

    python sandbox/benchmark_start.py [FLAG ...]

Starts a run on this machine, waits for its first update and 30 s more, and prints the proportional
set size (PSS) of each process: shared pages count once, divided among the processes.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
AFTERWARDS_S = 30.0
PATIENCE_S = 300.0


def wait_for_update(logdir: Path, run: subprocess.Popen[bytes]) -> float:
    """Returns the seconds until status.json has the first agent step that was learned from."""
    started = time.monotonic()
    while (waited_s := time.monotonic() - started) < PATIENCE_S and run.poll() is None:
        time.sleep(0.05)
        try:
            if json.loads((logdir / "status.json").read_text())["agent_steps"]:
                return waited_s
        except (OSError, ValueError):
            continue
    sys.exit("the run has not trained")


def tree(pid: int) -> list[int]:
    """Returns a process and its descendants."""
    pids = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            pids += tree(int(child))
    return pids


def describe(pid: int) -> tuple[str, float]:
    """Returns a process's job, and its PSS in MB."""
    command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    job = re.search(r"--job_name=(\w+)", command)
    name = job[1] if job else "starter"
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    pss = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return name, int(pss[1]) / 1024 if pss else 0.0


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [-h] [FLAG ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _, flags = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        logdir = Path(folder, "run")
        script = str(PROJECT / "run_experiment.py")
        command = [sys.executable, script, f"--logdir={logdir}", *flags]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            print(f"first update after {wait_for_update(logdir, run):.1f} s", flush=True)
            time.sleep(AFTERWARDS_S)
            sizes = [describe(pid) for pid in tree(run.pid)]
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait()
    for name, megabytes in sizes:
        print(f"{megabytes:8,.0f} MB  {name}")
    print(f"{sum(megabytes for _, megabytes in sizes):8,.0f} MB  all")


if __name__ == "__main__":
    main(sys.argv[1:])
