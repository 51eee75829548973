"""Environments that break or hang, with real ones from tests.helpers.broken_worlds."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from impala_tf.config import LevelRaisedError
from impala_tf.environments import guard as guards
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.guard import BrokenTooOftenError, Guard
from tests.helpers.games import BROKEN_WORLDS, guarded_level, level
from tests.helpers.waiting import wait_until

LEVEL = "tests.helpers.broken_worlds:FaultyCartPole-v1"
N = 3


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_UNPROVEN_PAUSE_S", 0.0)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set where the process would end."""
    event = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda status: event.set())
    return event


def faulty(at_steps: list[int], **settings: Any) -> SyncVectorEnv:
    """Makes an environment of each entry, which breaks at that step of its life."""
    makers = [lambda at=at: gymnasium.make(LEVEL, at_step=at, **settings) for at in at_steps]
    return SyncVectorEnv(makers)


def guarded(
    make: Callable[[], Any], timeout_s: float = 60.0, on_trouble: Callable[[str], None] = print
) -> BatchedEnvironment:
    guard = Guard([LEVEL], timeout_s, lambda: False, on_trouble)
    return BatchedEnvironment(make, 1, guard=guard)


@pytest.fixture
def guard() -> Iterator[Any]:
    made: list[BatchedEnvironment] = []

    def make(*lives: list[int], fault: str, **settings: Any) -> BatchedEnvironment:
        ahead = iter(lives)
        last = lives[-1]
        made.append(guarded(lambda: faulty(next(ahead, last), fault=fault), **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_level_that_cannot_be_made_is_tried_again_and_then_given_up() -> None:
    said: list[str] = []
    error = LevelRaisedError(f"--level_name={LEVEL}: raised OSError: no simulator")
    failures = iter([error, error])

    def make() -> SyncVectorEnv:
        for failure in failures:
            raise failure
        return faulty([100] * N, fault="nan")

    environment = guarded(make, on_trouble=said.append)
    assert environment.reset().reward.shape == (N,)
    assert environment.restarts == len(said) == 2
    environment.close()
    failures = itertools.repeat(error)
    with pytest.raises(BrokenTooOftenError, match=f"{LEVEL}: .*OSError: no simulator"):
        guarded(make, on_trouble=said.append)
    assert "this actor gives up" in said[-1]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("nan", "environment 1 of .*CartPole-v1: observation is NaN or infinite after action 1"),
        ("huge", "environment 1 of .*CartPole-v1: reward is beyond 1e[+]15 after action 1"),
        ("shape", "FaultyCartPole-v1: ValueError"),
        ("raise", "FaultyCartPole-v1: RuntimeError: the pole is broken"),
        ("exit", r"FaultyCartPole-v1: .*SystemExit: 0 \(broken_worlds.py, line"),
    ],
)
def test_broken_environments_are_made_again_and_look_truncated(
    guard: Any, fault: str, reason: str
) -> None:
    told: list[str] = []
    environment = guard([0, 5, 0], [0, 0, 0], fault=fault, on_trouble=told.append)
    environment.reset()
    actions = np.ones(N, np.int32)
    for _ in range(4):
        assert not environment.step(actions).autoreset.any()
    output = environment.step(actions)
    assert environment.restarts == 1
    assert output.autoreset.all() and output.episode_start.all()
    assert not (output.terminated | output.truncated).any()
    assert np.isfinite(output.observation).all() and not output.reward.any()
    assert re.search(reason, told[0]), told
    for _ in range(60):
        environment.step(actions)
    assert environment.restarts == 1
    assert environment.pop_episodes()


def test_pictures_with_nan_are_not_learned_from(caplog: pytest.LogCaptureFixture) -> None:
    """As uint8, NaN is 0, so the agent would learn from black pictures."""
    name = f"{BROKEN_WORLDS}:NanPictures-v0"
    environment = guarded_level(level(name), 2)
    environment.reset()
    outputs = [environment.step(np.ones(2, np.int32)) for _ in range(3)]
    environment.close()
    assert environment.restarts == 1
    assert [output.autoreset.all() for output in outputs] == [False, False, True]
    assert f"{name}: observation is NaN at [2, 3, 1] after action 1" in caplog.text


def test_a_level_that_breaks_rarely_is_played_on(guard: Any, monkeypatch: Any) -> None:
    """A fast one has many breaks in an hour, and its actor would end for good."""
    monkeypatch.setattr(guards, "GOOD_STEPS", 4 * N)
    monkeypatch.setattr(guards, "MAX_RESTARTS", 1)
    environment = guard([5, 0, 0], fault="raise")
    environment.reset()
    for _ in range(40):
        environment.step(np.ones(N, np.int32))
    assert environment.restarts > 5


@pytest.mark.parametrize("fault", ["raise", "end"])
def test_games_that_had_finished_still_count_but_one_that_ended_with_nan_does_not(
    guard: Any, fault: str
) -> None:
    """Its return would have the next unroll of all environments refused."""
    environment = guard([0, 200, 0], [0, 0, 0], fault=fault)
    environment.reset()
    while environment.restarts == 0:
        environment.step(np.ones(N, np.int32))
    games = environment.pop_episodes()
    assert len(games) > 10
    assert np.isfinite([game.episode_return for game in games]).all()


def test_processes_are_made_again_if_one_is_killed_and_by_a_thread_that_ends() -> None:
    """An actor steps them in one thread and closes them in another one."""
    environment = guarded_level(level(LEVEL, environment_processes=True), N)
    environment.reset()
    before = multiprocessing.active_children()
    before[1].kill()
    thread = threading.Thread(target=environment.step, args=(np.ones(N, np.int32),))
    thread.start()
    task = Path(f"/proc/self/task/{thread.native_id}")
    wait_until(lambda: not task.exists())
    made = multiprocessing.active_children()
    assert environment.restarts == 1 and len(made) == N and not set(before) & set(made)
    for _ in range(10):
        assert not environment.step(np.ones(N, np.int32)).autoreset.all()
    made[0].kill()
    environment.close()
    assert not multiprocessing.active_children()


def test_a_step_that_hangs_ends_the_process(
    guard: Any, ended: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    environment = guard([0, 1, 0], fault="hang", timeout_s=0.5)
    environment.reset()
    actions = np.ones(N, np.int32)
    threading.Thread(target=environment.step, args=(actions,), daemon=True).start()
    assert ended.wait(10)
    assert "a step takes longer than 0.5 s" in caplog.text


def test_a_level_that_hangs_while_it_is_made_ends_the_process(
    ended: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """But making many may take longer than a step: each may import for seconds."""
    released, began_s = threading.Event(), time.monotonic()

    def make() -> SyncVectorEnv:
        released.wait(60)
        return faulty([9], fault="raise")

    thread = threading.Thread(target=lambda: guarded(make, 0.5).close())
    thread.start()
    assert ended.wait(15)
    assert time.monotonic() - began_s > 2
    assert "making takes longer than 2 s" in caplog.text
    released.set()
    thread.join(30)
