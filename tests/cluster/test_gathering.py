"""Which learners start together: all of them, or those that are there, and when."""

from __future__ import annotations

from typing import Any

from impala_tf.cluster.node.gathering import (
    GROW_S,
    HUNG_S,
    LATE_S,
    PATIENCE_S,
    SETTLE_S,
    Gathering,
)
from tests.helpers.clock import Clock

POLL_S = 1.0


class Learners:
    """The supervisors of three learners: some wait, some run their learner, some are away."""

    def __init__(self, size: int = 3, **changes: Any) -> None:
        self.clock = Clock()
        self.gathering = Gathering(size, clock=self.clock, **changes)
        self.waiting: dict[int, str] = {}
        self.running: dict[int, str] = {}
        self.started: list[tuple[float, list[int]]] = []
        self.answers: dict[int, dict[str, Any]] = {}
        self.watched: dict[int, dict[str, Any]] = {}
        self._starts = 0

    def wait(self, *numbers: int) -> None:
        """Their learners have ended, or never ran: they wait from now on."""
        for number in numbers:
            self.running.pop(number, None)
            self._starts += 1
            self.waiting[number] = f"start {self._starts}"

    def lose(self, *numbers: int) -> None:
        """Their machines are gone."""
        for number in numbers:
            self.running.pop(number, None)
            self.waiting.pop(number, None)

    def pass_s(self, seconds: float) -> None:
        for _ in range(int(seconds / POLL_S)):
            self.clock.now += POLL_S
            for number, attempt in sorted(self.waiting.items()):
                self.answers[number] = self.gathering.join(number, attempt)
                if self.answers[number]["group"] is not None:
                    self.running[number] = self.waiting.pop(number)
            for number, attempt in sorted(self.running.items()):
                self.watched[number] = self.gathering.watch(number, attempt)

    def group(self) -> list[int]:
        """Returns the members that run together."""
        named = {self.answers[number]["group"]["name"] for number in self.running}
        assert len(named) <= 1, "learners of two groups run at the same time"
        return sorted(self.running)

    def train_together(self) -> None:
        self.wait(0, 1, 2)
        self.pass_s(3)
        assert self.group() == [0, 1, 2]
        self.pass_s(100)


def test_members_start_together_in_every_attempt() -> None:
    gathering = Gathering(2)
    waits = gathering.join(0, "a")
    assert (waits["group"], waits["over"], waits["missing"]) == (None, "", [1])
    group = gathering.join(1, "b")["group"]
    assert group["members"] == [0, 1]
    assert gathering.put(group["name"], "/global/0", "an address")
    assert gathering.join(0, "a")["group"] == group
    # Learner 1 fails, and is back before learner 0 has noticed: it has to wait for learner 0.
    again = gathering.join(1, "c")
    assert (again["group"], again["missing"]) == (None, [0])
    second = gathering.join(0, "d")["group"]
    assert gathering.join(1, "c")["group"] == second
    assert gathering.value(second["name"], "/global/0") is None, "it is of the attempt before"
    # A learner that is left over from the first attempt disturbs nobody.
    assert gathering.value(group["name"], "/global/0") is None
    assert not gathering.put(group["name"], "/global/0", "a stale address")


def test_a_run_begins_with_all_learners_or_not_at_all() -> None:
    learners = Learners()
    learners.wait(0, 2)
    learners.pass_s(PATIENCE_S - 1)
    assert learners.group() == []
    learners.pass_s(2)
    assert learners.answers[2]["over"] == "waited 10 min for learner-1"


def test_two_of_three_are_lost_and_the_third_goes_on_and_one_comes_back() -> None:
    learners = Learners()
    learners.train_together()
    learners.lose(1, 2)
    learners.pass_s(45)  # until learner 0 notices
    learners.wait(0)
    learners.pass_s(SETTLE_S - 2)
    assert learners.group() == []
    learners.pass_s(4)
    assert learners.group() == [0]
    away = learners.answers[0]["group"]["away"]
    assert {number: round(away_s, -1) for number, away_s in away.items()} == {"1": 20, "2": 20}

    learners.wait(2)
    learners.pass_s(GROW_S - 5)
    assert learners.watched[0]["returned"] == [], "it has just started"
    assert learners.watched[0]["waiting_s"] == 0.0, "learner 0 would be killed as if it hung"
    learners.pass_s(5)
    assert learners.watched[0]["returned"] == [2]
    learners.wait(0)
    learners.pass_s(1)
    assert learners.group() == [0, 2], "learner 1 was away before, and need not be awaited again"
    ((number, away_s),) = learners.answers[2]["group"]["away"].items()
    assert (number, away_s > SETTLE_S + GROW_S) == ("1", True), (
        "it has been away since before the last start"
    )


def test_a_learner_that_returns_is_not_started_without_the_others() -> None:
    learners = Learners()
    learners.train_together()
    learners.lose(1)
    learners.wait(0, 2)
    learners.pass_s(SETTLE_S + 2)
    assert learners.group() == [0, 2]
    learners.wait(1)
    learners.pass_s(200)
    assert learners.group() == [0, 2]
    assert learners.watched[0]["returned"] == [1]
    assert learners.watched[2]["returned"] == [], "one of them has to end the group"
    # It ends at once, but learner 2 needs a while to stop.
    learners.wait(0)
    learners.pass_s(30)
    assert learners.group() == [2], "learner 0 and learner 1 have not waited for learner 2"
    learners.wait(2)
    learners.pass_s(2)
    assert learners.group() == [0, 1, 2]
    assert learners.answers[0]["group"]["away"] == {}


def test_without_learner_0_and_its_checkpoints_nobody_goes_on() -> None:
    learners = Learners()
    learners.train_together()
    learners.lose(0)
    learners.wait(1, 2)
    learners.pass_s(3 * PATIENCE_S)
    assert learners.group() == []
    assert learners.answers[1]["over"] == ""
    learners.wait(0)
    learners.pass_s(2)
    assert learners.group() == [0, 1, 2]


def test_a_learner_that_hangs_is_awaited_and_left_behind_if_it_cannot_be_killed() -> None:
    learners = Learners()
    learners.train_together()
    stuck = learners.running[1]
    learners.wait(0, 2)  # learner 1 runs on, and its supervisor is there
    learners.pass_s(LATE_S - 2)
    assert learners.watched[1]["waiting_s"] > HUNG_S
    assert not learners.watched[1]["outdated"]
    learners.pass_s(4)
    del learners.running[1]
    assert learners.group() == [0, 2]
    assert learners.gathering.watch(1, stuck)["outdated"]
    assert not learners.watched[2]["outdated"]


def test_a_supervisor_of_learner_0_that_starts_again_need_not_wait_for_all() -> None:
    learners = Learners(has_trained=True)
    learners.wait(0, 1)
    learners.pass_s(SETTLE_S + 2)
    assert learners.group() == [0, 1]


def test_who_waits_when_the_run_ends_is_told() -> None:
    learners = Learners()
    learners.train_together()
    learners.wait(2)
    learners.pass_s(1)
    learners.gathering.finish()
    learners.pass_s(1)
    assert learners.answers[2]["done"]
