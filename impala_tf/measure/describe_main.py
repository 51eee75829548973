"""--mode=describe: the layers, size, memory and speed of an agent, without a run."""

from __future__ import annotations

import math

import tensorflow as tf
from rich.console import Console
from rich.table import Table

from impala_tf import config as configs
from impala_tf.agents import precision
from impala_tf.agents.agent import Agent, agent_of, unroll_specs
from impala_tf.config import Config, Given
from impala_tf.learner.actor_gradients import sent_specs
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.measure.in_processes import What, console_of, measure_each
from impala_tf.measure.layers import Layer, activation_bytes, layers_of
from impala_tf.monitoring.render import plain_table
from impala_tf.processes.common import resolve
from impala_tf.processes.tensorflow_startup import select_device, start_xla
from impala_tf.types import EnvironmentSpec

_MEASURED_S = 3.0
_LAYERS_NOTE = (
    "Output shapes and multiply-adds are those of one step. Multiply-adds are counted in"
    " convolutions and in products with matrices of weights; biases, activations, pooling and"
    " normalisation are left out. Layers without an output are used in no step, or in a function of"
    " their own, which is not looked into.\n"
)
_MEMORY_NOTE = (
    "All of this is counted, not measured. Activations are the results that the backward pass"
    " reads, each once. Gradients, and what single operations need while they run, come on top.\n"
)


def main(given: Given) -> int:
    """Prints the agent's layers and memory, which are counted, and its measured speed; returns 0.

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
    console = console_of()
    console.print(f"{_name(config, dtype)} on {spec.level_name}:", highlight=False)
    console.print(f"{spec.protocol}\n", highlight=False)
    # In float32, layers are computed as they are described.
    console.print(_layer_table(layers_of(agent_of(config.agent, spec), spec)))
    console.print(_LAYERS_NOTE, style="dim")
    console.print(_memory_table(config, spec, agent))
    console.print(_MEMORY_NOTE, style="dim")
    console.print(_speed_table(config, spec, console))
    console.print(_speed_note(config), style="dim")
    return 0


def _name(config: Config, dtype: str) -> str:
    agent = config.agent
    width = f", width scale {agent.width_scale}" if agent.width_scale != 1 else ""
    return f"{agent.agent_name} ({agent.core}{width}, {dtype})"


def _layer_table(layers: list[Layer]) -> Table:
    table = plain_table("layer", "", "output", "parameters", "multiply-adds", texts=2)
    for layer in layers:
        table.add_row(
            layer.place,
            layer.kind,
            "x".join(map(str, layer.output_shape)),
            f"{layer.parameters:,}" if layer.parameters else "",
            f"{layer.multiply_adds:,}" if layer.multiply_adds else "",
        )
    table.add_section()
    parameters = sum(layer.parameters for layer in layers)
    multiply_adds = sum(layer.multiply_adds for layer in layers)
    table.add_row("total", "", "", f"{parameters:,}", f"{multiply_adds:,}", style="bold")
    return table


def _memory_table(config: Config, spec: EnvironmentSpec, agent: Agent) -> Table:
    length = config.optimizer.unroll_length
    batch_size = config.optimizer.batch_size
    unroll = _size(unroll_specs(agent, spec, length))
    learner = Learner(agent, spec, config, LearnerGroup())
    sizes = {
        f"an unroll of {length} steps, as it is sent": unroll,
        f"a batch of {batch_size} unrolls": batch_size * unroll,
        "variables, as actors get them": _size(_fetched(config, agent)),
        "variables of the learner, with optimizer and statistics": _size(
            learner.parameters_and_slots()
        ),
        **_of_gradient_step(config, spec, agent, learner),
    }
    if configs.algorithm(config.loss.algorithm).actors_send == "gradients":
        sent = sent_specs(agent, spec, config)
        sizes["a gradient, as it is sent in place of unrolls"] = _size(sent)
    table = plain_table("memory", "")
    for label, size in sizes.items():
        table.add_row(label, _mebibytes(size))
    return table


def _fetched(config: Config, agent: Agent) -> list[tf.Variable]:
    """Returns the variables that actors fetch; LiteRT needs none of a separate baseline."""
    if configs.actors_use_tensorflow(config):
        return list(agent.variables)
    pairs = zip(agent.trainable_variables, agent.of_baseline_only, strict=True)
    left_out = {variable.ref() for variable, of_baseline in pairs if of_baseline}
    return [variable for variable in agent.variables if variable.ref() not in left_out]


def _of_gradient_step(
    config: Config, spec: EnvironmentSpec, agent: Agent, learner: Learner
) -> dict[str, int]:
    if configs.algorithm(config.loss.algorithm).replays:
        steps, replay = config.replay.replay_batch_size, learner.uses.replay
        return {
            f"activations of a gradient step on {steps} agent steps": activation_bytes(
                agent, spec, 0, steps
            ),
            f"a replay of {replay.capacity:,} agent steps": replay.nbytes,
        }
    splits = configs.algorithm(config.loss.algorithm).estimates_once
    parts = config.optimizer.minibatches if splits else 1
    parts *= config.optimizer.micro_batches
    learned = math.ceil(config.optimizer.batch_size / parts)
    length = config.optimizer.unroll_length
    size = activation_bytes(agent, spec, length, learned)
    unrolls = f"{learned} unroll{'s' if learned > 1 else ''}"
    return {f"activations of a gradient step on {unrolls}": size}


def _speed_table(config: Config, spec: EnvironmentSpec, console: Console) -> Table:
    num_envs = config.process.envs_per_actor
    batch_size = config.optimizer.batch_size
    length = config.optimizer.unroll_length
    labels: dict[What, str] = {
        "inference": f"inference, {num_envs} environments",
        "update": f"update, batch of {batch_size} x {length} steps",
    }
    table = plain_table("speed", "on", "agent steps/s", "peak memory", texts=2)
    for label, part in measure_each(labels, config, spec, _MEASURED_S, console).items():
        memory = _mebibytes(2**20 * part.peak_memory_mb) if part.peak_memory_mb else "unknown"
        table.add_row(label, part.on, f"{part.steps_per_s:,.0f}", memory)
    return table


def _speed_note(config: Config) -> str:
    begin = (
        f"Measured for {_MEASURED_S:g} s each, one process at a time, on random observations"
        " without environments."
    )
    if configs.algorithm(config.loss.algorithm).replays:
        ratio, steps = config.replay.replay_ratio, config.replay.replay_batch_size
        return (
            f"{begin} An update puts the batch into the replay and takes {ratio:g} gradient steps,"
            f" each on {steps} agent steps, for each of its agent steps."
        )
    uses = config.optimizer.updates_per_batch
    times = "once" if uses == 1 else f"{uses} times"
    return (
        f"{begin} A learner learns from each step {times}, and each time counts here. The peak"
        " memory is that of the whole process, TensorFlow included."
    )


def _size(specs: object) -> int:
    """Returns the bytes of tensors, variables or specs."""
    return sum(math.prod(part.shape) * part.dtype.size for part in tf.nest.flatten(specs))


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.1f} KiB"
