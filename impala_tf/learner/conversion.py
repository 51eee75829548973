"""Converts an agent to a model that actors run with LiteRT.

The converter takes the weights as constants. To find where it puts those of each variable, the
variables are filled with labels, float32 values that are all different and occur nowhere else;
their places in the file are where actors write the weights of every parameter version.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import numpy as np
import tensorflow as tf

from impala_tf.actor.network import ActingModel, LiteRtNetwork, Weights, input_name
from impala_tf.agents.agent import Agent
from impala_tf.agents.inputs import tensor_specs
from impala_tf.environments.observations import layout_of
from impala_tf.machine.silence import silenced_stderr
from impala_tf.transport import NoNetwork
from impala_tf.types import EnvironmentSpec, Nest

# The bits of -8192.0. Labels go on from there, towards larger negative numbers.
_FIRST_LABEL = 0xC6000000
_TOLERANCE = 1e-3
Precision = Literal["float32", "float16", "int8"]
# The converter moves the division of pixels by 255 into the weights of the first layer.
_SCALES = (np.float32(1), np.float32(1) / np.float32(255))


class ConversionError(Exception):
    """LiteRT cannot compute this network as TensorFlow does."""


def convert(agent: Agent, spec: EnvironmentSpec, num_envs: int) -> ActingModel:
    """Returns the agent's network for N environments, and makes sure that it answers equally.

    Args:
      agent: used by this alone; its variables are overwritten.
      spec: the level's specification.
      num_envs: N.

    Raises:
      ConversionError: the network has operations that LiteRT lacks, or answers differently.
    """
    initial = [variable.numpy() for variable in agent.variables]
    labels = _labels(initial)
    for variable, label in zip(agent.variables, labels, strict=True):
        variable.assign(label)
    file = _file(agent, spec, num_envs)
    model = _without_weights(file, labels)
    for variable, array in zip(agent.variables, initial, strict=True):
        variable.assign(array)
    _check(model, agent, spec, num_envs)
    return model


def whole_file(agent: Agent, spec: EnvironmentSpec, precision: Precision) -> bytes:
    """Returns the agent's network for one environment in LiteRT's file format, with its weights.

    Args:
      agent: its variables are read.
      spec: the level's specification.
      precision: what the file stores weights in. LiteRT computes in float32, but for products with
        int8 weights, whose other factor it rounds to int8, too.

    Raises:
      ConversionError: the network has operations that LiteRT lacks.
    """
    return _file(agent, spec, 1, precision)


def _labels(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns arrays of the same shapes; those that are not float32 are returned as they are."""
    found, first = [], _FIRST_LABEL
    for array in arrays:
        if array.dtype == np.float32:
            bits = np.arange(first, first + array.size, dtype=np.uint32)
            array = bits.view(np.float32).reshape(array.shape)
            first += array.size
        found.append(array)
    return found


def _inputs(agent: Agent, spec: EnvironmentSpec, num_envs: int) -> tuple[Nest, Nest]:
    """Returns the specs of an EnvOutput as the network sees it, and of the core state."""
    state = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), agent.initial_state(num_envs)
    )
    return tensor_specs(layout_of(spec).network_specs(num_envs)), state


def _file(
    agent: Agent, spec: EnvironmentSpec, num_envs: int, precision: Precision = "float32"
) -> bytes:
    inputs = _inputs(agent, spec, num_envs)
    signature = [
        tf.TensorSpec(each.shape, each.dtype, name=input_name(index))
        for index, each in enumerate(tf.nest.flatten(inputs))
    ]

    @tf.function(input_signature=signature, autograph=False)
    def act(*flat: tf.Tensor) -> tuple[tf.Tensor, ...]:
        env_output, core_state = tf.nest.pack_sequence_as(inputs, flat)
        outputs, core_state = agent.step(env_output, core_state)
        return (outputs.policy_logits, *tf.nest.flatten(core_state))

    converter = tf.lite.TFLiteConverter.from_concrete_functions([act.get_concrete_function()], act)
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    try:
        with silenced_stderr():
            file: bytes = converter.convert()
    except Exception as error:  # whatever the converter raises
        raise ConversionError(f"LiteRT cannot convert the network: {error}") from error
    return file


def _without_weights(file: bytes, labels: Sequence[np.ndarray]) -> ActingModel:
    words = np.frombuffer(file, np.uint32, len(file) // 4).copy()
    weights = []
    for (index, label), scale in itertools.product(enumerate(labels), _SCALES):
        if label.dtype != np.float32 or not label.size:
            continue
        scaled = label * scale
        for start in _places(words, scaled):
            block = words[start : start + label.size]
            axes = _axes(block.view(np.float32), scaled)
            weights.append(Weights(index, 4 * start, axes, float(scale)))
            block[:] = 0
    return ActingModel(words.tobytes() + file[4 * len(words) :], tuple(weights))


def _places(words: np.ndarray, label: np.ndarray) -> list[int]:
    """Returns where whole blocks of a variable's labels begin."""
    bits = label.reshape(-1).view(np.uint32)
    found = np.flatnonzero((words >= bits[0]) & (words <= bits[-1]))
    # A word by itself that looks like a label is something else.
    runs = np.split(found, np.flatnonzero(np.diff(found) != 1) + 1)
    return [
        int(run[start]) for run in runs for start in range(0, len(run) - label.size + 1, label.size)
    ]


def _axes(block: np.ndarray, label: np.ndarray) -> tuple[int, ...]:
    for axes in itertools.permutations(range(label.ndim)):
        if np.array_equal(label.transpose(axes).reshape(-1), block):
            return axes
    raise ConversionError(f"the weights of a variable {label.shape} are in an unknown order")


def _check(model: ActingModel, agent: Agent, spec: EnvironmentSpec, num_envs: int) -> None:
    """Raises ConversionError if the network answers differently than the agent."""
    rng = np.random.default_rng(0)
    specs = _inputs(agent, spec, num_envs)
    inputs = tf.nest.map_structure(lambda each: _noise(each, rng), specs)
    tensors = tf.nest.map_structure(tf.constant, inputs)
    outputs, core_state = agent.step(*tensors)
    expected = [outputs.policy_logits, *tf.nest.flatten(core_state)]
    network = LiteRtNetwork(model)
    network.set_parameters([variable.numpy() for variable in agent.variables])
    for got, wanted in zip(network(tf.nest.flatten(inputs)), expected, strict=True):
        scale = max(1.0, float(np.abs(wanted).max()))
        if not np.abs(got - wanted.numpy()).max() <= _TOLERANCE * scale:
            raise ConversionError("the converted network answers differently")


def _noise(spec: tf.TensorSpec, rng: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    if dtype.kind == "f":
        return rng.standard_normal(spec.shape).astype(dtype)
    most = 256 if dtype == np.uint8 else 2  # an action, a flag or a word: 0 and 1 always exist
    return rng.integers(0, most, spec.shape).astype(dtype)


class NetworkService:
    """Converts the network once for each number of environments, in a thread of its own.

    Args:
      agent: used by this alone; its variables are overwritten.
      spec: the level's specification.
    """

    def __init__(self, agent: Agent, spec: EnvironmentSpec) -> None:
        self._agent = agent
        self._spec = spec
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="convert")
        self._networks: dict[int, Future[bytes]] = {}

    def network(self, num_envs: int) -> Future[bytes]:
        """Returns the network for N environments; see `transport.Networks`. Call it in one thread.

        Fails with NoNetwork if LiteRT cannot compute it.
        """
        if num_envs not in self._networks:
            self._networks[num_envs] = self._thread.submit(self._convert, num_envs)
        return self._networks[num_envs]

    def _convert(self, num_envs: int) -> bytes:
        try:
            return convert(self._agent, self._spec, num_envs).to_bytes()
        except ConversionError as error:
            raise NoNetwork(str(error)) from error
