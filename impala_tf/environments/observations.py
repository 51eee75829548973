"""The layouts of an observation. No other module knows them.

An observation, or each part of one that has several, has one layout on each stretch of its way,
[*shape] being `ObservationSpec.shape`:

    from the environment   uint8 [N, K, H, W] if K frames are stacked, else [N, *shape]
    into the network       [N, *shape], or [T + 1, B, *shape]: channels last
    in an unroll           uint8 [N, T + K, H, W] if frames are stacked, else [N, T + 1, *shape]

Stacked frames are packed, so that each frame is sent once: an unroll holds T + 1 observations of K
frames each, and each observation shares all frames but one with the observation before it. The
packed frames are the first stack (oldest frame first), then the newest frame of every later step::

    frames[:, :K] = observation of step 0
    frames[:, K - 1 + t] = newest frame of the observation of step t

So channel k of step t is packed frame t + k, unless a game began in between: after a reset the
environment shows zeros and the first frame, so frames from before an ``autoreset`` step are zeros.
(A reset shortly before step 0 already shows as zeros in the first stack, which is sent as it is.)
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from impala_tf.types import EnvironmentSpec, EnvOutput, Nest, ObservationSpec

WHOLE = "observation"
_BYTES_PER_WORD = 4  # of uint32


class ObservationLayout(abc.ABC):
    """Describes and converts the steps of a level. Make one with `layout_of`."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._observation = spec.observation
        self._actions = spec.actions

    def step_specs(self, num_envs: int) -> EnvOutput:
        """Returns the tf.TensorSpecs [N, ...] of a step as the environment returns it."""
        return self._step_specs((num_envs,), self._environment_specs(num_envs))

    def network_specs(self, *leading: int) -> EnvOutput:
        """Returns the tf.TensorSpecs [*leading, ...] of steps as the network sees them."""
        return self._step_specs(leading, self._whole_specs(*leading))

    def unroll_specs(self, unroll_length: int) -> EnvOutput:
        """Returns the tf.TensorSpecs of one environment's T + 1 steps, as they are sent."""
        return self._step_specs((unroll_length + 1,), self._unroll_specs(unroll_length))

    def to_network(self, env_output: EnvOutput) -> EnvOutput:
        """Returns a step [N, ...] from the environment as the network sees it."""
        return env_output._replace(observation=self._to_network(env_output.observation))

    def record(self, t: int, env_output: EnvOutput, unroll: EnvOutput) -> None:
        """Writes a step from the environment into an unroll.

        Args:
          t: of 0 to T; steps are recorded in this order.
          env_output: NumPy arrays [N, ...].
          unroll: NumPy arrays [N, ...] as `unroll_specs` describes them, written to.
        """
        for name, array in unroll._asdict().items():
            if name != "observation":
                array[:, t] = getattr(env_output, name)
        self._record(t, env_output.observation, unroll.observation)

    def take(self, unrolls: EnvOutput, rows: np.ndarray, steps: np.ndarray) -> EnvOutput:
        """Returns single steps of unrolls as the environment returned them.

        Args:
          unrolls: NumPy arrays [M, ...] as `unroll_specs` describes them.
          rows: int [B], which unroll each step is of.
          steps: int [B], of 0 to T.

        Returns:
          NumPy arrays [B, ...], as `step_specs` describes them.
        """
        fields = unrolls._asdict()
        packed = fields.pop("observation")
        return EnvOutput(
            observation=self._take(packed, unrolls.autoreset, rows, steps),
            **{name: field[rows, steps] for name, field in fields.items()},
        )

    def time_major(self, env_outputs: EnvOutput) -> EnvOutput:
        """Returns a batch of unrolls [B, ...] as the network sees it, [T + 1, B, ...].

        T must be known when the graph is built.
        """
        fields = env_outputs._asdict()
        packed = fields.pop("observation")
        return EnvOutput(
            observation=self._time_major(packed, env_outputs.autoreset),
            **{name: swap_batch_and_time(field) for name, field in fields.items()},
        )

    def _whole_specs(self, *leading: int) -> Nest:
        """Returns the tf.TensorSpecs [*leading, *shape] of observations."""
        return tf.nest.map_structure(
            lambda seen: tf.TensorSpec((*leading, *seen.shape), seen.dtype), self._observation
        )

    def _step_specs(self, leading: tuple[int, ...], observation: Nest) -> EnvOutput:
        flag = tf.TensorSpec(leading, tf.bool)
        return EnvOutput(
            reward=tf.TensorSpec(leading, tf.float32),
            terminated=flag,
            truncated=flag,
            autoreset=flag,
            episode_start=flag,
            observation=observation,
            last_action=tf.TensorSpec((*leading, *self._actions.shape), self._actions.dtype),
        )

    @abc.abstractmethod
    def _environment_specs(self, num_envs: int) -> Nest: ...

    @abc.abstractmethod
    def _unroll_specs(self, unroll_length: int) -> Nest: ...

    @abc.abstractmethod
    def _to_network(self, observation: Nest) -> Nest: ...

    @abc.abstractmethod
    def _record(self, t: int, observation: Nest, unroll: Nest) -> None: ...

    @abc.abstractmethod
    def _take(
        self, packed: Nest, autoreset: np.ndarray, rows: np.ndarray, steps: np.ndarray
    ) -> Nest: ...

    @abc.abstractmethod
    def _time_major(self, packed: Nest, autoreset: tf.Tensor) -> Nest: ...


class WholeObservations(ObservationLayout):
    """Observations, of one part or several, that are sent as they are."""

    def _environment_specs(self, num_envs: int) -> Nest:
        return self._whole_specs(num_envs)

    def _unroll_specs(self, unroll_length: int) -> Nest:
        return self._whole_specs(unroll_length + 1)

    def _to_network(self, observation: Nest) -> Nest:
        return observation

    def _record(self, t: int, observation: Nest, unroll: Nest) -> None:
        arrays = parts_of(unroll)
        for part, value in parts_of(observation).items():
            arrays[part][:, t] = value

    def _take(
        self, packed: Nest, autoreset: np.ndarray, rows: np.ndarray, steps: np.ndarray
    ) -> Nest:
        return tf.nest.map_structure(lambda part: part[rows, steps], packed)

    def _time_major(self, packed: Nest, autoreset: tf.Tensor) -> Nest:
        return tf.nest.map_structure(swap_batch_and_time, packed)


class StackedFrames(ObservationLayout):
    """Stacks of the K newest grey frames, each frame sent once."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.observation, ObservationSpec)
        self._height, self._width, self._num_frames = spec.observation.shape

    def _environment_specs(self, num_envs: int) -> tf.TensorSpec:
        shape = (num_envs, self._num_frames, self._height, self._width)
        return tf.TensorSpec(shape, tf.uint8)

    def _unroll_specs(self, unroll_length: int) -> tf.TensorSpec:
        shape = (unroll_length + self._num_frames, self._height, self._width)
        return tf.TensorSpec(shape, tf.uint8)

    def _to_network(self, observation: tf.Tensor) -> tf.Tensor:
        return channels_last(observation)

    def _record(self, t: int, observation: np.ndarray, unroll: np.ndarray) -> None:
        if t == 0:
            unroll[:, : self._num_frames] = observation
        else:
            unroll[:, self._num_frames - 1 + t] = observation[:, -1]

    def _take(
        self, packed: np.ndarray, autoreset: np.ndarray, rows: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        rows, steps = rows[:, None], steps[:, None]
        stacks: np.ndarray = packed[rows, steps + np.arange(self._num_frames)]
        # The newest frame of step s is part of step t's stack if there is no reset in (s, t].
        newest_of = steps + np.arange(1 - self._num_frames, 1)
        resets = np.cumsum(autoreset[rows[:, 0]], axis=1)
        before = np.where(
            newest_of < 0, 0, np.take_along_axis(resets, np.maximum(newest_of, 0), axis=1)
        )
        stacks[before != np.take_along_axis(resets, steps, axis=1)] = 0
        return stacks

    def _time_major(self, packed: tf.Tensor, autoreset: tf.Tensor) -> tf.Tensor:
        return rebuild_stacks(packed, autoreset)


def layout_of(spec: EnvironmentSpec) -> ObservationLayout:
    """Returns the layout of a level's observations."""
    return StackedFrames(spec) if spec.stacked_frames else WholeObservations(spec)


def parts_of(observation: Nest) -> dict[str, Any]:
    """Returns {part: value} of an observation, or of whatever is there for each part of one.

    The only part of an observation without named parts is called "observation".
    """
    return observation if isinstance(observation, dict) else {WHOLE: observation}


def swap_batch_and_time(tensor: tf.Tensor) -> tf.Tensor:
    """Returns [B, T, ...] as [T, B, ...]."""
    return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])


# XLA makes one pass over whole vectors of pixels: 0.2 ms for 32 stacks of four frames, where
# TensorFlow's transpose, byte by byte, takes 0.7 ms.
@tf.function(jit_compile=True, autograph=False)
def channels_last(stacks: tf.Tensor) -> tf.Tensor:
    """Returns stacks of frames uint8 [N, K, H, W] as uint8 [N, H, W, K]."""
    if stacks.shape[1] != _BYTES_PER_WORD:
        return tf.transpose(stacks, [0, 2, 3, 1])
    pixels = tf.cast(stacks, tf.uint32)
    words = tf.zeros([], tf.uint32)
    for k in range(_BYTES_PER_WORD):  # byte k of a word, counted from the lowest, is channel k
        words += tf.bitwise.left_shift(pixels[:, k], tf.constant(8 * k, tf.uint32))
    return tf.bitcast(words, tf.uint8)


# XLA fuses the sum below into one pass over the result: 2 ms for 32 unrolls of 20 steps, where
# TensorFlow's own tf.stack of the same frames takes 20 ms.
@tf.function(jit_compile=True, autograph=False)
def rebuild_stacks(frames: tf.Tensor, autoreset: tf.Tensor) -> tf.Tensor:
    """Returns every step's stack, bit for bit what the environment showed, time-major.

    Args:
      frames: uint8 [B, T + K, H, W], packed as above.
      autoreset: bool [B, T + 1]. T + 1 and T + K must be known when the graph is built.

    Returns:
      uint8 [T + 1, B, H, W, K].
    """
    steps = autoreset.shape[1]
    num_frames = frames.shape[1] - steps + 1
    frames = tf.transpose(frames, [1, 0, 2, 3])[..., tf.newaxis]
    # Frame t + k belongs to step t's game if there is no reset between: the counts are equal.
    resets = tf.cumsum(tf.cast(tf.transpose(autoreset), tf.int32))
    resets_by_frame = tf.pad(resets, [[num_frames - 1, 0], [0, 0]])
    stack = tf.zeros([], tf.uint8)
    for k in range(num_frames):
        same_game = tf.cast(resets_by_frame[k : k + steps] == resets, tf.uint8)
        in_channel_k = tf.one_hot(k, num_frames, dtype=tf.uint8)
        stack += frames[k : k + steps] * (same_game[..., None, None, None] * in_channel_k)
    return stack
