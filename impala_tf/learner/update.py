"""The state of one learner, and its updates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.agents.n_step_returns import played_steps
from impala_tf.config import Config, algorithm
from impala_tf.environments.observations import layout_of
from impala_tf.learner import device
from impala_tf.learner.arrivals import Senders, unmarked
from impala_tf.learner.batch_uses import BatchUses
from impala_tf.learner.gradient_step import GradientStep
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.optimizers import Schedules
from impala_tf.learner.policy_step import PolicyStep
from impala_tf.types import EnvironmentSpec, Nest, Progress, Sent

MAX_SKIPPED_IN_A_ROW = 20
PIXEL_STATISTICS_STEPS = 50_000
"""The mean and the standard deviation of pixels are those of this many agent steps of all learners,
and do not change afterwards."""


class NotFiniteError(Exception):
    """Training has broken down: gradients or variables are not finite."""


class Learner:
    """Agent, optimizer, statistics and counters of one learner.

    Args:
      agent: the network, whose variables have been created.
      spec: the level's specification.
      config: the run's config.
      group: the learners whose gradients are averaged.

    Attributes:
      agent: as given.
      uses: how batches are used, with the replay buffer if there is one.
      total_frames: environment frames of the whole run.
      learner_updates: gradient steps so far, including skipped ones.
      agent_steps: played steps in the batches so far, over all learners.
      environment_frames: environment frames of these steps.
      all_reduce_s: seconds in the all-reduces of the last update; None if there is one learner.
      updates_skipped: gradient steps that were skipped because a gradient was not finite.
      senders: the actors, by the numbers in the batches.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvironmentSpec,
        config: Config,
        group: LearnerGroup,
    ) -> None:
        self.agent = agent
        self._spec = spec
        self._config = config
        self._group = group
        self._finished = False
        self.total_frames = config.run.total_environment_frames
        self._schedules = Schedules(config)
        record = algorithm(config.loss.algorithm)
        make_step = record.step or PolicyStep
        self._step: GradientStep = make_step(agent, layout_of(spec), config, group)
        self.uses: BatchUses = record.uses(self._step, spec, config)
        self._masked: Any = None
        self._parameters = device.Values(self.agent.variables)
        self.learner_updates = 0
        self.agent_steps = 0
        self.environment_frames = 0
        self.all_reduce_s = None if group.size == 1 else 0.0
        self.updates_skipped = self._skipped_in_a_row = 0
        self.senders = Senders()

    @property
    def parameter_version(self) -> int:
        """The version of the current parameters: the number of learner updates so far."""
        return self.learner_updates

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        return self._schedules.learning_rate(self.environment_frames)

    @property
    def entropy_cost(self) -> float:
        """Entropy cost of the next update."""
        return self._schedules.entropy_cost(self.environment_frames)

    @property
    def progress(self) -> Progress:
        """The training progress, which every row of metrics shows."""
        return Progress(
            agent_steps=self.agent_steps,
            environment_frames=self.environment_frames,
            learner_updates=self.learner_updates,
            updates_skipped=self.updates_skipped,
            learning_rate=self.learning_rate,
            entropy_cost=self.entropy_cost,
        )

    @property
    def done(self) -> bool:
        """Whether the run has reached its total frames, or `finish` was called."""
        return self._finished or self.environment_frames >= self.total_frames

    def finish(self) -> None:
        """Ends the run before its total frames."""
        self._finished = True

    def parameters(self) -> list[np.ndarray]:
        """Returns a copy of the agent's variables, in the order that actors assign them."""
        return self._parameters()

    def parameters_and_slots(self) -> list[tf.Variable]:
        """Returns all variables that an update changes."""
        return [variable for part in self.trackables().values() for variable in part.variables]

    def digest(self) -> str:
        """Returns 16 hexadecimal digits that identify all these variables exactly."""
        arrays = [variable.numpy().tobytes() for variable in self.parameters_and_slots()]
        return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]

    def trackables(self) -> dict[str, tf.Module]:
        """Returns what a checkpoint holds besides `counters`."""
        return self._step.trackables()

    def counters(self) -> dict[str, float]:
        """Returns the counters, JSON-able."""
        return {
            "learner_updates": self.learner_updates,
            "agent_steps": self.agent_steps,
            "environment_frames": self.environment_frames,
            "kl_factor": self._schedules.kl_factor,
        }

    def restore_counters(self, counters: dict[str, float]) -> None:
        """Restores what `counters` returned. Restore the variables first."""
        self.learner_updates = int(counters["learner_updates"])
        self.agent_steps = int(counters["agent_steps"])
        self.environment_frames = int(counters["environment_frames"])
        self._schedules.kl_factor = counters["kl_factor"]
        self._step.refresh()

    def not_finite(self) -> list[str]:
        """Returns the names of variables that hold a NaN or an infinity."""
        floats = [v for v in self.parameters_and_slots() if v.dtype.is_floating]
        return [variable.name for variable in floats if not np.isfinite(variable.numpy()).all()]

    def synchronize(self) -> None:
        """Assigns rank 0's variables to all learners of the group."""
        self._group.broadcast(self.parameters_and_slots())
        self._step.refresh()

    def copy_to_target(self) -> None:
        """Makes the target network equal the network, if there is one."""
        self._step.update_target()

    def compile(self) -> None:
        """Builds the graphs of the gradient steps now, while actors make the first batch."""
        self._step.compile(self._spec)
        unrolls = self._step.unroll_specs(self._spec, self._config.optimizer.batch_size)
        self._step.observations.compile(unrolls.env_outputs)

    def update(
        self,
        batch: Sent | None,
        played: Sequence[int | None] | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> Any:
        """Takes the gradient steps that the arrival of a batch allows, with all other learners.

        Args:
          batch: what actors sent, [B, ...] (a3c: [1, ...]); None if this learner has none and takes
            part with a masked batch.
          played: by rank, `played_steps` of each learner's batch (see `peers`), None: it has none.
            At least one has. None in all: this is the only learner.
          on_step: called after every gradient step.

        Returns:
          the means of the steps' statistics, and the maximum of policy_lag_max; None if this
          learner had no input, all steps were skipped, or none is due yet.

        Raises:
          NotFiniteError: too many steps in a row were skipped, and no actor explains them.
        """
        if played is None:
            assert batch is not None
            played = [played_steps(batch)]
        known = [steps for steps in played if steps is not None]
        self._step.learning_rate.assign(_number(self.learning_rate, np.float32))
        self._step.entropy_cost.assign(_number(self.entropy_cost, np.float32))
        # a3c sends gradients, but it has no statistics of observations.
        self._step.observations.observe(batch, self._only_lasting)  # type: ignore[arg-type]
        stats_of_steps, kls = [], []
        self.all_reduce_s = None if self._group.size == 1 else 0.0
        for minibatch, learners in self.uses.arrival(batch, len(known)):
            (taken, kl, steps, *stats), td_errors = self._take_step(minibatch, learners)
            on_step()
            if taken:
                self._skipped_in_a_row = 0
            else:
                self._count_skipped(minibatch)
            if taken and minibatch is not None:
                stats_of_steps.append(self._step.STATS(*stats))
                self.uses.learned(td_errors)
            if taken and steps > 0:
                kls.append(kl / steps)
        if kls:
            self._schedules.observe_kl(float(np.mean(kls)))
        self.agent_steps += sum(known)
        self.environment_frames = self.agent_steps * self._spec.frames_per_step
        return _means(stats_of_steps)

    @property
    def _only_lasting(self) -> bool:
        """Whether to add only observations whose statistics are `lasting`.

        At first all observations are added, even before learning starts.
        """
        return self.agent_steps >= PIXEL_STATISTICS_STEPS

    def _take_step(self, minibatch: Any, learners: int) -> tuple[list[float], Nest]:
        if minibatch is None:
            if self._masked is None:
                self._masked = self._step.masked(self._spec)
            minibatch = self._masked
        with tf.device("CPU"):
            version = tf.constant(_number(self.parameter_version, np.int64))
            num_learners = tf.constant(_number(learners, np.float32))
        numbers, all_reduce_s, td_errors = self._step.step(
            unmarked(minibatch), version, num_learners
        )
        if self.all_reduce_s is not None:
            self.all_reduce_s += float(all_reduce_s)
        self.learner_updates += 1
        interval = self._config.loss.target_update_interval
        if interval and self.learner_updates % interval == 0:
            self._step.update_target()
        return numbers.numpy().tolist(), td_errors

    def _count_skipped(self, minibatch: Any) -> None:
        self.updates_skipped += 1
        if self.senders.explain(minibatch, self._group):
            return
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NotFiniteError(
                f"{self._skipped_in_a_row} updates in a row had gradients that are not finite"
            )


def _means(stats: list[Any]) -> Any:
    """Returns the means of statistics, but the maximum of policy_lag_max; None: there are none."""
    if not stats:
        return None
    means = type(stats[0])(*np.mean(stats, axis=0).tolist())
    return means._replace(policy_lag_max=max(step.policy_lag_max for step in stats))


def _number(value: float, dtype: type[np.number]) -> np.ndarray:
    """Returns a NumPy scalar: TensorFlow would cache every Python number that it converts."""
    return np.asarray(value, dtype)
