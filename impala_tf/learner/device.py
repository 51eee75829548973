"""What a learner does differently on a GPU: it compiles more and copies less.

Launching an operation takes longer than most operations of a small network, and the learner shares
the machine's cores with actors. So the number of operations and copies limits its speed on a GPU,
not their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from impala_tf.lazy import tf

F = TypeVar("F", bound=Callable[..., Any])


def on_gpu() -> bool:
    """Returns whether this process computes on a GPU (see --device)."""
    return bool(tf.config.get_visible_devices("GPU"))


def compiled(function: F) -> F:
    """Returns a function of tensors unchanged; on a GPU, compiled by XLA to one program."""
    if not on_gpu():
        return function
    return cast(F, tf.function(function, autograph=False, jit_compile=True))


class Values:
    """Copies the values of variables. If all have the same dtype, a GPU needs only one copy.

    Args:
      variables: the variables, whose shapes must not change.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._variables = variables
        self._sizes = [math.prod(variable.shape) for variable in variables]
        self._joins = on_gpu() and len({variable.dtype for variable in variables}) == 1
        self._joined = tf.function(self._join, autograph=False)

    def __call__(self) -> list[np.ndarray]:
        """Returns a copy of every variable's value."""
        if not self._joins:
            return [variable.numpy() for variable in self._variables]
        parts = np.split(self._joined().numpy(), np.cumsum(self._sizes)[:-1])
        return [
            part.reshape(variable.shape)
            for part, variable in zip(parts, self._variables, strict=True)
        ]

    def _join(self) -> tf.Tensor:
        return tf.concat([tf.reshape(variable, [-1]) for variable in self._variables], axis=0)
