"""Converts an agent to a model that actors run with LiteRT.

The converter takes the weights as constants. To find out where it puts each variable, the variables
are first filled with labels: distinct float32 values that occur nowhere else. The places of the
labels in the file are where actors write the weights of each parameter version.

Weights that become int8 are found by their values, up to rounding, so these are filled with noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

from impala_tf.actor.network import ActingModel, LiteRtNetwork, Weights, input_name
from impala_tf.agents.agent import Agent
from impala_tf.agents.inputs import tensor_specs
from impala_tf.environments.observations import layout_of
from impala_tf.machine.silence import silenced_stderr
from impala_tf.transport import NoNetwork
from impala_tf.transport.quantization import can_quantize
from impala_tf.types import ArraySpec, EnvironmentSpec, Nest

# The bits of -8192.0. Labels count up from there, towards larger negative numbers.
_FIRST_LABEL = 0xC6000000
_TOLERANCE, _INT8_TOLERANCE = 1e-3, 0.1
Precision = Literal["float32", "int8"]
# The converter folds the division of pixels by 255 into the weights of the first layer.
_SCALES = (np.float32(1), np.float32(1) / np.float32(255))


class ConversionError(Exception):
    """LiteRT cannot reproduce what TensorFlow computes for this network."""


def convert(agent: Agent, spec: EnvironmentSpec, num_envs: int, int8: bool = False) -> ActingModel:
    """Returns the agent's network for N environments, after checking its outputs.

    Args:
      agent: an agent that nothing else uses; its variables are overwritten.
      spec: the level's specification.
      num_envs: N.
      int8: whether layers compute with int8 weights. Then the outputs are close, but not equal.

    Raises:
      ConversionError: the network has operations that LiteRT lacks, or its outputs differ.
    """
    initial = [variable.numpy() for variable in agent.variables]
    noise = _noise_of_weights(agent) if int8 else {}
    labels = [noise.get(index, label) for index, label in enumerate(_labels(initial))]
    _assign(agent, labels)
    file = _file(agent, spec, num_envs, "int8" if int8 else "float32")
    model = _without_weights(file, labels, noise)
    # For the check, int8 weights are noise, too: a policy's initial ones are tiny and would hide
    # errors of earlier layers.
    _assign(agent, [noise.get(index, array) for index, array in enumerate(initial)])
    _check(model, agent, spec, num_envs, _INT8_TOLERANCE if int8 else _TOLERANCE)
    _assign(agent, initial)
    return model


def _assign(agent: Agent, arrays: Sequence[np.ndarray]) -> None:
    for variable, array in zip(agent.variables, arrays, strict=True):
        variable.assign(array)


def _noise_of_weights(agent: Agent) -> dict[int, np.ndarray]:
    """Returns {index: random weights} for the variables that may become int8.

    They are scaled so that a layer's outputs have about the same range as its inputs.
    """
    rng = np.random.default_rng(0)
    trainable = {variable.ref() for variable in agent.trainable_variables}
    noise = {}
    for index, variable in enumerate(agent.variables):
        shape = tuple(variable.shape)
        if variable.ref() in trainable and can_quantize(ArraySpec(shape, variable.dtype.name)):
            inputs = max(1, math.prod(shape[:-1]))
            noise[index] = rng.standard_normal(shape, np.float32) / np.float32(inputs**0.5)
    return noise


def whole_file(agent: Agent, spec: EnvironmentSpec) -> bytes:
    """Returns the agent's network for one environment in LiteRT's file format, with its weights.

    Args:
      agent: the agent; its variables are read.
      spec: the level's specification.

    Raises:
      ConversionError: the network has operations that LiteRT lacks.
    """
    return _file(agent, spec, 1)


def _labels(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns float32 arrays of the same shapes, filled with labels; others are unchanged."""
    labels, first = [], _FIRST_LABEL
    for array in arrays:
        if array.dtype == np.float32:
            bits = np.arange(first, first + array.size, dtype=np.uint32)
            array = bits.view(np.float32).reshape(array.shape)
            first += array.size
        labels.append(array)
    return labels


def _inputs(agent: Agent, spec: EnvironmentSpec, num_envs: int) -> tuple[Nest, Nest]:
    """Returns the specs of an EnvOutput as the network sees it, and of the core state."""
    step = layout_of(spec).network_specs(num_envs)
    return tensor_specs(step), tensor_specs(agent.initial_state(num_envs))


def _file(
    agent: Agent, spec: EnvironmentSpec, num_envs: int, precision: Precision = "float32"
) -> bytes:
    inputs = _inputs(agent, spec, num_envs)
    signature = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=input_name(index))
        for index, tensor in enumerate(tf.nest.flatten(inputs))
    ]

    @tf.function(input_signature=signature, autograph=False)
    def act(*flat: tf.Tensor) -> tuple[tf.Tensor, ...]:
        env_output, core_state = tf.nest.pack_sequence_as(inputs, flat)
        outputs, core_state = agent.step(env_output, core_state)
        return (outputs.policy_logits, *tf.nest.flatten(core_state))

    converter = tf.lite.TFLiteConverter.from_concrete_functions([act.get_concrete_function()], act)
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        with silenced_stderr():
            file: bytes = converter.convert()
    except Exception as error:  # the converter raises many types
        raise ConversionError(f"LiteRT cannot convert the network: {error}") from error
    return file


def _without_weights(
    file: bytes, labels: Sequence[np.ndarray], noise: Mapping[int, np.ndarray]
) -> ActingModel:
    data = bytearray(file)
    weights = _int8_weights(data, noise) if noise else []
    words = np.frombuffer(data, np.uint32, len(file) // 4)
    for (index, label), scale in itertools.product(enumerate(labels), _SCALES):
        if label.dtype != np.float32 or not label.size:
            continue
        scaled = label * scale
        for start in _places(words, scaled):
            block = words[start : start + label.size]
            axes = _axes(block.view(np.float32), scaled)
            weights.append(Weights(index, 4 * start, axes, float(scale)))
            block[:] = 0
    return ActingModel(bytes(data), tuple(weights))


def _places(words: np.ndarray, label: np.ndarray) -> list[int]:
    """Returns where complete blocks of a variable's labels begin.

    Whatever the order of its axes in the file, a block begins with the same label.
    """
    first = label.reshape(-1)[:1].view(np.uint32)[0]
    starts = np.flatnonzero(words[: len(words) - label.size + 1] == first)
    return [int(start) for start in starts]


def _axes(block: np.ndarray, label: np.ndarray) -> tuple[int, ...]:
    for axes in itertools.permutations(range(label.ndim)):
        if np.array_equal(label.transpose(axes).reshape(-1), block):
            return axes
    raise ConversionError(f"the weights of a variable {label.shape} are in an unknown order")


def _int8_weights(data: bytearray, noise: Mapping[int, np.ndarray]) -> list[Weights]:
    """Returns where the file holds int8 values and their scales, and overwrites these with 0.

    Raises:
      ConversionError: values match no variable, or do not have one scale per output of a layer.
    """
    base = np.frombuffer(data, np.uint8).ctypes.data
    model = schema.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    weights = []
    for tensor in map(graph.Tensors, range(graph.TensorsLength())):
        content = model.Buffers(tensor.Buffer()).DataAsNumpy()
        if tensor.Type() != schema.TensorType.INT8 or isinstance(content, int):  # 0: no content
            continue
        quantization = tensor.Quantization()
        scales, axis = quantization.ScaleAsNumpy(), quantization.QuantizedDimension()
        values = content.view(np.int8).reshape(tensor.ShapeAsNumpy())
        if len(scales) != values.shape[axis]:
            raise ConversionError(f"int8 weights {values.shape} have one scale for all outputs")
        shape = [-1 if dimension == axis else 1 for dimension in range(values.ndim)]
        index, axes, scale = _same_values(values * scales.reshape(shape), scales.max(), noise)
        if axes[axis] != values.ndim - 1:
            raise ConversionError(f"int8 weights {values.shape} have a scale for each input")
        places = content.ctypes.data - base, scales.ctypes.data - base
        weights.append(Weights(index, places[0], axes, scale, places[1]))
        content[:] = 0
        scales[:] = 0
    return weights


def _same_values(
    values: np.ndarray, unit: float, noise: Mapping[int, np.ndarray]
) -> tuple[int, tuple[int, ...], float]:
    """Returns (index, order of axes, factor) of the variable that has these values.

    Args:
      values: the file's values, float32, rounded to multiples of at most `unit`.
      unit: the largest scale.
      noise: the variables' values, by index.

    Raises:
      ConversionError: there is no such variable.
    """
    for (index, array), scale in itertools.product(noise.items(), _SCALES):
        for axes in itertools.permutations(range(array.ndim)):
            scaled = array.transpose(axes) * scale
            if scaled.shape == values.shape and np.abs(values - scaled).max() <= 0.51 * unit:
                return index, axes, float(scale)
    raise ConversionError(f"int8 weights {values.shape} belong to no variable")


def _check(
    model: ActingModel, agent: Agent, spec: EnvironmentSpec, num_envs: int, tolerance: float
) -> None:
    """Raises ConversionError if the network's outputs differ from the agent's."""
    rng = np.random.default_rng(0)
    specs = _inputs(agent, spec, num_envs)
    inputs = tf.nest.map_structure(lambda spec: _noise(spec, rng), specs)
    tensors = tf.nest.map_structure(tf.constant, inputs)
    outputs, core_state = agent.step(*tensors)
    expected = [outputs.policy_logits, *tf.nest.flatten(core_state)]
    network = LiteRtNetwork(model)
    network.set_parameters([variable.numpy() for variable in agent.variables])
    for output, tensor in zip(network(tf.nest.flatten(inputs)), expected, strict=True):
        scale = max(1.0, float(np.abs(tensor).max()))
        if not np.abs(output - tensor.numpy()).max() <= tolerance * scale:  # False for NaN, too
            raise ConversionError("the converted network answers differently")


def _noise(spec: tf.TensorSpec, rng: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    if dtype.kind == "f":
        return rng.standard_normal(spec.shape).astype(dtype)
    end = 256 if dtype == np.uint8 else 2  # an action, a flag or a word: 0 and 1 always exist
    return rng.integers(0, end, spec.shape).astype(dtype)


def _may_be_mended(network: Future[bytes]) -> bool:
    """Whether a failed conversion is worth a retry: LiteRT's limits are not, a full disk is."""
    return network.done() and not isinstance(network.exception(), NoNetwork | None)


class NetworkService:
    """Converts the network, in a thread, once for each number of environments and precision.

    Args:
      agent: an agent that nothing else uses; its variables are overwritten.
      spec: the level's specification.
    """

    def __init__(self, agent: Agent, spec: EnvironmentSpec) -> None:
        self._agent = agent
        self._spec = spec
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="convert")
        self._networks: dict[tuple[int, bool], Future[bytes]] = {}

    def network(self, num_envs: int, int8: bool = False) -> Future[bytes]:
        """Returns the network for N environments; see `transport.Networks`.

        The future fails with NoNetwork if LiteRT cannot compute the network. Not thread-safe.
        """
        key = num_envs, int8
        if key not in self._networks or _may_be_mended(self._networks[key]):
            self._networks[key] = self._thread.submit(self._convert, num_envs, int8)
        return self._networks[key]

    def _convert(self, num_envs: int, int8: bool) -> bytes:
        try:
            return convert(self._agent, self._spec, num_envs, int8).to_bytes()
        except ConversionError as error:
            raise NoNetwork(str(error)) from error
