"""Rows of metrics: how they are made from all learners, and after a resume."""

from __future__ import annotations

import json
from typing import Any

import pytest

from impala_tf.learner.policy_step import PolicyStats
from impala_tf.monitoring.metrics import METRICS
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.types import ActorReport, Episode, Progress
from tests.helpers.clock import Clock


class Rows:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def rewind(self, environment_frames: int | None) -> None:
        most = -1 if environment_frames is None else environment_frames
        self.rows[:] = [row for row in self.rows if row.get("environment_frames", 0) <= most]

    def close(self) -> None:
        pass


def recorder(rows: Any = None, queue_size: int = 0) -> RunRecorder:
    writers: Any = {"rows": Rows() if rows is None else rows}
    return RunRecorder(writers, {"queue_size": lambda: queue_size}, interval_s=10.0)


def stats(value: float, lag: float = 0.0) -> PolicyStats:
    """Returns statistics that all have one value, except for the lags."""
    return PolicyStats(*[value] * len(PolicyStats._fields))._replace(
        policy_lag_mean=lag, policy_lag_max=2 * lag
    )


def progress(updates: int) -> Progress:
    return Progress(
        learner_updates=updates,
        agent_steps=100 * updates,
        environment_frames=400 * updates,
        learning_rate=0.5 / updates,
        entropy_cost=0.01,
        updates_skipped=0,
    )


def as_sent(part: dict[str, Any]) -> dict[str, Any]:
    """Returns what rank 0 receives of another learner's part, which is sent as JSON."""
    return json.loads(json.dumps(part))


def test_a_row_combines_all_learners(clock: Clock) -> None:
    """If only rank 0 counted, N learners would look like one."""
    rows = Rows()
    first, second = recorder(rows, queue_size=3), recorder(queue_size=4)
    first.record_update(stats(1.0, lag=1.0), idle_s=1.0)
    first.record_update(stats(5.0, lag=2.0), idle_s=1.0)
    second.record_update(stats(10.0, lag=7.0), idle_s=6.0, all_reduce_s=3.0)
    second.record_update(stats(20.0, lag=1.0), idle_s=2.0, all_reduce_s=5.0)
    first.record_episodes([Episode(10.0, 5)])
    second.record_episodes([Episode(30.0, 7), Episode(50.0, 9)])
    for memory_mb in (300.0, 500.0, 400.0):
        second.record_actor(ActorReport(100.0, 0.5, memory_mb / 1000, 0, 0.1, memory_mb))
    clock.now += 20.0

    first.write_row([as_sent(r.interval()) for r in (first, second)], progress(2))

    (row,) = rows.rows
    assert row["wall_time_s"] == 20.0
    assert (row["learner_updates"], row["agent_steps"], row["environment_frames"]) == (2, 200, 800)
    assert row["learning_rate"] == 0.25
    assert row["loss_total"] == row["entropy"] == row["gradient_norm"] == (1 + 5 + 10 + 20) / 4
    assert row["policy_lag_mean"] == (1 + 2 + 7 + 1) / 4
    assert row["policy_lag_max"] == 14
    assert row["queue_size"] == 7
    assert row["learner_idle_fraction"] == pytest.approx((2 / 20 + 8 / 20) / 2)
    assert row["learner_all_reduce_fraction"] == pytest.approx(8 / 20)
    assert row["episodes"] == 3
    assert row["episode_return_mean"] == 30.0
    assert row["episode_length_mean"] == 7.0
    assert row["agent_steps_per_s"] == pytest.approx(row["frames_per_s"] / 4)
    assert row["actor_memory_mb"] == 500.0
    shares = [row[f"actor_{part}_fraction"] for part in ("environment", "inference", "wait")]
    assert shares == pytest.approx([0.5, 0.4, 0.1])
    assert row["learner_memory_mb"] > 50.0  # of this process
    assert set(row) == set(METRICS) - {"q_mean", "td_error_mean"}  # of dqn
    assert first.last_row is row
    # If one of two learners starves, the means only show a slow run.
    shown = first.last_learner_rows
    assert [each["learner"] for each in shown] == [0, 1]
    assert [each["agent_steps_per_s"] for each in shown] == [row["agent_steps_per_s"] / 2] * 2
    assert [each["queue_size"] for each in shown] == [3, 4]
    assert [each["learner_idle_fraction"] for each in shown] == pytest.approx([0.1, 0.4])


def test_a_row_describes_its_own_interval(clock: Clock) -> None:
    """Only the number of episodes is a total."""
    rows = Rows()
    one = recorder(rows)
    for updates, value in ((1, 2.0), (2, 8.0)):
        one.record_update(stats(value, lag=value), idle_s=5.0)
        one.record_episodes([Episode(value, 1)])
        clock.now += 10.0 * updates
        one.write_row([one.interval()], progress(updates))
        clock.now += 100.0
        one.write_row([one.interval()], progress(updates))  # without an update, there is no row
    assert [row["loss_total"] for row in rows.rows] == [2.0, 8.0]
    assert [row["policy_lag_max"] for row in rows.rows] == [4.0, 16.0]
    assert [row["learner_idle_fraction"] for row in rows.rows] == [0.5, 0.25]
    assert [row["episodes"] for row in rows.rows] == [1, 2]
    assert [row["episode_return_mean"] for row in rows.rows] == [2.0, 5.0]


def test_a_resumed_run_continues_at_its_checkpoint(clock: Clock) -> None:
    """Time and episodes continue, and rows after the checkpoint are removed: they come again."""
    rows = Rows()
    first = recorder(rows)
    for updates in (1, 2):
        first.record_update(stats(1.0), idle_s=0.0)
        first.record_episodes([Episode(4.0 * updates, updates)])
        clock.now += 15.0
        first.write_row([first.interval()], progress(updates))
    state = as_sent(first.state())
    first.record_update(stats(99.0), idle_s=0.0)
    first.record_episodes([Episode(99.0, 99)])
    first.write_row([first.interval()], progress(3))
    assert len(rows.rows) == 3

    clock.now += 1e6  # the run was stopped
    second = recorder(rows)
    second.restore(state, 800)
    assert [row["learner_updates"] for row in rows.rows] == [1, 2]
    assert as_sent(second.state()) == state
    second.begin(200, 800)
    second.record_update(stats(1.0), idle_s=0.0)
    second.record_episodes([Episode(0.0, 3)])
    clock.now += 5.0
    second.write_row([second.interval()], progress(3))
    row = rows.rows[2]
    assert row["wall_time_s"] == 35.0
    assert row["episodes"] == 3
    assert row["episode_return_mean"] == (4.0 + 8.0 + 0.0) / 3
    assert row["episode_length_mean"] == 2.0


def test_numbers_from_infos_are_averaged_and_survive_a_resume() -> None:
    """An episode without a number does not count as 0."""
    names = ("score", "end/steps", "nowhere")

    def made(rows: Any) -> RunRecorder:
        return RunRecorder({"rows": rows}, {"queue_size": lambda: 0}, 10.0, info_metrics=names)

    one, rows = made(written := Rows()), written.rows
    one.record_episodes([Episode(1.0, 1, info=(2.0, None, None))])
    one.record_episodes([Episode(1.0, 1, info=(4.0, 6.0, None))])
    one.record_update(stats(1.0), 0.0)
    one.write_row([json.loads(json.dumps(one.interval()))], progress(1))
    expected = {"info/score": 3.0, "info/end/steps": 6.0, "info/nowhere": None}
    assert {name: rows[0][name] for name in expected} == expected
    again = made(written)
    again.restore(json.loads(json.dumps(one.state())), 400)
    again.record_update(stats(1.0), 0.0)
    again.write_row([again.interval()], progress(2))
    assert {name: rows[1][name] for name in expected} == expected


def test_what_a_run_needs_to_start_is_no_part_of_the_first_rate(clock: Clock) -> None:
    """Each curve of the speed began with a dip."""
    rows = Rows()
    one = recorder(rows)
    clock.now += 300  # until training starts
    one.begin(0, 0)
    clock.now += 60  # until the first unrolls
    one.record_update(stats(1.0), 60.0, progress=progress(1))
    clock.now += 3
    one.record_update(stats(1.0), 0.0, progress=progress(2))
    assert not one.row_due()
    clock.now += 10
    one.record_update(stats(1.0), 0.0, progress=progress(12))
    assert one.row_due()
    one.write_row([one.interval()], progress(12))
    (row,) = rows.rows
    assert (row["agent_steps_per_s"], row["frames_per_s"]) == pytest.approx((100, 400))
    assert row["learner_idle_fraction"] == 0 and row["wall_time_s"] == pytest.approx(73)
