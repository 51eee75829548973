"""Learners agree on updates, and each knows what it waits for, and who hangs or is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from impala_tf.learner import peers
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.peers import ControlFlags, Peers
from tests.helpers.clock import Clock

NO_FLAGS = ControlFlags(stop=False, write_row=False, checkpoint=False)


class Group:
    """One of `size` learners; the test says who else has a batch, or waits for one."""

    others = LearnerGroup.others

    def __init__(self, size: int = 3, rank: int = 0) -> None:
        self.size, self.rank, self.members = size, rank, range(size)
        self.with_batch: set[int] = set(range(size)) - {rank}
        self.flags = NO_FLAGS  # of the others
        self.sent: list[ControlFlags] = []
        self.clock = Clock(100.0)
        self.peers = Peers(self, self.clock)  # type: ignore[arg-type]

    def sum(self, nest: Any, name: str) -> Any:
        """The exchange of `signals`: flags, then a place for each learner."""
        own = np.array(nest)
        flags, places = np.split(own, [len(NO_FLAGS)])
        self.sent.append(ControlFlags(*(bool(flag) for flag in flags)))
        places[list(self.with_batch)] = 1 + 7  # played steps
        return np.concatenate([flags + np.array(self.flags, float), places])

    def agree(self, has_batch: bool) -> list[bool]:
        steps = self.peers.agree(NO_FLAGS, 4 if has_batch else None)[1]
        return [each is not None for each in steps]

    def update(self) -> None:
        """Waits for a batch for no time, and updates with it."""
        self.peers.wait_s()
        assert any(self.agree(has_batch=True))
        self.peers.works()

    def meet(self, seconds: float, has_batch: bool = False) -> None:
        """Meets the others every ten seconds; there is no update."""
        for _ in range(int(seconds / 10)):
            if not has_batch:
                self.peers.wait_s()
            self.clock.now += 10
            self.agree(has_batch)


@pytest.mark.parametrize("flag", ControlFlags._fields)
def test_a_flag_of_one_learner_is_set_for_all(flag: str) -> None:
    """Learners that disagree about the end would wait for each other for ever."""
    group: Any = Group()
    group.with_batch, group.flags = {1}, NO_FLAGS._replace(**{flag: True})
    expected = group.flags, [4, 7, None]
    assert peers.exchange(group, NO_FLAGS, 4) == expected
    own, group.flags = group.flags, NO_FLAGS
    assert peers.exchange(group, own, 4) == expected
    assert peers.exchange(LearnerGroup(), own, None) == (own, [None])
    assert peers.exchange(LearnerGroup(), own, 0) == (own, [0]), "a batch of resets is a batch"


def test_the_group_updates_once_every_learner_has_a_batch() -> None:
    group = Group()
    group.with_batch, group.flags = {1}, NO_FLAGS._replace(wait=True)  # 2 waits for its own
    assert group.agree(has_batch=True) == [False] * 3
    group.flags = NO_FLAGS._replace(wait=True, stop=True)
    assert group.agree(has_batch=True) == [True, True, False], "a stop uses what is there"
    group.with_batch, group.flags = {1, 2}, NO_FLAGS
    assert group.agree(has_batch=True) == [True] * 3


def test_a_learner_that_has_no_batch_for_a_minute_lets_the_others_go_on() -> None:
    group = Group()
    waited = []
    for _ in range(8):
        waited.append(group.peers.wait_s())
        group.clock.now += 10.0
        group.agree(has_batch=False)
    assert [flags.wait for flags in group.sent] == [True] * 5 + [False] * 3
    # Then it joins their updates at once: they need not wait for it in each of them.
    assert waited == [1.0] * 6 + [0.0] * 2
    assert group.agree(has_batch=False) == [False, True, True]
    group.update()
    assert group.peers.wait_s() == 1.0
    group.agree(has_batch=False)
    assert group.sent[-1].wait, "with its next batch, it has a minute again"


def test_a_learner_starves_until_it_has_a_batch_of_its_own() -> None:
    group = Group()
    group.clock.now += 1000.0  # it compiles
    assert group.peers.starving_s() == 0.0
    group.peers.wait_s()
    group.clock.now += 60.0
    assert any(group.agree(has_batch=False))  # an update without its batch is none of its own
    group.peers.works()
    group.meet(60)
    assert group.peers.starving_s() == 120.0
    group.update()
    group.clock.now += 90.0  # a checkpoint, say, which is no lack of batches
    assert group.peers.starving_s() == 0.0


def test_a_learner_that_waits_for_a_hung_one_ends_after_a_hundred_seconds() -> None:
    group = Group()
    group.meet(100, has_batch=True)
    group.agree(has_batch=True)
    group.clock.now += 399.0
    assert group.peers.hung() == "", "the first update includes compilation"
    group.clock.now += 2.0
    assert group.peers.hung() != ""
    group.update()
    group.peers.wait_s()
    group.clock.now += 1e6
    assert group.peers.hung() == "", "it waits for a batch"
    group.agree(has_batch=True)
    group.clock.now += 99.0
    assert group.peers.hung() == ""
    group.clock.now += 2.0
    assert "has waited 101 s for learner-1 or learner-2 in an update" in group.peers.hung()
    group.peers.steps()
    assert group.peers.hung() == "", "an arrival of ppo may have many gradient steps"
    group.peers.works()
    group.clock.now += 101.0
    assert "learner-0: has hung for 101 s" in group.peers.hung()
    group.peers.ends()
    assert group.peers.hung() == "", "a callback's on_end may evaluate for minutes"
