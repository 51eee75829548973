"""Does a learner keep its speed with hundreds of actors, and do all return after its restart?

    python sandbox/benchmark_scale.py [--actors=500] [--seconds=60] [FLAG ...]

Starts a real learner and stand-ins for actors: real clients, each with a connection, a name and a
certificate, which repeatedly send one real unroll at a real actor's pace. First a few of them run,
then all. Prints the learner's agent steps/s in both cases, its memory, and the age of its unrolls
in learner updates. Then kills the learner (SIGKILL), restarts it, and prints how long it took until
every stand-in had called it. Other flags are passed to run_experiment.py.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import many_runs
import psutil

from impala_tf import config as configs
from impala_tf.config import command_line
from impala_tf.logdir import Logdir
from impala_tf.types import ActorReport

ROW_S = 2.0
ALL_S = 600.0


class Learner:
    """A learner process."""

    def __init__(self, logdir: Path, flags: list[str]) -> None:
        self._logdir = Logdir(logdir)
        self._command = [
            sys.executable, str(many_runs.SCRIPT), "--job_name=learner", f"--logdir={logdir}",
            f"--metrics_interval_s={ROW_S:g}", "--total_environment_frames=1000000000000", *flags,
        ]  # fmt: skip
        self._log = logdir / "learner.log"
        self.start()

    def start(self) -> None:
        """Starts the learner; an earlier process must have ended."""
        self._logdir.status().unlink(missing_ok=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def wait(self, condition: Callable[[], bool], limit_s: float = 120.0) -> float:
        """Waits until a condition holds; returns the seconds it took. Exits if the learner ends."""
        return many_runs.wait_for(condition, self._process, self._log, limit_s)

    def is_ready(self) -> bool:
        """Whether actors can call the learner."""
        return self._logdir.status().exists() and self._logdir.credentials.exists()

    def kill(self) -> None:
        """Ends the learner as a power cut would."""
        self._process.kill()
        self._process.wait()

    def rate(self, seconds: float) -> float:
        """Returns the median agent steps/s of the rows of the next seconds."""
        before = len(self._rows())
        time.sleep(seconds)
        return statistics.median(self._rows()[before:] or [0.0])

    def policy_lag(self) -> float:
        """Returns the mean policy lag in the newest row, in learner updates."""
        return float(self._table()[-1]["policy_lag_mean"] or "nan")

    def memory_mib(self) -> float:
        """Returns the learner's resident memory."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / 2**20

    def threads(self) -> int:
        """Returns the learner's number of threads."""
        return psutil.Process(self._process.pid).num_threads()

    def actors(self) -> int:
        """Returns how many actors have called the learner."""
        try:
            return len(json.loads(self._logdir.status().read_text())["actors"])
        except (OSError, ValueError):
            return 0

    def _rows(self) -> list[float]:
        return [float(rate) for row in self._table() if (rate := row["agent_steps_per_s"])]

    def _table(self) -> list[dict[str, str]]:
        return many_runs.rows(self._logdir.path)


def stand_ins(
    first: int, count: int, flags: list[str], logdir: str, steps_per_s: float, stop: Event
) -> None:
    """Runs `count` clients, each in a thread, in this new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)  # real actors run elsewhere, so leave the cores to the learner
    from impala_tf.processes import tensorflow_startup

    tensorflow_startup.import_tensorflow()
    from impala_tf.agents.agent import agent_of, unroll_specs
    from impala_tf.measure.learning import played_unroll
    from impala_tf.processes.common import resolve
    from impala_tf.transport import ActorClient, ClientClosed

    tensorflow_startup.use_one_cpu_thread()
    config, spec = resolve(command_line.parse(flags))
    agent = agent_of(config.agent, spec)
    length = config.optimizer.unroll_length
    specs = unroll_specs(agent, spec, length)
    unroll = played_unroll(config, spec, agent)
    num_envs = len(unroll.parameter_version)
    pause_s = num_envs * length / steps_per_s
    address = configs.split(config.process.learner_hosts)[0]

    def close_when_told(client: ActorClient) -> None:
        stop.wait()
        client.close()

    def act(task: int) -> None:
        client = ActorClient(
            address, Path(logdir) / "credentials", f"actor-{task}", specs,
            configs.wire_digest(config), num_environments=num_envs,
        )  # fmt: skip
        threading.Thread(target=close_when_told, args=(client,), daemon=True).start()
        version = -1
        try:
            client.handshake()
            while True:
                fetched = client.fetch_parameters(version)
                version = version if fetched is None else fetched[0]
                stop.wait(pause_s)
                sent = unroll._replace(parameter_version=unroll.parameter_version * 0 + version)
                client.push(sent, (), ActorReport(steps_per_s))
        except ClientClosed:
            pass

    threads = [threading.Thread(target=act, args=(first + index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--actors", type=int, default=500)
    parser.add_argument("--few", type=int, default=8, help="actors to compare with")
    parser.add_argument("--processes", type=int, default=2, help="of the stand-ins")
    parser.add_argument("--steps_per_s", type=float, default=900.0, help="a real actor's pace")
    parser.add_argument("--seconds", type=float, default=60.0)
    options, given = parser.parse_known_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = [f"--learner_hosts={address}", *given]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="impala_tf-scale-") as folder:
        learner = Learner(Path(folder), flags)
        stop, processes = context.Event(), []

        def start(first: int, count: int) -> None:
            arguments = (first, count, flags, folder, options.steps_per_s, stop)
            processes.append(context.Process(target=stand_ins, args=arguments))
            processes[-1].start()

        try:
            learner.wait(learner.is_ready)
            start(0, options.few)
            learner.wait(lambda: learner.actors() == options.few)
            learner.rate(10 * ROW_S)
            alone, before_mib = learner.rate(options.seconds), learner.memory_mib()
            print(f"{options.few} actors: {alone:,.0f} agent steps/s, {before_mib:,.0f} MiB,"
                  f" policy lag {learner.policy_lag():.0f}", flush=True)  # fmt: skip
            missing = options.actors - options.few
            share = -(-missing // options.processes)
            for first in range(0, missing, share):
                start(options.few + first, min(share, missing - first))
            seconds = learner.wait(lambda: learner.actors() == options.actors, ALL_S)
            print(f"all {options.actors} had called after {seconds:.0f} s", flush=True)
            learner.rate(10 * ROW_S)
            crowded = learner.rate(options.seconds)
            print(f"{options.actors} actors: {crowded:,.0f} agent steps/s ({crowded / alone:.0%}),"
                  f" {learner.memory_mib():,.0f} MiB, {learner.threads()} threads,"
                  f" policy lag {learner.policy_lag():.0f}", flush=True)  # fmt: skip
            learner.kill()
            learner.start()
            learner.wait(learner.is_ready)
            seconds = learner.wait(lambda: learner.actors() == options.actors, ALL_S)
            print(f"learner killed and started again: all back {seconds:.0f} s after it was ready")
        finally:
            stop.set()
            for process in processes:
                process.join(20)
                process.kill()
            learner.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
