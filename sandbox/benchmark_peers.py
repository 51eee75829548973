"""How fast is this project beside a peer on the same cores?

    python3 -m venv DIR && DIR/bin/pip install sample-factory==2.1.1 ale-py==0.10.1 'numpy<2' \
        'setuptools<80' opencv-python-headless
    python sandbox/benchmark_peers.py --peer_python=DIR/bin/python [--agent_name=NatureAgent] \
        [--seconds=60] [--turns=3] [FLAG ...]

Trains on Pong by turns: this project, then Sample Factory (Petrenko et al., 2020, arXiv 2006.11751)
with the same network, batches of the same size and one gradient step a batch. Prints agent steps a
second, without the start, and the memory of all processes together, then the ratio of the medians.
More flags are those of run_experiment.py.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[1]

WARM_UP_S = 25.0
BATCH = 512  # agent steps
PEER_NETWORKS = {"NatureAgent": "convnet_atari", "ResNetAgent": "resnet_impala"}
# The fastest of those that were tried on two cores; its own defaults take four epochs a batch.
PEER_FLAGS = [
    "--env=atari_pong", "--experiment=peer", "--train_for_env_steps=1000000000",
    "--device=cpu", "--num_workers=2", "--num_envs_per_worker=16", "--worker_num_splits=2",
    "--async_rl=True", "--serial_mode=False", "--batched_sampling=False",
    f"--batch_size={BATCH}", "--rollout=32", "--num_epochs=1", "--num_batches_per_epoch=1",
    "--summaries_use_frameskip=False", "--save_every_sec=100000",
]  # fmt: skip
_PEER_LINE = re.compile(r"\[([-\d]+ [:\d]+),(\d+)\].*Total num frames: (\d+)")


class Measured(NamedTuple):
    """Of one run."""

    agent_steps_per_s: float
    memory_mib: float  # the largest sum over all processes; shared pages count once


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    options, flags = _options(arguments)
    with tempfile.TemporaryDirectory() as folder:
        contestants: dict[str, Callable[[Path], Measured]] = {
            "impala_tf": lambda place: _ours(place, options, flags),
            "Sample Factory": lambda place: _peer(place, options),
        }
        found: dict[str, list[Measured]] = {name: [] for name in contestants}
        for turn in range(options.turns):
            for name, measure in contestants.items():
                place = Path(folder, f"{name}-{turn}".replace(" ", "-"))
                place.mkdir()
                found[name].append(measured := measure(place))
                print(
                    f"turn {turn + 1}: {name:15} {measured.agent_steps_per_s:7,.0f} agent steps/s,"
                    f" {measured.memory_mib:6,.0f} MiB",
                    flush=True,
                )
    ours, peer = (
        statistics.median(each.agent_steps_per_s for each in runs) for runs in found.values()
    )
    print(f"{options.agent_name}: medians {ours:,.0f} and {peer:,.0f}: {ours / peer:.2f} times")


def _options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--peer_python", required=True, type=Path)
    parser.add_argument("--agent_name", default="NatureAgent", choices=PEER_NETWORKS)
    parser.add_argument("--seconds", default=60.0, type=float, help="each run, after its start")
    parser.add_argument("--turns", default=3, type=int)
    parser.add_argument("--peer_flag", action="append", default=[], help="may be repeated")
    return parser.parse_known_args(arguments)


def _ours(folder: Path, options: argparse.Namespace, flags: list[str]) -> Measured:
    command = [
        sys.executable, str(PROJECT / "run_experiment.py"), "--level_name=PongNoFrameskip-v4",
        f"--agent_name={options.agent_name}", f"--logdir={folder}/run", "--metrics_interval_s=2",
        *flags,
    ]  # fmt: skip
    memory = _run(command, folder, options.seconds + WARM_UP_S)
    with (folder / "run" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # A row's time counts from the first update on.
    return Measured(_rate([(float(r["wall_time_s"]), int(r["agent_steps"])) for r in rows]), memory)


def _peer(folder: Path, options: argparse.Namespace) -> Measured:
    network = f"--encoder_conv_architecture={PEER_NETWORKS[options.agent_name]}"
    command = [
        str(options.peer_python), "-m", "sf_examples.atari.train_atari", *PEER_FLAGS, network,
        f"--train_dir={folder}", *options.peer_flag,
    ]  # fmt: skip
    # Each of its processes has to register ALE's levels.
    (folder / "sitecustomize.py").write_text("import ale_py\n")
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    memory = _run(command, folder, options.seconds + WARM_UP_S, environ)
    points = []
    for day, millis, steps in _PEER_LINE.findall((folder / "out").read_text()):
        at = datetime.datetime.strptime(day, "%Y-%m-%d %H:%M:%S").timestamp()
        points.append((at + int(millis) / 1000, int(steps)))
    return Measured(_rate(points), memory)


def _rate(points: list[tuple[float, int]]) -> float:
    """Returns the slope between the first and the last (seconds, steps), the first quarter out."""
    points = points[len(points) // 4 :]
    if len(points) < 2:
        sys.exit("too few figures: give more --seconds")
    (start_s, start), (end_s, end) = points[0], points[-1]
    return (end - start) / (end_s - start_s)


def _run(
    command: list[str], folder: Path, seconds: float, environ: dict[str, str] | None = None
) -> float:
    """Runs a command in a folder for some seconds; returns the memory that it took in MiB."""
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=environ
        )
        largest, end = 0.0, time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(3.0)
            if process.poll() is not None:
                sys.exit((folder / "out").read_text()[-2000:])
            largest = max(largest, sum(map(_pss_mib, _tree(process.pid))))
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            for pid in reversed(_tree(process.pid)):
                subprocess.run(["kill", "-9", str(pid)], check=False)
            process.wait()
    return largest


def _tree(pid: int) -> list[int]:
    """Returns a process and all that it started."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [
            int(child) for task in threads for child in (task / "children").read_text().split()
        ]
    except OSError:  # it ended
        return [pid]
    return [pid, *(each for child in children for each in _tree(child))]


def _pss_mib(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    (kib,) = re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(kib) / 1024


if __name__ == "__main__":
    main(sys.argv[1:])
