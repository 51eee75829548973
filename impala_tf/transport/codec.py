"""Nests of tensors <-> lists of bytes, checked against specs. Nothing is ever unpickled.

A tensor is sent as its raw elements: C order, little-endian, no header. The handshake fixes their
shapes and dtypes once. Images are compressed: an Atari frame is a hundredth of its size then, and
less work to encrypt. Bytes that are fewer than the elements need are a Zstandard frame.

float32 can be sent as bfloat16, its upper half: such a tensor is float32 on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tree
import zstandard

from impala_tf.transport.errors import DecodeError
from impala_tf.types import Nest

_COMPRESSED_DTYPE = "uint8"
_COMPRESSED_BYTES = 4096  # from here on
_LEVEL = 1  # of Zstandard: the fastest
_MAX_WINDOW_BYTES = 2**23  # what a decompressor may need besides its result
_DTYPE_NAMES = ("uint8", "bool", "int32", "int64", "float32")
_BFLOAT16 = "bfloat16"
DTYPES = {
    **{name: np.dtype(name).newbyteorder("<") for name in _DTYPE_NAMES},
    _BFLOAT16: np.dtype("<u2"),  # its bits: NumPy has no such dtype
}


class TensorSpec(NamedTuple):
    """One tensor: its field path, its shape without leading N, its dtype by NumPy's name."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, name: str, shape: Sequence[int], dtype: Any) -> TensorSpec:
        """Takes NumPy's or TensorFlow's shapes and dtypes; ValueError names what cannot be sent."""
        is_bfloat16 = isinstance(dtype, str) and dtype == _BFLOAT16
        numpy_dtype = np.float32 if is_bfloat16 else getattr(dtype, "as_numpy_dtype", dtype)
        dtype_name = _BFLOAT16 if is_bfloat16 else np.dtype(numpy_dtype).name
        if dtype_name not in DTYPES:
            raise ValueError(f"{name}: {dtype_name} cannot be sent, only {', '.join(DTYPES)}")
        if any(size is None for size in shape):
            raise ValueError(f"{name}: every dimension must be known, got {tuple(shape)}")
        return cls(name, tuple(int(size) for size in shape), dtype_name)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements, uncompressed."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


def encode(spec: TensorSpec, array: Any, leading: tuple[int, ...] = ()) -> bytes:
    """Returns the bytes of `array` [*leading, *spec.shape]; ValueError if it is anything else."""
    array = np.asarray(array)
    if spec.dtype == _BFLOAT16 and array.dtype == np.float32:
        array = _bfloat16_bits(array)
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


def decode(spec: TensorSpec, data: bytes, leading: tuple[int, ...] = ()) -> np.ndarray:
    """Returns read-only [*leading, *spec.shape], a view of `data` if it can be one.

    Raises: DecodeError if it does not fit.
    """
    shape = leading + spec.shape
    expected = math.prod(shape) * DTYPES[spec.dtype].itemsize
    if len(data) < expected and _may_be_compressed(spec, expected):
        data = _decompress(spec, data, expected)
    if len(data) != expected:
        raise DecodeError(
            f"{spec.name}: expected {expected} bytes of {spec.dtype}{list(shape)}, got {len(data)}"
        )
    if spec.dtype == "bool" and data.translate(None, b"\x00\x01"):
        raise DecodeError(f"{spec.name}: expected bool, that is bytes of 0 or 1, got other bytes")
    array = np.frombuffer(data, DTYPES[spec.dtype]).reshape(shape)
    return _from_bfloat16_bits(array) if spec.dtype == _BFLOAT16 else array


def _bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """Rounds finite float32 to the nearest bfloat16, uint16; ties to the even one."""
    bits = np.ascontiguousarray(array, "<f4").view("<u4")
    odd = (bits >> 16) & 1
    return ((bits + odd + 0x7FFF) >> 16).astype(DTYPES[_BFLOAT16])


def _from_bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    array = (bits.astype("<u4") << 16).view("<f4")
    array.setflags(write=False)
    return array


def _may_be_compressed(spec: TensorSpec, expected: int) -> bool:
    return spec.dtype == _COMPRESSED_DTYPE and expected >= _COMPRESSED_BYTES


def _decompress(spec: TensorSpec, data: bytes, expected: int) -> bytes:
    """Returns `expected` bytes; never allocates more, whatever a frame says about itself."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size != expected:
            raise DecodeError(f"{spec.name}: expected {expected} compressed bytes, not {size}")
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        return decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DecodeError(f"{spec.name}: expected {expected} bytes, got {error}") from error


def decode_all(
    specs: Sequence[TensorSpec], tensors: Sequence[bytes], leading: tuple[int, ...] = ()
) -> list[np.ndarray]:
    """Decodes a list of tensors; DecodeError also if their number differs."""
    if len(tensors) != len(specs):
        raise DecodeError(f"expected {len(specs)} tensors, got {len(tensors)}")
    return [decode(spec, data, leading) for spec, data in zip(specs, tensors, strict=True)]


class NestCodec:
    """Encodes and decodes nests of one structure; all tensors share a leading dimension N."""

    def __init__(self, nest: Nest) -> None:
        """Takes the structure of `nest`; its leaves are (shape, dtype) or tf.TensorSpec, without N.

        Raises: ValueError naming a leaf that is neither, or has a dtype that cannot be sent.
        """
        leaves: list[tuple[str, Any, Any]] = []

        def index_of_leaf(path: tuple[str | int, ...], node: Any) -> int | None:
            leaf = _shape_and_dtype(node)
            if leaf is None:
                return None
            leaves.append((".".join(map(str, path)), *leaf))
            return len(leaves) - 1

        self._structure = tree.traverse_with_path(index_of_leaf, nest)
        if not leaves or tree.flatten(self._structure) != list(range(len(leaves))):
            raise ValueError(f"expected (shape, dtype) at every leaf, got {nest}")
        self.specs = tuple(TensorSpec.of(*leaf) for leaf in leaves)

    @property
    def nbytes(self) -> int:
        """The bytes of one environment's tensors."""
        return sum(spec.nbytes for spec in self.specs)

    def encode(self, nest: Nest) -> tuple[int, list[bytes]]:
        """Returns (N, tensors) of a nest of arrays; ValueError names the one that does not fit."""
        tree.assert_same_structure(self._structure, nest, check_types=False)
        arrays = tree.flatten(nest)
        n = (*np.shape(arrays[0]), 1)[0]  # a scalar is refused below, as not [1]
        encoded = [encode(s, array, (n,)) for s, array in zip(self.specs, arrays, strict=True)]
        return n, encoded

    def decode(self, n: int, tensors: Sequence[bytes]) -> Nest:
        """Returns a nest of read-only arrays [N, ...]; DecodeError names what does not fit."""
        if n < 1:
            raise DecodeError(f"expected unrolls of 1 environment or more, got {n}")
        return tree.unflatten_as(self._structure, decode_all(self.specs, tensors, (n,)))


def _shape_and_dtype(node: Any) -> tuple[Any, Any] | None:
    """Returns the shape and dtype of a leaf, None for an inner node."""
    if hasattr(node, "shape") and hasattr(node, "dtype"):
        return node.shape, node.dtype
    if type(node) is tuple and len(node) == 2 and _is_dtype(node[1]):
        return node
    return None


def _is_dtype(value: Any) -> bool:
    return isinstance(value, (str, type, np.dtype)) or hasattr(value, "as_numpy_dtype")
