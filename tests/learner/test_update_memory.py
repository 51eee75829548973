"""A run of days may not need more memory with every update."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
import tree

from impala_tf.agents.agent import unroll_specs
from impala_tf.agents.policy import compile_policy
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.monitoring.metrics import METRICS
from impala_tf.monitoring.writers import TensorBoardWriter
from tests.helpers.agents import make_agent
from tests.helpers.samples import resolved_config, steps, vector_spec
from tests.helpers.unrolls import random_unrolls
from tests.helpers.used_memory import used_memory

pytestmark = pytest.mark.slow

# A tensor that is kept is 500 bytes.
BYTES_PER_CALL = 300


def kept_bytes(call: Callable[[], object], times: int) -> float:
    """Returns the bytes that a call leaves behind, on average."""
    for _ in range(times // 4):  # caches and pools fill
        call()
    gc.collect()
    before = used_memory()
    for _ in range(times):
        call()
    gc.collect()
    return (used_memory() - before) / times


def test_the_measurement_sees_a_tensor_that_is_kept() -> None:
    numbers = iter(range(10**9))
    assert kept_bytes(lambda: tf.constant(next(numbers)), 1000) > BYTES_PER_CALL


@pytest.mark.parametrize(("algorithm", "times"), [("impala", 400), ("appo", 400), ("ppo", 60)])
def test_an_update_leaves_nothing_behind(algorithm: str, times: int) -> None:
    spec = vector_spec()
    agent = make_agent("MLPAgent", spec)
    settings = resolved_config(
        algorithm=algorithm, batch_size=4, unroll_length=4, total_environment_frames=10**9
    )
    learner = Learner(agent, spec, settings, LearnerGroup())
    unrolls = tree.map_structure(tf.constant, random_unrolls(unroll_specs(agent, spec, 4), 4, 0))
    assert kept_bytes(lambda: learner.update(unrolls), times) < BYTES_PER_CALL


def test_a_row_for_tensorboard_leaves_nothing_behind(tmp_path: Path) -> None:
    writer, numbers = TensorBoardWriter(tmp_path), iter(range(10**9))

    def write() -> None:
        number = next(numbers)
        values = dict.fromkeys(METRICS, number + 0.5)
        writer.write({**values, "environment_frames": number})

    assert kept_bytes(write, 200) < BYTES_PER_CALL


def test_a_decision_leaves_nothing_behind() -> None:
    spec = vector_spec()
    agent = make_agent("MLPLSTMAgent", spec)
    policy = compile_policy(agent, spec, num_envs=2, seed=1)
    step, state = steps(spec, (2,)), agent.initial_state(2)
    assert kept_bytes(lambda: policy(step, state), 2000) < BYTES_PER_CALL
