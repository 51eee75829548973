"""Measures the speed and memory of an actor's parts on this machine, without TensorFlow.

Call these in processes of their own (see `in_processes`), because peak memory is that of the whole
process.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
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
from impala_tf.machine.process_memory import cpu_seconds, peak_mib
from impala_tf.types import EnvironmentSpec, Nest

ONE_THREAD = "CPU, 1 thread"


class Measured(NamedTuple):
    """The measurements of a part of a run."""

    steps_per_s: float  # agent steps
    device: str  # the device that computed
    peak_memory_mb: float  # resident MiB of the process, including its imports; 0: unknown
    cores: float = 0.0  # the average number of busy cores
    precision: str = ""  # of the torso on images; "" if no torso was measured

    @property
    def on(self) -> str:
        """The device and its precision."""
        return ", ".join(filter(None, (self.device, self.precision)))

    @property
    def core_us_per_step(self) -> float:
        """Microseconds of one core per agent step."""
        return 1e6 * self.cores / self.steps_per_s


def environment(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures an actor's environments with random actions.

    Args:
      config: the resolved flags.
      spec: the level's specification.
      seconds: how long to measure.
    """
    num_envs = config.process.envs_per_actor
    environments = environments_of(config)
    environments.reset()
    actions = itertools.cycle(_random_actions(spec, num_envs))
    per_s, cores = rate(lambda: environments.step(next(actions)), seconds)
    environments.close()
    return Measured(per_s * num_envs, "CPU", peak_memory_mb(), cores)


def environments_of(config: Config) -> BatchedEnvironment:
    """Returns the environments of a run's first actor."""
    process = config.process
    vector_env = suites.make(
        config.environment,
        process.envs_per_actor,
        config.run.seed,
        actor=0,
        num_actors=process.num_actors,
    )
    return BatchedEnvironment(vector_env)


def inference(
    config: Config,
    spec: EnvironmentSpec,
    seconds: float,
    network: bytes,
    parameters: list[np.ndarray],
) -> Measured:
    """Measures an actor's inference with LiteRT, without environments.

    New parameters are set before every unroll, as in a run.

    Args:
      config, spec, seconds: see `environment`.
      network: the converted network (see `ActingModel.to_bytes`).
      parameters: the network's parameters.
    """
    num_envs, layout = config.process.envs_per_actor, layout_of(spec)
    sampler = sampler_of(spec.actions, np.random.default_rng(config.run.seed))
    policy = LiteRtPolicy(ActingModel.from_bytes(network), layout, sampler)
    policy.set_parameters(parameters)
    env_output = noise(layout.step_specs(num_envs))
    state = interface_of_config(config.agent, spec).initial_state(num_envs)
    steps = itertools.count()

    def answer() -> None:
        if next(steps) % config.optimizer.unroll_length == 0:
            policy.set_parameters(parameters)
        policy.answer(env_output, state)

    per_s, cores = rate(answer, seconds)
    return Measured(per_s * num_envs, ONE_THREAD, peak_memory_mb(), cores, precision="float32")


def noise(specs: Nest, *leading: int) -> Nest:
    """Returns arrays [*leading, ...] for the specs: noise for images, zeros for all others."""
    rng = np.random.default_rng(0)

    def array(spec: Nest) -> np.ndarray:
        shape = (*leading, *spec.shape)
        dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))  # of a tf.TensorSpec
        return rng.integers(0, 256, shape, dtype) if dtype == np.uint8 else np.zeros(shape, dtype)

    return tree.map_structure(array, specs)


def rate(work: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Returns the calls of `work` per second, and the average number of busy cores.

    The first call, which compiles, does not count.
    """
    work()
    count, started, used_s = 0, time.monotonic(), cpu_seconds()
    while (elapsed_s := time.monotonic() - started) < seconds:
        work()
        count += 1
    return count / elapsed_s, (cpu_seconds() - used_s) / elapsed_s


def peak_memory_mb() -> float:
    """Returns the largest resident memory of this process so far, in MiB; 0: unknown."""
    return peak_mib() or 0.0


def _random_actions(spec: EnvironmentSpec, num_envs: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    actions = spec.actions
    shape = (100, num_envs, *actions.shape)
    if actions.kind == "continuous":
        return list(rng.uniform(-1, 1, shape).astype(actions.dtype))
    sizes = actions.sizes if actions.kind == "multi_discrete" else actions.sizes[0]
    return list(rng.integers(0, sizes, shape).astype(actions.dtype))
