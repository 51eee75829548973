"""Running statistics that updates depend on: equal on all learners, and saved in checkpoints."""

from __future__ import annotations

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.torsos import ObservationNormalizer
from impala_tf.environments.observations import ObservationLayout, parts_of
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.types import EnvOutput, Nest, Unroll

MIN_STD = 0.1
_MIN_RMS = 0.01
_HIGHEST = 1e15
"""Larger numbers are codes, such as "nothing there": sums of their squares overflow."""
_TRUSTED_STEPS, _OUTLIER_STDS = 1000.0, 50.0
"""After so many observations, numbers that are further from the mean are outliers."""
_LASTING_STEPS, _PIXEL_STEPS = 50_000.0, 5_000.0
"""As many observations those of another run count for at most (see `limit`)."""


class RunningMoments(snt.Module):
    """Mean and variance of scalars: a moving average over updates, without bias towards 0.

    Args:
      decay: the weight of older values at each update.
      size: the number of separate statistics. Arguments and properties are float32 [size], or [] if
        there is one.
    """

    def __init__(self, decay: float, size: int = 1) -> None:
        super().__init__()
        self._decay = decay
        shape = () if size == 1 else (size,)
        self._weight, self._mean, self._variance = (
            tf.Variable(tf.zeros(shape), trainable=False, name=name)
            for name in ("weight", "mean", "variance")
        )

    def add(self, count: tf.Tensor, total: tf.Tensor, squares: tf.Tensor) -> None:
        """Adds values; if there are none, nothing changes.

        The sums are of differences from `mean`: sums of values far from 0 would lose digits.

        Args:
          count: the number of values.
          total: the sum of (value - mean).
          squares: the sum of (value - mean)^2.
        """
        count, total, squares = (
            tf.reshape(tensor, self._mean.shape) for tensor in (count, total, squares)
        )
        has_values = tf.cast(count > 0, tf.float32)
        keep = 1.0 - has_values * (1.0 - self._decay)
        count = tf.maximum(count, 1.0)
        weight = keep * self._weight + (1.0 - keep)
        share = (1.0 - keep) / tf.maximum(weight, 1e-8)  # of the new values in the average
        moved = total / count
        variance = tf.maximum(squares / count - tf.square(moved), 0.0)
        before = self._variance + share * tf.square(moved)
        self._variance.assign((1.0 - share) * before + share * variance)
        self._mean.assign_add(share * moved)
        self._weight.assign(weight)

    @property
    def mean(self) -> tf.Tensor:
        """The mean; 0 before the first `add`."""
        return self._mean.read_value()

    @property
    def rms(self) -> tf.Tensor:
        """The root mean square, at least 0.01; 1 before the first `add`.

        Without the minimum, the noise of a level without rewards would be scaled up to 1 and
        outweigh the entropy bonus.
        """
        rms = tf.sqrt(self._variance + tf.square(self._mean))
        return tf.where(self._weight > 0.0, tf.maximum(rms, _MIN_RMS), 1.0)

    @property
    def std(self) -> tf.Tensor:
        """The standard deviation, at least 0.1; 1 before the first `add`.

        Where rewards are rare, most value targets are the baseline's own noise. Without the
        minimum, that noise would be scaled up to the size of real errors, and a reward would be
        hundreds of standard deviations away. Both would drown the policy gradient.
        """
        std = tf.maximum(tf.sqrt(self._variance), MIN_STD)
        return tf.where(self._weight > 0.0, std, 1.0)


class Moments(NamedTuple):
    """Moments of observations by element; float32. For a whole group, with a leading [size]."""

    count: tf.Tensor  # []
    mean: tf.Tensor  # [*shape]
    deviations: tf.Tensor  # [*shape]: sum of the squared differences from the mean


class PartStatistics(snt.Module):
    """Moments of observations, which set the normaliser's statistics.

    They are merged by the differences of means (Chan et al., 1983, "Algorithms for computing the
    sample variance"), so the variance is accurate even if the mean is far from 0.

    Args:
      normalizer: the agent's normaliser of this part of observations.

    Attributes:
      lasting: see `ObservationNormalizer`.
    """

    def __init__(self, normalizer: ObservationNormalizer) -> None:
        super().__init__()
        self.lasting = normalizer.lasting
        self._normalizer = normalizer
        shape = normalizer.mean.shape
        self._count = tf.Variable(0.0, trainable=False, name="count")
        self._mean = tf.Variable(tf.zeros(shape), trainable=False, name="mean")
        self._deviations = tf.Variable(tf.zeros(shape), trainable=False, name="deviations")

    def moments(self, observations: tf.Tensor) -> Moments:
        """Returns the moments of observations [T, B, *shape]."""
        if self.lasting:
            values = tf.reshape(observations, (-1, *observations.shape[2:]))
            return _moments_of(self._without_outliers(values))

        def add(step: tf.Tensor, moments: Moments) -> tuple[tf.Tensor, Moments]:
            return step + 1, _merged(moments, _moments_of(observations[step]))

        # One step at a time: all images as floats would take much memory.
        length = tf.shape(observations)[0]
        start = (tf.constant(0), self.no_moments())
        _, total = tf.while_loop(lambda step, _: step < length, add, start, parallel_iterations=1)
        return total

    def no_moments(self) -> Moments:
        """Returns the moments of no observations."""
        return Moments(*(tf.zeros(moment.shape) for moment in self._moments()))

    def add(self, everyones: Moments) -> None:
        """Adds the moments of all learners, [size, ...], and sets the normaliser.

        Nothing changes if the result is not finite.
        """
        merged = self._moments()
        for moments in zip(*map(tf.unstack, everyones), strict=True):
            merged = _merged(merged, Moments(*moments))

        def assign() -> None:
            for variable, value in zip(self._moments(), merged, strict=True):
                variable.assign(value)
            self._normalizer.set(self._mean, self._deviations / self._count)

        # At first, it may be that no learner of a group has a batch.
        usable = tf.math.is_finite(tf.reduce_sum(merged.deviations)) & (merged.count > 0.0)
        tf.cond(usable, assign, lambda: None)

    def limit(self) -> None:
        """Makes the observations so far count less, so that the statistics soon fit another level.

        Those of pixels are frozen early, so they have less time.
        """
        limit = _LASTING_STEPS if self.lasting else _PIXEL_STEPS
        share = tf.minimum(1.0, limit / tf.maximum(self._count, 1.0))
        self._count.assign(share * self._count)
        self._deviations.assign(share * self._deviations)

    def _moments(self) -> Moments:
        return Moments(self._count, self._mean, self._deviations)

    def _without_outliers(self, values: tf.Tensor) -> tf.Tensor:
        """Replaces what is no measurement in vectors [M, *shape] by the mean, and clips outliers.

        These statistics never forget: one value of a simulator that blew up would make all others
        look alike for the rest of the run. Numbers that really grow are followed, because each
        batch at the limit raises the limit.
        """
        values = tf.cast(values, tf.float32)
        values = tf.where(tf.abs(values) > _HIGHEST, self._mean, values)
        std = tf.sqrt(self._deviations / tf.maximum(self._count, 1.0))
        known = (self._count >= _TRUSTED_STEPS) & (std > 0.0)
        reach = tf.where(known, _OUTLIER_STDS * std, 2.0 * _HIGHEST)
        return tf.clip_by_value(values, self._mean - reach, self._mean + reach)


class ObservationStatistics(snt.Module):
    """The statistics that normalise observations. They stay equal on all learners.

    Args:
      normalizer: an agent's `observation_normalizer`.
      layout: the layout of the level's observations.
      group: the learners that add their observations together.

    Attributes:
      parts: {part of the observation: its statistics}, named as by `parts_of`.
    """

    def __init__(self, normalizer: Nest, layout: ObservationLayout, group: LearnerGroup) -> None:
        super().__init__()
        self._layout, self._group = layout, group
        self.parts = {
            name: PartStatistics(part)
            for name, part in sorted(parts_of(normalizer).items())
            if part is not None
        }
        self._compiled_moments = tf.function(self._moments, autograph=False)
        self._compiled_add = tf.function(self._add, autograph=False)

    def compile(self, env_outputs: EnvOutput) -> None:
        """Builds the graphs of `observe` now, for batches [B, T + 1, ...] of tf.TensorSpec."""
        for lasting in (False, True):
            if self._seen(lasting):
                self._compiled_moments.get_concrete_function(env_outputs, lasting)

    def observe(self, batch: Unroll | None, lasting: bool) -> None:
        """Adds the new observations of all learners, which must call it together.

        Args:
          batch: an Unroll [B, ...]; None: this learner has none.
          lasting: whether to add only the parts that are `ObservationNormalizer.lasting`.
        """
        if not (parts := self._seen(lasting)):
            return
        own = (
            [part.no_moments() for part in parts]
            if batch is None
            else self._compiled_moments(batch.env_outputs, lasting)
        )
        # Moments about different means cannot be summed, so each learner fills its own row.
        ranks = range(self._group.size)
        rows = tf.nest.map_structure(
            lambda part: tf.stack(
                [part if rank == self._group.rank else tf.zeros_like(part) for rank in ranks]
            ),
            own,
        )
        self._compiled_add(self._group.sum(rows, name="observations"), lasting)

    def _seen(self, lasting: bool) -> list[PartStatistics]:
        """Returns the statistics of all parts, or of those that are `lasting`."""
        return [part for part in self.parts.values() if part.lasting or not lasting]

    def _moments(self, env_outputs: EnvOutput, lasting: bool) -> list[Moments]:
        """Returns the moments of the observations of unrolls [B, T + 1, ...], by part."""
        parts = parts_of(self._layout.time_major(env_outputs).observation)
        # The last step of an unroll is also the first of the next one: count it only once.
        return [
            statistics.moments(parts[name][:-1])
            for name, statistics in self.parts.items()
            if statistics.lasting or not lasting
        ]

    def _add(self, everyones: list[Moments], lasting: bool) -> None:
        for part, moments in zip(self._seen(lasting), everyones, strict=True):
            part.add(moments)


def _moments_of(observations: tf.Tensor) -> Moments:
    """Returns the moments of observations [B, *shape], B > 0."""
    values = tf.cast(observations, tf.float32)
    # Sums of numbers far from 0 would lose digits.
    mean = values[0] + tf.reduce_mean(values - values[0], axis=0)
    count = tf.cast(tf.shape(values)[0], tf.float32)
    return Moments(count, mean, tf.reduce_sum(tf.square(values - mean), axis=0))


def _merged(one: Moments, other: Moments) -> Moments:
    """Returns the moments of both sets of observations together."""
    count = one.count + other.count
    share = other.count / tf.maximum(count, 1.0)
    difference = other.mean - one.mean
    between = tf.square(difference) * (one.count * share)
    mean = one.mean + share * difference
    return Moments(count, mean, one.deviations + other.deviations + between)
