"""What a learner gives its actors, so that they can act without TensorFlow."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import zstandard

# A network without its weights has a few KB.
_LONGEST = 64 * 2**20
_LENGTH_BYTES = 4


class Weights(NamedTuple):
    """Where the values of a variable belong in the model's file, float32."""

    variable: int  # index among the agent's
    offset: int  # of the first byte
    axes: tuple[int, ...]  # the file holds the variable transposed to these
    scale: float = 1.0  # and multiplied by this, float32


class ActingModel(NamedTuple):
    """A network for N environments, in LiteRT's file format, with zeros where its weights belong.

    Inputs are named by `input_name`. They are the flat arrays of an
    EnvOutput as the network sees it, and of the core state before the step. Those that the network
    does not use may be missing. Its outputs are the policy's logits (Q-values) and the flat arrays
    of the core state after the step.
    """

    file: bytes
    weights: tuple[Weights, ...]

    def to_bytes(self) -> bytes:
        """Returns the model as it is sent: a few KB."""
        header = json.dumps(self.weights).encode()
        data = len(header).to_bytes(_LENGTH_BYTES, "big") + header + self.file
        return zstandard.compress(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> ActingModel:
        """Returns the model that `to_bytes` returned."""
        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=_LONGEST)
        start = _LENGTH_BYTES + int.from_bytes(text[:_LENGTH_BYTES], "big")
        weights = json.loads(text[_LENGTH_BYTES:start])
        return cls(
            text[start:],
            tuple(Weights(v, o, tuple(axes), scale) for v, o, axes, scale in weights),
        )


def input_name(index: int) -> str:
    """Returns how an input is called when the model is made."""
    return f"input{index}_"


def input_number(name: str) -> int:
    """Returns the index of an input whose name in the file is `name`: made of `input_name`."""
    found = re.search(r"input(\d+)_", name)
    assert found is not None, name
    return int(found[1])
