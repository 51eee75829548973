"""Running statistics that the update depends on: the same on all learners, kept in checkpoints."""

from __future__ import annotations

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.normalization import ObservationNormalizer
from impala_tf.types import Nest

_MIN_STD = 1e-2


class RunningMoments(snt.Module):
    """Mean and mean square of scalars: a moving average over updates, without its start at 0.

    Args:
      decay: weight of what was before, at each update.
      shape: [] or [levels], if there are separate statistics of each; that of all arguments and
        properties.
    """

    def __init__(self, decay: float, shape: tuple[int, ...] = (), name: str | None = None) -> None:
        super().__init__(name=name)
        self._decay = decay
        self._weight, self._mean, self._square = (
            tf.Variable(tf.zeros(shape), trainable=False, name=each)
            for each in ("weight", "mean", "square")
        )

    def add(self, count: tf.Tensor, total: tf.Tensor, squares: tf.Tensor) -> None:
        """Adds `count` values with this sum and this sum of squares; 0 values change nothing."""
        some = tf.cast(count > 0, tf.float32)
        keep = 1.0 - some * (1.0 - self._decay)
        count = tf.maximum(count, 1.0)
        self._weight.assign(keep * self._weight + (1.0 - keep))
        self._mean.assign(keep * self._mean + (1.0 - keep) * total / count)
        self._square.assign(keep * self._square + (1.0 - keep) * squares / count)

    @property
    def mean(self) -> tf.Tensor:
        """The mean; 0 before the first `add`."""
        return self._mean / tf.maximum(self._weight, 1e-8)

    @property
    def rms(self) -> tf.Tensor:
        """The root of the mean square; 1 before the first `add`."""
        rms = tf.sqrt(self._square / tf.maximum(self._weight, 1e-8))
        return tf.where(self._weight > 0.0, tf.maximum(rms, 1e-8), 1.0)

    @property
    def std(self) -> tf.Tensor:
        """The standard deviation, not below 0.01; 1 before the first `add`."""
        square = self._square / tf.maximum(self._weight, 1e-8)
        std = tf.sqrt(tf.maximum(square - tf.square(self.mean), _MIN_STD**2))
        return tf.where(self._weight > 0.0, std, 1.0)


class ValueNormalizer(snt.Module):
    """PopArt (Hessel et al., 2018, arXiv 1809.04474): the network predicts normalised values.

    When the statistics change, the last layer changes too, so that V(x) stays what it was. Each
    level has statistics and an output of its own.

    Args:
      num_levels: 0: one, without a dimension for it.
    """

    def __init__(self, num_levels: int = 0, name: str | None = None) -> None:
        super().__init__(name=name)
        self._moments = RunningMoments(0.999, (num_levels,) if num_levels else ())

    def values(self, baseline: tf.Tensor) -> tf.Tensor:
        """Returns the network's baseline in units of the rewards, same shape [..., *levels]."""
        return self._moments.mean + self._moments.std * baseline

    @property
    def std(self) -> tf.Tensor:
        """The unit of the network's baseline; [] or [levels]."""
        return self._moments.std

    def add(
        self, count: tf.Tensor, total: tf.Tensor, squares: tf.Tensor, layer: snt.Linear
    ) -> None:
        """Adds value targets (see `RunningMoments.add`) and adapts the baseline's last layer."""
        mean, std = self._moments.mean, self._moments.std
        self._moments.add(count, total, squares)
        scale = std / self._moments.std
        layer.w.assign(layer.w * scale)
        layer.b.assign(layer.b * scale + (mean - self._moments.mean) / self._moments.std)


class PartStatistics(snt.Module):
    """Sums over the first observations, from which the normaliser is set.

    Args:
      normalizer: of the agent.
    """

    def __init__(self, normalizer: ObservationNormalizer, name: str | None = None) -> None:
        super().__init__(name=name)
        self._normalizer = normalizer
        shape = normalizer.mean.shape
        self._count = tf.Variable(0.0, trainable=False, name="count")
        self._sums = tf.Variable(tf.zeros(shape), trainable=False, name="sums")
        self._squares = tf.Variable(tf.zeros(shape), trainable=False, name="squares")

    def sums(self, observations: tf.Tensor) -> list[tf.Tensor]:
        """Returns count, sums and sums of squares over [T, B, *shape], for `add`."""
        flat = tf.cast(tf.reshape(observations, (-1, *self._sums.shape)), tf.float32)
        count = tf.cast(tf.shape(flat)[0], tf.float32)
        return [count, tf.reduce_sum(flat, axis=0), tf.reduce_sum(tf.square(flat), axis=0)]

    def no_sums(self) -> list[tf.Tensor]:
        """Returns the sums over no observations."""
        return [tf.zeros(part.shape) for part in (self._count, self._sums, self._squares)]

    def add(self, sums: list[tf.Tensor]) -> None:
        """Adds the sums of all learners, and sets the normaliser."""
        count, total, squares = sums
        self._count.assign_add(count)
        self._sums.assign_add(total)
        self._squares.assign_add(squares)

        def set_normalizer() -> None:
            mean = self._sums / self._count
            variance = tf.maximum(self._squares / self._count - tf.square(mean), 0.0)
            self._normalizer.set(mean, variance)

        # In a group, at first nobody may have a batch.
        tf.cond(self._count > 0.0, set_normalizer, lambda: None)


class DictStatistics(snt.Module):
    """`PartStatistics` of observations of several parts, one list of sums after another.

    Args:
      normalizers: {part: its normaliser, or None}.
    """

    def __init__(
        self, normalizers: dict[str, ObservationNormalizer | None], name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self._parts = {
            part: PartStatistics(normalizer)
            for part, normalizer in normalizers.items()
            if normalizer is not None
        }

    def sums(self, observations: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """See `PartStatistics.sums`."""
        return [each for name, part in self._items() for each in part.sums(observations[name])]

    def no_sums(self) -> list[tf.Tensor]:
        """See `PartStatistics.no_sums`."""
        return [each for _, part in self._items() for each in part.no_sums()]

    def add(self, sums: list[tf.Tensor]) -> None:
        """See `PartStatistics.add`."""
        for number, (_, part) in enumerate(self._items()):
            part.add(sums[3 * number : 3 * number + 3])

    def _items(self) -> list[tuple[str, PartStatistics]]:
        return sorted(self._parts.items())


def observation_statistics(normalizer: Nest) -> PartStatistics | DictStatistics | None:
    """Returns the statistics that set an agent's `observation_normalizer`; None if it has none."""
    if isinstance(normalizer, dict):
        return DictStatistics(normalizer) if any(normalizer.values()) else None
    return None if normalizer is None else PartStatistics(normalizer)
