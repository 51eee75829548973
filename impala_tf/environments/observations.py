"""The layouts of observations, in NumPy and in TensorFlow. Only this module knows them.

An observation, or each of its parts, has a different layout at each stage. [*shape] is
`ObservationSpec.shape`:

    from the environment   uint8 [N, K, H, W] if K frames are stacked, else [N, *shape]
    into the network       [N, *shape], or [T + 1, B, *shape]: channels last
    in an unroll           uint8 [N, T + K, H, W] if frames are stacked, else [N, T + 1, *shape]

Stacked frames are packed, so that each frame is sent once. An unroll holds T + 1 observations of K
frames each, and each shares all frames but one with the previous observation. The packed frames are
the first stack (oldest frame first), then the newest frame of every later step::

    frames[:, :K] = observation of step 0
    frames[:, K - 1 + t] = newest frame of the observation of step t

So channel k of step t is packed frame t + k, unless a game began in between: after a reset, the
stack is the first frame after zeros, so frames from before an ``autoreset`` step are zeros. (The
first stack is sent unchanged, so it already has the zeros of a reset shortly before step 0.)
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tree

from impala_tf.lazy import tf  # actors use none of it
from impala_tf.types import ArraySpec, EnvironmentSpec, EnvOutput, Nest, ObservationSpec

WHOLE = "observation"
_BYTES_PER_WORD = 4


class ObservationLayout:
    """Describes and converts the steps of a level.

    Attributes:
      stacks_frames: whether observations are stacks of frames, packed in unrolls.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._num_frames = spec.stacked_frames
        self.stacks_frames = spec.stacked_frames > 0

    def step_specs(self, num_envs: int) -> EnvOutput:
        """Returns the ArraySpecs [N, ...] of a step as environments return it."""
        return self._step_specs((num_envs,), (num_envs, self._num_frames))

    def network_specs(self, *leading: int) -> EnvOutput:
        """Returns the ArraySpecs [*leading, ...] of steps as the network sees them."""
        return self._step_specs(leading, None)

    def unroll_specs(self, unroll_length: int) -> EnvOutput:
        """Returns the ArraySpecs of one environment's T + 1 steps, as they are sent."""
        return self._step_specs((unroll_length + 1,), (unroll_length + self._num_frames,))

    def to_network(self, env_output: EnvOutput) -> EnvOutput:
        """Converts a step [N, ...] of the environments, arrays or tensors, to the network's."""
        if not self.stacks_frames:
            return env_output
        return env_output._replace(observation=channels_last(env_output.observation))

    def time_major(self, env_outputs: EnvOutput) -> EnvOutput:
        """Converts unrolls, tensors [B, ...], to what the network sees, [T + 1, B, ...].

        T must be known when the graph is built.
        """
        if not self.stacks_frames:
            return EnvOutput(*tf.nest.map_structure(swap_batch_and_time, tuple(env_outputs)))
        fields = env_outputs._asdict()
        stacks = rebuild_stacks(fields.pop("observation"), env_outputs.autoreset)
        swapped = {name: swap_batch_and_time(field) for name, field in fields.items()}
        return EnvOutput(observation=stacks, **swapped)

    def record(self, t: int, env_output: EnvOutput, unroll: EnvOutput) -> None:
        """Writes a step of the environments into an unroll.

        Args:
          t: the step's index, from 0 to T; record steps in this order.
          env_output: NumPy arrays [N, ...].
          unroll: the NumPy arrays [N, ...] to write to, as `unroll_specs` describes them.
        """
        for name, array in unroll._asdict().items():
            if name != "observation":
                array[:, t] = getattr(env_output, name)
        if not self.stacks_frames:
            arrays = parts_of(unroll.observation)
            for part, value in parts_of(env_output.observation).items():
                arrays[part][:, t] = value
        elif t == 0:
            unroll.observation[:, : self._num_frames] = env_output.observation
        else:
            unroll.observation[:, self._num_frames - 1 + t] = env_output.observation[:, -1]

    def take(self, unrolls: EnvOutput, rows: np.ndarray, steps: np.ndarray) -> EnvOutput:
        """Returns single steps of unrolls as the environments returned them.

        Args:
          unrolls: NumPy arrays [M, ...] as `unroll_specs` describes them.
          rows: int [B], the index of each step's unroll.
          steps: int [B], the index of each step in its unroll, from 0 to T.

        Returns:
          NumPy arrays [B, ...], as `step_specs` describes them.
        """
        if not self.stacks_frames:
            return EnvOutput(*tree.map_structure(lambda part: part[rows, steps], tuple(unrolls)))
        fields = unrolls._asdict()
        stacks = self._take_stacks(fields.pop("observation"), unrolls.autoreset, rows, steps)
        return EnvOutput(
            observation=stacks, **{name: field[rows, steps] for name, field in fields.items()}
        )

    def _take_stacks(
        self, packed: np.ndarray, autoreset: np.ndarray, rows: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        rows, steps = rows[:, None], steps[:, None]
        stacks: np.ndarray = packed[rows, steps + np.arange(self._num_frames)]
        # The newest frame of step s is in step t's stack if no reset lies in (s, t].
        source_steps = steps + np.arange(1 - self._num_frames, 1)
        resets = np.cumsum(autoreset[rows[:, 0]], axis=1)
        resets_at_source = np.where(
            source_steps < 0, 0, np.take_along_axis(resets, np.maximum(source_steps, 0), axis=1)
        )
        stacks[resets_at_source != np.take_along_axis(resets, steps, axis=1)] = 0
        return stacks

    def _step_specs(self, leading: tuple[int, ...], stacked: tuple[int, ...] | None) -> EnvOutput:
        """Returns the ArraySpecs of steps.

        Args:
          leading: dimensions of all arrays.
          stacked: dimensions of stacked frames before H and W; None: they are channels.
        """

        def observation(part: ObservationSpec) -> ArraySpec:
            if self.stacks_frames and stacked is not None:
                return ArraySpec((*stacked, *part.shape[:2]), part.dtype)
            return ArraySpec((*leading, *part.shape), part.dtype)

        flag, actions = ArraySpec(leading, "bool"), self._spec.actions
        return EnvOutput(
            reward=ArraySpec(leading, "float32"),
            terminated=flag,
            truncated=flag,
            autoreset=flag,
            episode_start=flag,
            observation=tree.map_structure(observation, self._spec.observation),
            last_action=ArraySpec((*leading, *actions.shape), actions.dtype),
        )


def layout_of(spec: EnvironmentSpec) -> ObservationLayout:
    """Returns the layout of a level's observations."""
    return ObservationLayout(spec)


def channels_last(stacks: Any) -> Any:
    """Transposes stacks of frames, uint8 [N, K, H, W], to uint8 [N, H, W, K]: arrays or tensors."""
    if not isinstance(stacks, np.ndarray):
        return _compiled(_channels_last)(stacks)
    if stacks.shape[1] != _BYTES_PER_WORD or sys.byteorder != "little":
        return np.ascontiguousarray(np.moveaxis(stacks, 1, -1))
    # Byte k of a word is channel k. Words take a third of the time of single bytes.
    words = stacks[:, -1].astype(np.uint32)
    for k in reversed(range(_BYTES_PER_WORD - 1)):
        words <<= 8
        words |= stacks[:, k]
    return words[..., None].view(np.uint8)


def swap_batch_and_time(tensor: tf.Tensor) -> tf.Tensor:
    """Transposes [B, T, ...] to [T, B, ...]."""
    return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])


def rebuild_stacks(frames: tf.Tensor, autoreset: tf.Tensor) -> tf.Tensor:
    """Returns every step's stack of frames, exactly as the environment gave it, time-major.

    T + 1 and T + K must be known when the graph is built.

    Args:
      frames: uint8 [B, T + K, H, W], packed as described above.
      autoreset: bool [B, T + 1].

    Returns:
      uint8 [T + 1, B, H, W, K].
    """
    return _compiled(_rebuild_stacks)(frames, autoreset)


@functools.cache
def _compiled(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns a function as XLA compiles it."""
    compiled: Callable[..., tf.Tensor] = tf.function(function, jit_compile=True, autograph=False)
    return compiled


# XLA makes one vectorised pass: 0.2 ms for 32 stacks of four frames. TensorFlow's transpose, byte
# by byte, takes 0.7 ms.
def _channels_last(stacks: tf.Tensor) -> tf.Tensor:
    if stacks.shape[1] != _BYTES_PER_WORD:
        return tf.transpose(stacks, [0, 2, 3, 1])
    pixels = tf.cast(stacks, tf.uint32)
    words = tf.zeros([], tf.uint32)
    for k in range(_BYTES_PER_WORD):  # channel k is byte k of a word, from the lowest
        words += tf.bitwise.left_shift(pixels[:, k], tf.constant(8 * k, tf.uint32))
    return tf.bitcast(words, tf.uint8)


# XLA fuses the sum below into one pass over the result: 2 ms for 32 unrolls of 20 steps. tf.stack
# of the same frames takes 20 ms.
def _rebuild_stacks(frames: tf.Tensor, autoreset: tf.Tensor) -> tf.Tensor:
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


def parts_of(observation: Nest) -> dict[str, Any]:
    """Returns {part: value} of an observation, or of other values that exist for each part.

    If an observation has no named parts, its only part is called "observation".
    """
    return observation if isinstance(observation, dict) else {WHOLE: observation}
