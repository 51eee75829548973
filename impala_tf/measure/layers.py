"""The layers of an agent, as TensorFlow's graph of one step shows them."""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.agents.inputs import tensor_specs
from impala_tf.environments.observations import layout_of
from impala_tf.types import EnvironmentSpec

# Operations whose result is their input, or a cast of it.
_SAME_VALUES = {"ReadVariableOp", "Cast", "Identity"}


class Layer(NamedTuple):
    """A module with trained parameters of its own."""

    place: str  # in the agent, such as "nature/conv2_d"
    kind: str  # the name of its class
    output_shape: tuple[int, ...]  # of one step; () if no step uses it
    parameters: int  # how many are trained


def layers_of(agent: Agent, spec: EnvironmentSpec) -> list[Layer]:
    """Returns the layers of an agent in the order in which a step runs them.

    Those that no step uses, or only inside a function of their own, come last.
    """
    graph = _step_graph(agent, spec)
    modules = {id(own.handle): module for module in (agent, *agent.submodules)
               for own in _parameters(module)}  # fmt: skip
    captured = {inner.name: modules[id(outer)] for outer, inner in graph.captures
                if id(outer) in modules}  # fmt: skip
    outputs: dict[int, tuple[int, ...]] = {}
    ordered: dict[int, snt.Module] = {}
    for op in graph.get_operations():
        for tensor in op.inputs:
            if module := captured.get(_source(tensor).name):
                ordered[id(module)] = module
                outputs[id(module)] = tuple(op.outputs[0].shape[1:])
    ordered.update({id(module): module for module in modules.values()})
    return [_layer(module, outputs.get(key, ())) for key, module in ordered.items()]


def operations_of(agent: Agent, spec: EnvironmentSpec) -> int:
    """Returns the floating-point operations of one step, as TensorFlow's profiler counts them."""
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    logger, graph = tf.get_logger(), _step_graph(agent, spec)
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns that it uses functions of TensorFlow 1
    try:
        profile = tf.compat.v1.profiler.profile(graph, options={**options, "output": "none"})
    finally:
        logger.setLevel(level)
    return int(profile.total_float_ops)


def _step_graph(agent: Agent, spec: EnvironmentSpec) -> tf.Graph:
    step = tf.function(agent.step, autograph=False)
    return step.get_concrete_function(
        tensor_specs(layout_of(spec).network_specs(1)), tensor_specs(agent.initial_state(1))
    ).graph


def _parameters(module: snt.Module) -> list[tf.Variable]:
    """Returns the trained variables of a module itself, without its submodules."""
    own = [value for value in vars(module).values() if isinstance(value, tf.Variable)]
    return [variable for variable in own if variable.trainable]


def _source(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type in _SAME_VALUES:
        tensor = tensor.op.inputs[0]
    return tensor


def _layer(module: snt.Module, output_shape: tuple[int, ...]) -> Layer:
    own = _parameters(module)
    if isinstance(module, snt.LSTM):  # its operations compute four gates, not its output
        output_shape = tuple(module.initial_state(1).hidden.shape[1:])
    # 'Agent/nature/conv2_d/w:0' is in nature/conv2_d.
    place = "/".join(own[0].name.split("/")[1:-1])
    parameters = sum(math.prod(variable.shape) for variable in own)
    return Layer(place, type(module).__name__, output_shape, parameters)
