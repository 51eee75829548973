"""The layers of an agent: their sizes, what they compute, and what they keep in memory.

All is counted in the graphs that TensorFlow makes of the agent, so it works for any agent.
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
# Operations whose result is their input, or a cast of it.
_SAME_VALUES = {"ReadVariableOp", "Cast", "Identity"}
# Operations whose result shares the memory of their input.
_SAME_MEMORY = {"Identity", "Reshape", "Squeeze", "ExpandDims"}
# Operations that only need the shape of their input.
_SHAPE_ONLY = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}


class Layer(NamedTuple):
    """A layer with parameters, or a pooling."""

    place: str  # in the agent, such as "nature/conv2_d"
    kind: str  # such as "convolution 8x8, stride 4"
    output_shape: tuple[int, ...]  # of one step
    parameters: int  # how many are trained
    multiply_adds: int  # for one step


def layers_of(agent: Agent, spec: EnvironmentSpec) -> list[Layer]:
    """Returns the layers of an agent in the order in which a step runs them.

    Multiply-adds are counted in convolutions and products with weight matrices, not in biases,
    activations, pooling and normalisation. Modules whose operations are not found come last,
    without output and multiply-adds: no step uses them, or only inside a function of their own.
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

    These are the results of the network's operations that the gradients' operations read, each
    once, without parameters and the batch itself. Gradients, workspaces of convolutions and
    short-lived tensors need memory in addition.

    Args:
      agent: the agent, with its variables.
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
    activations: dict[str, tf.Tensor] = {}
    for op in graph.get_operations():
        if op.name in marks[-1] or op.type in _SHAPE_ONLY:
            continue
        for read in op.inputs:
            tensor = _behind(read, _SAME_MEMORY)
            if tensor.op.name in marks[-1] and _is_computed(tensor):
                activations[tensor.name] = tensor
    return sum(math.prod(tensor.shape) * tensor.dtype.size for tensor in activations.values())


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
    """Returns the layer of a module with its own parameters, without operations."""
    own = _parameters(module)
    size = sum(math.prod(value.shape) for value in own)
    kind = _KINDS.get(type(module), "variables")
    return Layer(_place(own[0].name), kind, (), size, 0)


def _parameters(module: snt.Module) -> list[tf.Variable]:
    """Returns the trained variables of a module itself, without its submodules."""
    own = [value for value in vars(module).values() if isinstance(value, tf.Variable)]
    return [variable for variable in own if variable.trainable]


def _used_by(op: tf.Operation, module: snt.Module, layer: Layer) -> Layer:
    """Returns the layer with one more operation; its output is that of the last one."""
    if isinstance(module, snt.LSTM):  # its operations compute four gates, not its output
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
    """Describes a convolution or pooling; "" for any other operation."""
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
    """Returns the tensor from which only these operations make a tensor."""
    while tensor.op.type in operations:
        tensor = tensor.op.inputs[0]
    return tensor


def _is_computed(tensor: tf.Tensor) -> bool:
    """Whether a tensor is not a constant, an input or a parameter, nor a cast of one."""
    source = _behind(tensor, _SAME_VALUES)
    return source.op.type not in ("Placeholder", "Const") and source.dtype != tf.resource


def _place(name: str) -> str:
    """Returns the place of 'Agent/nature/conv2_d/w:0', which is nature/conv2_d."""
    return "/".join(name.split("/")[1:-1])


def _one(tensor: tf.Tensor) -> tuple[int, ...]:
    """Returns the shape of a tensor without its batch dimension."""
    return tuple(tensor.shape[1:])
