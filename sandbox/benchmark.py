"""Measures runs on this machine. Each command compares variants in turns, as machines are noisy.

    python sandbox/benchmark.py speed [--turns=3] [--other=FOLDER] [FLAG ...] [-- FLAG ...] ...
    python sandbox/benchmark.py parts [--parts=inference,update] [FLAG ...] [-- FLAG ...] ...
    python sandbox/benchmark.py start [FLAG ...] [-- FLAG ...] ...
    python sandbox/benchmark.py synchronization [FLAG ...]
    python sandbox/benchmark.py learners [FLAG ...] [-- FLAG ...] ...
    python sandbox/benchmark.py scale [--actors=500] [FLAG ...]
    python sandbox/benchmark.py peers --sample_factory=SF/bin/python [--to_return=18] [FLAG ...]

FLAG is a flag of `impala train`. Those before the first -- are shared; each group after a -- is
a variant. The level is Pong, if no flag names another. Only ratios from one call mean something.
`benchmark.py COMMAND --help` says what a command measures.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import inspect
import itertools
import multiprocessing
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal, NamedTuple

import many_runs
import numpy as np
import psutil

from impala_tf import config as configs
from impala_tf.config import command_line, cores_here
from impala_tf.measure.parts import Measured, What, environments_of, measure
from impala_tf.processes.common import resolve
from impala_tf.studies import child_runs
from impala_tf.types import ActorReport, EnvironmentSpec, Unroll

LEVEL = "--level_name=PongNoFrameskip-v4"
ENDLESS = ("--total_environment_frames=1000000000000", "--metrics_interval_s=2")
WARM_UP_ROWS = 5
START_S = 180.0
Groups = list[list[str]]


class Variant(NamedTuple):
    """A run to compare with others."""

    name: str
    flags: list[str]
    checkout: Path = many_runs.PROJECT


def variants(shared: list[str], groups: Groups) -> list[Variant]:
    """Returns one variant for each group of flags, or one with the shared flags alone."""
    return [Variant(shlex.join(own) or "as given", [*shared, *own]) for own in groups or [[]]]


@contextlib.contextmanager
def running(variant: Variant) -> Iterator[tuple[Path, subprocess.Popen[bytes], Path]]:
    """Yields the logdir of a run that trains meanwhile, its process and its output.

    With --workers_csv_path, the processes that it has launched are stopped at the end, too.
    """
    with tempfile.TemporaryDirectory(prefix="impala_tf-benchmark-") as name:
        logdir, log = Path(name, "run"), Path(name, "out")
        flags = [LEVEL, *ENDLESS, *variant.flags, f"--logdir={logdir}"]
        run = many_runs.start(flags, log, variant.checkout)
        try:
            yield logdir, run, log
        finally:
            if any(flag.startswith("--workers_csv_path") for flag in flags):
                stop = [sys.executable, "-m", "frontend", "stop", f"--logdir={logdir}"]
                subprocess.run(stop, cwd=many_runs.PROJECT, check=False, capture_output=True)
            run.terminate()
            run.wait()


def train(variant: Variant, seconds: float) -> list[dict[str, str]]:
    """Trains for some seconds; returns the rows of its metrics since the start was over."""
    with running(variant) as (logdir, run, log):
        many_runs.wait_for(
            lambda: len(many_runs.rows(logdir)) > WARM_UP_ROWS, run, log, START_S + seconds
        )
        time.sleep(seconds)
        return many_runs.rows(logdir)[WARM_UP_ROWS:]


def steps_per_s(rows: Sequence[Mapping[str, str]]) -> float:
    """Returns the agent steps per second from the first row to the last."""
    steps, seconds = (
        float(rows[-1][name]) - float(rows[0][name]) for name in ("agent_steps", "wall_time_s")
    )
    return steps / seconds


def speed_of(variant: Variant, seconds: float) -> float:
    """Trains; returns agent steps per second, and prints what the learners' all-reduce takes."""
    rows = train(variant, seconds)
    if any(shares := [float(row["learner_all_reduce_fraction"] or 0) for row in rows]):
        print(f"the all-reduce takes {statistics.median(shares):.0%} of the learners' time")
    return steps_per_s(rows)


def take_turns(turns: int, measures: Mapping[str, Callable[[], float]]) -> list[float]:
    """Measures each variant in each turn; prints and returns the medians.

    Args:
      turns: how often each variant is measured.
      measures: {a variant's name: returns what is measured, per second}.
    """
    results: dict[str, list[float]] = {name: [] for name in measures}
    for turn, (name, measured) in itertools.product(range(turns), measures.items()):
        results[name].append(measured())
        print(f"turn {turn + 1}: {results[name][-1]:10,.0f} agent steps/s  {name}", flush=True)
    first, *_ = medians = [statistics.median(values) for values in results.values()]
    for name, median in zip(results, medians, strict=True):
        print(f"median: {median:10,.0f} agent steps/s, {median / first:.2f} of the first  {name}")
    return medians


def speed(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Compares the speed of whole runs with different flags, or of the code in two folders.

    With --other=FOLDER, each variant trains with this code and with that in FOLDER. Environments
    are stepped alone before and after, which tells how fast the machine was.
    """
    compared = variants(shared, groups)
    if options.other:
        pairs = itertools.product(compared, (many_runs.PROJECT, options.other.resolve()))
        compared = [Variant(f"{v.name} in {folder}", v.flags, folder) for v, folder in pairs]
    before = environments_alone(shared)
    first, *_ = take_turns(
        options.turns,
        {each.name: functools.partial(speed_of, each, options.seconds) for each in compared},
    )
    after = environments_alone(shared)
    print(
        f"environments alone, on {cores_here()} cores: {before:,.0f} agent steps/s before,"
        f" {after:,.0f} after; the first keeps {2 * first / (before + after):.2f}"
    )


def environments_alone(flags: list[str]) -> float:
    """Returns the agent steps/s of an actor's environments, if they had all cores."""
    return 1e6 * cores_here() / part_of("environment", flags).core_us_per_step


def part_of(part: What, flags: list[str]) -> Measured:
    """Measures a part of a run, as `impala benchmark` does."""
    return measure(part, *resolve(command_line.parse([LEVEL, *flags])), 5.0)


def parts(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Compares single parts of runs: environment, inference, update."""
    for part in options.parts:
        print(f"{part}:")
        compared = variants(shared, groups)
        measures = {v.name: functools.partial(part_speed_of, part, v.flags) for v in compared}
        take_turns(options.turns, measures)


def part_speed_of(part: What, flags: list[str]) -> float:
    """Measures a part of a run; returns agent steps per second."""
    return part_of(part, flags).steps_per_s


def start(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Tells how long a run takes until its first update, and its processes' memory 30 s later.

    Shared pages are divided among the processes that use them. Beside that is the most that a
    process had resident, which is what an actor needs that is alone on its machine.
    """
    for variant in variants(shared, groups):
        with running(variant) as (logdir, run, log):
            has_learned = functools.partial(has_reached, logdir, "agent_steps", 1)
            seconds = many_runs.wait_for(has_learned, run, log, START_S)
            print(f"{variant.name}: first update after {seconds:.1f} s", flush=True)
            time.sleep(30)
            for process in processes_of(run):
                job = re.search(r"--job_name=(\w+)", " ".join(process.cmdline()))
                status = Path(f"/proc/{process.pid}/status").read_text()
                most = re.search(r"VmHWM:\s+(\d+)", status)
                print(
                    f"{job[1] if job else 'starter':8} {pss_mib(process.pid):7,.0f} MiB,"
                    f" at most {int(most[1]) / 1024 if most else 0:,.0f} MiB"
                )


def has_reached(logdir: Path, name: Literal["agent_steps", "actors"], count: int) -> bool:
    """Whether a run has that many agent steps, or actors that have called."""
    status = child_runs.status(logdir)
    if status is None:
        return False
    return (status["agent_steps"] if name == "agent_steps" else len(status["actors"])) >= count


def processes_of(run: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Returns a process and its descendants; [] if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    return []


def pss_mib(pid: int) -> float:
    """Returns a process's memory, with its part of shared pages; 0 if it has ended."""
    try:
        return float(psutil.Process(pid).memory_full_info().pss) / 2**20
    except psutil.Error:
        return 0.0


def synchronization(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Compares the settings of the IMPALA paper's table 1: who waits, and who chooses actions.

    The network, environments, batches and loss are the same.
    """
    common = [
        "--algorithm=impala",
        "--agent_name=ShallowConvNetAgent",
        "--num_actors=4",
        "--envs_per_actor=4",
        "--batch_size=16",
        "--unroll_length=20",
        "--updates_per_batch=1",
        "--observation_normalization=none",
    ]
    settings = {
        "IMPALA": [],
        "IMPALA, dynamic batching": ["--inference=learner"],
        "batched A2C, sync. step": ["--synchronization=step", "--inference=learner"],
        "batched A2C, sync. trajectory": ["--synchronization=trajectory"],
        "batched A2C, dynamic batching": ["--synchronization=trajectory", "--inference=learner"],
        # In A3C, a gradient is computed from one actor's environments.
        "A3C": ["--algorithm=a3c", "--batch_size=4"],
    }
    compared = [Variant(name, [*common, *own, *shared]) for name, own in settings.items()]
    take_turns(
        options.turns,
        {each.name: functools.partial(speed_of, each, options.seconds) for each in compared},
    )


def learners(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Compares one learner with two that have half the batch each, all on this machine.

    Start it in a network namespace with a slow loopback to see what a network costs them.
    """
    measures = {}
    with tempfile.TemporaryDirectory() as folder:
        for count, (name, flags, _) in itertools.product((1, 2), variants(shared, groups)):
            rows = [f"learner,127.0.0.1,{8001 + 10 * n}" for n in range(count)]
            machines = Path(folder, f"{count}.csv")
            machines.write_text("\n".join(["job,ip,tf_port", *rows, *["actor,127.0.0.1,"] * 2, ""]))
            own = [f"--workers_csv_path={machines}", f"--batch_size={16 // count}"]
            variant = Variant(f"{count} learner(s), {name}", [*own, *flags])
            measures[variant.name] = functools.partial(speed_of, variant, options.seconds)
        take_turns(options.turns, measures)


def scale(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Tells whether a learner keeps its speed with many actors, and when all return to it.

    Stand-ins for actors are real clients, each with a connection, a name and a certificate, which
    send one real unroll again and again at a real actor's pace: first --few of them, then --actors.
    Then the learner is killed (SIGKILL) and started again.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    flags = [LEVEL, *ENDLESS, f"--learner_hosts={address}", *shared]
    context = multiprocessing.get_context("spawn")
    stop, crowd = context.Event(), []
    with tempfile.TemporaryDirectory(prefix="impala_tf-benchmark-") as folder:
        logdir, log = Path(folder, "run"), Path(folder, "out")
        flags.append(f"--logdir={logdir}")

        def start_learner() -> subprocess.Popen[bytes]:
            (logdir / "status.json").unlink(missing_ok=True)
            learner = many_runs.start([*flags, "--job_name=learner"], log)
            many_runs.wait_for((logdir / "status.json").exists, learner, log)
            return learner

        def wait_for_actors(count: int) -> float:
            have_called = functools.partial(has_reached, logdir, "actors", count)
            return many_runs.wait_for(have_called, learner, log, 600.0)

        learner = start_learner()
        try:
            for count, began in ((options.few, 0), (options.actors, options.few)):
                for first in range(began, count, 64):  # more threads would wait for their turns
                    arguments = (first, min(64, count - first), flags, options.steps_per_s, stop)
                    crowd.append(context.Process(target=stand_in, args=arguments))
                    crowd[-1].start()
                print(f"{count} actors had called after {wait_for_actors(count):.0f} s", flush=True)
                time.sleep(20)
                before = len(many_runs.rows(logdir))
                time.sleep(options.seconds)
                rows = many_runs.rows(logdir)[before:]
                lag = float(rows[-1]["policy_lag_mean"])
                threads = psutil.Process(learner.pid).num_threads()
                print(
                    f"{count} actors: {steps_per_s(rows):,.0f} agent steps/s, policy lag"
                    f" {lag:.0f}, {pss_mib(learner.pid):,.0f} MiB, {threads} threads",
                    flush=True,
                )
            learner.kill()
            learner.wait()
            learner = start_learner()
            print(f"killed and started again: all called after {wait_for_actors(count):.0f} s")
        finally:
            stop.set()
            for clients in crowd:
                clients.join(20)
                clients.kill()
            learner.kill()
            learner.wait()


def stand_in(first: int, count: int, flags: list[str], steps_per_s: float, stop: Event) -> None:
    """Runs `count` clients, each in a thread, in this new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)  # real actors run elsewhere, so leave the cores to the learner
    from impala_tf.processes import tensorflow_startup

    tensorflow_startup.import_tensorflow()
    from impala_tf.agents.agent import agent_of, unroll_specs
    from impala_tf.transport import ActorClient, ClientClosed

    tensorflow_startup.use_one_cpu_thread()
    config, spec = resolve(command_line.parse(flags))
    agent = agent_of(config.agent, spec)
    specs = unroll_specs(agent, spec, config.optimizer.unroll_length)
    unroll = played_unroll(config, spec, agent)
    num_envs = len(unroll.parameter_version)
    pause_s = num_envs * config.optimizer.unroll_length / steps_per_s

    def act(client: ActorClient) -> None:
        version = -1
        with contextlib.suppress(ClientClosed):
            client.handshake()
            while True:
                fetched = client.fetch_parameters(version)
                version = version if fetched is None else fetched[0]
                stop.wait(pause_s)
                sent = unroll._replace(parameter_version=unroll.parameter_version * 0 + version)
                client.push(sent, (), ActorReport(steps_per_s))

    address, credentials = config.process.learner_hosts, Path(config.run.logdir, "credentials")
    digest = configs.wire_digest(config)
    clients = [
        ActorClient(address, credentials, f"actor-{task}", specs, digest, num_environments=num_envs)
        for task in range(first, first + count)
    ]
    threads = [threading.Thread(target=act, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    stop.wait()
    for client in clients:
        client.close()


def played_unroll(config: configs.Config, spec: EnvironmentSpec, agent: Any) -> Unroll:
    """Returns an unroll of real games: noise would compress differently."""
    from impala_tf.actor.acting import OwnActing
    from impala_tf.actor.actor import Actor, UnrollBuffer
    from impala_tf.agents.policy import OwnNetwork

    num_envs, unrolls = config.process.envs_per_actor, []
    arrays = [variable.numpy() for variable in agent.variables]
    environments = environments_of(config, spec)
    levels, length = np.zeros(num_envs, np.int32), config.optimizer.unroll_length
    actor = Actor(
        agent.interface,
        OwnActing(
            OwnNetwork(agent, spec, num_envs, config.run.seed),
            lambda known_version: None if known_version == 0 else (0, arrays),
        ),
        environments,
        UnrollBuffer(agent.interface, spec, length, levels),
        lambda unroll, *_: unrolls.append(copy.deepcopy(unroll)),
    )
    actor.run(lambda: len(unrolls) == 5)
    environments.close()
    return unrolls[-1]


class Point(NamedTuple):
    """The progress of a run at some time."""

    s: float
    steps: int
    mean_return: float


class Contestant(NamedTuple):
    """A project that trains on Pong."""

    command: list[str]
    points: Callable[[Path], list[Point]]  # reads the progress from the folder it was started in
    environ: dict[str, str] = {}


def peers(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    r"""Compares this project with peers on Pong: agent steps/s, memory, and how soon it is learned.

    Each peer has a virtual environment of its own, whose Python is named:

    python3 -m venv SF && SF/bin/pip install sample-factory==2.1.1 ale-py==0.10.1 'numpy<2' \
        'setuptools<80' opencv-python-headless
    python3 -m venv SB3 && SB3/bin/pip install stable-baselines3 ale-py opencv-python-headless
    python3 -m venv RAY && RAY/bin/pip install 'ray[rllib]' torch 'gymnasium[atari]' \
        opencv-python-headless

    Sample Factory (Petrenko et al., 2020, arXiv 2006.11751) has the same network, batches of the
    same size and one gradient step per batch; the settings of the others are in peers.py. With
    --to_return, prints the minutes and agent steps until the mean return of the last 100 games
    first reaches that, with --seconds as the limit; Sample Factory then has the settings with which
    it learns most from a frame.
    """
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        contestants = contestants_of(options, shared)
        for turn, (who, contestant) in itertools.product(range(options.turns), contestants.items()):
            folder = Path(name, f"{who}-{turn}")
            folder.mkdir()
            points, mib = compete(contestant, folder, options.seconds, options.to_return)
            if len(settled := points[len(points) // 4 :]) < 2:
                sys.exit("too few figures: give more --seconds")
            rate = (settled[-1].steps - settled[0].steps) / (settled[-1].s - settled[0].s)
            rates.setdefault(who, []).append(rate)
            line = f"turn {turn + 1}: {who:18} {rate:7,.0f} agent steps/s, {mib:6,.0f} MiB"
            if reached := first_with(points, options.to_return):
                minutes = (reached.s - points[0].s) / 60
                line += f"; return {reached.mean_return:.1f} after {minutes:.1f} min"
                line += f" and {reached.steps:,} agent steps"
            print(line, flush=True)
    medians = {who: statistics.median(values) for who, values in rates.items()}
    for who, median in medians.items():
        print(f"{who}: median {median:,.0f}; ours is {medians['ours'] / median:.2f}x as fast")


def contestants_of(options: argparse.Namespace, flags: list[str]) -> dict[str, Contestant]:
    """Returns this project and the peers that were named."""
    ours = [
        sys.executable,
        str(many_runs.SCRIPT),
        LEVEL,
        *ENDLESS,
        f"--agent_name={options.agent_name}",
        "--logdir=run",
        *flags,
    ]
    contestants = {"ours": Contestant(ours, own_points)}
    if options.sample_factory:
        network = {"NatureAgent": "convnet_atari", "ResNetAgent": "resnet_impala"}
        # The fastest tried settings on two cores; its defaults are four epochs per batch.
        own = ["--batch_size=512", "--num_epochs=1", "--num_batches_per_epoch=1"]
        if options.to_return is not None:
            own = [
                "--batch_size=256",
                "--num_batches_per_epoch=4",
                "--num_epochs=4",
                "--normalize_input=True",
                "--normalize_returns=True",
                "--learning_rate=0.00025",
            ]
        command = [
            options.sample_factory,
            "-m",
            "sf_examples.atari.train_atari",
            "--env=atari_pong",
            "--experiment=peer",
            "--train_for_env_steps=1000000000",
            "--device=cpu",
            "--num_workers=2",
            "--num_envs_per_worker=16",
            "--worker_num_splits=2",
            "--async_rl=True",
            "--serial_mode=False",
            "--batched_sampling=False",
            "--rollout=32",
            "--summaries_use_frameskip=False",
            "--save_every_sec=100000",
            "--train_dir=.",
            f"--encoder_conv_architecture={network[options.agent_name]}",
            *own,
        ]
        contestants["Sample Factory"] = Contestant(
            command, sample_factory_points, {"PYTHONPATH": "."}
        )
    for name in ("stable_baselines3", "rllib"):
        if python := getattr(options, name):
            command = [python, str(many_runs.PROJECT / "sandbox" / "peers.py"), name]
            contestants[name] = Contestant(command, printed_points)
    return contestants


def own_points(folder: Path) -> list[Point]:
    """Returns this project's points. Their time counts from the first update on."""
    return [
        Point(
            float(row["wall_time_s"]),
            int(row["agent_steps"]),
            float(row["episode_return_mean"] or "nan"),
        )
        for row in many_runs.rows(folder / "run")
    ]


def sample_factory_points(folder: Path) -> list[Point]:
    """Returns the points in Sample Factory's log."""
    points, mean = [], float("nan")
    for line in (folder / "out").read_text().splitlines():
        if match := re.search(r"Avg episode reward: \[\(0, '([-\d.]+)'\)\]", line):
            mean = float(match[1])
        if match := re.search(r"\[([-\d]+ [:\d]+),(\d+)\].*Total num frames: (\d+)", line):
            at = time.mktime(time.strptime(match[1], "%Y-%m-%d %H:%M:%S"))
            points.append(Point(at + int(match[2]) / 1000, int(match[3]), mean))
    return points


def printed_points(folder: Path) -> list[Point]:
    """Returns the points that peers.py has printed."""
    lines = re.findall(r"^([\d.]+) (\d+) (\S+)$", (folder / "out").read_text(), re.MULTILINE)
    return [Point(float(s), int(steps), float(mean)) for s, steps, mean in lines]


def first_with(points: list[Point], to_return: float | None) -> Point | None:
    """Returns the first point with that mean return."""
    if to_return is None:
        return None
    return next((point for point in points if point.mean_return >= to_return), None)


def compete(
    contestant: Contestant, folder: Path, seconds: float, to_return: float | None
) -> tuple[list[Point], float]:
    """Trains for some seconds after the start, or to a return.

    Returns:
      the points, and the most MiB of all processes together.
    """
    # Every process of Sample Factory has to register ALE's levels.
    (folder / "sitecustomize.py").write_text("import ale_py\n")
    points: list[Point] = []
    most_mib, end = 0.0, time.monotonic() + START_S
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(
            contestant.command,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **contestant.environ},
        )
    try:
        while time.monotonic() < end and not first_with(points, to_return):
            time.sleep(3.0)
            if process.poll() is not None:
                sys.exit((folder / "out").read_text()[-2000:])
            most_mib = max(most_mib, sum(pss_mib(each.pid) for each in processes_of(process)))
            before, points = points, contestant.points(folder)
            if points and not before:
                end = time.monotonic() + seconds
        return points, most_mib
    finally:
        started = processes_of(process)
        process.send_signal(signal.SIGINT)
        psutil.wait_procs(started[:1], timeout=30)
        for each in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


COMMANDS = (speed, parts, start, synchronization, learners, scale, peers)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands' own flags."""
    whole = argparse.ArgumentParser(
        "benchmark.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    of = {}
    for run in COMMANDS:
        about = inspect.getdoc(run) or ""
        of[run.__name__] = command = commands.add_parser(
            run.__name__,
            help=about.partition("\n")[0],
            description=about,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        if run not in (parts, start):
            command.add_argument("--seconds", type=float, default=60.0, help="once it trains")
        if run not in (start, scale):
            command.add_argument("--turns", type=int, default=3)
    of["speed"].add_argument("--other", type=Path, help="another checkout of this project")
    of["parts"].add_argument("--parts", type=configs.split, default=["inference", "update"])
    of["scale"].add_argument("--actors", type=int, default=500)
    of["scale"].add_argument("--few", type=int, default=8, help="actors to compare with")
    of["scale"].add_argument("--steps_per_s", type=float, default=900.0, help="of an actor")
    for peer in ("sample_factory", "stable_baselines3", "rllib"):
        of["peers"].add_argument(
            f"--{peer}", type=os.path.abspath, help="Python of its virtual environment"
        )
    networks = ("NatureAgent", "ResNetAgent")
    of["peers"].add_argument("--agent_name", default="NatureAgent", choices=networks)
    of["peers"].add_argument("--to_return", type=float, help="measure until this mean return")
    return whole


def read(arguments: list[str]) -> tuple[argparse.Namespace, list[str], Groups]:
    """Returns a command's own flags, the flags that all runs share, and those of the variants."""
    groups: Groups = [[]]
    for word in arguments:
        if word == "--":
            groups.append([])
        else:
            groups[-1].append(word)
    options, shared = parser().parse_known_args(groups[0])
    return options, shared, groups[1:]


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    options, shared, groups = read(arguments)
    options.run(options, shared, groups)


if __name__ == "__main__":
    main(sys.argv[1:])
