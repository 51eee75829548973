"""An actor's network without TensorFlow: how the learner sends it, and how it runs."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tree
import zstandard
from ai_edge_litert.interpreter import Interpreter

from impala_tf.agents.sampling import Sampler
from impala_tf.environments.observations import ObservationLayout
from impala_tf.machine.process_output import silenced_stderr
from impala_tf.types import AgentOutput, EnvOutput, Nest

_LENGTH_BYTES = 4
_is_announced = False


class Weights(NamedTuple):
    """Where a variable's values, float32, are in the model's file."""

    variable: int  # index among the agent's variables
    offset: int  # of the first byte
    axes: tuple[int, ...]  # the file holds the variable transposed to these axes
    scale: float = 1.0  # and multiplied by this float32


class ActingModel(NamedTuple):
    """A network for N environments, in LiteRT's file format, with zeros where its weights belong.

    Inputs are named by `input_name`. They are the flattened arrays of an EnvOutput as the network
    sees it, and of the core state before the step. Inputs that the network does not use may be
    missing. The outputs are the policy's logits (or Q-values) and the flattened arrays of the core
    state after the step.
    """

    file: bytes
    weights: tuple[Weights, ...]

    def to_bytes(self) -> bytes:
        """Returns the model as it is sent: compressed, a few KB."""
        header = json.dumps(self.weights).encode()
        data = len(header).to_bytes(_LENGTH_BYTES, "big") + header + self.file
        return zstandard.compress(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> ActingModel:
        """Returns the model that `to_bytes` returned."""
        content = zstandard.decompress(data)
        start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
        weights = json.loads(content[_LENGTH_BYTES:start])
        return cls(
            content[start:],
            tuple(Weights(v, o, tuple(axes), *rest) for v, o, axes, *rest in weights),
        )

    @property
    def used(self) -> list[int]:
        """Indices of the variables that the file holds, ascending. The baseline's are not there."""
        return sorted({weights.variable for weights in self.weights})


def input_name(index: int) -> str:
    """Returns the name that the converter gives to an input."""
    return f"input{index}_"


class LiteRtNetwork:
    """Maps the flat inputs of an ActingModel to its flat outputs. Computes on one thread."""

    def __init__(self, model: ActingModel) -> None:
        self._file = bytearray(model.file)
        self._weights = model.weights
        self._interpreter: Interpreter | None = None
        self._inputs: list[tuple[int, int]] = []  # index in the interpreter, index of the input
        self._outputs: list[int] = []

    def set_parameters(self, arrays: Sequence[np.ndarray | None]) -> None:
        """Replaces the parameters, which are given in the agent's variable order.

        Those that `ActingModel.used` does not name may be None.
        """
        for weights in self._weights:
            parameter = arrays[weights.variable]
            assert parameter is not None
            array = parameter.transpose(weights.axes)
            place = np.frombuffer(self._file, np.float32, array.size, weights.offset)
            np.multiply(array, np.float32(weights.scale), out=place.reshape(array.shape))
        # LiteRT packs the weights only when it allocates, so each version needs a new interpreter:
        # about a millisecond.
        self._interpreter = None
        with _announced():
            self._interpreter = Interpreter(model_content=bytes(self._file), num_threads=1)
            self._interpreter.allocate_tensors()
        self._inputs = [
            (tensor["index"], _input_number(tensor["name"]))
            for tensor in self._interpreter.get_input_details()
        ]
        self._outputs = [tensor["index"] for tensor in self._interpreter.get_output_details()]

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the outputs. Call `set_parameters` first."""
        assert self._interpreter is not None
        for index, number in self._inputs:
            self._interpreter.set_tensor(index, inputs[number])
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index) for index in self._outputs]


class LiteRtPolicy(LiteRtNetwork):
    """A converted network that an actor acts with: an `acting.Network`.

    Args:
      model: a model for the actor's number of environments.
      layout: the layout of the level's observations.
      sample: draws actions from the network's logits.
    """

    def __init__(self, model: ActingModel, layout: ObservationLayout, sample: Sampler) -> None:
        super().__init__(model)
        self._layout = layout
        self._sample = sample

    def answer(self, env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
        """Returns an answer and the core state after it, as `acting.Acting.answer` does."""
        inputs = self._layout.to_network(env_output)
        logits, *state = self(tree.flatten((inputs, core_state)))
        return AgentOutput(self._sample(logits), logits), tree.unflatten_as(core_state, state)


def _announced() -> contextlib.AbstractContextManager[None]:
    """Returns a context that hides what LiteRT prints on the first use in a process."""
    global _is_announced
    if _is_announced:
        return contextlib.nullcontext()
    _is_announced = True
    return silenced_stderr()


def _input_number(name: str) -> int:
    """Returns the index of an input from its name in the file, which contains `input_name`."""
    number = re.search(r"input(\d+)_", name)
    assert number is not None, name
    return int(number[1])
