"""Measures runs on this machine. Each command compares variants in turns, as machines are noisy.

    python sandbox/benchmark.py speed [--turns=3] [--other=FOLDER] [FLAG ...] [-- FLAG ...] ...
    python sandbox/benchmark.py parts [--parts=inference,update] [FLAG ...] [-- FLAG ...] ...
    python sandbox/benchmark.py start [FLAG ...] [-- FLAG ...] ...
    python sandbox/benchmark.py synchronization [FLAG ...]
    python sandbox/benchmark.py learners [FLAG ...] [-- FLAG ...] ...
    python sandbox/benchmark.py scale [--actors=500] [FLAG ...]
    python sandbox/benchmark.py peers --sample_factory=SF/bin/python [--to_return=18] [FLAG ...]

FLAG is a flag of `impala train`. Those before the first -- are shared; each group after a -- is
a variant. The level is Pong, if no flag names another. Only ratios from one call mean something, on
a machine that was idle before each turn. `benchmark.py COMMAND --help` says what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import inspect
import itertools
import math
import multiprocessing
import os
import re
import shlex
import signal
import socket
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
from impala_tf.config import command_line
from impala_tf.measure.parts import What, environments_of, measure
from impala_tf.processes.common import resolve
from impala_tf.processes.provenance import machine
from impala_tf.studies import child_runs
from impala_tf.types import ActorReport, EnvironmentSpec, Unroll

LEVEL = "--level_name=PongNoFrameskip-v4"
ENDLESS = ("--total_environment_frames=1000000000000", "--metrics_interval_s=2")
WARM_UP_S = 10.0
START_S = 180.0
IDLE_S = 2.0
PEERS = ("sample_factory", "stable_baselines3", "rllib")
Groups = list[list[str]]


class Point(NamedTuple):
    """The progress of a run at some time."""

    s: float
    steps: int  # agent steps
    mean_return: float
    remark: str = ""


def own_points(folder: Path) -> list[Point]:
    """Returns the points of a run of this project. Their time counts from the first update on."""
    points = []
    for row in many_runs.rows(folder / "run"):
        share, mean = row["learner_all_reduce_fraction"], float(row["episode_return_mean"] or "nan")
        remark = f", all-reduce {float(share):.0%} of the learners' time" if share else ""
        points.append(Point(float(row["wall_time_s"]), int(row["agent_steps"]), mean, remark))
    return points


def steps_per_s(points: Sequence[Point]) -> float:
    """Returns the agent steps per second from the first point to the last."""
    return (points[-1].steps - points[0].steps) / (points[-1].s - points[0].s)


def printed_points(folder: Path) -> list[Point]:
    """Returns the points that peers.py has printed."""
    lines = re.findall(r"^([\d.]+) (\d+) (\S+)$", (folder / "out").read_text(), re.MULTILINE)
    return [Point(float(s), int(steps), float(mean)) for s, steps, mean in lines]


def program_in(checkout: Path) -> tuple[str, ...]:
    """Returns the command that trains without end with the code in a folder."""
    return (sys.executable, str(checkout / many_runs.SCRIPT.name), LEVEL, *ENDLESS)


class Variant(NamedTuple):
    """A run to compare with others."""

    name: str
    flags: list[str]
    program: tuple[str, ...] = program_in(many_runs.PROJECT)
    points: Callable[[Path], list[Point]] = own_points  # reads the progress from a run's folder


class Measures(NamedTuple):
    """What one turn has measured."""

    steps_per_s: float  # agent steps
    cpu_s: float  # processor seconds of all processes per 1,000 agent steps
    remark: str = ""


def variants(shared: list[str], groups: Groups) -> list[Variant]:
    """Returns one variant for each group of flags, or one with the shared flags alone."""
    return [Variant(shlex.join(own) or "as given", [*shared, *own]) for own in groups or [[]]]


@contextlib.contextmanager
def running(variant: Variant) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Yields a new folder, and a run that trains in it meanwhile; its output is in `out` there.

    With --workers_csv_path, the processes that it has launched are stopped at the end, too.
    """
    with tempfile.TemporaryDirectory(prefix="impala_tf-benchmark-") as folder:
        logdir = f"--logdir={folder}/run"
        run = child_runs.start([*variant.flags, logdir], Path(folder, "out"), variant.program)
        try:
            yield Path(folder), run
        finally:
            if any(flag.startswith("--workers_csv_path") for flag in variant.flags):
                stop = [sys.executable, "-m", "frontend", "stop", logdir]
                subprocess.run(stop, cwd=many_runs.PROJECT, check=False, capture_output=True)
            started = processes_of(run, Path(folder))
            run.send_signal(signal.SIGINT)
            psutil.wait_procs(started, timeout=30)
            for each in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            run.wait()


def train(variant: Variant, seconds: float, to_return: float = math.inf) -> Measures:
    """Trains, and measures for so many seconds after the start, or until a mean return."""
    with running(variant) as (folder, run):
        wait = functools.partial(many_runs.wait_for, process=run, log=folder / "out")

        def next_point() -> tuple[Point, float]:
            """Waits for another point; returns it, with the processor seconds until then."""
            known = len(variant.points(folder))
            wait(lambda: len(variant.points(folder)) > known, limit_s=START_S)
            times = [each.cpu_times() for each in processes_of(run, folder)]
            return variant.points(folder)[-1], sum(each.user + each.system for each in times)

        def reached() -> list[Point]:
            return [each for each in variant.points(folder) if each.mean_return >= to_return]

        next_point()
        time.sleep(min(WARM_UP_S, seconds))
        first, used_s = next_point()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not reached():
            time.sleep(1.0)
        last, used_then_s = next_point()
        remark = f"  {sum(map(pss_mib, processes_of(run, folder))):,.0f} MiB{last.remark}"
        for point in reached()[:1]:
            minutes = (point.s - variant.points(folder)[0].s) / 60
            remark += f", return {point.mean_return:.1f} after {minutes:.1f} min"
            remark += f" and {point.steps:,} agent steps"
        cpu_s = 1000 * (used_then_s - used_s) / (last.steps - first.steps)
        return Measures(steps_per_s([first, last]), cpu_s, remark)


def take_turns(turns: int, measured_by: Mapping[str, Callable[[], Measures]]) -> None:
    """Measures each variant in each turn; prints the medians and, in brackets, the ranges.

    Args:
      turns: how often each variant is measured.
      measured_by: {a variant's name: measures it once}.
    """
    cpu = Path("/proc/cpuinfo").read_text()
    able = [f"{name}: {'yes' if name.lower() in cpu else 'no'}" for name in ("AMX", "AVX512_BF16")]
    print(f"{machine()}, {', '.join(able)}", flush=True)
    results: dict[str, list[Measures]] = {name: [] for name in measured_by}
    for turn, (name, measure_it) in itertools.product(range(turns), measured_by.items()):
        idle = psutil.cpu_times_percent(IDLE_S).idle
        measures = measure_it()
        results[name].append(measures)
        print(
            f"turn {turn + 1}: {measures.steps_per_s:10,.0f} agent steps/s,"
            f" {measures.cpu_s:.2f} CPU s per 1,000, {idle:.0f} % idle before "
            f" {name}{measures.remark}",
            flush=True,
        )
    rates = {name: [each.steps_per_s for each in found] for name, found in results.items()}
    for name, found in results.items():
        ratios = np.divide(rates[name], next(iter(rates.values())))
        print(
            f"median: {spread(rates[name], ',.0f')} agent steps/s, {spread(ratios)} of the first,"
            f" {spread([each.cpu_s for each in found])} CPU s per 1,000  {name}"
        )


def spread(values: Sequence[float] | np.ndarray, form: str = ".2f") -> str:
    """Returns the median, the lowest and the highest of the values."""
    return "{0:{3}} ({1:{3}} to {2:{3}})".format(np.median(values), min(values), max(values), form)


def speed(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Compares the speed of whole runs with different flags, or of the code in two folders.

    With --other=FOLDER, each variant trains with this code and with that in FOLDER.
    """
    compared = variants(shared, groups)
    if options.other:
        pairs = itertools.product(compared, (many_runs.PROJECT, options.other.resolve()))
        compared = [Variant(f"{v.name} in {at}", v.flags, program_in(at)) for v, at in pairs]
    compare(compared, options)


def compare(
    compared: Sequence[Variant], options: argparse.Namespace, to_return: float = math.inf
) -> None:
    """Trains with each variant in each turn."""
    own = {v.name: functools.partial(train, v, options.seconds, to_return) for v in compared}
    take_turns(options.turns, own)


def parts(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Compares single parts of runs: environment, inference, update."""
    for part in options.parts:
        print(f"{part}:")
        compared = variants(shared, groups)
        measures = {v.name: functools.partial(part_measures, part, v.flags) for v in compared}
        take_turns(options.turns, measures)


def part_measures(part: What, flags: list[str]) -> Measures:
    """Measures a part of a run, as `impala benchmark` does."""
    found = measure(part, *resolve(command_line.parse([LEVEL, *flags])), 5.0)
    return Measures(found.steps_per_s, found.core_us_per_step / 1000)


def start(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Tells how long a run takes until its first update, and its processes' memory 30 s later.

    Shared pages are divided among the processes that use them. Beside that is the most that a
    process had resident, which is what an actor needs that is alone on its machine.
    """
    for variant in variants(shared, groups):
        with running(variant) as (folder, run):
            has_learned = functools.partial(has_reached, folder / "run", "agent_steps", 1)
            seconds = many_runs.wait_for(has_learned, run, folder / "out", START_S)
            print(f"{variant.name}: first update after {seconds:.1f} s", flush=True)
            time.sleep(30)
            for process in processes_of(run, folder):
                job = re.search(r"--job_name=(\w+)", " ".join(process.cmdline()))
                status = Path(f"/proc/{process.pid}/status").read_text()
                most = re.search(r"VmHWM:\s+(\d+)", status)
                print(
                    f"{job[1] if job else 'starter':8} {pss_mib(process):7,.0f} MiB,"
                    f" at most {int(most[1]) / 1024 if most else 0:,.0f} MiB"
                )


def has_reached(logdir: Path, name: Literal["agent_steps", "actors"], count: int) -> bool:
    """Whether a run has that many agent steps, or actors that have called."""
    status = child_runs.status(logdir)
    if status is None:
        return False
    return (status["agent_steps"] if name == "agent_steps" else len(status["actors"])) >= count


def processes_of(run: subprocess.Popen[bytes], folder: Path) -> list[psutil.Process]:
    """Returns a run's process, its descendants, and those whose commands name its folder."""
    named = (
        each
        for each in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(each.info["cmdline"] or ())
    )
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        descendants = psutil.Process(run.pid).children(recursive=True)
    return sorted({*named, *descendants}, key=lambda each: each.pid)


def pss_mib(process: psutil.Process) -> float:
    """Returns a process's memory, with its part of shared pages; 0 if it has ended."""
    try:
        return float(process.memory_full_info().pss) / 2**20
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
    compare(compared, options)


def learners(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    """Compares one learner with two that have half the batch each, all on this machine.

    Start it in a network namespace with a slow loopback to see what a network costs them.
    """
    compared = []
    with tempfile.TemporaryDirectory() as folder:
        for count, (name, flags, *_) in itertools.product((1, 2), variants(shared, groups)):
            rows = [f"learner,127.0.0.1,{8001 + 10 * n}" for n in range(count)]
            machines = Path(folder, f"{count}.csv")
            machines.write_text("\n".join(["job,ip,tf_port", *rows, *["actor,127.0.0.1,"] * 2, ""]))
            own = [f"--workers_csv_path={machines}", f"--batch_size={16 // count}"]
            compared.append(Variant(f"{count} learner(s), {name}", [*own, *flags]))
        compare(compared, options)


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
                points = own_points(logdir.parent)[before:]
                lag = float(many_runs.rows(logdir)[-1]["policy_lag_mean"])
                process = psutil.Process(learner.pid)
                print(
                    f"{count} actors: {steps_per_s(points):,.0f} agent steps/s, policy lag"
                    f" {lag:.0f}, {pss_mib(process):,.0f} MiB, {process.num_threads()} threads",
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


def peers(options: argparse.Namespace, shared: list[str], groups: Groups) -> None:
    r"""Compares this project with peers on Pong: agent steps/s, memory, and how soon it is learned.

    Each peer has a virtual environment of its own, whose Python is named:

    python3 -m venv SF && SF/bin/pip install sample-factory==2.1.1 ale-py==0.10.1 'numpy<2' \
        'setuptools<80' opencv-python-headless
    python3 -m venv SB3 && SB3/bin/pip install stable-baselines3 ale-py opencv-python-headless
    python3 -m venv RAY && RAY/bin/pip install 'ray[rllib]' torch 'gymnasium[atari]' \
        opencv-python-headless

    Sample Factory (Petrenko et al., 2020, arXiv 2006.11751) has the same network, batches of the
    same size and one gradient step per batch; the settings are in peers.py. With --to_return,
    prints the minutes and agent steps until the mean return of the last 100 games first reaches
    that, with --seconds as the limit; Sample Factory then has the settings with which it learns
    most from a frame.
    """
    agent = f"--agent_name={options.agent_name}"
    script = str(many_runs.PROJECT / "sandbox" / "peers.py")
    to_learn = ["--to_learn"] * (options.to_return < math.inf)
    compared = [
        Variant(name, [agent, *to_learn], (python, script, name), printed_points)
        for name in PEERS
        if (python := getattr(options, name))
    ]
    compare([*compared, Variant("this project", [agent, *shared])], options, options.to_return)


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
    for peer in PEERS:
        of["peers"].add_argument(
            f"--{peer}", type=os.path.abspath, help="Python of its virtual environment"
        )
    networks = ("NatureAgent", "ResNetAgent")
    of["peers"].add_argument("--agent_name", default="NatureAgent", choices=networks)
    of["peers"].add_argument(
        "--to_return", type=float, default=math.inf, help="measure until this mean return"
    )
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
