"""What a replay keeps, and how often each of its steps is drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tree

from impala_tf.agents.agent import unroll_specs
from impala_tf.agents.n_step_returns import n_step_returns
from impala_tf.algorithms.dqn.buffer import ReplayBuffer
from impala_tf.algorithms.dqn.replay import replayed
from impala_tf.config import Config
from impala_tf.environments.observations import layout_of
from impala_tf.types import EnvironmentSpec, EnvOutput, Unroll
from tests.helpers.agents import make_agent
from tests.helpers.samples import image_spec, resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

T, A = 5, 4


def config_of(**flags: Any) -> Config:
    usual = {
        "algorithm": "dqn", "agent_name": "MLPAgent", "unroll_length": T, "batch_size": 2,
        "replay_capacity": 4 * T, "n_step": 2, "reward_clipping": "none",
    }  # fmt: skip
    return resolved_config(**{**usual, **flags})


def specs_of(spec: EnvironmentSpec) -> Unroll:
    name = "MLPAgent" if spec.kind == "vector" else "ShallowConvNetAgent"
    return unroll_specs(make_agent(name, spec, heads="q_values"), spec, T)


def unrolls_of(spec: EnvironmentSpec, count: int, seed: int = 0) -> Unroll:
    found = random_unrolls(specs_of(spec), count, seed)
    versions = 100 * seed + np.arange(count)
    return found._replace(parameter_version=versions, td_errors=np.abs(found.td_errors))


def replay_of(spec: EnvironmentSpec, **flags: Any) -> ReplayBuffer:
    return ReplayBuffer(specs_of(spec), layout_of(spec), config_of(**flags), seed=1)


def counts(replay: ReplayBuffer, times: int = 400, batch: int = 50) -> np.ndarray:
    """Returns how large a share each index has of many draws."""
    drawn = np.concatenate([replay.draw(batch)[0] for _ in range(times)])
    return np.bincount(drawn, minlength=replay.capacity) / len(drawn)


@pytest.mark.parametrize(
    "spec", [vector_spec(num_actions=A), image_spec((12, 10, 4), 4), image_spec((12, 10, 3))]
)
def test_steps_come_back_as_the_environment_returned_them(spec: EnvironmentSpec) -> None:
    """Stacks are put together from frames that are kept once, across resets and unrolls."""
    replay, unrolls = replay_of(spec), unrolls_of(spec, 4)
    replay.add(unrolls)
    whole: EnvOutput = layout_of(spec).time_major(
        tree.map_structure(tf.constant, unrolls.env_outputs)
    )
    targets = n_step_returns(unrolls.env_outputs, 2, 0.99, "none")
    indices, sample = replay.draw(200)
    for b, (row, t) in enumerate(zip(*np.divmod(indices, T), strict=True)):
        assert targets.valid[row, t], "the step into a reset is none"
        end = targets.bootstrap[row, t]
        for found, at in ((sample.step, t), (sample.next_step, end)):
            seen = layout_of(spec).to_network(
                tree.map_structure(lambda a, b=b: a[b : b + 1], found)
            )
            tree.map_structure(
                lambda a, e, at=at, row=row: np.testing.assert_array_equal(a[0], e[at, row]),
                seen,
                whole,
            )
        assert sample.action[b] == unrolls.agent_outputs.action[row, t]
        assert sample.returns[b] == targets.returns[row, t]
        assert sample.discounts[b] == targets.discounts[row, t]
        assert sample.parameter_version[b] == row


def test_the_newest_unrolls_replace_the_oldest() -> None:
    spec = vector_spec(num_actions=A)
    replay = replay_of(spec)
    for seed in range(1, 4):  # 3 x 3 unrolls for 4 places: the last four stay
        replay.add(unrolls_of(spec, 3, seed))
    versions = set(replay.draw(500)[1].parameter_version.tolist())
    assert versions == {202, 300, 301, 302}
    assert replay.steps == replay.capacity == 4 * T


def test_probabilities_and_weights_are_those_of_the_definition() -> None:
    """P(i) = p_i^alpha / sum, w_i = (M P(i))^-beta / max w (arXiv 1511.05952, section 3)."""
    spec = vector_spec(num_actions=A)
    replay, unrolls = replay_of(spec), unrolls_of(spec, 4)
    replay.add(unrolls)
    valid = n_step_returns(unrolls.env_outputs, 2, 0.99, "none").valid.ravel()
    errors = unrolls.td_errors.ravel().copy()
    for _ in range(2):  # with the actors' errors, then with the learner's
        priorities = np.where(valid, (errors + 1e-6) ** 0.6, 0.0)
        expected = priorities / priorities.sum()
        np.testing.assert_allclose(counts(replay), expected, atol=0.01)
        indices, sample = replay.draw(30)
        weights = (valid.sum() * expected[indices]) ** -0.4
        np.testing.assert_allclose(sample.weights, weights / weights.max(), rtol=1e-4)
        errors[indices] = np.linspace(0.0, 8.0, 30)
        replay.set_errors(indices, -errors[indices])


def test_uniform_replay_draws_every_step_equally_often() -> None:
    spec = vector_spec(num_actions=A)
    replay, unrolls = replay_of(spec, replay_sampling="uniform"), unrolls_of(spec, 4)
    replay.add(unrolls)
    indices, sample = replay.draw(8)
    replay.set_errors(indices, np.full(8, 100.0, np.float32))
    valid = n_step_returns(unrolls.env_outputs, 2, 0.99, "none").valid.ravel()
    np.testing.assert_allclose(counts(replay), valid / valid.sum(), atol=0.01)
    np.testing.assert_array_equal(sample.weights, 1.0)


def test_the_learners_of_a_group_draw_other_steps() -> None:
    """Equal draws would make the mean gradient of a group less varied than its batches."""
    spec, drawn = vector_spec(num_actions=A), []
    agent = make_agent("MLPAgent", spec, heads="q_values")
    for rank in (0, 0, 1):
        group = SimpleNamespace(rank=rank, members=(0, 1))
        step: Any = SimpleNamespace(agent=agent, layout=layout_of(spec), group=group)
        replay = replayed(step, spec, config_of()).replay
        replay.add(unrolls_of(spec, 4))
        drawn.append(replay.draw(50)[0].tolist())
    assert drawn[0] == drawn[1] != drawn[2]
