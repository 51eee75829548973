"""How long an actor waits for the next parameters before it acts with old ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from impala_tf.actor.acting import OwnActing
from impala_tf.types import EnvOutput
from tests.helpers.clock import Clock


class SlowLearner:
    """Begins an update when parameters are first asked for, and needs 0.3 s for it."""

    version, ready_at = 0, 0.0

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def fetch_parameters(self, known_version: int) -> tuple[int, list[Any]] | None:
        if known_version == self.version:
            self.version, self.ready_at = self.version + 1, self.clock() + 0.3
        return (self.version, []) if self.clock() >= self.ready_at else None

    def set_parameters(self, arrays: list[Any]) -> None:
        """As a network."""

    def answer(self, env_output: EnvOutput, core_state: Any) -> Any:
        """As a network."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    ours = SimpleNamespace(monotonic=clock, sleep=sleep)  # a busy machine has stalls of its own
    monkeypatch.setattr("impala_tf.actor.acting.time", ours)
    return clock


def test_an_actor_is_as_patient_as_updates_take_long(clock: Clock) -> None:
    """What it played with the old parameters would be dropped, at every update."""
    learner = SlowLearner(clock)
    acting = OwnActing(learner, learner.fetch_parameters, waits=True, patience_s=0.2)
    versions = []
    for _ in range(5):
        acting.begin_unroll(lambda: False)
        versions.append(acting.parameter_version)
    assert versions == [0, 0, 1, 2, 3]


def test_patience_does_not_grow_with_what_is_waited_for_a_lost_actor(clock: Clock) -> None:
    """It doubled with every third update."""
    newest = [0]
    acting = OwnActing(
        SlowLearner(clock),
        lambda known: (newest[0], []) if newest[0] > known else None,
        waits=True,
        patience_s=1.0,
    )
    acting.begin_unroll(lambda: False)
    waited_s = 0.0
    for _ in range(18):
        begin_s = clock()
        acting.begin_unroll(lambda: False)
        waited_s = clock() - begin_s
        newest[0] += 1  # the batch is complete: the actor has filled in for the lost one
        acting.begin_unroll(lambda: False)
    assert waited_s < 12.0
