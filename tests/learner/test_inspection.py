"""What the learner refuses at the door."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tree

from impala_tf.agents.agent import unroll_specs
from impala_tf.environments.spaces import WORD_BUCKETS
from impala_tf.learner.inspection import Inspector
from impala_tf.transport import RefusedUnroll
from impala_tf.types import ActionSpec, EnvironmentSpec, ObservationSpec, Unroll
from tests.helpers.agents import make_agent
from tests.helpers.samples import vector_spec
from tests.helpers.unrolls import random_unrolls

VERSION = 50


def unrolls(spec: EnvironmentSpec) -> Unroll:
    agent = make_agent("MLPLSTMAgent", spec)
    made = random_unrolls(unroll_specs(agent, spec, 4), 3)
    return tree.map_structure(np.array, made._replace(parameter_version=np.array([40, 45, 50])))


def check(unroll: Unroll, spec: EnvironmentSpec, **limits: Any) -> None:
    Inspector(spec, **{"max_policy_lag": 1000, **limits}).check(unroll, VERSION)


@pytest.mark.parametrize(
    "actions",
    [
        ActionSpec("discrete", (5,)),
        ActionSpec("multi_discrete", (3, 4)),
        ActionSpec("continuous", (2,)),
    ],
)
def test_good_unrolls_are_taken(actions: ActionSpec) -> None:
    spec = vector_spec()._replace(actions=actions)
    check(unrolls(spec), spec)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "path", ["env_outputs.reward", "env_outputs.observation", "agent_outputs.policy_logits",
             "core_state.0"],
)  # fmt: skip
def test_one_number_that_is_not_finite_is_named(path: str, value: float) -> None:
    spec = vector_spec()
    unroll = unrolls(spec)
    paths = {".".join(map(str, p)): array for p, array in tree.flatten_with_path(unroll)}
    name = next(each for each in paths if each.startswith(path))
    paths[name].flat[7] = value
    with pytest.raises(RefusedUnroll, match=f"{name}: NaN or infinite"):
        check(unroll, spec)


@pytest.mark.parametrize("action", [-1, 5, 2**31 - 1])
def test_actions_that_do_not_exist_are_refused(action: int) -> None:
    spec = vector_spec()._replace(actions=ActionSpec("discrete", (5,)))
    unroll = unrolls(spec)
    unroll.agent_outputs.action[1, 2] = action
    with pytest.raises(RefusedUnroll, match="action: from .* but there are 5"):
        check(unroll, spec)


def test_each_of_several_choices_has_its_own_range() -> None:
    spec = vector_spec()._replace(actions=ActionSpec("multi_discrete", (3, 4)))
    unroll = unrolls(spec)
    unroll.agent_outputs.action[1, 2] = (2, 3)
    check(unroll, spec)
    unroll.agent_outputs.action[1, 2] = (3, 3)
    with pytest.raises(RefusedUnroll, match="action 0: from .* to 3, but there are 3"):
        check(unroll, spec)


@pytest.mark.parametrize("version", [-1, VERSION + 1, 2**62])
def test_versions_that_the_learner_never_had_are_refused(version: int) -> None:
    spec = vector_spec()
    unroll = unrolls(spec)
    unroll.parameter_version[1] = version
    with pytest.raises(RefusedUnroll, match=f"version {version}; .* has {VERSION}"):
        check(unroll, spec)


def test_unrolls_that_are_too_old_are_refused() -> None:
    spec = vector_spec()
    check(unrolls(spec), spec, max_policy_lag=10)
    with pytest.raises(RefusedUnroll, match="10 updates old; --max_policy_lag is 9"):
        check(unrolls(spec), spec, max_policy_lag=9)


def test_all_gradient_steps_for_a_batch_count_as_one_update() -> None:
    """With 8 of them, unrolls of 200 actors are over 1,000 versions old although none was late."""
    spec = vector_spec()
    check(unrolls(spec), spec, max_policy_lag=1, steps_per_batch=8)
    with pytest.raises(RefusedUnroll, match="1 updates old; --max_policy_lag is 0"):
        check(unrolls(spec), spec, max_policy_lag=0, steps_per_batch=8)


def test_levels_that_do_not_exist_are_refused() -> None:
    spec = vector_spec()._replace(tasks=("a", "b"))
    unroll = unrolls(spec)._replace(level=np.array([0, 1, 2], np.int32))
    with pytest.raises(RefusedUnroll, match="level: from 0 to 2, but there are 2"):
        check(unroll, spec)


TEXTS = vector_spec()._replace(
    observation={
        "where": ObservationSpec("vector", (3,)),
        "mission": ObservationSpec("text", (6,)),
    }
)


@pytest.mark.parametrize("word", [-1, WORD_BUCKETS + 1, 2**31 - 1])
def test_words_that_do_not_exist_are_refused(word: int) -> None:
    """The embedding of such a word fails the learner's whole update."""
    unroll = unrolls(TEXTS)
    unroll.env_outputs.observation["mission"][1, 4, 5] = WORD_BUCKETS
    check(unroll, TEXTS)
    unroll.env_outputs.observation["mission"][1, 4, 5] = word
    problem = "observation mission, words: from .* but there are 1001"
    with pytest.raises(RefusedUnroll, match=problem):
        check(unroll, TEXTS)


def test_words_of_a_level_that_shows_nothing_else_are_inspected() -> None:
    spec = vector_spec()._replace(observation=ObservationSpec("text", (6,)))
    unroll = unrolls(spec)
    check(unroll, spec)
    unroll.env_outputs.observation[0, 0, 0] = 5000
    with pytest.raises(RefusedUnroll, match="words: from 0 to 5000, but there are 1001"):
        check(unroll, spec)
