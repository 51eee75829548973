"""Running statistics that the update depends on: the same on all learners, kept in checkpoints."""

from __future__ import annotations

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.normalization import ObservationNormalizer
from impala_tf.types import Nest

_MIN_RMS = 0.01
_MIN_STDS = (0.01, 0.01, 0.1)  # of the formats
FORMAT = 3
"""Of statistics in checkpoints. 1: sums and mean squares, which lose the deviation of numbers that
are far from 0; `convert` makes 2 of them. 2: values are predicted in units of at least 0.01."""


class RunningMoments(snt.Module):
    """Mean and variance of scalars: a moving average over updates, without its start at 0.

    Args:
      decay: weight of what was before, at each update.
      size: how many separate statistics there are. Arguments and properties are [size], or [] if
        there is one.
    """

    def __init__(self, decay: float, size: int = 1) -> None:
        super().__init__()
        self._decay = decay
        shape = () if size == 1 else (size,)
        self._weight, self._mean, self._variance = (
            tf.Variable(tf.zeros(shape), trainable=False, name=each)
            for each in ("weight", "mean", "variance")
        )
        self._square = self._variance  # its name in checkpoints

    def add(self, count: tf.Tensor, total: tf.Tensor, squares: tf.Tensor) -> None:
        """Adds values; if there are none, nothing changes.

        Args:
          count: of values.
          total: the sum of the values minus `mean`. Of the values themselves, float32 would lose
            the deviation if they are far from 0.
          squares: the sum of the squares of the values minus `mean`.
        """
        count, total, squares = (
            tf.reshape(each, self._mean.shape) for each in (count, total, squares)
        )
        some = tf.cast(count > 0, tf.float32)
        keep = 1.0 - some * (1.0 - self._decay)
        count = tf.maximum(count, 1.0)
        weight = keep * self._weight + (1.0 - keep)
        share = (1.0 - keep) / tf.maximum(weight, 1e-8)  # of the new values in the average
        moved = total / count
        variance = tf.maximum(squares / count - tf.square(moved), 0.0)
        before = self._variance + share * tf.square(moved)
        self._variance.assign((1.0 - share) * before + share * variance)
        self._mean.assign_add(share * moved)
        self._weight.assign(weight)

    def convert(self) -> None:
        """Makes the variables of format 1, as they were restored, those of the present format."""
        weight = tf.maximum(self._weight, 1e-8)
        mean = self._mean / weight
        self._variance.assign(tf.maximum(self._square / weight - tf.square(mean), 0.0))
        self._mean.assign(mean)

    @property
    def mean(self) -> tf.Tensor:
        """The mean; 0 before the first `add`."""
        return self._mean.read_value()

    @property
    def rms(self) -> tf.Tensor:
        """The root of the mean square, not below 0.01; 1 before the first `add`.

        Without a floor, the noise of a level without rewards would be scaled up to 1, and the
        entropy bonus would mean nothing beside it.
        """
        rms = tf.sqrt(self._variance + tf.square(self._mean))
        return tf.where(self._weight > 0.0, tf.maximum(rms, _MIN_RMS), 1.0)

    @property
    def std(self) -> tf.Tensor:
        """The standard deviation, not below 0.1; 1 before the first `add`.

        Where rewards are rare, most value targets are the baseline's own noise. A deviation that
        followed it down would keep that noise as large as real errors, and a reward would be
        hundreds of deviations away: both drown the policy's gradient.
        """
        return self.std_in(FORMAT)

    def std_in(self, statistics_format: int) -> tf.Tensor:
        """Returns the unit in which the baseline of a checkpoint of a format predicts."""
        std = tf.maximum(tf.sqrt(self._variance), _MIN_STDS[statistics_format - 1])
        return tf.where(self._weight > 0.0, std, 1.0)


class Moments(NamedTuple):
    """Of observations, element by element; float32. Several learners': with a leading [size]."""

    count: tf.Tensor  # []
    mean: tf.Tensor  # [*shape]
    deviations: tf.Tensor  # [*shape]: sum of the squared differences from the mean


class PartStatistics(snt.Module):
    """Moments of the first observations, from which the normaliser is set.

    They are merged by the differences of means (Chan et al., 1983), so that the variance is right
    however far the mean is from 0.

    Args:
      normalizer: the agent's.

    Attributes:
      lasting: the normaliser's.
    """

    def __init__(self, normalizer: ObservationNormalizer) -> None:
        super().__init__()
        self.lasting = normalizer.lasting
        self._normalizer = normalizer
        shape = normalizer.mean.shape
        self._count = tf.Variable(0.0, trainable=False, name="count")
        self._mean = tf.Variable(tf.zeros(shape), trainable=False, name="mean")
        self._deviations = tf.Variable(tf.zeros(shape), trainable=False, name="deviations")
        self._sums, self._squares = self._mean, self._deviations  # their names in checkpoints

    def moments(self, observations: tf.Tensor) -> list[Moments]:
        """Returns the moments of observations [T, B, *shape], as a list of one."""
        if self.lasting:
            return [_moments_of(tf.reshape(observations, (-1, *observations.shape[2:])))]

        def add(step: tf.Tensor, before: Moments) -> tuple[tf.Tensor, Moments]:
            return step + 1, _merged(before, _moments_of(observations[step]))

        # Of images one step at a time: as floats, all of them would take much memory.
        length = tf.shape(observations)[0]
        start = (tf.constant(0), *self.no_moments())
        _, found = tf.while_loop(lambda step, _: step < length, add, start, parallel_iterations=1)
        return [found]

    def no_moments(self) -> list[Moments]:
        """Returns the moments of no observations."""
        return [Moments(*(tf.zeros(each.shape) for each in self._moments()))]

    def add(self, everyones: list[Moments]) -> None:
        """Adds the moments of all learners, and sets the normaliser. Infinite ones are left out."""
        merged = self._moments()
        for mine in zip(*map(tf.unstack, everyones[0]), strict=True):
            merged = _merged(merged, Moments(*mine))

        def assign() -> None:
            for variable, value in zip(self._moments(), merged, strict=True):
                variable.assign(value)
            self._normalizer.set(self._mean, self._deviations / self._count)

        # In a group, at first nobody may have a batch.
        usable = tf.math.is_finite(tf.reduce_sum(merged.deviations)) & (merged.count > 0.0)
        tf.cond(usable, assign, lambda: None)

    def convert(self) -> None:
        """Makes the variables of format 1, as they were restored, those of the present format."""
        mean = self._sums / tf.maximum(self._count, 1.0)
        deviations = self._squares - self._count * tf.square(mean)
        self._deviations.assign(tf.maximum(deviations, 0.0))
        self._mean.assign(mean)

    def _moments(self) -> Moments:
        return Moments(self._count, self._mean, self._deviations)


class DictStatistics(snt.Module):
    """`PartStatistics` of observations of several parts, one of them after another in lists.

    Args:
      parts: {part of the observation: its statistics}.
    """

    def __init__(self, parts: dict[str, PartStatistics]) -> None:
        super().__init__()
        self._parts = parts

    def moments(self, observations: dict[str, tf.Tensor]) -> list[Moments]:
        """See `PartStatistics.moments`."""
        return [each for name, part in self._items() for each in part.moments(observations[name])]

    def no_moments(self) -> list[Moments]:
        """See `PartStatistics.no_moments`."""
        return [each for _, part in self._items() for each in part.no_moments()]

    def add(self, everyones: list[Moments]) -> None:
        """See `PartStatistics.add`."""
        for (_, part), moments in zip(self._items(), everyones, strict=True):
            part.add([moments])

    def convert(self) -> None:
        """See `PartStatistics.convert`."""
        for _, part in self._items():
            part.convert()

    def lasting(self) -> DictStatistics | None:
        """Returns the statistics of the parts whose statistics last; None if there are none."""
        lasting = {name: part for name, part in self._parts.items() if part.lasting}
        return DictStatistics(lasting) if lasting else None

    def _items(self) -> list[tuple[str, PartStatistics]]:
        return sorted(self._parts.items())


def _moments_of(observations: tf.Tensor) -> Moments:
    """Returns the moments of observations [B, *shape], B > 0."""
    values = tf.cast(observations, tf.float32)
    # The sum of numbers that are far from 0 would lose digits.
    mean = values[0] + tf.reduce_mean(values - values[0], axis=0)
    count = tf.cast(tf.shape(values)[0], tf.float32)
    return Moments(count, mean, tf.reduce_sum(tf.square(values - mean), axis=0))


def _merged(one: Moments, other: Moments) -> Moments:
    """Returns the moments of the observations of both."""
    count = one.count + other.count
    share = other.count / tf.maximum(count, 1.0)
    moved = other.mean - one.mean
    between = tf.square(moved) * (one.count * share)
    return Moments(count, one.mean + share * moved, one.deviations + other.deviations + between)


def observation_statistics(normalizer: Nest) -> PartStatistics | DictStatistics | None:
    """Returns the statistics that set an agent's `observation_normalizer`; None if it has none."""
    if not isinstance(normalizer, dict):
        return None if normalizer is None else PartStatistics(normalizer)
    parts = {name: PartStatistics(part) for name, part in normalizer.items() if part is not None}
    return DictStatistics(parts) if parts else None


def lasting_statistics(
    statistics: PartStatistics | DictStatistics | None,
) -> PartStatistics | DictStatistics | None:
    """Returns the part of `statistics` that is used for a whole run; None: nothing of it."""
    if isinstance(statistics, DictStatistics):
        return statistics.lasting()
    return statistics if statistics is not None and statistics.lasting else None
