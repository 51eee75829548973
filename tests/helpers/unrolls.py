"""Random unrolls. Without TensorFlow, so that tests of the transport start quickly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import tree

from impala_tf.types import EnvOutput, Unroll

Specs = TypeVar("Specs", Unroll, EnvOutput)


def random_array(spec: Any, leading: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Returns an array [*leading, *shape] for a TensorSpec of TensorFlow or of the codec.

    Floats are normal, some beyond every clip; bools are seldom True; integers are pixels (uint8) or
    one of three actions.
    """
    shape = (*leading, *spec.shape)
    dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
    if dtype == np.bool_:
        return rng.random(shape) < 0.2
    if dtype.kind == "f":
        return (2 * rng.normal(size=shape)).astype(dtype)
    return rng.integers(0, 256 if dtype == np.uint8 else 3, shape, dtype)


def random_unrolls(specs: Specs, count: int, seed: int | Sequence[int] = 0) -> Specs:
    """Returns `count` unrolls, or their environments' part: arrays [count, ...] for the specs."""
    rng = np.random.default_rng(seed)
    unrolls: Specs = tree.map_structure(lambda spec: random_array(spec, (count,), rng), specs)
    if isinstance(unrolls, Unroll):  # of the only level
        unrolls = unrolls._replace(level=np.zeros_like(unrolls.level))
    return unrolls
