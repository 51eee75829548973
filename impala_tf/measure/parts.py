"""Measures the parts of a run, each in a new process, which computes like a process of a run.

Peak memory is that of the whole process, so acting with LiteRT is measured without TensorFlow.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import tree

from impala_tf import config as configs
from impala_tf.actor.network import ActingModel, LiteRtPolicy
from impala_tf.agents.interface import interface_of_config, num_logits
from impala_tf.agents.sampling import sampler_of
from impala_tf.config import Config, cores_here
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.observations import layout_of
from impala_tf.lazy import tf
from impala_tf.machine.process_lifetime import die_with_parent
from impala_tf.machine.process_memory import cpu_seconds, peak_mib
from impala_tf.processes import tensorflow_startup
from impala_tf.types import EnvironmentSpec, Nest

What = Literal["environment", "inference", "update"]
Result = TypeVar("Result")

_ONE_THREAD = "CPU, 1 thread"


class Measured(NamedTuple):
    """The measurements of a part of a run."""

    steps_per_s: float  # agent steps
    device: str  # the device that computed
    peak_memory_mb: float  # resident MiB of the process, including its imports; 0: unknown
    cores: float  # the average number of busy cores
    precision: str = ""  # of the torso on images; "" if no torso was measured

    @property
    def on(self) -> str:
        """The device and its precision."""
        return ", ".join(filter(None, (self.device, self.precision)))

    @property
    def core_us_per_step(self) -> float:
        """Microseconds of one core per agent step."""
        return 1e6 * self.cores / self.steps_per_s


def measure(what: What, config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures a part of an actor or a learner for so long, in a new process; says so on stderr.

    Raises:
      ConfigError: flags that cannot be used on this machine.
      BrokenProcessPool: the process has ended, and has printed why.
    """
    print(f"measuring {what} ...", file=sys.stderr, flush=True)
    if what == "environment":
        return _in_new_process(False, environment, config, spec, seconds)
    uses_litert = config.process.inference == "actor" and not configs.actors_use_tensorflow(config)
    if what == "inference" and uses_litert:
        converted = _in_new_process(True, _converted, config, spec)
        if converted is not None:
            return _in_new_process(False, _litert, config, spec, seconds, *converted)
    return _in_new_process(True, update if what == "update" else _tensorflow, config, spec, seconds)


def environment(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures an actor's environments with random actions."""
    num_envs, environments = config.process.envs_per_actor, environments_of(config, spec)
    environments.reset()
    sample = sampler_of(spec.actions, np.random.default_rng(0))
    logits = np.zeros((num_envs, num_logits(spec.actions)), np.float32)
    actions = itertools.cycle([sample(logits) for _ in range(100)])
    measured = _rate(lambda: environments.step(next(actions)), seconds, num_envs, "CPU")
    environments.close()
    return measured


def environments_of(config: Config, spec: EnvironmentSpec) -> BatchedEnvironment:
    """Returns the environments of a run's first actor."""
    num_envs, actors = config.process.envs_per_actor, config.process.num_actors
    indices = suites.assigned(len(spec.levels), 0, actors)
    return BatchedEnvironment(
        lambda: suites.make(config.environment, spec, num_envs, indices=indices), config.run.seed
    )


def _converted(config: Config, spec: EnvironmentSpec) -> tuple[bytes, list[np.ndarray]] | None:
    """Returns the (network, parameters) for actors with LiteRT; None if LiteRT cannot run it."""
    from impala_tf.agents.agent import agent_of
    from impala_tf.learner.conversion import ConversionError, convert

    tensorflow_startup.start_xla()
    agent = agent_of(config.agent, spec)
    try:
        model = convert(agent, spec, config.process.envs_per_actor)
    except ConversionError:
        return None
    return model.to_bytes(), [variable.numpy() for variable in agent.variables]


def _litert(
    config: Config,
    spec: EnvironmentSpec,
    seconds: float,
    network: bytes,
    parameters: list[np.ndarray],
) -> Measured:
    """Measures inference with what `_converted` returned; it sets parameters before each unroll."""
    num_envs, layout = config.process.envs_per_actor, layout_of(spec)
    sampler = sampler_of(spec.actions, np.random.default_rng(config.run.seed))
    policy = LiteRtPolicy(ActingModel.from_bytes(network), layout, sampler)
    env_output = _noise(layout.step_specs(num_envs))
    state = interface_of_config(config.agent, spec).initial_state(num_envs)
    steps = itertools.count()

    def answer() -> None:
        if next(steps) % config.optimizer.unroll_length == 0:
            policy.set_parameters(parameters)
        policy.answer(env_output, state)

    return _rate(answer, seconds, num_envs, _ONE_THREAD, "float32")


def _tensorflow(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures an actor's inference with TensorFlow."""
    from impala_tf.agents.agent import agent_here, tensor_specs
    from impala_tf.agents.policy import compile_policy

    tensorflow_startup.use_one_cpu_thread()
    tensorflow_startup.start_xla()
    agent, num_envs = agent_here(config.agent, spec), config.process.envs_per_actor
    policy = compile_policy(agent, spec, num_envs, config.run.seed)
    env_output = _noise(tensor_specs(layout_of(spec).step_specs(num_envs)))
    state = agent.initial_state(num_envs)
    return _rate(
        lambda: policy(env_output, state)[0].action.numpy(),
        seconds,
        num_envs,
        _ONE_THREAD,
        agent.torso_dtype,
    )


def update(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures a learner's gradient steps; agent steps count each time they are learned from.

    For dqn, it puts a batch into the replay and makes the gradient steps that follow. For a3c,
    whose actors compute the gradients, the work is the same.

    Raises:
      ConfigError: --device=gpu, but TensorFlow finds no GPU.
    """
    from impala_tf.agents.agent import agent_here, unroll_specs
    from impala_tf.learner.learner_group import LearnerGroup
    from impala_tf.learner.update import PIXEL_STATISTICS_STEPS, Learner

    tensorflow_startup.select_device(config.process.device)
    tensorflow_startup.start_xla()
    agent = agent_here(config.agent, spec)
    if configs.algorithm(config.loss.algorithm).actors_send == "gradients":
        config = configs.replace(config, algorithm="impala")
    config = configs.replace(config, updates_per_batch=1, ring_batches=1, replay_start_steps=0)
    learner = Learner(agent, spec, config, LearnerGroup())
    # Only a run's first updates add images to the statistics of observations.
    learner.agent_steps = PIXEL_STATISTICS_STEPS
    batch_size, length = config.optimizer.batch_size, config.optimizer.unroll_length
    batch = tf.nest.map_structure(
        tf.constant, _noise(unroll_specs(agent, spec, length), batch_size)
    )
    device = "GPU" if tf.config.get_visible_devices("GPU") else f"CPU, {cores_here()} cores"
    steps = batch_size * length
    return _rate(lambda: learner.update(batch), seconds, steps, device, agent.torso_dtype)


def _rate(
    work: Callable[[], object], seconds: float, steps: int, device: str, precision: str = ""
) -> Measured:
    """Measures calls of `work`, each of so many agent steps, after a first one, which compiles."""
    work()
    count, started, used_s = 0, time.monotonic(), cpu_seconds()
    while (elapsed_s := time.monotonic() - started) < seconds:
        work()
        count += 1
    cores = (cpu_seconds() - used_s) / elapsed_s
    return Measured(count * steps / elapsed_s, device, peak_mib() or 0.0, cores, precision)


def _noise(specs: Nest, *leading: int) -> Nest:
    """Returns arrays [*leading, ...] for the specs: noise for images, zeros for all others."""
    rng = np.random.default_rng(0)

    def array(spec: Nest) -> np.ndarray:
        shape = (*leading, *spec.shape)
        dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))  # of a tf.TensorSpec
        return rng.integers(0, 256, shape, dtype) if dtype == np.uint8 else np.zeros(shape, dtype)

    return tree.map_structure(array, specs)


def _in_new_process(
    with_tensorflow: bool, function: Callable[..., Result], *arguments: Any
) -> Result:
    spawn, about_it = multiprocessing.get_context("spawn"), (os.getpid(), with_tensorflow)
    with ProcessPoolExecutor(1, spawn, _begin, about_it) as process:
        return process.submit(function, *arguments).result()


def _begin(parent_pid: int, with_tensorflow: bool) -> None:
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    logging.disable(logging.WARNING)  # the parent has warned
    if with_tensorflow:
        tensorflow_startup.import_tensorflow()
