"""Cores and heads: the parts of an agent after its torso (see `torsos`).

A torso maps observations to features. A core keeps memory from step to step. Heads compute the
policy and the baseline from the core's output. The modules are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.interface import LSTM_SIZE
from impala_tf.agents.sampling import LOG_STD_RANGE
from impala_tf.agents.torsos import initializer
from impala_tf.types import ActionSpec, Nest, NetworkOutput

_STREAM_SIZE = 256  # units of a dueling head's hidden layers
_POLICY_GAIN, _BASELINE_GAIN = 0.01, 1.0  # of orthogonal initial weights


class FeedForwardCore(snt.Module):
    """No memory: features pass through, the state is ()."""

    def initial_state(self, batch_size: int | tf.Tensor) -> Nest:
        """Returns ()."""
        del batch_size
        return ()

    def __call__(
        self, features: tf.Tensor, episode_start: tf.Tensor, state: Nest
    ) -> tuple[tf.Tensor, Nest]:
        """Maps features [T, B, F] to themselves; see `LSTMCore`."""
        del episode_start
        return features, state


class LSTMCore(snt.Module):
    """An LSTM whose state is reset to zero wherever an episode starts."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self._lstm = snt.LSTM(LSTM_SIZE)

    def initial_state(self, batch_size: int | tf.Tensor) -> Nest:
        """Returns (hidden, cell), both zeros, float32 [batch_size, LSTM_SIZE]."""
        return tuple(self._lstm.initial_state(batch_size))

    def __call__(
        self, features: tf.Tensor, episode_start: tf.Tensor, state: Nest
    ) -> tuple[tf.Tensor, Nest]:
        """Runs T steps.

        Args:
          features: float32 [T, B, F]. T must be known when the graph is built.
          episode_start: bool [T, B]; where it is True, the state is reset before the step.
          state: (hidden, cell) before step 0.

        Returns:
          (float32 [T, B, LSTM_SIZE], state after the last step).
        """
        outputs = []
        current = snt.LSTMState(*state)
        for inputs, start in zip(tf.unstack(features), tf.unstack(episode_start), strict=True):
            keep = tf.cast(tf.logical_not(start), features.dtype)[:, None]
            current = snt.LSTMState(current.hidden * keep, current.cell * keep)
            output, current = self._lstm(inputs, current)
            outputs.append(output)
        return tf.stack(outputs), tuple(current)


CORES: dict[str, Callable[[], snt.Module]] = {
    "feedforward": lambda: FeedForwardCore(name="feedforward"),
    "lstm": lambda: LSTMCore(name="lstm"),
}


class QHeads(snt.Module):
    """The Q-values Q(x, a): a linear layer on the core's output, or two dueling streams.

    Dueling (Wang et al., 2016, arXiv 1511.06581, equation 9): Q = V(x) + A(x, a) - mean A(x, .).

    The layers predict normalised Q-values. The learner sets their mean and scale (see `set_unit`),
    which are 0 and 1 at first.

    Args:
      num_actions: A.
      dueling: whether there are two streams, each with its own hidden layer.
      initialization: --initialization.
    """

    def __init__(self, num_actions: int, dueling: bool, initialization: str) -> None:
        super().__init__()

        def stream(last: snt.Linear) -> snt.Module:
            if not dueling:
                return last
            name, w_init = f"{last.name}_hidden", initializer(initialization)
            hidden = snt.Linear(_STREAM_SIZE, w_init=w_init, name=name)
            return snt.Sequential([hidden, tf.nn.relu, last])

        last_name = "advantages" if dueling else "q_values"
        w_init = initializer(initialization, _POLICY_GAIN)
        self._last_advantages = snt.Linear(num_actions, w_init=w_init, name=last_name)
        self._last_value = snt.Linear(1, w_init=w_init, name="value") if dueling else None
        self._advantages = stream(self._last_advantages)
        self._value = None if self._last_value is None else stream(self._last_value)
        self._mean = tf.Variable(0.0, trainable=False, name="unit_mean")
        self._std = tf.Variable(1.0, trainable=False, name="unit_std")

    def __call__(self, core_output: tf.Tensor) -> NetworkOutput:
        """Maps float32 [M, F] to policy_logits Q(x, .) [M, A] and baseline max Q(x, .) [M, 1]."""
        q_values = self._advantages(core_output)
        if self._value is not None:
            q_values += self._value(core_output) - tf.reduce_mean(q_values, -1, keepdims=True)
        q_values = self._mean + self._std * q_values
        return NetworkOutput(q_values, tf.reduce_max(q_values, axis=-1, keepdims=True))

    def parts(self) -> dict[str, Nest]:
        """Returns {part: its modules}; see `Agent.parts`."""
        return {"Q-values": self}

    @property
    def std(self) -> tf.Tensor:
        """The standard deviation by which the layers' outputs are multiplied, float32 []."""
        return self._std

    def set_unit(self, mean: tf.Tensor, std: tf.Tensor) -> None:
        """Makes the layers predict (Q - mean) / std, and adjusts them so that no Q changes.

        PopArt (Hessel et al., 2018, arXiv 1809.04474, section 3).

        Args:
          mean: float32 [].
          std: float32 [].
        """
        scale, shift = self._std / std, (self._mean - mean) / std
        _rescale(self._last_advantages, scale, shift if self._last_value is None else 0.0)
        if self._last_value is not None:
            _rescale(self._last_value, scale, shift)
        self._mean.assign(mean)
        self._std.assign(std)


class ValueUnit:
    """The scale of a baseline layer's predictions: V = mean + std * prediction, for each level.

    Not a module, so its variables are not the agent's: they follow from the learner's moments,
    which checkpoints hold, and actors do not need a baseline.

    Args:
      num_levels: the number of levels, each with its own mean and std.

    Attributes:
      mean, std: float32 [num_levels]; at first 0 and 1.
    """

    def __init__(self, num_levels: int) -> None:
        self.mean = tf.Variable(tf.zeros(num_levels), trainable=False)
        self.std = tf.Variable(tf.ones(num_levels), trainable=False)

    def assign(self, mean: tf.Tensor, std: tf.Tensor) -> None:
        """Sets mean and std, float32 [num_levels], or [] if there is one level."""
        self.mean.assign(tf.reshape(mean, self.mean.shape))
        self.std.assign(tf.reshape(std, self.std.shape))


def _rescale(layer: snt.Linear, scale: tf.Tensor, shift: tf.Tensor | float) -> None:
    """Changes a layer so that its output becomes scale * output + shift."""
    layer.w.assign(layer.w * scale)
    layer.b.assign(layer.b * scale + shift)


class Heads(snt.Module):
    """The policy's parameters and the baseline, each a linear layer on the core's output.

    For a Gaussian policy, the layer computes the means. The logarithms of the standard deviations
    are variables that do not depend on the state, are 0 at first, and stay within LOG_STD_RANGE.

    Args:
      actions: the specification of the level's actions.
      num_logits: P, the number of the policy's parameters.
      initialization: --initialization.
      num_levels: the number of levels, each with its own baseline.

    Attributes:
      unit: the scale of the baseline layer's predictions.
    """

    def __init__(
        self, actions: ActionSpec, num_logits: int, initialization: str, num_levels: int
    ) -> None:
        super().__init__()
        self._log_std = None
        if actions.kind == "continuous":
            num_logits //= 2
            self._log_std = tf.Variable(tf.zeros(num_logits), name="log_std")
        policy_init = initializer(initialization, _POLICY_GAIN)
        self._policy = snt.Linear(num_logits, w_init=policy_init, name="policy_logits")
        baseline_init = initializer(initialization, _BASELINE_GAIN)
        self._baseline = snt.Linear(num_levels, w_init=baseline_init, name="baseline")
        self.unit = ValueUnit(num_levels)

    def parts(self) -> dict[str, Nest]:
        """Returns {part: {attribute: module or variable}}; see `Agent.parts`."""
        deviations = {} if self._log_std is None else {"_log_std": self._log_std}
        return {
            "policy": {"_policy": self._policy, **deviations},
            "baseline": {"_baseline": self._baseline},
        }

    def set_unit(self, mean: tf.Tensor, std: tf.Tensor) -> None:
        """Makes the baseline's layer predict (V - mean) / std, and adjusts it so that V is equal.

        PopArt (Hessel et al., 2018, arXiv 1809.04474, section 3).

        Args:
          mean: float32 [num_levels], or [] if there is one level.
          std: likewise.
        """
        old_mean, old_std = self.unit.mean.read_value(), self.unit.std.read_value()
        self.unit.assign(mean, std)
        _rescale(
            self._baseline,
            old_std / self.unit.std,
            (old_mean - self.unit.mean) / self.unit.std,
        )

    def constrain(self) -> None:
        """Clips the log standard deviations to their range after an optimizer step.

        Outside it, the policy does not depend on them: they would get no gradient and stay there.
        """
        if self._log_std is not None:
            self._log_std.assign(tf.clip_by_value(self._log_std, *LOG_STD_RANGE))

    def __call__(
        self, core_output: tf.Tensor, baseline_features: tf.Tensor | None = None
    ) -> NetworkOutput:
        """Maps float32 [M, F] to policy_logits [M, P] and baseline [M, num_levels].

        Args:
          core_output: the policy's input, float32 [M, F].
          baseline_features: the baseline's input, float32 [M, G]; None: `core_output`.
        """
        logits = self._policy(core_output)
        if self._log_std is not None:
            log_std = tf.broadcast_to(self._log_std, tf.shape(logits))
            logits = tf.concat([logits, log_std], axis=-1)
        predicted = self._baseline(core_output if baseline_features is None else baseline_features)
        return NetworkOutput(logits, self.unit.mean + self.unit.std * predicted)
