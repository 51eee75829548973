"""Parameters as int8: a quarter of the bytes, and LiteRT's fastest products.

Each output of a layer has its own scale s: w is sent as round(w / s), with s = max |w| / 127 over
the weights of that output. Outputs are the last axis of a variable.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from impala_tf.transport.errors import DecodeError
from impala_tf.types import ArraySpec

_LARGEST = 127


class Quantized(NamedTuple):
    """A float32 array [..., C], represented as `values * scales`."""

    values: np.ndarray  # int8 [..., C], -127 to 127
    scales: np.ndarray  # float32 [C]


Parameter = np.ndarray | Quantized
"""A parameter as an actor gets it."""


def quantize(array: np.ndarray) -> Quantized:
    """Quantizes a finite float32 array [..., C] to int8."""
    rows = array.reshape(-1, array.shape[-1])
    largest = np.maximum(rows.max(axis=0), -rows.min(axis=0))
    scales = (largest / _LARGEST).astype(np.float32)
    # Where all weights are 0 or tiny, the values are 0.
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 1e-30)
    values = np.rint(rows * inverse).astype(np.int8)
    return Quantized(values.reshape(array.shape), scales)


def can_quantize(spec: ArraySpec) -> bool:
    """Returns whether an array looks like a layer's weights."""
    return spec.dtype in ("float32", "bfloat16") and len(spec.shape) >= 2 and 0 not in spec.shape


def encode_quantized(array: np.ndarray) -> bytes:
    """Encodes a float32 array [..., C] as int8: the bytes of its values, then of its scales."""
    values, scales = quantize(array)
    return values.tobytes() + scales.astype("<f4").tobytes()


def decode_quantized(spec: ArraySpec, data: bytes) -> Quantized:
    """Decodes what `encode_quantized` returned, as read-only views.

    Raises:
      DecodeError: the size is wrong, or a scale is not finite.
    """
    size = math.prod(spec.shape)
    expected = size + 4 * spec.shape[-1]
    if len(data) != expected:
        raise DecodeError(f"expected {expected} bytes of int8{list(spec.shape)}, got {len(data)}")
    scales = np.frombuffer(data, "<f4", offset=size)
    if not np.isfinite(scales).all():
        raise DecodeError(f"the scales of int8{list(spec.shape)} are not finite")
    return Quantized(np.frombuffer(data, np.int8, size).reshape(spec.shape), scales)
