"""Environments that break or hang, with real ones from tests.helpers.broken_worlds."""

from __future__ import annotations

import multiprocessing
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from impala_tf.config import LevelRaisedError
from impala_tf.environments import guarded, suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.guarded import BrokenTooOftenError, GuardedEnvironment
from impala_tf.machine.restart_budget import RestartBudget
from tests.helpers.broken_worlds import FaultyCartPole
from tests.helpers.games import BROKEN_WORLDS, level

LEVEL = "tests.helpers.broken_worlds:FaultyCartPole-v1"
N = 3


class Budget(RestartBudget):
    """Does not wait."""

    def pause_s(self, ran_s: float) -> float | None:
        return None if super().pause_s(ran_s) is None else 0.0


def faulty(
    at_steps: list[int], mode: AutoresetMode = AutoresetMode.NEXT_STEP, **settings: Any
) -> BatchedEnvironment:
    """Makes an environment of each entry, which breaks at that step of its life."""
    makers = [lambda at=at: gymnasium.make(LEVEL, at_step=at, **settings) for at in at_steps]
    return BatchedEnvironment(SyncVectorEnv(makers, autoreset_mode=mode))


@pytest.fixture
def guard() -> Iterator[Any]:
    made: list[GuardedEnvironment] = []

    def make(
        *lives: list[int], fault: str, max_restarts: int = 3, timeout_s: float = 60.0,
        mode: AutoresetMode = AutoresetMode.NEXT_STEP, **settings: Any,
    ) -> GuardedEnvironment:  # fmt: skip
        made.append(
            GuardedEnvironment(
                lambda attempt: faulty(lives[min(attempt, len(lives) - 1)], mode, fault=fault),
                [LEVEL],
                timeout_s,
                seed_of=lambda attempt: 107 + attempt,
                **{"budget": Budget(max_restarts), **settings},
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(("failures", "max_restarts"), [(2, 3), (9, 3)])
@pytest.mark.parametrize(
    "error",
    [
        TypeError("reset() got an unexpected keyword argument 'seed'"),
        LevelRaisedError(f"--level_name={LEVEL}: raised TypeError: reset() got an unexpected seed"),
    ],
)
def test_a_level_that_cannot_be_made_is_tried_again_and_then_given_up(
    failures: int, max_restarts: int, error: Exception
) -> None:
    """A new level is reset and stepped while it is made, to see how long a step takes."""
    said: list[str] = []

    def make(attempt: int) -> BatchedEnvironment:
        if attempt < failures:
            raise error
        return faulty([100] * N, fault="nan")

    def made() -> GuardedEnvironment:
        return GuardedEnvironment(
            make, [LEVEL], 60.0, budget=Budget(max_restarts), on_trouble=said.append
        )

    if failures > max_restarts:
        with pytest.raises(
            BrokenTooOftenError, match=f"{LEVEL}: .*TypeError: reset.. got an unexp"
        ):
            made()
        assert "this actor gives up" in said[-1]
        return
    environment = made()
    assert environment.reset().reward.shape == (N,)
    assert environment.restarts == len(said) == failures
    environment.close()


def test_an_error_about_threads_names_the_flag_that_helps() -> None:
    """Actors make levels in one thread and step them in another one."""

    def make(_: int) -> BatchedEnvironment:
        raise ValueError("signal only works in main thread of the main interpreter")

    with pytest.raises(BrokenTooOftenError, match="--environment_processes=always: ValueError"):
        GuardedEnvironment(make, [LEVEL], 60.0, budget=Budget(0))


@pytest.mark.parametrize(
    "fault, reason",
    [
        ("nan", "environment 1 of .*FaultyCartPole-v1: observation is NaN or infinite after"
                " action 1"),
        ("inf", "environment 1 of .*FaultyCartPole-v1: reward is NaN or infinite after action 1"),
        ("shape", "seed 107, after actions .*1 1 1.*: ValueError"),
        ("raise", "seed 107, after actions .*1 1 1.*: RuntimeError: the pole is broken"),
        ("exit", r"after actions .*1 1 1.*: SystemExit: 0 \(broken_worlds.py, line"),
    ],
)  # fmt: skip
def test_broken_environments_are_made_again_and_look_truncated(
    guard: Any, fault: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    never = [0, 0, 0]
    told: list[str] = []
    environment = guard([0, 5, 0], never, fault=fault, on_trouble=told.append)
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
    assert "actions" not in told[0], "they are a long list"
    for _ in range(60):
        output = environment.step(actions)
    assert environment.restarts == 1
    assert environment.pop_episodes()


@pytest.mark.parametrize("processes", ["always", "never"])
@pytest.mark.parametrize(("part", "name"), [("", ""), ("eye", ".eye")])
def test_pictures_with_nan_are_not_learned_from(
    processes: str, part: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As uint8, NaN is 0, so the agent would learn from black pictures."""
    env = level(
        f"{BROKEN_WORLDS}:NanPictures-v0",
        level_kwargs=f'{{"part": "{part}"}}',
        environment_processes=processes,
    )
    environment = GuardedEnvironment(
        lambda attempt: BatchedEnvironment(suites.make(env, 2, attempt)),
        [env.level_name],
        60,
        budget=Budget(1),
    )
    environment.reset()
    outputs = [environment.step(np.ones(2, np.int32)) for _ in range(3)]
    environment.close()
    assert environment.restarts == 1
    assert [output.autoreset.all() for output in outputs] == [False, False, True]
    told = f"{env.level_name}: observation{name} is NaN at [2, 3, 1] after action 1"
    assert told in caplog.text


def test_environments_that_break_again_and_again_end_the_actor(guard: Any) -> None:
    environment = guard([1, 0, 0], fault="nan", max_restarts=2)
    environment.reset()
    with pytest.raises(
        BrokenTooOftenError, match="broke 3 times, .*; at last environment 0 of .*NaN"
    ):
        for _ in range(5):
            environment.step(np.zeros(N, np.int32))


def test_a_level_that_breaks_rarely_is_played_on(guard: Any, monkeypatch: Any) -> None:
    """A fast one has many breaks in an hour, and its actor would end for good."""
    monkeypatch.setattr(guarded, "GOOD_STEPS", 4 * N)
    environment = guard([5, 0, 0], fault="raise", max_restarts=1)
    environment.reset()
    for _ in range(40):
        environment.step(np.ones(N, np.int32))
    assert environment.restarts > 5


def test_pauses_do_not_grow_before_the_first_steps_and_each_is_reported(guard: Any) -> None:
    """A level that breaks at once is known to be broken within seconds, not minutes."""
    lines: list[str] = []
    environment = guard(
        [2, 0, 0],
        fault="nan",
        budget=RestartBudget(5),
        on_trouble=lines.append,
        proven_after=100,
        first_pause_s=0.01,
    )
    environment.reset()
    with pytest.raises(BrokenTooOftenError):
        for _ in range(100):
            environment.step(np.zeros(N, np.int32))
    assert len(lines) == 6
    assert re.fullmatch(
        r"its environments broke, and are made again in 0 s \(restart 1\): environment 0 .*NaN.*",
        lines[0],
    )
    assert "broke 6 times, so this actor gives up: environment 0 of" in lines[-1]


def test_environments_that_cannot_be_made_again_are_tried_again() -> None:
    """Their own code may need a file that is back in a moment."""
    attempts: list[int] = []

    def make(attempt: int) -> Any:
        attempts.append(attempt)
        if attempt in (1, 2):
            raise OSError("no such game")
        fault_at = 1 if attempt == 0 else 0
        return faulty([fault_at, 0, 0], fault="nan")

    environment = GuardedEnvironment(make, ["level"], 60.0, lambda: True)
    try:
        environment.reset()
        environment.step(np.zeros(N, np.int32))
        assert attempts == [0, 1, 2, 3]
    finally:
        environment.close()


def test_games_that_had_finished_still_count(guard: Any) -> None:
    environment = guard([0, 200, 0], [0, 0, 0], fault="raise")
    environment.reset()
    while environment.restarts == 0:
        environment.step(np.ones(N, np.int32))
    assert len(environment.pop_episodes()) > 10


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_game_that_ends_with_nan_does_not_count(guard: Any, mode: AutoresetMode) -> None:
    """Its return would have the next unroll of all environments refused."""
    environment = guard([0, 200, 0], [0, 0, 0], fault="end", mode=mode)
    environment.reset()
    games = []
    while environment.restarts == 0:
        environment.step(np.ones(N, np.int32))
        games += environment.pop_episodes()
    games += environment.pop_episodes()
    assert len(games) > 10
    assert np.isfinite([game.episode_return for game in games]).all()


def test_a_truncated_game_that_ends_with_nan_does_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With SAME_STEP autoreset, its last reward is not learned from, so nothing is made again."""

    def make(_: int) -> BatchedEnvironment:
        def cut() -> gymnasium.Env:
            return TimeLimit(FaultyCartPole("reward", at_step=3), 3)

        return BatchedEnvironment(SyncVectorEnv([cut], autoreset_mode=AutoresetMode.SAME_STEP))

    environment = GuardedEnvironment(make, [LEVEL], 60)
    environment.reset()
    for _ in range(6):
        environment.step(np.ones(1, np.int32))
    assert [game.episode_return for game in environment.pop_episodes()] == [3]
    assert "do not count" in caplog.text
    environment.close()


def in_processes(budget: Budget) -> GuardedEnvironment:
    """Three environments, each in a process of its own, that break at their 30th step."""
    env = level(LEVEL, environment_processes="always")
    return GuardedEnvironment(
        lambda attempt: BatchedEnvironment(suites.make(env, N, attempt)), [LEVEL], 60, budget=budget
    )


def test_processes_that_are_made_again_outlive_the_thread_that_steps_them() -> None:
    """An actor steps them in one thread and closes them in another one."""
    environment = in_processes(Budget(3))
    environment.reset()

    def step_until_made_again() -> None:
        while environment.restarts == 0:
            environment.step(np.ones(N, np.int32))

    thread = threading.Thread(target=step_until_made_again)
    thread.start()
    thread.join()
    time.sleep(0.5)
    assert len(multiprocessing.active_children()) == N
    for _ in range(10):
        assert not environment.step(np.ones(N, np.int32)).autoreset.all()
    assert environment.restarts == 1
    environment.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("lost", range(N))
def test_a_process_that_was_killed_is_replaced_with_all_others(lost: int) -> None:
    environment = in_processes(Budget(3))
    environment.reset()
    before = sorted(multiprocessing.active_children(), key=lambda process: str(process.pid))
    before[lost].kill()
    environment.step(np.ones(N, np.int32))
    assert environment.restarts == 1
    assert len(multiprocessing.active_children()) == N
    assert not set(before) & set(multiprocessing.active_children())
    multiprocessing.active_children()[lost].kill()
    environment.close()
    assert not multiprocessing.active_children()


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


@pytest.mark.slow
def test_making_many_environments_may_take_longer_than_a_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """32 processes that import a level for a second each took 120 s, again and again."""
    monkeypatch.setattr(guarded, "_MAKING_S", 1.0)
    ended = threading.Event()
    makes_for_s = [3.0, 60.0]

    def make(number: int) -> BatchedEnvironment:
        ended.wait(makes_for_s[number])
        if number:
            raise RuntimeError("it was ended")
        return faulty([2, 0, 0], fault="raise")

    settings: dict[str, Any] = {"budget": Budget(1), "first_pause_s": 0, "num_envs": N}
    environment = GuardedEnvironment(make, [LEVEL], 2.0, on_hang=ended.set, **settings)
    environment.reset()
    assert not ended.is_set()
    with pytest.raises(BrokenTooOftenError):
        for _ in range(2):
            environment.step(np.ones(N, np.int32))
    assert "longer than --environment_timeout_s=2 and 1 s for each of 3; ending" in caplog.text
    environment.close()


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_level_that_hangs_while_it_is_made_ends_the_process(
    attempt: int, caplog: pytest.LogCaptureFixture
) -> None:
    ended, released = threading.Event(), threading.Event()

    def make(number: int) -> BatchedEnvironment:
        if number == attempt:
            released.wait(60)
        return faulty([2, 9, 9], fault="raise")

    def act() -> None:
        environment = GuardedEnvironment(
            make, [LEVEL], 0.5, on_hang=ended.set, budget=Budget(3), first_pause_s=0
        )
        environment.reset()
        for _ in range(2):
            environment.step(np.ones(N, np.int32))
        environment.close()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    assert ended.wait(10)
    assert "making, resetting or timing takes longer than" in caplog.text
    released.set()
    thread.join(30)
    assert not thread.is_alive()


def test_no_thread_holds_environments_that_were_closed(guard: Any) -> None:
    """At the exit of an actor, ALE would print into its log that a game has leaked."""
    for _ in range(20):
        guard([0], fault="nan").close()
        assert not [each for each in threading.enumerate() if each.name == "watchdog"]
