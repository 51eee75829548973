"""Converts an agent to a model that actors run with LiteRT.

The converter takes the weights as constants. To find out where it puts each variable, the variables
are first filled with labels: distinct float32 values that occur nowhere else. The places of the
labels in the file are where actors write the weights of each parameter version.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from impala_tf.actor.network import ActingModel, LiteRtNetwork, Weights, input_name
from impala_tf.agents.agent import Agent, tensor_specs
from impala_tf.environments.observations import layout_of
from impala_tf.machine.process_output import silenced_stderr
from impala_tf.transport import NoNetwork
from impala_tf.types import EnvironmentSpec, Nest

# The bits of -8192.0. Labels count up from there, towards larger negative numbers.
_FIRST_LABEL = 0xC6000000
_TOLERANCE = 1e-3
# The converter folds the division of pixels by 255 into the weights of the first layer.
_SCALES = (np.float32(1), np.float32(1) / np.float32(255))


class ConversionError(Exception):
    """LiteRT cannot reproduce what TensorFlow computes for this network."""


def convert(agent: Agent, spec: EnvironmentSpec, num_envs: int) -> ActingModel:
    """Returns the agent's network for N environments, after checking its outputs.

    Args:
      agent: an agent that nothing else uses; its variables are overwritten.
      spec: the level's specification.
      num_envs: N.

    Raises:
      ConversionError: the network has operations that LiteRT lacks, or its outputs differ.
    """
    initial = [variable.numpy() for variable in agent.variables]
    labels = _labels(initial)
    _assign(agent, labels)
    model = _without_weights(whole_file(agent, spec, num_envs), labels)
    _assign(agent, initial)
    _check(model, agent, spec, num_envs)
    return model


def _assign(agent: Agent, arrays: Sequence[np.ndarray]) -> None:
    for variable, array in zip(agent.variables, arrays, strict=True):
        variable.assign(array)


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


def whole_file(agent: Agent, spec: EnvironmentSpec, num_envs: int = 1) -> bytes:
    """Returns the agent's network for N environments in LiteRT's file format, with its weights.

    Raises:
      ConversionError: the network has operations that LiteRT lacks.
    """
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
    try:
        with silenced_stderr():
            file: bytes = converter.convert()
    except Exception as error:  # the converter raises many types
        raise ConversionError(f"LiteRT cannot convert the network: {error}") from error
    return file


def _without_weights(file: bytes, labels: Sequence[np.ndarray]) -> ActingModel:
    data, weights = bytearray(file), []
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


def _check(model: ActingModel, agent: Agent, spec: EnvironmentSpec, num_envs: int) -> None:
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
        if not np.abs(output - tensor.numpy()).max() <= _TOLERANCE * scale:  # False for NaN, too
            raise ConversionError("the converted network answers differently")


def _noise(spec: tf.TensorSpec, rng: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    if dtype.kind == "f":
        return rng.standard_normal(spec.shape).astype(dtype)
    end = 256 if dtype == np.uint8 else 2  # an action, a flag or a word: 0 and 1 always exist
    return rng.integers(0, end, spec.shape).astype(dtype)


class NetworkService:
    """Converts the network, in a thread, once for each number of environments.

    Args:
      agent: an agent that nothing else uses; its variables are overwritten.
      spec: the level's specification.
    """

    def __init__(self, agent: Agent, spec: EnvironmentSpec) -> None:
        self._agent = agent
        self._spec = spec
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="convert")
        self._networks: dict[int, Future[bytes]] = {}

    def network(self, num_envs: int) -> Future[bytes]:
        """Returns the network for N environments; see `transport.Networks`.

        The future fails with NoNetwork if LiteRT cannot compute the network. Not thread-safe.
        """
        if num_envs not in self._networks:
            self._networks[num_envs] = self._thread.submit(self._convert, num_envs)
        return self._networks[num_envs]

    def _convert(self, num_envs: int) -> bytes:
        try:
            return convert(self._agent, self._spec, num_envs).to_bytes()
        except ConversionError as error:
            raise NoNetwork(str(error)) from error
