"""n-step returns against a slow transcription, wherever episodes end in an unroll."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_tf.agents.n_step_returns import n_step_returns
from impala_tf.types import EnvOutput
from tests.helpers.formulas import n_step_return

GAMMA = 0.9


def steps(
    reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, autoreset: np.ndarray
) -> EnvOutput:
    return EnvOutput(reward, terminated, truncated, autoreset, autoreset, (), ())


@st.composite
def unrolls(draw: st.DrawFn) -> EnvOutput:
    """Two environments; each step goes on, ends an episode in one of three ways, or follows one.

    Or the environment is restarted: a reset that no end precedes.
    """
    length = draw(st.integers(1, 12))
    flags = np.zeros((3, 2, length + 1), bool)  # terminated, truncated, autoreset
    for env in range(2):
        resets = draw(st.booleans())
        for t in range(length + 1):
            if resets:
                flags[2, env, t], resets = True, False
                continue
            end = draw(st.sampled_from(["no", "no", "no", "dead", "cut", "life lost", "restart"]))
            flags[2, env, t] = end == "restart"
            flags[0, env, t] = end in ("dead", "life lost")
            flags[1, env, t] = end == "cut"
            resets = end in ("dead", "cut")
    reward = draw(st.integers(0, 2**32 - 1))
    rewards = np.random.default_rng(reward).normal(size=(2, length + 1)).astype(np.float32)
    return steps(np.where(flags[2], 0, rewards), *flags)


@settings(max_examples=300, deadline=None)
@given(unroll=unrolls(), n=st.integers(1, 6))
def test_windows_end_with_episodes_and_with_the_unroll(unroll: EnvOutput, n: int) -> None:
    """A window across a reset would add rewards of another episode, or its first state's value."""
    found = n_step_returns(unroll, n, GAMMA, "none")
    for env, t in np.ndindex(found.valid.shape):
        expected = n_step_return(unroll, env, t, n, GAMMA)
        assert found.valid[env, t] == (expected is not None)
        if expected is not None:
            returns, discount, bootstrap = expected
            assert found.returns[env, t] == pytest.approx(returns, abs=1e-5)
            assert found.discounts[env, t] == pytest.approx(discount, abs=1e-6)
            assert found.bootstrap[env, t] == bootstrap


def test_rewards_are_clipped_before_they_are_added() -> None:
    never = np.zeros((1, 4), bool)
    unroll = steps(np.array([[9.0, 5.0, -3.0, 0.5]], np.float32), never, never, never)
    found = n_step_returns(unroll, 3, 1.0, "abs_one")
    np.testing.assert_allclose(found.returns, [[0.5, -0.5, 0.5]])
    assert found.returns.dtype == found.discounts.dtype == np.float32
