"""How long does an actor alone on its machine take to start, and how much memory does it need?

    python sandbox/benchmark_actor.py [FLAG ...]

Starts a learner, then actors in turn, each by hand, as on a machine of its own. Prints the seconds
until it acts, its proportional set size (PSS) half a minute later, and the peak of its resident
memory.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import many_runs

TURNS = 2
AFTERWARDS_S = 35.0


def wait_for(path: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Waits until the log of a process has a text."""
    many_runs.wait_for(
        lambda: path.exists() and text in path.read_text(), process, path, poll_s=0.02
    )


def start(folder: Path, log: str, *flags: str) -> subprocess.Popen[bytes]:
    """Starts a process of the run."""
    with (folder / log).open("wb") as file:
        return subprocess.Popen(
            [sys.executable, str(many_runs.SCRIPT), *flags],
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def mebibytes(path: str, name: str) -> float:
    """Returns a value of smaps_rollup or status (see proc(5)) in MiB."""
    match = re.search(rf"^{name}:\s+(\d+) kB", Path(path).read_text(), re.MULTILINE)
    return int(match[1]) / 1024 if match else 0.0


def measure(folder: Path, flags: list[str]) -> None:
    """Starts an actor, prints what it needs, and stops it."""
    began = time.monotonic()
    actor = start(folder, "actor", *flags, "--job_name=actor")
    try:
        wait_for(folder / "actor", "acting in", actor)
        waited_s = time.monotonic() - began
        time.sleep(AFTERWARDS_S)
        proc = f"/proc/{actor.pid}"
        pss, peak = mebibytes(f"{proc}/smaps_rollup", "Pss"), mebibytes(f"{proc}/status", "VmHWM")
        print(f"acts after {waited_s:.1f} s; {pss:.0f} MB, at most {peak:.0f} MB")
    finally:
        actor.terminate()
        actor.wait()


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [-h] [FLAG ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _, given = parser.parse_known_args(arguments)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = [
            "--level_name=PongNoFrameskip-v4",
            "--total_environment_frames=1000000000",
            f"--logdir={folder / 'run'}",
            f"--learner_hosts=127.0.0.1:{port}",
            *given,
        ]
        learner = start(folder, "learner", *flags, "--job_name=learner")
        try:
            # The first actor must not wait for the learner.
            wait_for(folder / "learner", "waiting for unrolls", learner)
            for _ in range(TURNS):
                measure(folder, flags)
        finally:
            learner.terminate()
            learner.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
