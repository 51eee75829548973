"""Environments that break or hang, with real ones from tests.helpers.worlds."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from impala_tf.config import ConfigError
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.guarded import GuardedEnvironment
from impala_tf.supervision import RestartBudget

LEVEL = "tests.helpers.worlds:FaultyCartPole-v1"
N = 3


class Budget(RestartBudget):
    """Does not wait."""

    def pause_s(self, ran_s: float) -> float | None:
        return None if super().pause_s(ran_s) is None else 0.0


def faulty(at_steps: list[int], **settings: Any) -> BatchedEnvironment:
    """Makes an environment of each entry, which breaks at that step of its life."""
    makers = [lambda at=at: gymnasium.make(LEVEL, at_step=at, **settings) for at in at_steps]
    vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    return BatchedEnvironment(vector)


@pytest.fixture
def guard() -> Iterator[Any]:
    made: list[GuardedEnvironment] = []

    def make(
        *lives: list[int], fault: str, max_restarts: int = 3, timeout_s: float = 60.0,
        **settings: Any,
    ) -> GuardedEnvironment:  # fmt: skip
        made.append(
            GuardedEnvironment(
                lambda attempt: faulty(lives[min(attempt, len(lives) - 1)], fault=fault),
                [LEVEL],
                timeout_s,
                budget=Budget(max_restarts),
                seed_of=lambda attempt: 107 + attempt,
                **settings,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "fault, reason",
    [
        ("nan", "environment 1 of .*FaultyCartPole-v1: observation is NaN or infinite after"
                " action 1"),
        ("inf", "environment 1 of .*FaultyCartPole-v1: reward is NaN or infinite after action 1"),
        ("shape", "seed 107, after actions .*1 1 1.*: ValueError"),
        ("raise", "seed 107, after actions .*1 1 1.*: RuntimeError: the pole is broken"),
    ],
)  # fmt: skip
def test_broken_environments_are_made_again_and_look_truncated(
    guard: Any, fault: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    never = [0, 0, 0]
    environment = guard([0, 5, 0], never, fault=fault)
    environment.reset()
    actions = np.ones(N, np.int32)
    for _ in range(4):
        assert not environment.step(actions).autoreset.any()
    output = environment.step(actions)
    assert environment.restarts == 1
    assert output.autoreset.all() and output.episode_start.all()
    assert not (output.terminated | output.truncated).any()
    assert np.isfinite(output.observation).all() and not output.reward.any()
    assert re.search(reason, caplog.text), caplog.text
    for _ in range(60):
        output = environment.step(actions)
    assert environment.restarts == 1
    assert environment.pop_episodes()


def test_environments_that_break_again_and_again_end_the_actor(guard: Any) -> None:
    environment = guard([1, 0, 0], fault="nan", max_restarts=2)
    environment.reset()
    with pytest.raises(ConfigError, match="have broken 3 times; at last environment 0 of .*NaN"):
        for _ in range(5):
            environment.step(np.zeros(N, np.int32))


def test_games_that_had_finished_still_count(guard: Any) -> None:
    environment = guard([0, 200, 0], [0, 0, 0], fault="raise")
    environment.reset()
    while environment.restarts == 0:
        environment.step(np.ones(N, np.int32))
    assert len(environment.pop_episodes()) > 10


def test_an_environment_that_hangs_ends_the_process(
    guard: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()
    environment = guard([0, 2, 0], fault="hang", timeout_s=0.5, on_hang=ended.set)
    environment.reset()

    def act() -> None:
        for _ in range(2):
            environment.step(np.ones(N, np.int32))

    threading.Thread(target=act, daemon=True).start()
    assert ended.wait(10)
    assert "a step takes longer than --environment_timeout_s=0.5" in caplog.text


def test_no_thread_holds_environments_that_were_closed(guard: Any) -> None:
    """At the exit of an actor, ALE would print into its log that a game has leaked."""
    for _ in range(20):
        guard([0], fault="nan").close()
        assert not [each for each in threading.enumerate() if each.name == "watchdog"]
