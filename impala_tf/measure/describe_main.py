"""--mode=describe: the parameters, memory and speed of an agent, without a run."""

from __future__ import annotations

import math

import tensorflow as tf
from rich.table import Table

from impala_tf import config as configs
from impala_tf.agents import precision
from impala_tf.agents.agent import Agent, agent_of
from impala_tf.config import Config, Given
from impala_tf.measure import in_processes
from impala_tf.monitoring.render import plain_table
from impala_tf.processes.common import resolve
from impala_tf.processes.tensorflow_startup import select_device, start_xla
from impala_tf.types import EnvironmentSpec

_MEASURED_S = 3.0


def main(given: Given) -> int:
    """Prints the agent's parameters, and its measured speed and memory; returns 0.

    Raises:
      ConfigError: flags or a level that no run could use.
    """
    config, spec = resolve(given)
    configs.check_batches(config)
    select_device(config.process.device)
    dtype = precision.torso_dtype(config.agent)
    if tf.config.get_visible_devices("GPU"):
        # Only the process that measures updates needs the GPU.
        tf.config.set_visible_devices([], "GPU")
    start_xla()
    agent = agent_of(config.agent, spec, dtype)
    console = in_processes.console_of()
    width = config.agent.width_scale
    scaled = f", width scale {width}" if width != 1 else ""
    console.print(
        f"{config.agent.agent_name} ({config.agent.core}{scaled}, {dtype}) on {spec.level_name}:\n"
        f"{spec.protocol}\n",
        highlight=False,
    )
    console.print(_parameter_table(agent))
    console.print()
    console.print(_speed_table(config, spec))
    console.print(
        f"\nSpeed: {_MEASURED_S:g} s each, in a process of its own, on random observations without"
        " environments. Each step counts each time a learner learns from it. The peak memory is"
        " that of the whole process.",
        style="dim",
    )
    return 0


def _parameter_table(agent: Agent) -> Table:
    table = plain_table("layer", "shape", "parameters", texts=2)
    for variable in agent.trainable_variables:
        # 'Agent/nature/conv2_d/w:0' is in nature/conv2_d.
        name = variable.name.partition("/")[2].partition(":")[0]
        size = math.prod(variable.shape)
        table.add_row(name, "x".join(map(str, variable.shape)), f"{size:,}")
    table.add_section()
    total = sum(math.prod(variable.shape) for variable in agent.trainable_variables)
    table.add_row("total", "", f"{total:,}", style="bold")
    return table


def _speed_table(config: Config, spec: EnvironmentSpec) -> Table:
    batch_size, length = config.optimizer.batch_size, config.optimizer.unroll_length
    table = plain_table("speed", "on", "agent steps/s", "peak memory", texts=2)
    inference = in_processes.measure("inference", config, spec, _MEASURED_S)
    update = in_processes.measure("update", config, spec, _MEASURED_S)
    for label, part in {
        f"inference, {config.process.envs_per_actor} environments": inference,
        f"update, batch of {batch_size} x {length} steps": update,
    }.items():
        memory = f"{part.peak_memory_mb:,.1f} MiB"
        table.add_row(label, part.on, f"{part.steps_per_s:,.0f}", memory)
    return table
