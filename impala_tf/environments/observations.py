"""The layouts of observations. Only this module and `agents.inputs` know them.

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

import abc
import sys
from typing import Any

import numpy as np
import tree

from impala_tf.types import ArraySpec, EnvironmentSpec, EnvOutput, Nest, ObservationSpec

WHOLE = "observation"
_BYTES_PER_WORD = 4


class ObservationLayout(abc.ABC):
    """Describes and converts the steps of a level. `layout_of` makes one."""

    stacks_frames = False
    """Whether observations are stacks of frames, packed in unrolls."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._observation = spec.observation
        self._actions = spec.actions

    def step_specs(self, num_envs: int) -> EnvOutput:
        """Returns the ArraySpecs [N, ...] of a step as environments return it."""
        return self._step_specs((num_envs,), self._environment_specs(num_envs))

    def network_specs(self, *leading: int) -> EnvOutput:
        """Returns the ArraySpecs [*leading, ...] of steps as the network sees them."""
        return self._step_specs(leading, self._whole_specs(*leading))

    def unroll_specs(self, unroll_length: int) -> EnvOutput:
        """Returns the ArraySpecs of one environment's T + 1 steps, as they are sent."""
        return self._step_specs((unroll_length + 1,), self._unroll_specs(unroll_length))

    def to_network(self, env_output: EnvOutput) -> EnvOutput:
        """Converts a step [N, ...] of the environments to what the network sees."""
        return env_output

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
        self._record(t, env_output.observation, unroll.observation)

    def take(self, unrolls: EnvOutput, rows: np.ndarray, steps: np.ndarray) -> EnvOutput:
        """Returns single steps of unrolls as the environments returned them.

        Args:
          unrolls: NumPy arrays [M, ...] as `unroll_specs` describes them.
          rows: int [B], the index of each step's unroll.
          steps: int [B], the index of each step in its unroll, from 0 to T.

        Returns:
          NumPy arrays [B, ...], as `step_specs` describes them.
        """
        fields = unrolls._asdict()
        packed = fields.pop("observation")
        return EnvOutput(
            observation=self._take(packed, unrolls.autoreset, rows, steps),
            **{name: field[rows, steps] for name, field in fields.items()},
        )

    def _whole_specs(self, *leading: int) -> Nest:
        """Returns the ArraySpecs [*leading, *shape] of observations."""
        return tree.map_structure(
            lambda part: ArraySpec((*leading, *part.shape), part.dtype), self._observation
        )

    def _step_specs(self, leading: tuple[int, ...], observation: Nest) -> EnvOutput:
        flag = ArraySpec(leading, "bool")
        return EnvOutput(
            reward=ArraySpec(leading, "float32"),
            terminated=flag,
            truncated=flag,
            autoreset=flag,
            episode_start=flag,
            observation=observation,
            last_action=ArraySpec((*leading, *self._actions.shape), self._actions.dtype),
        )

    @abc.abstractmethod
    def _environment_specs(self, num_envs: int) -> Nest: ...

    @abc.abstractmethod
    def _unroll_specs(self, unroll_length: int) -> Nest: ...

    @abc.abstractmethod
    def _record(self, t: int, observation: Nest, unroll: Nest) -> None: ...

    @abc.abstractmethod
    def _take(
        self, packed: Nest, autoreset: np.ndarray, rows: np.ndarray, steps: np.ndarray
    ) -> Nest: ...


class WholeObservations(ObservationLayout):
    """Observations that are sent unchanged, with one part or several."""

    def _environment_specs(self, num_envs: int) -> Nest:
        return self._whole_specs(num_envs)

    def _unroll_specs(self, unroll_length: int) -> Nest:
        return self._whole_specs(unroll_length + 1)

    def _record(self, t: int, observation: Nest, unroll: Nest) -> None:
        arrays = parts_of(unroll)
        for part, value in parts_of(observation).items():
            arrays[part][:, t] = value

    def _take(
        self, packed: Nest, autoreset: np.ndarray, rows: np.ndarray, steps: np.ndarray
    ) -> Nest:
        return tree.map_structure(lambda part: part[rows, steps], packed)


class StackedFrames(ObservationLayout):
    """Stacks of the K newest grey frames, of which each frame is sent once."""

    stacks_frames = True

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.observation, ObservationSpec)
        self._height, self._width, self._num_frames = spec.observation.shape

    def to_network(self, env_output: EnvOutput) -> EnvOutput:
        """Converts a step [N, ...], so that the frames of each stack are channels."""
        return env_output._replace(observation=channels_last(env_output.observation))

    def _environment_specs(self, num_envs: int) -> ArraySpec:
        shape = (num_envs, self._num_frames, self._height, self._width)
        return ArraySpec(shape, "uint8")

    def _unroll_specs(self, unroll_length: int) -> ArraySpec:
        shape = (unroll_length + self._num_frames, self._height, self._width)
        return ArraySpec(shape, "uint8")

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
        # The newest frame of step s is in step t's stack if no reset lies in (s, t].
        source_steps = steps + np.arange(1 - self._num_frames, 1)
        resets = np.cumsum(autoreset[rows[:, 0]], axis=1)
        resets_at_source = np.where(
            source_steps < 0, 0, np.take_along_axis(resets, np.maximum(source_steps, 0), axis=1)
        )
        stacks[resets_at_source != np.take_along_axis(resets, steps, axis=1)] = 0
        return stacks


def layout_of(spec: EnvironmentSpec) -> ObservationLayout:
    """Returns the layout of a level's observations."""
    return StackedFrames(spec) if spec.stacked_frames else WholeObservations(spec)


def channels_last(stacks: np.ndarray) -> np.ndarray:
    """Transposes stacks of frames, uint8 [N, K, H, W], to uint8 [N, H, W, K]."""
    if stacks.shape[1] != _BYTES_PER_WORD or sys.byteorder != "little":
        return np.ascontiguousarray(np.moveaxis(stacks, 1, -1))
    # Byte k of a word is channel k. Words take a third of the time of single bytes.
    words = stacks[:, -1].astype(np.uint32)
    for k in reversed(range(_BYTES_PER_WORD - 1)):
        words <<= 8
        words |= stacks[:, k]
    return words[..., None].view(np.uint8)


def parts_of(observation: Nest) -> dict[str, Any]:
    """Returns {part: value} of an observation, or of other values that exist for each part.

    If an observation has no named parts, its only part is called "observation".
    """
    return observation if isinstance(observation, dict) else {WHOLE: observation}
