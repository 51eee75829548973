"""Runs a converted network, without TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import tree
from ai_edge_litert.interpreter import Interpreter

from impala_tf.actor.model import ActingModel, input_number
from impala_tf.agents.sampling import Sampler
from impala_tf.environments.observations import ObservationLayout
from impala_tf.machine.silence import silenced_stderr
from impala_tf.types import AgentOutput, EnvOutput, Nest

_is_announced = False


class LiteRtNetwork:
    """Maps the flat inputs of an ActingModel to its flat outputs. Computes on one thread."""

    def __init__(self, model: ActingModel) -> None:
        self._file = bytearray(model.file)
        self._weights = model.weights
        self._interpreter: Interpreter | None = None
        self._inputs: list[tuple[int, int]] = []  # index in the interpreter, index of the input
        self._outputs: list[int] = []

    def set_parameters(self, arrays: Sequence[np.ndarray]) -> None:
        """Takes new parameters, float32, in the agent's variable order."""
        for variable, offset, axes, scale in self._weights:
            array = arrays[variable].transpose(axes)
            place = np.frombuffer(self._file, np.float32, array.size, offset)
            np.multiply(array, np.float32(scale), out=place.reshape(array.shape))
        # LiteRT packs the weights when it is told to allocate, which takes about a millisecond.
        self._interpreter = None
        with _announced():
            self._interpreter = Interpreter(model_content=bytes(self._file), num_threads=1)
            self._interpreter.allocate_tensors()
        self._inputs = [
            (each["index"], input_number(each["name"]))
            for each in self._interpreter.get_input_details()
        ]
        self._outputs = [each["index"] for each in self._interpreter.get_output_details()]

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the outputs; `set_parameters` comes first."""
        assert self._interpreter is not None
        for index, number in self._inputs:
            self._interpreter.set_tensor(index, inputs[number])
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index) for index in self._outputs]


class LiteRtPolicy:
    """A converted network as what an actor acts with (see `acting.Network`).

    Args:
      model: for as many environments as the actor has.
      layout: of the level's observations.
      sample: draws actions from what the network computes.
    """

    def __init__(self, model: ActingModel, layout: ObservationLayout, sample: Sampler) -> None:
        self._network = LiteRtNetwork(model)
        self._layout = layout
        self._sample = sample

    def set_parameters(self, arrays: list[np.ndarray]) -> None:
        """See `acting.Network`."""
        self._network.set_parameters(arrays)

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """See `acting.Network`."""
        seen = self._layout.to_network(env_output)
        logits, *state = self._network(tree.flatten((seen, core_state)))
        return AgentOutput(self._sample(logits), logits), tree.unflatten_as(core_state, state)


def _announced() -> contextlib.AbstractContextManager[None]:
    """Returns a context that swallows what LiteRT prints when a process uses it first."""
    global _is_announced
    if _is_announced:
        return contextlib.nullcontext()
    _is_announced = True
    return silenced_stderr()
