"""The training loop: when it writes rows and checkpoints, and how it ends."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from impala_tf.learner.peers import ControlFlags, Peers
from impala_tf.learner.policy_step import PolicyStats
from impala_tf.learner.training_loop import TrainingLoop
from impala_tf.learner.update import NotFiniteError
from tests.helpers.clock import Clock


class FakeLearner:
    """Counts updates; is done after `total`, or raises an error in its second one."""

    def __init__(self, total: int, error_at_2: type[Exception] | None = None) -> None:
        self.learner_updates = 0
        self.all_reduce_s = None
        self.total = total
        self.error_at_2 = error_at_2
        self.batches: list[Any] = []

    @property
    def progress(self) -> str:
        return f"after update {self.learner_updates}"

    @property
    def done(self) -> bool:
        return self.learner_updates >= self.total

    @property
    def parameter_version(self) -> int:
        return self.learner_updates

    def update(self, unrolls: Any, has_batch: list[bool], on_step: Callable[[], None]) -> Any:
        if self.error_at_2 is not None and self.learner_updates == 1:
            raise self.error_at_2
        self.learner_updates += 1
        self.batches.append(None if unrolls is None else unrolls.number)
        return None if unrolls is None else f"stats of {self.learner_updates}"


class FakeBatches:
    """Gives what an iterator yields, None too, and is closed where that ends."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.closed = False

    def get(self, timeout_s: float) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self.closed = True
            return None
        if batch is None:
            return None
        env_outputs = SimpleNamespace(autoreset=np.zeros((4, 6), bool))
        return SimpleNamespace(number=batch, env_outputs=env_outputs)


class World:
    """A loop with fakes around it, and the events in it, in order."""

    def __init__(
        self,
        learner: FakeLearner,
        rank: int = 0,
        row_due_at: tuple[int, ...] = (),
        checkpoint_interval_s: float = 60.0,
        others: dict[int, ControlFlags] | None = None,
        size: int = 2,
    ) -> None:
        self.clock = Clock()
        self.learner = learner
        self.rank, self.size, self.members = rank, size, range(size)
        self.row_due_at = row_due_at
        self.others = others or {}  # {update: flags of the other learner}
        self.other_waits = 0  # meetings to which the other learner comes without a batch
        self.flags: list[ControlFlags] = []
        self.events: list[tuple[Any, ...]] = []
        self.published: list[int] = []
        self.idle_s: list[float] = []
        self.peers = Peers(self, clock=self.clock)  # type: ignore[arg-type]
        self.loop = TrainingLoop(
            learner,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.peers,
            self,
            checkpoint_interval_s,
            self.clock,
        )
        self.tries_on_a_full_disk = 0

    def follow_update(self, stats: Any) -> None:
        self.published.append(self.learner.parameter_version)

    def write_row(self, intervals: list[dict[str, Any]]) -> None:
        self.events.append(("row", self.learner.learner_updates, intervals))

    def save(self) -> bool:
        if self.tries_on_a_full_disk:
            self.tries_on_a_full_disk -= 1
            return False
        self.events.append(("checkpoint", self.learner.learner_updates))
        return True

    def run(self, batches: Iterator[Any] | None = None, stop_at: int | None = None) -> None:
        """Runs on `batches` (default: endless); a stop is requested before update `stop_at`."""
        self.loop.run(
            FakeBatches(itertools.count() if batches is None else batches),  # type: ignore[arg-type]
            lambda: stop_at is not None and self.learner.learner_updates >= stop_at - 1,
        )

    # What the loop calls on its recorder ...

    def record_update(
        self, stats: PolicyStats | None, idle_s: float, all_reduce_s: float | None, progress: Any
    ) -> None:
        assert progress == self.learner.progress
        assert (stats is None) == (self.learner.batches[-1] is None)
        self.idle_s.append(idle_s)

    def row_due(self) -> bool:
        return self.learner.learner_updates + 1 in self.row_due_at

    def interval(self) -> dict[str, Any]:
        return {"of": self.rank}

    # ... and on its group.

    def sum(self, nest: Any, name: str) -> Any:
        own = np.array(nest)
        self.flags.append(ControlFlags(*(bool(flag) for flag in own[: len(ControlFlags._fields)])))
        other = self.others.get(self.learner.learner_updates + 1, NOTHING)
        has_batch = np.array([float(rank != self.rank) for rank in range(self.size)])
        if self.other_waits:
            self.other_waits -= 1
            other, has_batch = other._replace(wait=True), 0 * has_batch
        return own + np.concatenate([np.array(other, float), has_batch])

    def gather(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        self.events.append(("gather", self.learner.learner_updates))
        return [value, {"of": "another"}]

    def of_kind(self, *kinds: str) -> list[tuple[str, int]]:
        return [(event[0], event[1]) for event in self.events if event[0] in kinds]


LAST = "row", "checkpoint"
NOTHING = ControlFlags(stop=False, write_row=False, checkpoint=False)
STOP = NOTHING._replace(stop=True)


def after_each(world: World, seconds: float, batches: Iterator[Any]) -> Iterator[Any]:
    """Yields batches, each after so many seconds."""
    for batch in batches:
        world.clock.now += seconds
        yield batch


def test_training_ends_after_the_total_frames() -> None:
    """Every update is published: actors would act with stale parameters."""
    world = World(FakeLearner(total=3), row_due_at=(2,))
    batches = iter("abcdef")
    world.run(batches)
    assert world.learner.batches == ["a", "b", "c"]
    assert next(batches) == "d"  # no batch was taken for nothing
    assert world.published == [1, 2, 3]
    assert world.of_kind(*LAST) == [("row", 2), ("row", 3), ("checkpoint", 3)]
    assert world.events[1] == ("row", 2, [{"of": 0}, {"of": "another"}])


@pytest.mark.parametrize(
    ("total", "size", "others", "stop_at", "batches", "ends_at"),
    [
        (0, 2, {}, None, "", 0),  # a complete run
        (100, 2, {}, 4, "abcdefgh", 4),  # Ctrl-C
        (100, 2, {3: STOP}, None, "abcdefgh", 3),  # of another learner
        (100, 1, {}, None, "ab", 2),  # the queue is closed
    ],
)
def test_a_stop_ends_with_a_row_and_a_checkpoint(
    total: int,
    size: int,
    others: dict[int, ControlFlags],
    stop_at: int | None,
    batches: str,
    ends_at: int,
) -> None:
    """It must not lose the work since the last checkpoint."""
    world = World(FakeLearner(total=total), others=others, size=size)
    world.run(iter(batches), stop_at)
    assert world.learner.learner_updates == ends_at
    assert world.of_kind(*LAST) == [("row", ends_at), ("checkpoint", ends_at)]


def test_a_last_checkpoint_that_cannot_be_written_is_retried_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody writes it later, as training does while it goes on."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    world = World(FakeLearner(total=3))
    world.tries_on_a_full_disk = 3
    world.run()
    assert world.events[-1] == ("checkpoint", 3) and len(slept) == 3
    world.tries_on_a_full_disk = 1000
    world.run()
    assert sum(slept) < 60, "supervisors kill a learner that takes longer"


@pytest.mark.parametrize("also", ["", "stop", "done"])
def test_a_group_that_another_is_to_follow_ends_with_a_checkpoint(also: str) -> None:
    """A learner that was away is back: one learner is told, and all end at the same update."""
    told = NOTHING._replace(stop=also == "stop", regroup=True)
    world = World(FakeLearner(total=3 if also == "done" else 100), rank=1, others={3: told})
    world.run()
    assert world.learner.learner_updates == 3
    assert world.of_kind("gather") == [("gather", 3)], "it writes its part of the last row"
    assert world.loop.regroups == (also == ""), "a run that ends is not started again"


@pytest.mark.parametrize(
    ("error", "rank", "expected"),
    [
        (FloatingPointError, 0, []),
        (NotFiniteError, 0, [("gather", 1), ("row", 1)]),  # a row shows the skipped updates
        (NotFiniteError, 1, [("gather", 1)]),
    ],
)
def test_a_failed_update_writes_no_checkpoint(
    error: type[Exception], rank: int, expected: list[tuple[str, int]]
) -> None:
    """Parameters after an error must not replace good ones."""
    world = World(FakeLearner(total=100, error_at_2=error), rank=rank)
    with pytest.raises(error):
        world.run()
    assert world.of_kind("gather", "row", "checkpoint") == expected


def test_checkpoints_are_written_at_their_interval_each_after_a_row() -> None:
    """Counted from the end of the last one. A checkpoint stores where the rows end."""
    world = World(FakeLearner(total=8), checkpoint_interval_s=25.0)
    world.run(after_each(world, 10.0, itertools.count()))
    # Due after 30 s and 60 s; 80 s is the end.
    assert world.of_kind(*LAST) == [(kind, at) for at in (3, 6, 8) for kind in LAST]


def test_a_long_update_of_many_steps_is_neither_idle_nor_a_reason_to_end() -> None:
    """An arrival of ppo has many, which took more than 100 s with a ResNet on two cores."""

    class Slow(FakeLearner):
        def update(self, unrolls: Any, has_batch: list[bool], on_step: Callable[[], None]) -> Any:
            for _ in range(3):
                world.clock.now += 80.0
                hung.append(world.peers.hung())
                on_step()
            return super().update(unrolls, has_batch, on_step)

    hung: list[str] = []
    world = World(Slow(total=3))
    world.run(after_each(world, 3.0, itertools.count()))
    assert len(hung) == 9 and not any(hung), hung
    assert world.idle_s == [3.0, 3.0, 3.0]


def test_only_rank_0_writes_rows_and_checkpoints() -> None:
    """Two writers would damage checkpoints and metrics.csv."""
    others = {2: NOTHING._replace(write_row=True, checkpoint=True)}
    world = World(
        FakeLearner(100), rank=1, row_due_at=(1, 2, 3), checkpoint_interval_s=1e-9, others=others
    )
    world.clock.now += 1.0
    world.run(stop_at=3)
    assert world.flags == [NOTHING, NOTHING, STOP]
    # It sends its part of both rows; rank 0 waits for that.
    assert world.events == [("gather", 2), ("gather", 3)]


def test_without_a_batch_a_learner_joins_the_update_of_the_others() -> None:
    """The step is published and carries its flags, but has no losses to record."""
    world = World(FakeLearner(total=100), row_due_at=(2,), checkpoint_interval_s=1e9)
    starved = itertools.chain("a", after_each(world, 10.0, iter([None] * 8)))
    world.run(starved, stop_at=3)
    assert world.learner.batches == ["a", None, None]
    # The others wait for a minute, but not again as long as it has no batch.
    assert [flags.wait for flags in world.flags] == [False, *[True] * 5, False, False]
    assert world.idle_s == [0.0, 60.0, 10.0]
    assert world.published == [1, 2, 3]
    assert world.of_kind(*LAST) == [("row", 2), ("row", 3), ("checkpoint", 3)]


def test_without_batches_nothing_happens_and_the_first_one_is_kept_for_the_others() -> None:
    """An update of nothing would change what the optimizer, a ring or a replay remembers."""
    world = World(FakeLearner(total=1), row_due_at=(1,), checkpoint_interval_s=5.0)
    world.other_waits = 40
    world.run(after_each(world, 1.0, iter([*[None] * 30, "a"])))
    assert world.learner.batches == ["a"]
    assert len(world.flags) == 40 + 1
    assert world.published == [1] and world.idle_s == [31.0]
    assert world.of_kind(*LAST) == 2 * [("row", 1), ("checkpoint", 1)], "due, and the last ones"
