"""How long an actor waits for the next parameters before it acts with old ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from impala_tf.actor.acting import OwnActing
from impala_tf.types import EnvOutput
from tests.helpers.clock import Clock


class SlowLearner:
    """Begins an update when parameters are first asked for, and needs 0.3 s for it."""

    version, ready_at = 0, 0.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock

    def fetch_parameters(self, known_version: int) -> tuple[int, list[Any]] | None:
        now = self.clock()
        if known_version == self.version:
            self.version, self.ready_at = self.version + 1, now + 0.3
        return (self.version, []) if now >= self.ready_at else None

    def set_parameters(self, arrays: list[Any]) -> None:
        """As a network."""

    def answer(self, env_output: EnvOutput, core_state: Any) -> Any:
        """As a network."""


def test_an_actor_is_as_patient_as_updates_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it played with the old parameters would be dropped, at every update."""
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    ours = SimpleNamespace(monotonic=clock, sleep=sleep)  # a busy machine has stalls of its own
    monkeypatch.setattr("impala_tf.actor.acting.time", ours)
    learner = SlowLearner(clock)
    acting = OwnActing(learner, learner.fetch_parameters, waits=True, patience_s=0.2)
    versions = []
    for _ in range(5):
        acting.begin_unroll(lambda: False)
        versions.append(acting.parameter_version)
    assert versions == [0, 0, 1, 2, 3]


class WithALostActor(SlowLearner):
    """Its batches are complete only when an actor has filled in for the lost one."""

    filled = False

    def fetch_parameters(self, known_version: int) -> tuple[int, list[Any]] | None:
        if known_version == self.version and not self.filled:
            return None
        self.version, self.filled = known_version + 1, False
        return self.version, []


def test_patience_does_not_grow_with_what_is_waited_for_a_lost_actor() -> None:
    """It doubled with every third update."""
    learner = WithALostActor()
    acting = OwnActing(learner, learner.fetch_parameters, waits=True, patience_s=0.02)
    acting.begin_unroll(lambda: False)
    waited_s = 0.0
    for _ in range(18):
        begin_s = time.monotonic()
        acting.begin_unroll(lambda: False)
        waited_s = time.monotonic() - begin_s
        learner.filled = True
        acting.begin_unroll(lambda: False)
    assert waited_s < 0.5
