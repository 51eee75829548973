"""impala describe: the layers and parameters of an agent, without a run."""

from __future__ import annotations

import math

from rich.table import Table

from impala_tf import config as configs
from impala_tf.agents import precision
from impala_tf.agents.agent import Agent, agent_of
from impala_tf.config import Given
from impala_tf.monitoring.render import plain_table, wide_console
from impala_tf.processes.common import resolve
from impala_tf.processes.tensorflow_startup import select_device


def main(given: Given) -> int:
    """Prints the agent's parameters; returns 0.

    Raises:
      ConfigError: flags or a level that no run could use.
    """
    config, spec = resolve(given)
    configs.check_batches(config)
    select_device(config.process.device)
    dtype = precision.torso_dtype(config.agent)
    agent = agent_of(config.agent, spec, dtype)
    console = wide_console()
    width = config.agent.width_scale
    scaled = f", width scale {width}" if width != 1 else ""
    console.print(
        f"{config.agent.agent_name} ({config.agent.core}{scaled}, {dtype}) on {spec.level_name}:\n"
        f"{spec.protocol}\n",
        highlight=False,
    )
    console.print(_parameter_table(agent))
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
