"""How fast an agent acts and learns on this machine, and how much memory that takes.

Call these in processes of their own (see `measurement`): they choose TensorFlow's devices and
threads, and peaks of memory are those of the whole process.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents import precision
from impala_tf.agents.agent import Agent, agent_of, unroll_specs
from impala_tf.agents.policy import compile_policy
from impala_tf.config import Config, resolved
from impala_tf.environments.observations import layout_of
from impala_tf.learner.group import SingleLearner
from impala_tf.learner.signals import ControlFlags
from impala_tf.learner.update import Learner
from impala_tf.processes import tensorflow_startup
from impala_tf.types import EnvironmentSpec, Nest

_NO_WISHES = ControlFlags(stop=False, write_row=False, checkpoint=False)


class Measured(NamedTuple):
    """The result of a measurement."""

    steps_per_s: float  # agent steps
    device: str  # that computed
    peak_memory: int  # resident bytes of the process, TensorFlow included; 0: unknown


def inference(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures an actor's answers to its environments, without the environments.

    Args:
      config: resolved.
      spec: of the level.
      seconds: to measure for.
    """
    tensorflow_startup.use_one_cpu_thread()
    rate = _rate(answers(_agent(config, spec), spec, config), seconds)
    steps = resolved(config.process.envs_per_actor)
    return Measured(rate * steps, "CPU, 1 thread", _peak_memory())


def update(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures a learner's gradient steps; agent steps count each time they are learned from.

    Arguments as of `inference`.

    Raises:
      ConfigError: --device=gpu, but TensorFlow finds no GPU.
    """
    tensorflow_startup.select_device(config.process.device)
    rate = _rate(updates(_agent(config, spec), spec, config), seconds)
    steps = resolved(config.optimizer.batch_size) * resolved(config.optimizer.unroll_length)
    gpus = tf.config.get_visible_devices("GPU")
    device = "GPU" if gpus else f"CPU, {len(os.sched_getaffinity(0))} cores"
    return Measured(rate * steps, device, _peak_memory())


def answers(agent: Agent, spec: EnvironmentSpec, config: Config) -> Callable[[], object]:
    """Returns what answers a step of --envs_per_actor environments."""
    num_envs = resolved(config.process.envs_per_actor)
    policy = compile_policy(agent, spec, num_envs, config.run.seed)
    env_output = _noise(layout_of(spec).step_specs(num_envs))
    state = agent.initial_state(num_envs)
    return lambda: policy(env_output, state)[0].action.numpy()


def updates(agent: Agent, spec: EnvironmentSpec, config: Config) -> Callable[[], object]:
    """Returns what learns once from a batch; later uses of it cost the same."""
    config = configs.replace(config, updates_per_batch=1, ring_batches=1)
    learner = Learner(agent, spec, config, SingleLearner())
    specs = unroll_specs(agent, spec, resolved(config.optimizer.unroll_length))
    batch = _noise(specs, resolved(config.optimizer.batch_size))
    tensors = tf.nest.map_structure(tf.constant, batch)
    return lambda: learner.update(tensors, _NO_WISHES)


def _agent(config: Config, spec: EnvironmentSpec) -> Agent:
    tensorflow_startup.start_xla()
    dtype = precision.torso_dtype(config.agent)
    precision.disable_failing_fusion(config.agent)
    return agent_of(config.agent, spec, dtype)


def _noise(specs: Nest, *leading: int) -> Nest:
    """Returns arrays [*leading, ...] for the specs: images of noise, everything else zeros."""
    rng = np.random.default_rng(0)

    def array(spec: tf.TensorSpec) -> np.ndarray:
        shape = (*leading, *spec.shape)
        if spec.dtype == tf.uint8:
            return rng.integers(0, 256, shape, np.uint8)
        return np.zeros(shape, spec.dtype.as_numpy_dtype)

    return tf.nest.map_structure(array, specs)


def _rate(work: Callable[[], object], seconds: float) -> float:
    """Returns how often a second `work` runs, after a first time that compiles it."""
    work()
    count, started = 0, time.monotonic()
    while time.monotonic() - started < seconds:
        work()
        count += 1
    return count / (time.monotonic() - started)


def _peak_memory() -> int:
    """Returns the largest resident memory of this process so far, in bytes; 0: unknown."""
    status = Path("/proc/self/status")
    match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(match[1]) * 1024 if match else 0
