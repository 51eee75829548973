"""Encodes nests of tensors as lists of bytes, and decodes them, checked against specs. No pickle.

A tensor is sent as its raw elements: C order, little-endian, no header. The handshake fixes all
shapes and dtypes. Images are compressed: an Atari frame shrinks to a hundredth, which is also less
to encrypt. If there are fewer bytes than the elements need, they are a Zstandard frame.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tree
import zstandard

from impala_tf.transport.failures import DecodeError
from impala_tf.types import ArraySpec, Nest

_COMPRESSED_DTYPE = "uint8"
_COMPRESSED_BYTES = 4096  # smaller tensors are not compressed
_LEVEL = 1  # Zstandard's fastest
_MAX_WINDOW_BYTES = 2**23  # the memory that a decompressor may need besides its result
_DTYPE_NAMES = ("uint8", "bool", "int32", "int64", "float32")
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in _DTYPE_NAMES}


@dataclasses.dataclass(frozen=True)
class NamedSpec(ArraySpec):
    """The spec of an array that is sent, without leading N."""

    name: str  # its path in the nest, such as env_outputs.reward

    @classmethod
    def of(cls, name: str, shape: Sequence[int], dtype: Any) -> NamedSpec:
        """Returns a spec from NumPy's or TensorFlow's shapes and dtypes.

        Raises:
          ValueError: the dtype cannot be sent.
        """
        dtype = np.dtype(getattr(dtype, "as_numpy_dtype", dtype)).name
        if dtype not in DTYPES:
            raise ValueError(f"{name}: {dtype} cannot be sent, only {', '.join(DTYPES)}")
        return cls(tuple(int(size) for size in shape), dtype, name)

    @property
    def nbytes(self) -> int:
        """The uncompressed size of its elements, in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


def encode(spec: NamedSpec, array: Any, leading: tuple[int, ...] = ()) -> bytes:
    """Returns `array` [*leading, *spec.shape] as bytes; ValueError if it does not fit the spec."""
    array = np.asarray(array)
    if array.dtype != DTYPES[spec.dtype] or array.shape != leading + spec.shape:
        raise ValueError(
            f"{spec.name}: expected {spec.dtype}{list(leading + spec.shape)}, "
            f"got {array.dtype}{list(array.shape)}"
        )
    data = array.tobytes()
    if spec.dtype != _COMPRESSED_DTYPE or len(data) < _COMPRESSED_BYTES:
        return data
    compressed = zstandard.ZstdCompressor(_LEVEL).compress(data)
    return compressed if len(compressed) < len(data) else data


def decode(spec: NamedSpec, data: bytes, leading: tuple[int, ...] = ()) -> np.ndarray:
    """Returns a read-only array [*leading, *spec.shape], a view of `data` if possible.

    Raises: DecodeError if the bytes do not fit the spec.
    """
    shape = leading + spec.shape
    expected = math.prod(shape) * DTYPES[spec.dtype].itemsize
    if len(data) < expected and expected >= _COMPRESSED_BYTES and spec.dtype == _COMPRESSED_DTYPE:
        data = _decompress(spec, data, expected)
    if len(data) != expected:
        raise DecodeError(
            f"{spec.name}: expected {expected} bytes of {spec.dtype}{list(shape)}, got {len(data)}"
        )
    if spec.dtype == "bool" and data.translate(None, b"\x00\x01"):
        raise DecodeError(f"{spec.name}: expected bool, that is bytes of 0 or 1, got other bytes")
    return np.frombuffer(data, DTYPES[spec.dtype]).reshape(shape)


def _decompress(spec: NamedSpec, data: bytes, expected: int) -> bytes:
    """Returns `expected` bytes. It never allocates more, whatever the frame's header says."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size != expected:
            raise DecodeError(f"{spec.name}: expected {expected} compressed bytes, not {size}")
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        return decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DecodeError(f"{spec.name}: expected {expected} bytes, got {error}") from error


class NestCodec:
    """Encodes and decodes nests of one structure. All tensors share a leading dimension N.

    Args:
      nest: the specs, ArraySpec or tf.TensorSpec, without N.

    Attributes:
      specs: the specs in the order in which the tensors are sent.

    Raises:
      ValueError: a dtype cannot be sent; the message names it.
    """

    def __init__(self, nest: Nest) -> None:
        self._structure = nest
        self.specs = tuple(
            NamedSpec.of(".".join(map(str, path)), spec.shape, spec.dtype)
            for path, spec in tree.flatten_with_path(nest)
        )

    @property
    def nbytes(self) -> int:
        """The uncompressed size of one environment's tensors, in bytes."""
        return sum(spec.nbytes for spec in self.specs)

    def encode(self, nest: Nest) -> tuple[int, list[bytes]]:
        """Returns (N, tensors) for a nest of arrays; ValueError names one that does not fit."""
        tree.assert_same_structure(self._structure, nest)
        arrays = tree.flatten(nest)
        n = (*np.shape(arrays[0]), 1)[0]  # `encode` refuses a scalar, whose shape is not [1]
        encoded = [encode(s, array, (n,)) for s, array in zip(self.specs, arrays, strict=True)]
        return n, encoded

    def decode(self, n: int, tensors: Sequence[bytes]) -> Nest:
        """Returns a nest of read-only arrays [N, ...]; DecodeError names what does not fit."""
        if n < 1:
            raise DecodeError(f"expected unrolls of 1 environment or more, got {n}")
        if len(tensors) != len(self.specs):
            raise DecodeError(f"expected {len(self.specs)} tensors, got {len(tensors)}")
        arrays = [decode(s, data, (n,)) for s, data in zip(self.specs, tensors, strict=True)]
        return tree.unflatten_as(self._structure, arrays)
