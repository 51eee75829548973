"""Numbers that are not finite never reach the parameters, the statistics or a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.learner import losses
from impala_tf.learner.losses import Losses
from impala_tf.learner.update import MAX_SKIPPED_IN_A_ROW, Learner, NotFiniteError
from impala_tf.types import Unroll
from tests.helpers.learners import batch, make

STATISTICS = {
    "observation_normalization": "elementwise",
    "advantage_scaling": "rms",
    "value_normalization": "running",
}


def poisoned(unrolls: Unroll, value: float) -> Unroll:
    """Returns the batch with an unroll whose rewards are `value`."""
    reward = unrolls.env_outputs.reward.numpy()
    reward[0] = value
    return unrolls._replace(env_outputs=unrolls.env_outputs._replace(reward=tf.constant(reward)))


def everything(learner: Learner) -> list[np.ndarray]:
    variables = learner.parameters_and_slots()  # The learning rate follows its schedule.
    return [each.numpy() for each in variables if "learning_rate" not in each.name]


@pytest.mark.parametrize(
    ("algorithm", "value"), [("impala", 1e30), ("appo", float("nan")), ("ppo", float("inf"))]
)
def test_an_update_that_is_not_finite_changes_nothing(algorithm: str, value: float) -> None:
    flags: dict[str, Any] = {**STATISTICS, "algorithm": algorithm, "reward_clipping": "none"}
    learner, agent = make("MLPAgent", **flags, minibatches=1)
    learner.update(batch(agent, seed=1))
    before = everything(learner)
    stats = learner.update(poisoned(batch(agent, seed=2), value))
    assert stats is None
    assert learner.updates_skipped > 0
    for old, new in zip(before, everything(learner), strict=True):
        np.testing.assert_array_equal(old, new)
    stats = learner.update(batch(agent, seed=3))
    assert stats is not None and np.isfinite(stats).all()
    assert learner.not_finite() == []


def test_a_sum_that_is_not_finite_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stay in the running moments for good, although all gradients are finite."""
    compute = losses.compute

    def overflowing(*arguments: Any) -> Losses:
        return compute(*arguments)._replace(squared_advantages=tf.constant(np.inf))

    monkeypatch.setattr(losses, "compute", overflowing)
    learner, agent = make("MLPAgent", **STATISTICS)
    before = learner.parameters()[2:]  # but those of the normalizer
    assert learner.update(batch(agent)) is None
    for old, new in zip(before, learner.parameters()[2:], strict=True):
        np.testing.assert_array_equal(old, new)


def test_training_that_has_broken_down_ends_but_good_updates_keep_it_going() -> None:
    learner, agent = make(reward_clipping="none")
    bad = poisoned(batch(agent), float("nan"))
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        learner.update(bad)
    learner.update(batch(agent))
    with pytest.raises(NotFiniteError, match=f"{MAX_SKIPPED_IN_A_ROW} updates in a row"):
        for _ in range(MAX_SKIPPED_IN_A_ROW):
            learner.update(bad)
    assert learner.updates_skipped == 2 * MAX_SKIPPED_IN_A_ROW - 1
    assert learner.not_finite() == []
