"""A learner has parameters before it serves actors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from impala_tf import config as configs
from impala_tf.agents.agent import unroll_specs
from impala_tf.checkpoint.run_state import NotFiniteError
from impala_tf.config import resolved
from impala_tf.processes.common import credentials_dir
from impala_tf.processes.learner_parts import LearnerParts
from impala_tf.transport import ActorClient

Build = Callable[[], LearnerParts]


def first_parameters(parts: LearnerParts) -> tuple[int, list[np.ndarray]]:
    """Serves, and returns what an actor without parameters gets."""
    assert parts.store.latest is not None, "a server started now would have no parameters"
    unroll_length = resolved(parts.config.optimizer.unroll_length)
    actor = ActorClient(
        f"127.0.0.1:{parts.server.port}",
        credentials_dir(parts.config),
        "actor-0",
        unroll_specs(parts.learner.agent, parts.spec, unroll_length),
        configs.wire_digest(parts.config),
    )
    parts.server.start()
    try:
        found = actor.fetch_parameters(-1)
    finally:
        actor.close()
    assert found is not None
    return found


def test_the_first_actor_gets_the_learners_parameters(build: Build) -> None:
    """Without them it would act with its own random network."""
    parts = build()
    version, arrays = first_parameters(parts)
    assert version == 0
    for got, expected in zip(arrays, parts.learner.parameters(), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_after_a_resume_the_first_actor_gets_the_parameters_of_the_checkpoint(build: Build) -> None:
    first = build()
    for variable in first.learner.agent.trainable_variables:
        variable.assign_add(np.ones(variable.shape))
    first.learner.restore_counters(
        {"learner_updates": 7, "agent_steps": 70, "environment_frames": 70}
    )
    first.run_state.save()
    expected = first.learner.parameters()

    resumed = build()
    assert resumed.resumed
    version, arrays = first_parameters(resumed)
    assert version == 7
    for got, array in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(got, array)


def test_a_checkpoint_never_holds_nan(build: Build) -> None:
    parts = build()
    parts.run_state.save()
    good = parts.run_state.latest_checkpoint
    weights = parts.learner.agent.trainable_variables[0]
    weights.assign(np.full(weights.shape, np.nan, np.float32))
    parts.learner.learner_updates = 9
    with pytest.raises(NotFiniteError, match="not saved: .* would hold NaN"):
        parts.run_state.save()
    assert parts.run_state.latest_checkpoint == good
    assert [path.name for path in parts.logdir.checkpoints.iterdir()] == [Path(str(good)).name]
