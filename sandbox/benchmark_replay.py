"""How fast is a replay? Measures this project's and cpprb's in turn, with the same stacked frames.

    pip install cpprb
    python sandbox/benchmark_replay.py [--capacity=50000] [--rounds=3]

Prints added agent steps per second, drawn agent steps per second (batches of 128, with new
priorities after each), and the memory of a full replay. cpprb gets a buffer for each environment,
because it only shares the frames of consecutive steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import many_runs  # noqa: F401  (finds impala_tf)
import numpy as np
import tensorflow as tf
import tree

from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.algorithms.dqn.buffer import ReplayBuffer
from impala_tf.config import Config, Given
from impala_tf.environments.observations import layout_of
from impala_tf.processes.common import resolve
from impala_tf.types import Unroll

LEVEL = "PongNoFrameskip-v4"
ENVS, BATCH, DRAWS, FRAMES = 4, 128, 200, 4


class Found(NamedTuple):
    """The measurements of a replay."""

    added_per_s: float  # agent steps
    drawn_per_s: float
    mib: float  # resident, of the full replay


def resident_mib() -> float:
    """Returns the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def timed(work: Callable[[], None]) -> float:
    """Returns the seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def unrolls_of(specs: Unroll, seed: int) -> Unroll:
    """Returns unrolls of noise without episode ends."""
    rng = np.random.default_rng(seed)

    def array(spec: tf.TensorSpec) -> np.ndarray:
        shape = (ENVS, *spec.shape)
        if spec.dtype == tf.uint8:
            return rng.integers(0, 256, shape, np.uint8)
        if spec.dtype == tf.float32:
            return rng.random(shape, np.float32)
        return np.zeros(shape, spec.dtype.as_numpy_dtype)

    return tree.map_structure(array, specs)


def ours(config: Config, specs: Unroll, spec: Any, capacity: int, batches: list[Unroll]) -> Found:
    """Measures `ReplayBuffer`."""
    before = resident_mib()
    replay = ReplayBuffer(specs, layout_of(spec), config, 1)
    length = config.optimizer.unroll_length or 1
    count = capacity // (ENVS * length)

    def add() -> None:
        for number in range(count):
            replay.add(batches[number % len(batches)])

    def draw() -> None:
        for _ in range(DRAWS):
            indices, _ = replay.draw(BATCH)
            replay.set_errors(indices, errors)

    errors = np.random.default_rng(0).random(BATCH).astype(np.float32)
    added = count * ENVS * length / timed(add)
    return Found(added, DRAWS * BATCH / timed(draw), resident_mib() - before)


def cpprbs(length: int, capacity: int, batches: list[Unroll]) -> Found:
    """Measures cpprb's PrioritizedReplayBuffer, one for each environment."""
    import cpprb

    before = resident_mib()
    fields = {
        "obs": {"shape": (84, 84, FRAMES), "dtype": np.uint8},
        "act": {"dtype": np.int32},
        "rew": {},
        "done": {},
    }
    buffers = [
        cpprb.PrioritizedReplayBuffer(
            capacity // ENVS, fields, next_of="obs", stack_compress="obs", alpha=0.6
        )
        for _ in range(ENVS)
    ]
    count = capacity // (ENVS * length)
    stacked = [_stacks(batch, length) for batch in batches]

    def add() -> None:
        for number in range(count):
            batch, stacks = batches[number % len(batches)], stacked[number % len(batches)]
            for env, buffer in enumerate(buffers):
                buffer.add(
                    obs=stacks[env][:-1],
                    act=batch.agent_outputs.action[env],
                    rew=batch.env_outputs.reward[env, 1:],
                    next_obs=stacks[env][1:],
                    done=np.zeros(length),
                    priorities=batch.td_errors[env],
                )

    def draw() -> None:
        for _ in range(DRAWS):
            for buffer in buffers:
                sample = buffer.sample(BATCH // ENVS, beta=0.4)
                buffer.update_priorities(sample["indexes"], errors)

    errors = np.random.default_rng(0).random(BATCH // ENVS)
    added = count * ENVS * length / timed(add)
    return Found(added, DRAWS * BATCH / timed(draw), resident_mib() - before)


def _stacks(batch: Unroll, length: int) -> np.ndarray:
    """Returns the observations of each step, [N, T + 1, 84, 84, 4]."""
    frames = batch.env_outputs.observation
    return np.stack([frames[:, k : k + length + 1] for k in range(FRAMES)], axis=-1)


def main() -> None:
    """Measures both in turns and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    flags = {"algorithm": "dqn", "level_name": LEVEL, "replay_capacity": options.capacity,
             "replay_start_steps": 0}  # fmt: skip
    config, spec = resolve(Given().replace(**flags))
    length = config.optimizer.unroll_length
    specs = unroll_specs(agent_of(config.agent, spec), spec, length)
    batches = [unrolls_of(specs, seed) for seed in range(8)]
    found: dict[str, list[Found]] = {"impala_tf": [], "cpprb": []}
    for _ in range(options.rounds):
        found["impala_tf"].append(ours(config, specs, spec, options.capacity, batches))
        found["cpprb"].append(cpprbs(length, options.capacity, batches))
    for name, rounds in found.items():
        median = Found(*(statistics.median(column) for column in zip(*rounds, strict=True)))
        print(
            f"{name:10} {median.added_per_s:10,.0f} steps/s in {median.drawn_per_s:10,.0f} steps/s"
            f" drawn {max(each.mib for each in rounds):8,.0f} MiB"
        )


if __name__ == "__main__":
    main()
