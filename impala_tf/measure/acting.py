"""How fast an actor's parts are on this machine, and how much memory they take: no TensorFlow.

Call these in processes of their own (see `measurement`): peaks of memory are those of the whole
process.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tree

from impala_tf.actor.network import ActingModel, LiteRtPolicy
from impala_tf.agents.interface import interface_of_config
from impala_tf.agents.sampling import sampler_of
from impala_tf.config import Config
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.observations import layout_of
from impala_tf.machine.process_memory import cpu_seconds
from impala_tf.types import EnvironmentSpec, Nest

ONE_THREAD = "CPU, 1 thread"


class Measured(NamedTuple):
    """The result of a measurement."""

    steps_per_s: float  # agent steps
    device: str  # that computed
    peak_memory: int  # resident bytes of the process, with what it imports; 0: unknown
    cores: float = 0.0  # that were busy on average
    bytes_up: float = 0.0  # from an actor to its learner, an agent step
    bytes_down: float = 0.0  # the other way, if every unroll is made with new parameters
    precision: str = ""  # that the torso computes in on images; "": no torso was measured

    @property
    def on(self) -> str:
        """What computed, and in which precision."""
        return ", ".join(filter(None, (self.device, self.precision)))


class Converted(NamedTuple):
    """A network without TensorFlow, and the parameters that it is measured with."""

    network: bytes  # see `ActingModel.to_bytes`
    parameters: list[np.ndarray]


def environment(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures an actor's environments with random actions.

    Args:
      config: resolved.
      spec: of the level.
      seconds: to measure for.
    """
    num_envs = config.process.envs_per_actor
    made = suites.make(config.environment, num_envs, config.run.seed)
    environments = BatchedEnvironment(made)
    environments.reset()
    actions = itertools.cycle(_random_actions(spec, num_envs))
    found, cores = rate(lambda: environments.step(next(actions)), seconds)
    environments.close()
    return Measured(found * num_envs, "CPU", peak_memory(), cores)


def inference(
    config: Config, spec: EnvironmentSpec, seconds: float, converted: Converted
) -> Measured:
    """Measures an actor's answers with LiteRT to its environments, without the environments."""
    num_envs, layout = config.process.envs_per_actor, layout_of(spec)
    sampler = sampler_of(spec.actions, np.random.default_rng(config.run.seed))
    network = LiteRtPolicy(ActingModel.from_bytes(converted.network), layout, sampler)
    network.set_parameters(converted.parameters)
    env_output = noise(layout.step_specs(num_envs))
    state = interface_of_config(config.agent, spec).initial_state(num_envs)
    found, cores = rate(lambda: network.answer(env_output, state), seconds)
    return Measured(found * num_envs, ONE_THREAD, peak_memory(), cores, precision="float32")


def noise(specs: Nest, *leading: int) -> Nest:
    """Returns arrays [*leading, ...] for the specs: images of noise, everything else zeros."""
    rng = np.random.default_rng(0)

    def array(spec: Nest) -> np.ndarray:
        shape = (*leading, *spec.shape)
        dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))  # of a tf.TensorSpec
        return rng.integers(0, 256, shape, dtype) if dtype == np.uint8 else np.zeros(shape, dtype)

    return tree.map_structure(array, specs)


def rate(work: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Returns how often a second `work` runs, after a first time that compiles it; and its cores.

    These are how many were busy on average.
    """
    work()
    count, started, used_s = 0, time.monotonic(), cpu_seconds()
    while (elapsed_s := time.monotonic() - started) < seconds:
        work()
        count += 1
    return count / elapsed_s, (cpu_seconds() - used_s) / elapsed_s


def peak_memory() -> int:
    """Returns the largest resident memory of this process so far, in bytes; 0: unknown."""
    status = Path("/proc/self/status")
    match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(match[1]) * 1024 if match else 0


def _random_actions(spec: EnvironmentSpec, num_envs: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    actions = spec.actions
    if actions.kind == "continuous":
        return [rng.uniform(-1, 1, (num_envs, *actions.shape)).astype(actions.dtype)
                for _ in range(100)]  # fmt: skip
    sizes = actions.sizes if actions.kind == "multi_discrete" else actions.sizes[0]
    shape = (num_envs, *actions.shape)
    return [rng.integers(0, sizes, shape).astype(actions.dtype) for _ in range(100)]
