"""How fast is this project beside peers on the same cores, and how soon does each learn Pong?

    python3 -m venv SF && SF/bin/pip install sample-factory==2.1.1 ale-py==0.10.1 'numpy<2' \
        'setuptools<80' opencv-python-headless
    python3 -m venv SB3 && SB3/bin/pip install stable-baselines3 ale-py opencv-python-headless
    python3 -m venv RAY && RAY/bin/pip install 'ray[rllib]' torch 'gymnasium[atari]' \
        opencv-python-headless
    python sandbox/benchmark_peers.py --sample_factory=SF/bin/python \
        --stable_baselines3=SB3/bin/python --rllib=RAY/bin/python \
        [--agent_name=NatureAgent] [--seconds=60] [--turns=3] [FLAG ...]
    python sandbox/benchmark_peers.py --sample_factory=SF/bin/python --to_return=18 --seconds=3600

Trains on Pong in turn: this project, then each named peer. Sample Factory (Petrenko et al., 2020,
arXiv 2006.11751) gets the same network, batches of the same size and one gradient step per batch;
the settings of the others are in `peers/`. Prints agent steps per second, without the start, and
the memory of all processes together, then compares the medians. With --to_return, prints the
minutes and agent steps until the mean return of the last 100 games first reaches that, with
--seconds as the limit; Sample Factory then gets the settings with which it learns most from a
frame. Other flags are passed to run_experiment.py.
"""

from __future__ import annotations

import argparse
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

import many_runs

WARM_UP_S = 25.0
BATCH = 512  # agent steps
LEVEL = "PongNoFrameskip-v4"
PEER_NETWORKS = {"NatureAgent": "convnet_atari", "ResNetAgent": "resnet_impala"}
_LOOK_S = 3.0
_WORKERS = [
    "--env=atari_pong", "--experiment=peer", "--train_for_env_steps=1000000000",
    "--device=cpu", "--num_workers=2", "--num_envs_per_worker=16", "--worker_num_splits=2",
    "--async_rl=True", "--serial_mode=False", "--batched_sampling=False", "--rollout=32",
    "--summaries_use_frameskip=False", "--save_every_sec=100000",
]  # fmt: skip
# The fastest tried settings on two cores; its defaults are four epochs per batch.
_EQUAL_WORK = [f"--batch_size={BATCH}", "--num_epochs=1", "--num_batches_per_epoch=1"]
_LEARNS_MOST = [
    "--batch_size=256", "--num_batches_per_epoch=4", "--num_epochs=4", "--normalize_input=True",
    "--normalize_returns=True", "--learning_rate=0.00025",
]  # fmt: skip
_PEER_LINE = re.compile(r"\[([-\d]+ [:\d]+),(\d+)\].*Total num frames: (\d+)")
_PEER_RETURN = re.compile(r"\[([-\d]+ [:\d]+),(\d+)\].*Avg episode reward: \[\(0, '([-\d.]+)'\)\]")
_PRINTED = re.compile(r"^([\d.]+) (\d+) (\S+)$", re.MULTILINE)


class Point(NamedTuple):
    """The progress of a run at some time."""

    s: float
    steps: int
    mean_return: float = float("nan")


class Contestant(NamedTuple):
    """A project that trains."""

    command: list[str]
    points: Callable[[Path], list[Point]]
    environ: dict[str, str] = {}


class Measured(NamedTuple):
    """The measurements of one run."""

    points: list[Point]
    memory_mib: float  # the largest sum over all processes; shared pages count once


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    options, flags = _options(arguments)
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.turns):
            for name, make in _contestants(options, flags).items():
                place = Path(folder, f"{name}-{turn}".replace(" ", "-"))
                place.mkdir()
                measured = _run(make(place), place, options)
                rates.setdefault(name, []).append(rate := _rate(measured.points))
                reached = _reached(measured.points, options.to_return)
                print(
                    f"turn {turn + 1}: {name:18} {rate:7,.0f} agent steps/s,"
                    f" {measured.memory_mib:6,.0f} MiB{_shown(reached, options)}",
                    flush=True,
                )
    ours, *_ = medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, median in medians.items():
        ratio = medians[ours] / median
        print(f"{options.agent_name}: {name}: median {median:,.0f}; {ours} is {ratio:.2f}x as fast")


def _options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    for peer in ("sample_factory", "stable_baselines3", "rllib"):
        parser.add_argument(f"--{peer}", type=Path, help="Python of the environment that has it")
    parser.add_argument("--agent_name", default="NatureAgent", choices=PEER_NETWORKS)
    parser.add_argument("--seconds", default=60.0, type=float, help="each run, after its start")
    parser.add_argument("--turns", default=3, type=int)
    parser.add_argument("--to_return", type=float, help="measure until this mean return")
    parser.add_argument("--peer_flag", action="append", default=[], help="of Sample Factory")
    return parser.parse_known_args(arguments)


def _contestants(
    options: argparse.Namespace, flags: list[str]
) -> dict[str, Callable[[Path], Contestant]]:
    makers: dict[str, Callable[[Path], Contestant]] = {}
    makers["impala_tf"] = lambda place: _ours(place, options, flags)
    if options.sample_factory:
        makers["Sample Factory"] = lambda place: _sample_factory(place, options)
    if options.stable_baselines3:
        makers["Stable-Baselines3"] = lambda place: _script(
            options.stable_baselines3, "stable_baselines3_pong.py"
        )
    if options.rllib:
        makers["RLlib"] = lambda place: _script(options.rllib, "rllib_pong.py")
    return makers


def _script(python: Path, name: str) -> Contestant:
    command = [str(python), str(many_runs.PROJECT / "sandbox" / "peers" / name)]
    return Contestant(command, _printed, {"PEER_LEVEL": LEVEL})


def _ours(folder: Path, options: argparse.Namespace, flags: list[str]) -> Contestant:
    command = [
        sys.executable, str(many_runs.SCRIPT), f"--level_name={LEVEL}",
        f"--agent_name={options.agent_name}", f"--logdir={folder}/run", "--metrics_interval_s=2",
        *flags,
    ]  # fmt: skip
    return Contestant(command, _rows)


def _sample_factory(folder: Path, options: argparse.Namespace) -> Contestant:
    command = [
        str(options.sample_factory), "-m", "sf_examples.atari.train_atari", *_WORKERS,
        *(_EQUAL_WORK if options.to_return is None else _LEARNS_MOST),
        f"--encoder_conv_architecture={PEER_NETWORKS[options.agent_name]}",
        f"--train_dir={folder}", *options.peer_flag,
    ]  # fmt: skip
    # Every process of Sample Factory has to register ALE's levels.
    (folder / "sitecustomize.py").write_text("import ale_py\n")
    return Contestant(command, _logged, {"PYTHONPATH": str(folder)})


def _rows(folder: Path) -> list[Point]:
    """Returns this project's rows. Their time counts from the first update on."""
    return [
        Point(
            float(row["wall_time_s"]),
            int(row["agent_steps"]),
            float(row["episode_return_mean"] or "nan"),
        )
        for row in many_runs.rows(folder / "run")
    ]


def _logged(folder: Path) -> list[Point]:
    """Returns the points in Sample Factory's log."""
    text = (folder / "out").read_text()
    points, mean = [], float("nan")
    for line in text.splitlines():
        if match := _PEER_RETURN.search(line):
            mean = float(match[3])
        if match := _PEER_LINE.search(line):
            at = datetime.datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").timestamp()
            points.append(Point(at + int(match[2]) / 1000, int(match[3]), mean))
    return points


def _printed(folder: Path) -> list[Point]:
    """Returns the points that a script in `peers/` has printed."""
    lines = _PRINTED.findall((folder / "out").read_text())
    return [Point(float(s), int(steps), float(mean)) for s, steps, mean in lines]


def _reached(points: list[Point], to_return: float | None) -> Point | None:
    """Returns the first point with that mean return; its time counts from the first point on."""
    if to_return is None:
        return None
    for point in points:
        if point.mean_return >= to_return:
            return point._replace(s=point.s - points[0].s)
    return None


def _shown(reached: Point | None, options: argparse.Namespace) -> str:
    if options.to_return is None:
        return ""
    if reached is None:
        return f"; {options.to_return:g} not reached"
    return (
        f"; {options.to_return:g} after {reached.s / 60:.1f} min and {reached.steps:,} agent steps"
    )


def _rate(points: list[Point]) -> float:
    """Returns the slope between the first and the last point, without the first quarter."""
    points = points[len(points) // 4 :]
    if len(points) < 2:
        sys.exit("too few figures: give more --seconds")
    return (points[-1].steps - points[0].steps) / (points[-1].s - points[0].s)


def _run(contestant: Contestant, folder: Path, options: argparse.Namespace) -> Measured:
    """Trains for some seconds, or to a return."""
    environ = {**os.environ, **contestant.environ}
    largest, end = 0.0, time.monotonic() + options.seconds + WARM_UP_S
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(
            contestant.command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=environ
        )
        while time.monotonic() < end:
            time.sleep(_LOOK_S)
            if process.poll() is not None:
                sys.exit((folder / "out").read_text()[-2000:])
            largest = max(largest, sum(map(_pss_mib, _tree(process.pid))))
            if _reached(contestant.points(folder), options.to_return):
                break
        points = contestant.points(folder)
        _end(process)
    return Measured(points, largest)


def _end(process: subprocess.Popen[bytes]) -> None:
    started = _tree(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in reversed(started[1:]):
        subprocess.run(["kill", "-9", str(pid)], check=False, stderr=subprocess.DEVNULL)


def _tree(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [
            int(child) for task in threads for child in (task / "children").read_text().split()
        ]
    except OSError:  # it ended
        return [pid]
    return [pid, *(descendant for child in children for descendant in _tree(child))]


def _pss_mib(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    (kib,) = re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(kib) / 1024


if __name__ == "__main__":
    main(sys.argv[1:])
