"""A learner makes its graphs while its actors start."""

from __future__ import annotations

import pytest

from impala_tf.agents.agent import agent_of
from impala_tf.learner.group import SingleLearner
from impala_tf.learner.update import Learner
from tests.learner.test_update import SPEC, batch, config


@pytest.mark.parametrize("algorithm", ["impala", "appo"])
def test_a_compiled_learner_traces_no_graph_when_batches_arrive(algorithm: str) -> None:
    """Otherwise the first updates take seconds, while the actors wait."""
    settings = config(algorithm=algorithm, observation_normalization="elementwise")
    learner = Learner(agent_of(settings.agent, SPEC), SPEC, settings, SingleLearner())
    learner.compile()
    functions = (learner._step.step, learner._step._moments)
    traced = [each.experimental_get_tracing_count() for each in functions]
    for seed in range(4):
        learner.update(batch(learner.agent, seed))
    assert [each.experimental_get_tracing_count() for each in functions] == traced == [1, 1]
