"""Measures the speed and memory of acting and learning on this machine, with TensorFlow.

Call these in processes of their own (see `in_processes`): they choose TensorFlow's devices and
threads, and peak memory is that of the whole process.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import Agent, agent_here, agent_of, unroll_specs
from impala_tf.agents.inputs import tensor_specs
from impala_tf.agents.policy import compile_policy
from impala_tf.config import Config, cores_here
from impala_tf.environments.observations import layout_of
from impala_tf.learner.conversion import ConversionError, convert
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.update import PIXEL_STATISTICS_STEPS, Learner
from impala_tf.measure.acting import ONE_THREAD, Measured, noise, peak_memory_mb, rate
from impala_tf.processes import tensorflow_startup
from impala_tf.types import EnvironmentSpec


def inference(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures an actor's inference with TensorFlow, without environments.

    Args:
      config: the resolved flags.
      spec: the level's specification.
      seconds: how long to measure.
    """
    tensorflow_startup.use_one_cpu_thread()
    agent, num_envs = _agent(config, spec), config.process.envs_per_actor
    policy = compile_policy(agent, spec, num_envs, config.run.seed)
    env_output = noise(tensor_specs(layout_of(spec).step_specs(num_envs)))
    state = agent.initial_state(num_envs)
    per_s, cores = rate(lambda: policy(env_output, state)[0].action.numpy(), seconds)
    memory, dtype = peak_memory_mb(), agent.torso_dtype
    return Measured(per_s * num_envs, ONE_THREAD, memory, cores, precision=dtype)


def converted(config: Config, spec: EnvironmentSpec) -> tuple[bytes, list[np.ndarray]] | None:
    """Returns the (network, parameters) for actors with LiteRT; None if LiteRT cannot run it."""
    tensorflow_startup.start_xla()
    agent = agent_of(config.agent, spec)
    try:
        model = convert(agent, spec, config.process.envs_per_actor)
    except ConversionError:
        return None
    return model.to_bytes(), [variable.numpy() for variable in agent.variables]


def update(config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures a learner's gradient steps; agent steps count each time they are learned from.

    For dqn, it puts a batch into the replay and makes the gradient steps that follow. For a3c,
    whose actors compute the gradients, the work is the same. The arguments are those of
    `inference`.

    Raises:
      ConfigError: --device=gpu, but TensorFlow finds no GPU.
    """
    tensorflow_startup.select_device(config.process.device)
    agent = _agent(config, spec)
    if configs.algorithm(config.loss.algorithm).actors_send == "gradients":
        config = configs.replace(config, algorithm="impala")
    config = configs.replace(config, updates_per_batch=1, ring_batches=1, replay_start_steps=0)
    learner = Learner(agent, spec, config, LearnerGroup())
    # Only a run's first updates add images to the statistics of observations.
    learner.agent_steps = PIXEL_STATISTICS_STEPS
    batch_size, length = config.optimizer.batch_size, config.optimizer.unroll_length
    batch = noise(unroll_specs(agent, spec, length), batch_size)
    tensors = tf.nest.map_structure(tf.constant, batch)
    per_s, cores = rate(lambda: learner.update(tensors), seconds)
    gpus = tf.config.get_visible_devices("GPU")
    device = "GPU" if gpus else f"CPU, {cores_here()} cores"
    steps_per_s, memory = per_s * batch_size * length, peak_memory_mb()
    return Measured(steps_per_s, device, memory, cores, precision=agent.torso_dtype)


def _agent(config: Config, spec: EnvironmentSpec) -> Agent:
    tensorflow_startup.start_xla()
    return agent_here(config.agent, spec)
