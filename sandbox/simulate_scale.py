"""What would thousands of actors do to a learner? Simulates them with measured constants.

    python run_experiment.py --mode=benchmark --json > speed.json
    python sandbox/simulate_scale.py speed.json --actors=8,500,5000 [--learners=1] \
        [--learner_cores=2] [--learner_speedup=1] [--mbit=1000] [--parameter_lag=1] [FLAG ...]

Actors with a core each act, fetch parameters and push unrolls, like `impala_tf.actor`. A learner
takes batches from its bounded queue, and lets actors act as `impala_tf.transport.grants` does
(--no_grants: always). Everything costs the core time that the benchmark measured. The learner's
link carries --mbit each way, first come, first served, and its server has one thread. What a
gradient step takes however small its batch is (--fixed_update_ms) does not shrink with
--learner_cores or --learner_speedup (how much faster updates are than on the measured machine, say
on a GPU). Prints a row for each number of actors.
FLAG: the benchmark's flags, except --parameter_lag, which must have been 1. `benchmark.py scale`
does the same with real connections, as many as one machine can hold.
"""

from __future__ import annotations

import argparse
import collections
import heapq
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from impala_tf.config import command_line
from impala_tf.processes.common import resolve
from impala_tf.transport.grants import FIRST_GRANTS, GrantLimit

JITTER = 0.1  # of an unroll's duration, either way
WARM_UP = 0.3  # of the simulated time


class Constants(NamedTuple):
    """The constants of one learner and its actors, in seconds, bytes and agent steps."""

    unroll_s: float  # an actor's time for unrolls of all its environments
    push_s: float  # the learner's core time for a push of these
    fetch_s: float  # the learner's core time for a set of parameters
    update_s: float  # for all gradient steps on a batch
    push_bytes: float
    parameter_bytes: float
    environments: int  # per actor
    batch_size: int
    unroll_length: int
    updates_per_batch: int
    queue_capacity: int
    learner_cores: float
    bytes_per_s: float  # of the learner's link, each way
    parameter_lag: int


class Result(NamedTuple):
    """The result for the simulated time after the start."""

    agent_steps_per_s: float
    updating: float  # share of the learner's time
    waiting: float  # share of the actors' time
    lag: float  # learner updates between acting and learning, mean
    link_up: float  # used share of the link
    link_down: float
    waiting_bytes: float  # the most bytes of pushes that wait for room


class Fifo:
    """Serves one request after another."""

    def __init__(self) -> None:
        self.free_at = self.busy_s = 0.0

    def finish(self, now: float, work_s: float) -> float:
        """Returns when work that arrives now will be done."""
        self.busy_s += work_s
        self.free_at = max(self.free_at, now) + work_s
        return self.free_at


class Simulation:
    """One learner and its actors."""

    def __init__(
        self,
        constants: Constants,
        actors: int,
        grants: bool = True,
        first_grants: float = FIRST_GRANTS,
    ) -> None:
        self._constants = constants
        least = 2 + -(-constants.batch_size // constants.environments)
        self._limit = GrantLimit(least, first_grants) if grants else None
        self._granted = 0
        self._wanting: collections.deque[tuple[float, int]] = collections.deque()  # since, actor
        self._actors = actors
        self._rng = random.Random(0)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._up, self._down, self._serving = Fifo(), Fifo(), Fifo()
        self._queue: collections.deque[int] = (
            collections.deque()
        )  # versions of the parameters that acted
        # (actor, version, time to make and send the unroll, since when it waits for room)
        self._parked: collections.deque[tuple[int, int, float, float]] = collections.deque()
        self._accepted = [True] * actors
        self._known = [-1] * actors  # versions of the actors' parameters
        self._waiting_since: dict[int, tuple[float, int, float]] = {}
        self._is_updating = False
        self._version = 0
        self._lags: list[int] = []
        self._updating_s = self._waited_s = self._counted_from_s = 0.0
        self._most_parked = 0

    def run(self, seconds: float) -> Result:
        """Runs the simulation; the first part of the time does not count."""
        for actor in range(self._actors):
            self._at(self._rng.random() * self._constants.unroll_s, self._want, actor)
        self._until(WARM_UP * seconds)
        self._lags.clear()
        self._waited_s, self._counted_from_s = 0.0, WARM_UP * seconds
        before = (self._updating_s, self._up.busy_s, self._down.busy_s)
        self._most_parked = 0
        self._until(seconds)
        for since in [*(since for since, _ in self._wanting),
                      *(since for since, *_ in self._waiting_since.values())]:  # fmt: skip
            self._count_wait(since, seconds)
        span_s = (1 - WARM_UP) * seconds
        after = (self._updating_s, self._up.busy_s, self._down.busy_s)
        updating, up, down = (
            min(1.0, (now - then) / span_s) for now, then in zip(after, before, strict=True)
        )
        return Result(
            len(self._lags) * self._constants.unroll_length / span_s,
            updating,
            min(1.0, self._waited_s / span_s / self._actors),
            sum(self._lags) / max(1, len(self._lags)),
            up,
            down,
            self._most_parked * self._constants.push_bytes,
        )

    def _at(self, time_s: float, what: Callable[..., None], *arguments: float) -> None:
        self._count += 1
        event = (time_s, self._count, lambda now: what(now, *arguments))
        heapq.heappush(self._events, event)

    def _count_wait(self, since: float, until: float) -> None:
        self._waited_s += max(0.0, until - max(since, self._counted_from_s))

    def _until(self, end_s: float) -> None:
        while self._events and self._events[0][0] < end_s:
            now, _, happen = heapq.heappop(self._events)
            happen(now)

    def _want(self, now: float, actor: int) -> None:
        self._wanting.append((now, actor))
        self._grant(now)

    def _grant(self, now: float) -> None:
        while self._wanting and (self._limit is None or self._granted < self._limit.limit):
            since, actor = self._wanting.popleft()
            self._count_wait(since, now)
            self._granted += 1
            self._fetch(now, actor)

    def _fetch(self, now: float, actor: int) -> None:
        constants, version = self._constants, self._known[actor]
        ready_at = now
        if version < 0 or self._version - version >= constants.parameter_lag:
            served = self._serving.finish(now, constants.fetch_s)
            ready_at = self._down.finish(served, constants.parameter_bytes / constants.bytes_per_s)
            version = self._known[actor] = self._version
        unroll_s = self._constants.unroll_s * (1 + JITTER * self._rng.uniform(-1, 1))
        self._count_wait(now, ready_at)
        self._at(ready_at + unroll_s, self._acted, actor, version, now)

    def _acted(
        self, now: float, actor: int, version: int, granted_at: float, blocked_s: float = 0.0
    ) -> None:
        """Sends an unroll once the previous push was accepted; then the next unroll may begin."""
        if not self._accepted[actor]:
            self._waiting_since[actor] = (now, version, granted_at)
            return
        self._accepted[actor] = False
        received_at = self._up.finish(now, self._constants.push_bytes / self._constants.bytes_per_s)
        served = self._serving.finish(received_at, self._constants.push_s)
        took_s = served - granted_at - blocked_s
        self._at(served, self._arrived, actor, version, took_s, blocked_s)
        self._want(now, actor)

    def _arrived(
        self, now: float, actor: int, version: int, took_s: float, blocked_s: float
    ) -> None:
        self._parked.append((actor, version, took_s, now - blocked_s))
        self._admit(now)
        self._most_parked = max(self._most_parked, len(self._parked))

    def _admit(self, now: float) -> None:
        """Moves waiting pushes into the queue while there is room, and starts an update."""
        constants = self._constants
        # A learner takes one batch from its queue before the update.
        room = max(constants.queue_capacity, constants.environments) + constants.batch_size
        while self._parked and len(self._queue) + constants.environments <= room:
            actor, version, took_s, waits_since = self._parked.popleft()
            self._queue.extend([version] * constants.environments)
            self._accepted[actor] = True
            self._granted -= 1
            if self._limit is not None:
                self._limit.observe(took_s, now - waits_since, bool(self._wanting))
            self._grant(now)
            if actor in self._waiting_since:
                since, *waiting = self._waiting_since.pop(actor)
                self._count_wait(since, now)
                self._at(now, self._acted, actor, *waiting, now - since)
        if not self._is_updating and len(self._queue) >= constants.batch_size:
            self._lags += [self._version - self._queue.popleft()
                           for _ in range(constants.batch_size)]  # fmt: skip
            self._is_updating = True
            # Serving takes a part of the cores from updates.
            share = min(0.9, self._serving.busy_s / max(now, 1e-9) / constants.learner_cores)
            took_s = constants.update_s / (1 - share)
            self._updating_s += took_s
            self._at(now + took_s, self._updated)

    def _updated(self, now: float) -> None:
        self._version += self._constants.updates_per_batch
        self._is_updating = False
        self._admit(now)


def constants_of(speed: Path, flags: list[str], options: argparse.Namespace) -> Constants:
    """Returns the constants from a benchmark, for a run with these flags."""
    config, _ = resolve(command_line.parse(flags))
    benchmark = json.loads(speed.read_text())
    core_s = {part["name"]: 1e-6 * part["core_us_per_step"] for part in benchmark["parts"]}
    environments = config.process.envs_per_actor
    length = config.optimizer.unroll_length
    batch_size = config.optimizer.batch_size
    pushed = environments * length
    sent = benchmark["bytes_up"], benchmark["bytes_down"]
    serving = core_s["transport"] / 2 * pushed  # of a push and a fetch
    uses = config.optimizer.updates_per_batch
    # More cores or a faster device speed up only the part that grows with the batch.
    fixed_s = uses * 1e-3 * options.fixed_update_ms
    parallel_s = max(0.0, batch_size * length * core_s["updates"] - fixed_s)
    return Constants(
        unroll_s=pushed * (core_s["environments"] + core_s["inference"] + core_s["transport"] / 2),
        push_s=serving * sent[0] / sum(sent),
        fetch_s=serving * sent[1] / sum(sent),
        update_s=fixed_s + parallel_s / options.learner_cores / options.learner_speedup,
        push_bytes=sent[0] * pushed,
        parameter_bytes=sent[1] * pushed,
        environments=environments,
        batch_size=batch_size,
        unroll_length=length,
        updates_per_batch=uses,
        queue_capacity=config.process.queue_capacity,
        learner_cores=options.learner_cores,
        bytes_per_s=options.mbit * 1e6 / 8,
        parameter_lag=options.parameter_lag,
    )


def main(arguments: list[str]) -> None:
    """Simulates and prints."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("speed_json", type=Path)
    parser.add_argument("--actors", default="8,500,5000")
    parser.add_argument("--learners", type=int, default=1)
    parser.add_argument("--learner_cores", type=float, default=2.0)
    parser.add_argument("--learner_speedup", type=float, default=1.0)
    parser.add_argument("--fixed_update_ms", type=float, default=0.0, help="of a gradient step")
    parser.add_argument("--mbit", type=float, default=1000.0)
    parser.add_argument("--parameter_lag", type=int, default=1)
    parser.add_argument("--no_grants", action="store_true")
    parser.add_argument("--seconds", type=float, default=300.0, help="to simulate")
    options, flags = parser.parse_known_args(arguments)
    constants = constants_of(options.speed_json, flags, options)
    print("| actors | agent steps/s | learner updates | actors wait | policy lag | link up, down"
          " | waiting pushes |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for actors in map(int, options.actors.split(",")):
        of_learner = max(1, actors // options.learners)
        simulation = Simulation(constants, of_learner, grants=not options.no_grants)
        result = simulation.run(options.seconds)
        parked_mib = result.waiting_bytes / 2**20
        print(
            f"| {actors:,} | {options.learners * result.agent_steps_per_s:,.0f} |"
            f" {result.updating:.0%} | {result.waiting:.0%} | {result.lag:.1f} |"
            f" {result.link_up:.0%}, {result.link_down:.0%} | {parked_mib:,.0f} MiB |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
