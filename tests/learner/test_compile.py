"""A learner makes its graphs while its actors start."""

from __future__ import annotations

import pytest

from tests.learner.test_update import NO_FLAGS, batch, make


@pytest.mark.parametrize("algorithm", ["impala", "appo"])
def test_a_compiled_learner_traces_no_graph_when_batches_arrive(algorithm: str) -> None:
    """Otherwise the first updates take seconds, while the actors wait."""
    learner, agent = make(algorithm=algorithm, observation_normalization="elementwise")
    learner.compile()
    traced = learner._step.with_batch.experimental_get_tracing_count()
    for seed in range(4):
        learner.update(batch(agent, seed), NO_FLAGS)
    assert learner._step.with_batch.experimental_get_tracing_count() == traced == 2
