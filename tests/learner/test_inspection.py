"""What the learner refuses at the door."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tree

from impala_tf.agents.agent import unroll_specs
from impala_tf.environments.spaces import WORD_BUCKETS
from impala_tf.learner import arrivals
from impala_tf.learner.arrivals import Inspector
from impala_tf.transport import RefusedUnroll
from impala_tf.types import ActionSpec, EnvironmentSpec, ObservationSpec, Unroll
from tests.helpers.agents import make_agent
from tests.helpers.samples import resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

VERSION = 50


def unrolls(spec: EnvironmentSpec) -> Unroll:
    agent = make_agent("MLPLSTMAgent", spec)
    made = random_unrolls(unroll_specs(agent, spec, 4), 3)
    return tree.map_structure(np.array, made._replace(parameter_version=np.array([40, 45, 50])))


def check(unroll: Unroll, spec: EnvironmentSpec, **flags: Any) -> None:
    settings = resolved_config(**{"updates_per_batch": 1, "minibatches": 1, **flags})
    Inspector(spec, settings).check(unroll, VERSION)


TEXT = ObservationSpec("text", (6,))
TEXTS = vector_spec()._replace(
    observation={"where": ObservationSpec("vector", (3,)), "mission": TEXT}
)
CHOICES = vector_spec()._replace(actions=ActionSpec("multi_discrete", (3, 4)))
ROBOT = vector_spec()._replace(actions=ActionSpec("continuous", (2,)))
LEVELS = vector_spec()._replace(tasks=("a", "b"))


@pytest.mark.parametrize(
    ("spec", "path", "value", "problem"),
    [
        # One number that is not finite would poison every parameter.
        (vector_spec(), "env_outputs.reward", np.nan, "env_outputs.reward: NaN, infinite"),
        (vector_spec(), "env_outputs.observation", -np.inf, "observation: NaN, infinite"),
        (vector_spec(), "agent_outputs.policy_logits", np.inf, "policy_logits: NaN, infinite"),
        # Finite ones overflow in the first sum of squares, and the whole update is skipped.
        *((vector_spec(), f"{path}s.{name}", value, f"{name}: .* beyond {most}")
          for path, name, most in (("env_output", "reward", "1e[+]15"),
                                   ("env_output", "observation", "1e[+]30"),
                                   ("agent_output", "policy_logits", "1e[+]30"))
          for value in (3e38, -2e30)),
        (vector_spec(), "env_outputs.reward", -2e15, "reward: .* beyond 1e[+]15"),
        (ROBOT, "core_state.0", np.nan, "core_state.0: NaN, infinite"),
        # The embedding of a word that does not exist fails the learner's whole update.
        *((TEXTS, "env_outputs.observation.mission", word, "mission, words: .* but there are 1001")
          for word in (-1, WORD_BUCKETS + 1, 2**31 - 1)),
        (vector_spec()._replace(observation=TEXT), "env_outputs.observation", 5000,
         "words: from 0 to 5000, but there are 1001"),
        *((vector_spec(), f"{name}action", action, "action: from .* but there are 4")
          for name in ("agent_outputs.", "env_outputs.last_") for action in (-1, 4, 2**31 - 1)),
        (CHOICES, "agent_outputs.action", 3, "action 0: from .* to 3, but there are 3"),
        (LEVELS, "level", 2, "level: from 0 to 2, but there are 2"),
        *((vector_spec(), "parameter_version", version, f"version {version}; .* has {VERSION}")
          for version in (-1, VERSION + 1, 2**62)),
    ],
)  # fmt: skip
def test_what_would_harm_training_is_refused_by_name(
    spec: EnvironmentSpec, path: str, value: float, problem: str
) -> None:
    unroll = unrolls(spec)
    check(unroll, spec)  # what is good is taken
    paths = {".".join(map(str, at)): array for at, array in tree.flatten_with_path(unroll)}
    paths[path].flat[0] = value
    with pytest.raises(RefusedUnroll, match=problem):
        check(unroll, spec)


def test_unrolls_that_are_too_old_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All gradient steps for a batch count as one update: 200 actors' unrolls would be too old."""
    spec = vector_spec()
    for lag, steps_per_batch in ((10, 1), (1, 8)):
        monkeypatch.setattr(arrivals, "MAX_POLICY_LAG", lag)
        check(unrolls(spec), spec, updates_per_batch=steps_per_batch)
        monkeypatch.setattr(arrivals, "MAX_POLICY_LAG", lag - 1)
        with pytest.raises(RefusedUnroll, match=f"{lag} updates old; the limit is {lag - 1}"):
            check(unrolls(spec), spec, updates_per_batch=steps_per_batch)
