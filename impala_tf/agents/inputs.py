"""Observations as the network sees them: in its own layout, and normalised."""

from __future__ import annotations

import functools
from collections.abc import Callable

import sonnet as snt
import tensorflow as tf

from impala_tf.environments.observations import ObservationLayout
from impala_tf.types import EnvOutput, Nest

_BYTES_PER_WORD = 4  # of uint32
_SCREEN = 32
"""Pixels. Images with a shorter side hold codes, not a scene. In MiniGrid, most cells are 1, goal
and lava 8 and 9."""
_SCREEN_LIMIT, _CODES_LIMIT, _VECTOR_LIMIT = 5.0, 20.0, 10.0  # in standard deviations
# Added to variances. The unit of images is their whole range, so theirs is (0.8 grey levels)^2. For
# vectors, it is the one of Gymnasium and Stable-Baselines3.
_IMAGE_EPSILON, _VECTOR_EPSILON = 1e-5, 1e-8


def tensor_specs(specs: Nest) -> Nest:
    """Converts a nest of ArraySpec, or of tensors, to a nest of tf.TensorSpec."""
    return tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), specs)


def to_network(layout: ObservationLayout, env_output: EnvOutput) -> EnvOutput:
    """Converts a step [N, ...] of the environments to what the network sees."""
    if not layout.stacks_frames:
        return env_output
    return env_output._replace(observation=channels_last(env_output.observation))


def time_major(layout: ObservationLayout, env_outputs: EnvOutput) -> EnvOutput:
    """Converts a batch of unrolls [B, ...] to what the network sees, [T + 1, B, ...].

    T must be known when the graph is built.
    """
    swapped = {
        name: tf.nest.map_structure(swap_batch_and_time, field)
        for name, field in env_outputs._asdict().items()
        if not (name == "observation" and layout.stacks_frames)
    }
    if layout.stacks_frames:
        swapped["observation"] = rebuild_stacks(env_outputs.observation, env_outputs.autoreset)
    return EnvOutput(**swapped)


def swap_batch_and_time(tensor: tf.Tensor) -> tf.Tensor:
    """Transposes [B, T, ...] to [T, B, ...]."""
    return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])


# XLA makes one vectorised pass: 0.2 ms for 32 stacks of four frames. TensorFlow's transpose, byte
# by byte, takes 0.7 ms.
@tf.function(jit_compile=True, autograph=False)
def channels_last(stacks: tf.Tensor) -> tf.Tensor:
    """Transposes stacks of frames, uint8 [N, K, H, W], to uint8 [N, H, W, K]."""
    if stacks.shape[1] != _BYTES_PER_WORD:
        return tf.transpose(stacks, [0, 2, 3, 1])
    pixels = tf.cast(stacks, tf.uint32)
    words = tf.zeros([], tf.uint32)
    for k in range(_BYTES_PER_WORD):  # channel k is byte k of a word, from the lowest
        words += tf.bitwise.left_shift(pixels[:, k], tf.constant(8 * k, tf.uint32))
    return tf.bitcast(words, tf.uint8)


# XLA fuses the sum below into one pass over the result: 2 ms for 32 unrolls of 20 steps. tf.stack
# of the same frames takes 20 ms.
@tf.function(jit_compile=True, autograph=False)
def rebuild_stacks(frames: tf.Tensor, autoreset: tf.Tensor) -> tf.Tensor:
    """Returns every step's stack of frames, exactly as the environment gave it, time-major.

    T + 1 and T + K must be known when the graph is built.

    Args:
      frames: uint8 [B, T + K, H, W], packed as in `environments.observations`.
      autoreset: bool [B, T + 1].

    Returns:
      uint8 [T + 1, B, H, W, K].
    """
    steps = autoreset.shape[1]
    num_frames = frames.shape[1] - steps + 1
    frames = tf.transpose(frames, [1, 0, 2, 3])[..., tf.newaxis]
    # Frame t + k belongs to step t's game if no reset lies between them: equal reset counts.
    resets = tf.cumsum(tf.cast(tf.transpose(autoreset), tf.int32))
    resets_by_frame = tf.pad(resets, [[num_frames - 1, 0], [0, 0]])
    stack = tf.zeros([], tf.uint8)
    for k in range(num_frames):
        same_game = tf.cast(resets_by_frame[k : k + steps] == resets, tf.uint8)
        in_channel_k = tf.one_hot(k, num_frames, dtype=tf.uint8)
        stack += frames[k : k + steps] * (same_game[..., None, None, None] * in_channel_k)
    return stack


class ObservationNormalizer(snt.Module):
    """clip((observation - mean) / standard deviation, -limit, limit), element by element.

    The limit is 5 for images, 10 for vectors, and 20 for images of codes.

    Mean and standard deviation are variables that are not trained: the learner estimates them (see
    `learner.moments`) and sends them to actors with the parameters. Until then, images are
    scaled to [0, 1] and vectors are unchanged.

    Args:
      shape: an observation's shape.
      dtype: "uint8" or "float32".

    Attributes:
      lasting: whether the statistics cover the whole run. Those of vectors do, because they change
        while a policy learns to reach new places. Pixels stay in their range, and cost more to sum.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__()
        self._unit = 255.0 if dtype == "uint8" else 1.0
        self._limit = _VECTOR_LIMIT
        if dtype == "uint8":
            self._limit = _CODES_LIMIT if min(shape[:2]) < _SCREEN else _SCREEN_LIMIT
        self.lasting = dtype != "uint8"
        self.mean = tf.Variable(tf.zeros(shape), trainable=False, name="mean")
        self.inverse_std = tf.Variable(
            tf.fill(shape, 1.0 / self._unit), trainable=False, name="inverse_std"
        )

    def __call__(self, observations: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Maps observations [M, *shape] to floats of `dtype`, of the same shape."""
        normalized = _compiled(tuple(self.mean.shape))
        return normalized(observations, self.mean, self.inverse_std, self._limit, dtype)

    def set(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Sets the statistics, float32 [*shape], in the observation's units."""
        self.mean.assign(mean)
        epsilon = _VECTOR_EPSILON if self.lasting else _IMAGE_EPSILON * self._unit**2
        self.inverse_std.assign(tf.math.rsqrt(variance + epsilon))


@functools.cache
def _compiled(shape: tuple[int, ...]) -> Callable[..., tf.Tensor]:
    """Returns `_normalized`, compiled to one pass over the observations instead of four.

    Each shape has its own function, because TensorFlow warns if one function is retraced for the
    shapes of several agents. It identifies functions by their code; a partial has none.

    Args:
      shape: an observation's shape.
    """
    partial = functools.partial(_normalized)
    compiled: Callable[..., tf.Tensor] = tf.function(partial, jit_compile=True, autograph=False)
    return compiled


def _normalized(
    observations: tf.Tensor,
    mean: tf.Tensor,
    inverse_std: tf.Tensor,
    limit: float,
    dtype: tf.DType,
) -> tf.Tensor:
    normalized = (tf.cast(observations, tf.float32) - mean) * inverse_std
    return tf.cast(tf.clip_by_value(normalized, -limit, limit), dtype)
