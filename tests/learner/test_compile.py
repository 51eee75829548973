"""A learner makes its graphs while its actors start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from impala_tf.agents.agent import agent_of
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from tests.helpers.learners import SPEC, batch, config


class Counted:
    """A function, and how often it was called: in a graph's function, how often that was traced."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self._function(*arguments)


@pytest.mark.parametrize("algorithm", ["impala", "appo"])
def test_a_compiled_learner_traces_no_graph_when_batches_arrive(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first updates take seconds, while the actors wait."""
    settings = config(algorithm=algorithm, observation_normalization="elementwise")
    learner = Learner(agent_of(settings.agent, SPEC), SPEC, settings, LearnerGroup())
    (statistics,) = learner.trackables()["observation_statistics"].parts.values()
    unroll, moments = Counted(learner.agent.unroll), Counted(statistics.moments)
    monkeypatch.setattr(learner.agent, "unroll", unroll)
    monkeypatch.setattr(statistics, "moments", moments)
    learner.compile()
    traced = (unroll.calls, moments.calls)
    assert min(traced) > 0
    for seed in range(4):
        learner.update(batch(learner.agent, seed))
    assert (unroll.calls, moments.calls) == traced
