"""What an agent consists of: its layers, their sizes, and what they compute and keep in memory.

All of it is counted in the graphs that TensorFlow makes of the agent, so it holds for any agent.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.agents.inputs import tensor_specs
from impala_tf.agents.torsos import LayerNorm
from impala_tf.environments.observations import layout_of
from impala_tf.types import EnvironmentSpec, EnvOutput, Nest

_KINDS = {snt.Linear: "linear", snt.LSTM: "LSTM", snt.Embed: "embedding", LayerNorm: "layer norm"}
# Operations whose result is what they read, or a cast of it.
_SAME_VALUES = {"ReadVariableOp", "Cast", "Identity"}
# Operations whose result lies in the memory of what they read.
_SAME_MEMORY = {"Identity", "Reshape", "Squeeze", "ExpandDims"}
# Operations that only ask for the shape of what they read.
_SHAPE_ONLY = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}


class Layer(NamedTuple):
    """A layer with parameters, or a pooling."""

    place: str  # in the agent: "nature/conv2_d"
    kind: str  # "convolution 8x8, stride 4"
    output_shape: tuple[int, ...]  # of one step
    parameters: int  # trained ones
    multiply_adds: int  # for one step


def layers_of(agent: Agent, spec: EnvironmentSpec) -> list[Layer]:
    """Returns the layers of an agent in the order in which a step runs them.

    Multiply-adds are those of convolutions and of products with matrices of weights. Biases,
    activations, pooling and normalisation are left out. Last come the modules whose operations are
    not found, without output and multiply-adds: those that no step uses, or a function of their
    own.
    """
    graph = _step_graph(agent, spec)
    owners = _owners(agent)
    resources = {
        inner.name: owners[id(outer)] for outer, inner in graph.captures if id(outer) in owners
    }
    layers: dict[str, Layer] = {}
    for op in graph.get_operations():
        names = (_behind(tensor, _SAME_VALUES).name for tensor in op.inputs)
        module = next((resources[name] for name in names if name in resources), None)
        if module is not None:
            key = str(id(module))
            layers[key] = _used_by(op, module, layers.get(key) or _layer(module))
        elif op.type == "MaxPool" or (op.type == "Mean" and op.inputs[0].shape.rank == 4):
            layers[op.name] = Layer(_place(op.name), _operation(op), _one(op.outputs[0]), 0, 0)
    for module in owners.values():
        layers.setdefault(str(id(module)), _layer(module))
    return list(layers.values())


def activation_bytes(
    agent: Agent, spec: EnvironmentSpec, unroll_length: int, batch_size: int
) -> int:
    """Returns the bytes that the forward pass of a gradient step keeps for its backward pass.

    These are the results of the network's operations that the operations of the gradients read,
    each once, without parameters and the batch itself. The gradients, what convolutions need while
    they run, and tensors that live for a moment come on top.

    Args:
      agent: the agent, whose variables are made.
      spec: the level's specification.
      unroll_length: T; the network runs on T + 1 steps.
      batch_size: B.
    """
    marks: list[set[str]] = []

    @tf.function(autograph=False)
    def gradients(env_outputs: EnvOutput, core_state: Nest) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs, _ = agent.unroll(env_outputs, core_state)
            total = tf.add_n([tf.reduce_sum(part) for part in outputs])
        marks.append({op.name for op in total.graph.get_operations()})
        return tape.gradient(total, agent.trainable_variables)

    graph = gradients.get_concrete_function(
        tensor_specs(layout_of(spec).network_specs(unroll_length + 1, batch_size)),
        tensor_specs(agent.initial_state(batch_size)),
    ).graph
    kept: dict[str, tf.Tensor] = {}
    for op in graph.get_operations():
        if op.name in marks[-1] or op.type in _SHAPE_ONLY:
            continue
        for read in op.inputs:
            tensor = _behind(read, _SAME_MEMORY)
            if tensor.op.name in marks[-1] and _is_computed(tensor):
                kept[tensor.name] = tensor
    return sum(math.prod(tensor.shape) * tensor.dtype.size for tensor in kept.values())


def _step_graph(agent: Agent, spec: EnvironmentSpec) -> tf.Graph:
    step = tf.function(agent.step, autograph=False)
    return step.get_concrete_function(
        tensor_specs(layout_of(spec).network_specs(1)), tensor_specs(agent.initial_state(1))
    ).graph


def _owners(agent: Agent) -> dict[int, snt.Module]:
    """Returns the module of each trained variable, by the id of the variable's handle."""
    modules = (agent, *agent.submodules)
    return {id(own.handle): module for module in modules for own in _parameters(module)}


def _layer(module: snt.Module) -> Layer:
    """Returns a module with its own parameters, before any operation of it was seen."""
    own = _parameters(module)
    size = sum(math.prod(value.shape) for value in own)
    kind = _KINDS.get(type(module), "variables")
    return Layer(_place(own[0].name), kind, (), size, 0)


def _parameters(module: snt.Module) -> list[tf.Variable]:
    """Returns the trained variables that a module has itself."""
    own = [value for value in vars(module).values() if isinstance(value, tf.Variable)]
    return [variable for variable in own if variable.trainable]


def _used_by(op: tf.Operation, module: snt.Module, layer: Layer) -> Layer:
    """Returns the layer after one more operation with its parameters; the last one ends it."""
    if isinstance(module, snt.LSTM):  # the operations with its parameters make four gates
        output = _one(module.initial_state(1).hidden)
    else:
        output = _one(op.outputs[0])
    return layer._replace(
        kind=_operation(op) or layer.kind,
        output_shape=output,
        multiply_adds=layer.multiply_adds + _multiply_adds(op),
    )


def _multiply_adds(op: tf.Operation) -> int:
    if op.type == "Conv2D":
        return math.prod(op.outputs[0].shape) * math.prod(op.inputs[1].shape[:3])
    if op.type == "MatMul":
        return math.prod(op.outputs[0].shape) * op.inputs[0].shape[-1]
    return 0


def _operation(op: tf.Operation) -> str:
    """Returns what a convolution or pooling does; "": another operation."""
    if op.type == "Mean":
        return "average pooling"
    if op.type not in ("Conv2D", "MaxPool"):
        return ""
    is_conv = op.type == "Conv2D"
    height, width = op.inputs[1].shape[:2] if is_conv else op.get_attr("ksize")[1:3]
    stride = op.get_attr("strides")[1]
    name = "convolution" if is_conv else "max pooling"
    return f"{name} {height}x{width}" + (f", stride {stride}" if stride > 1 else "")


def _behind(tensor: tf.Tensor, operations: set[str]) -> tf.Tensor:
    """Returns what a tensor is made from by nothing but such operations."""
    while tensor.op.type in operations:
        tensor = tensor.op.inputs[0]
    return tensor


def _is_computed(tensor: tf.Tensor) -> bool:
    """Whether a tensor is neither a constant nor an input, a parameter or a cast of one."""
    source = _behind(tensor, _SAME_VALUES)
    return source.op.type not in ("Placeholder", "Const") and source.dtype != tf.resource


def _place(name: str) -> str:
    """Returns the place of 'Agent/nature/conv2_d/w:0', which is nature/conv2_d."""
    return "/".join(name.split("/")[1:-1])


def _one(tensor: tf.Tensor) -> tuple[int, ...]:
    """Returns the shape of a tensor without its dimension of batches."""
    return tuple(tensor.shape[1:])
