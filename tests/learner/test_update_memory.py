"""A run of days may not need more memory with every update."""

from __future__ import annotations

import ctypes
import gc
import re
import statistics
from collections.abc import Callable

import pytest
import tensorflow as tf
import tree

from impala_tf.agents.agent import unroll_specs
from impala_tf.agents.policy import compile_policy
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from tests.helpers.agents import make_agent
from tests.helpers.samples import resolved_config, steps, vector_spec
from tests.helpers.unrolls import random_unrolls

# A tensor that is kept is 500 bytes.
BYTES_PER_CALL = 300


def used_memory() -> int:
    """Returns the bytes in use in all of malloc's arenas (Linux, glibc)."""
    libc = ctypes.CDLL("libc.so.6")
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    report = (text.value or b"").decode()
    libc.free(text)
    totals = report[report.rindex("</heap>") :]
    free = re.findall(r'<total type="(?:fast|rest)" count="\d+" size="(\d+)"', totals)
    mapped = re.search(r'<total type="mmap" count="\d+" size="(\d+)"', totals)
    system = re.search(r'<system type="current" size="(\d+)"', totals)
    assert mapped and system, "malloc_info has another format"
    return int(system[1]) + int(mapped[1]) - sum(map(int, free))


def kept_bytes(call: Callable[[], object], times: int) -> float:
    """Returns the bytes that a call leaves behind: the median of rounds.

    What earlier tests of the process left is freed at any time, and changes one round.
    """
    gc.collect()
    kept, before = [], used_memory()
    for _ in range(6):  # caches and pools fill in the first
        for _ in range(times // 5):
            call()
        gc.collect()
        before, last = used_memory(), before
        kept.append((before - last) / (times // 5))
    return statistics.median(kept[1:])


def test_the_measurement_sees_a_tensor_that_is_kept() -> None:
    numbers = iter(range(10**9))
    assert kept_bytes(lambda: tf.constant(next(numbers)), 1000) > BYTES_PER_CALL


@pytest.mark.parametrize(("algorithm", "times"), [("impala", 400), ("ppo", 60)])
def test_an_update_leaves_nothing_behind(algorithm: str, times: int) -> None:
    spec = vector_spec()
    agent = make_agent("MLPAgent", spec)
    settings = resolved_config(
        algorithm=algorithm, batch_size=4, unroll_length=4, total_environment_frames=10**9
    )
    learner = Learner(agent, spec, settings, LearnerGroup())
    unrolls = tree.map_structure(tf.constant, random_unrolls(unroll_specs(agent, spec, 4), 4, 0))
    assert kept_bytes(lambda: learner.update(unrolls), times) < BYTES_PER_CALL


def test_a_decision_leaves_nothing_behind() -> None:
    spec = vector_spec()
    agent = make_agent("MLPLSTMAgent", spec)
    policy = compile_policy(agent, spec, num_envs=2, seed=1)
    step, state = steps(spec, (2,)), agent.initial_state(2)
    assert kept_bytes(lambda: policy(step, state), 2000) < BYTES_PER_CALL
