"""The learner's update compared with one made by hand, alone and in a group."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tree

from impala_tf.agents.agent import Agent, agent_of
from impala_tf.config import Config
from impala_tf.environments.observations import layout_of
from impala_tf.learner.gradient_step import dense_gradients
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.losses import explained_variance
from impala_tf.learner.policy_step import time_major
from impala_tf.learner.update import Learner
from impala_tf.types import Unroll
from tests.helpers.agents import make_agent
from tests.helpers.learners import SPEC, B, GroupOf, T, batch, config, make, sent
from tests.helpers.losses import compute


def gradients_of(agent: Agent, unrolls: Unroll, settings: Config) -> list[np.ndarray]:
    """Returns the gradients of the summed loss, computed eagerly."""
    env_outputs, answers = tree.map_structure(
        lambda a: tf.constant(np.swapaxes(a.numpy(), 0, 1)),
        (unrolls.env_outputs, unrolls.agent_outputs),
    )
    with tf.GradientTape() as tape:
        outputs, _ = agent.unroll(env_outputs, unrolls.core_state)
        total = compute(outputs, env_outputs, answers, settings.loss).total
    return [g.numpy().astype(np.float64) for g in tape.gradient(total, agent.trainable_variables)]


def global_norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(array)) for array in arrays)))


class ByHand:
    """RMSProp after clipping, in NumPy: epsilon inside the root, mean squares that start at 1."""

    def __init__(self, settings: Config, variables: Sequence[tf.Variable]) -> None:
        self._optimizer = settings.optimizer
        self._before = [variable.numpy().astype(np.float64) for variable in variables]
        self._arrays = list(self._before)
        self._squares = [np.ones_like(array) for array in self._arrays]
        self._moments = [np.zeros_like(array) for array in self._arrays]

    def update(self, gradients: list[np.ndarray], learning_rate: float) -> None:
        o = self._optimizer
        scale, limit = 1.0, o.gradients_clipping
        if limit > 0:
            scale = min(1.0, limit / global_norm(gradients))
        for k, gradient in enumerate(gradients):
            g = scale * gradient
            self._squares[k] = o.decay * self._squares[k] + (1 - o.decay) * g * g
            step = learning_rate * g / np.sqrt(self._squares[k] + o.epsilon)
            self._moments[k] = o.momentum * self._moments[k] + step
            self._arrays[k] = self._arrays[k] - self._moments[k]

    def assert_equals(self, learner: Learner) -> None:
        """Compares the changes: in the arrays themselves, a wrong small step would not show."""
        variables = learner.agent.trainable_variables
        for variable, expected, before in zip(variables, self._arrays, self._before, strict=True):
            found = variable.numpy() - before
            np.testing.assert_allclose(found, expected - before, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(
    "flags",
    [
        {"algorithm": "impala", "updates_per_batch": 3},
        {"algorithm": "ppo", "minibatches": 3},
        {"algorithm": "pqn", "minibatches": 3},
        {"algorithm": "dqn", "replay_start_steps": 0},
    ],
    ids=lambda flags: flags["algorithm"],
)
def test_a_frame_is_a_step_that_was_played(flags: dict[str, Any]) -> None:
    """Steps in which an environment only resets would be half of all frames of one-step games."""
    settings = config(agent_name="MLPAgent", **flags)
    agent = agent_of(settings.agent, SPEC)
    learner = Learner(agent, SPEC, settings, LearnerGroup())
    unrolls = batch(agent)
    resets = np.zeros((B, T + 1), bool)
    resets[:, 0] = True  # belongs to the unroll before
    resets[1, 2] = resets[2, 1] = resets[2, 3] = True
    env_outputs = unrolls.env_outputs._replace(autoreset=tf.constant(resets))
    if flags["algorithm"] == "dqn":
        unrolls = unrolls._replace(td_errors=tf.ones((B, T)))
    for updates in (1, 2):
        learner.update(unrolls._replace(env_outputs=env_outputs))
        assert learner.agent_steps == updates * (B * T - 3)
        assert learner.environment_frames == 4 * learner.agent_steps


@pytest.mark.parametrize(
    ("agent_name", "flags"),
    [
        ("MLPLSTMAgent", {"gradients_clipping": 0.5}),
        ("SeparateMLPAgent", {"gradients_clipping": 1e6, "decay": 0.9}),
        ("MLPAgent", {"gradients_clipping": 0.0, "momentum": 0.7}),
    ],
    ids=["clipped", "not reached", "off, momentum"],
)
def test_three_updates_equal_those_by_hand(agent_name: str, flags: dict[str, Any]) -> None:
    """What the table of hyperparameters says is what happens to the parameters."""
    learner, agent = make(agent_name, **flags)
    settings = config(agent_name=agent_name, **flags)
    by_hand = ByHand(settings, learner.agent.trainable_variables)
    for update in range(3):
        unrolls = batch(agent, seed=update)
        gradients = gradients_of(agent, unrolls, settings)
        assert global_norm(gradients) > 0.5  # above one of the clips, below the other
        stats = learner.update(unrolls, [B * T])
        assert stats is not None
        np.testing.assert_allclose(stats.gradient_norm, global_norm(gradients), rtol=1e-4)
        # Annealed linearly from 0.05 at frame 0 to 0 after 10 batches without resets.
        by_hand.update(gradients, learning_rate=0.05 * (1 - update / 10))
        by_hand.assert_equals(learner)


def test_every_statistic_has_its_own_value() -> None:
    """A curve under the name of another one would mislead."""
    learner, agent = make()
    unrolls = batch(agent)
    swapped = time_major(unrolls, layout_of(SPEC))
    outputs, _ = agent.unroll(swapped.env_outputs, swapped.core_state)
    found = compute(outputs, swapped.env_outputs, swapped.agent_outputs, config().loss)
    learner.restore_counters({**learner.counters(), "learner_updates": 7})
    stats = learner.update(unrolls._replace(parameter_version=tf.constant([7, 4, 2], tf.int64)))
    for name, expected in {
        "loss_total": found.total,
        "loss_policy_gradient": found.policy_gradient,
        "loss_baseline": found.baseline,
        "entropy": found.entropy,
        "rho_clip_fraction": found.rho_clip_fraction,
        "c_clip_fraction": found.c_clip_fraction,
        "policy_lag_mean": (0 + 3 + 5) / 3,
        "policy_lag_max": 5,
        "kl": found.kl,
        "explained_variance": explained_variance(
            found.value_error, tf.reduce_sum(found.target_sums, axis=1, keepdims=True)
        ),
        "advantage_rms": np.sqrt(found.squared_advantages / found.steps),
        "surrogate_clip_fraction": 0,
    }.items():
        np.testing.assert_allclose(getattr(stats, name), expected, rtol=1e-4, err_msg=name)


def test_several_learners_apply_the_mean_of_their_gradients() -> None:
    """If each clipped its own gradient before the mean, N learners would not equal one."""
    agent = make_agent("MLPLSTMAgent", SPEC)
    others = [sent(agent, 1), sent(agent, 2), sent(agent, 3, scale=0.0)]
    settings = config(gradients_clipping=0.5)
    learner = Learner(agent, SPEC, settings, GroupOf(*others))  # type: ignore[arg-type]
    unrolls = batch(agent)
    mine = gradients_of(agent, unrolls, settings)
    # One of the four learners has no batch, and must not make the step of the others smaller.
    mean = [(a + b + c) / 3 for a, b, c in zip(mine, others[0], others[1], strict=True)]
    by_hand = ByHand(settings, learner.agent.trainable_variables)
    by_hand.update(mean, learning_rate=0.05)
    stats = learner.update(unrolls, [B * T, B * T, 3, None])
    assert stats is not None
    np.testing.assert_allclose(stats.gradient_norm, global_norm(mean), rtol=1e-4)
    by_hand.assert_equals(learner)
    # Frames count over all learners, 4 frames a step.
    assert learner.agent_steps == 2 * B * T + 3
    assert learner.environment_frames == 4 * learner.agent_steps


@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_a_learner_without_a_batch_applies_the_step_of_the_others(algorithm: str) -> None:
    """Otherwise it would have another network from then on, and so would its actors."""
    settings = config(
        algorithm=algorithm,
        agent_name="MLPAgent",
        optimizer="rmsprop",
        minibatches=1,
        updates_per_batch=1,
    )
    agent = agent_of(settings.agent, SPEC)
    other = sent(agent, 1)
    learner = Learner(agent, SPEC, settings, GroupOf(other))  # type: ignore[arg-type]
    by_hand = ByHand(settings, learner.agent.trainable_variables)
    by_hand.update([array.astype(np.float64) for array in other], learning_rate=0.05)
    assert learner.update(None, [None, B * T]) is None
    by_hand.assert_equals(learner)
    assert learner.agent_steps == B * T


class WithALateOne(GroupOf):
    """Another learner comes to each all-reduce half a second late."""

    def sum(self, nest: Any, name: str) -> Any:
        with tf.control_dependencies([tf.py_function(lambda: time.sleep(0.5), [], [])]):
            return tf.nest.map_structure(tf.identity, super().sum(nest, name))


def test_the_seconds_of_the_all_reduce_include_the_wait_for_a_late_learner() -> None:
    agent = make_agent("MLPAgent", SPEC)
    learner = Learner(agent, SPEC, config(), WithALateOne(sent(agent, 1)))  # type: ignore[arg-type]
    learner.update(batch(agent), [B * T, B * T])
    assert learner.all_reduce_s is not None and learner.all_reduce_s > 0.4


@pytest.mark.parametrize("algorithm", ["impala", "appo"])
def test_a_compiled_learner_traces_no_graph_when_batches_arrive(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first updates take seconds, while the actors wait."""
    learner, agent = make("MLPAgent", algorithm=algorithm)
    unroll, traces = agent.unroll, 0

    def counted(*arguments: Any) -> Any:
        nonlocal traces
        traces += 1
        return unroll(*arguments)

    monkeypatch.setattr(agent, "unroll", counted)
    learner.compile()
    traces_before = traces
    learner.update(batch(agent))
    assert traces == traces_before > 0


def test_published_parameters_do_not_change_with_the_next_update() -> None:
    """Actors fetch them during the next update, and must not get half of each."""
    learner, agent = make()
    published = learner.parameters()
    before = copy.deepcopy(published)
    learner.update(batch(agent))
    for array, kept in zip(published, before, strict=True):
        np.testing.assert_array_equal(array, kept)
    assert any(np.any(a != b) for a, b in zip(published, learner.parameters(), strict=True))


def test_a_variable_that_the_loss_does_not_depend_on_gets_zeros() -> None:
    """As a network of the user's own may have: None could not be summed over learners."""
    used, unused = tf.Variable(2.0), tf.Variable([1.0, 1.0])
    with tf.GradientTape() as tape:
        loss = used * used
    gradients = dense_gradients(tape, loss, [used, unused])
    assert [each.numpy().tolist() for each in gradients] == [4.0, [0.0, 0.0]]
