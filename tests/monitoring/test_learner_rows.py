"""Rows of each learner: what sums in metrics.csv hide, also if the number of learners changes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from impala_tf.learner.policy import PolicyStats
from impala_tf.monitoring.metrics import LEARNER_METRICS
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.monitoring.writers import CsvWriter
from impala_tf.types import Episode, Progress
from tests.helpers.clock import Clock


def start(folder: Path, size: int, state: dict[str, Any] | None = None) -> list[RunRecorder]:
    """Returns the recorders of a group of `size`; the first writes, as rank 0's does."""
    writer = CsvWriter(folder / "metrics-learners.csv", LEARNER_METRICS) if size > 1 else None
    total = CsvWriter(folder / "metrics.csv")
    first = RunRecorder({"csv": total}, lambda: 5, 10.0, writer)
    first.restore(state)
    return [first, *(RunRecorder({}, lambda: 7, 10.0) for _ in range(size - 1))]


def write(
    group: list[RunRecorder], clock: Clock, updates: int, batches: list[int], skipped: int = 0
) -> None:
    """Writes a row of ten seconds; learner K had batches[K] batches and as many episodes."""
    for rank, (one, count) in enumerate(zip(group, batches, strict=True)):
        for _ in range(count):
            stats = PolicyStats(*[10.0 + rank] * len(PolicyStats._fields))
            one.record_update(stats, idle_s=rank + 1.0)
            one.record_episodes([Episode(100.0 * (rank + 1), 5)])
    clock.now += 10.0
    parts = [json.loads(json.dumps(one.interval())) for one in group]
    progress = Progress(
        learner_updates=updates,
        agent_steps=100,
        environment_frames=400 * updates,
        learning_rate=0.1,
        entropy_cost=0.01,
        updates_skipped=skipped,
    )
    group[0].write_row(parts, progress)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics-learners.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def kept(group: list[RunRecorder]) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(group[0].state()))
    group[0].close()
    return state


def test_each_learner_has_its_own_row(tmp_path: Path, clock: Clock) -> None:
    """If one of two learners starves, the mean of both only shows a slow run."""
    group = start(tmp_path, 2)
    write(group, clock, 4, [3, 1])
    first, second = rows(tmp_path)
    assert list(first) == list(LEARNER_METRICS)
    assert (first["learner"], second["learner"]) == ("0", "1")
    assert (first["batches"], second["batches"]) == ("3", "1")
    assert first["environment_frames"] == second["environment_frames"] == "1600"
    assert (first["episodes"], second["episodes"]) == ("3", "1")
    assert (first["episode_return_mean"], second["episode_return_mean"]) == ("100", "200")
    assert (first["loss_total"], second["loss_total"]) == ("10", "11")
    assert (first["queue_size"], second["queue_size"]) == ("5", "7")
    assert (first["learner_idle_fraction"], second["learner_idle_fraction"]) == ("0.3", "0.2")
    total = group[0].last_row
    assert total is not None
    for name in ("agent_steps_per_s", "frames_per_s"):
        shares = [float(row[name]) for row in (first, second)]
        assert shares[0] == pytest.approx(3 * shares[1], rel=1e-6)
        assert sum(shares) == pytest.approx(total[name], rel=1e-6)
    assert [row["learner"] for row in group[0].last_learner_rows] == [0, 1]


def test_the_row_of_a_learner_without_a_batch_says_so(tmp_path: Path, clock: Clock) -> None:
    group = start(tmp_path, 2)
    write(group, clock, 4, [3, 0])
    starved = rows(tmp_path)[1]
    assert (starved["batches"], starved["agent_steps_per_s"]) == ("0", "0")
    assert (starved["episodes"], starved["episode_return_mean"]) == ("0", "")
    assert starved["policy_lag_mean"] == ""


def test_where_all_updates_were_skipped_the_rates_of_a_learner_are_not_known(
    tmp_path: Path, clock: Clock
) -> None:
    write(start(tmp_path, 2), clock, 4, [0, 0], skipped=4)
    assert [row["batches"] for row in rows(tmp_path)] == ["0", "0"]
    assert [row["agent_steps_per_s"] for row in rows(tmp_path)] == ["", ""]


def test_a_single_learner_has_no_such_file(tmp_path: Path, clock: Clock) -> None:
    group = start(tmp_path, 1)
    write(group, clock, 4, [3])
    assert not (tmp_path / "metrics-learners.csv").exists()
    assert group[0].last_learner_rows == []


def test_resumed_rows_continue_at_the_checkpoint(tmp_path: Path, clock: Clock) -> None:
    group = start(tmp_path, 2)
    write(group, clock, 1, [1, 1])
    state = json.loads(json.dumps(group[0].state()))
    write(group, clock, 2, [1, 1])
    group[0].close()
    with (tmp_path / "metrics-learners.csv").open("a") as file:
        file.write("12.5,torn")

    resumed = start(tmp_path, 2, state)
    write(resumed, clock, 3, [2, 0])
    assert [row["environment_frames"] for row in rows(tmp_path)] == ["400"] * 2 + ["1200"] * 2
    assert [row["episodes"] for row in rows(tmp_path)] == ["1", "1", "3", "1"]


def test_a_run_can_resume_with_another_number_of_learners(tmp_path: Path, clock: Clock) -> None:
    """The columns do not depend on it, and a single learner keeps the file."""
    group = start(tmp_path, 2)
    write(group, clock, 1, [1, 1])
    state = kept(group)
    for updates, size in ((2, 3), (3, 1), (4, 2)):
        group = start(tmp_path, size, state)
        write(group, clock, updates, [1] * size)
        state = kept(group)
    found = [(row["environment_frames"], row["learner"]) for row in rows(tmp_path)]
    assert found == [
        ("400", "0"), ("400", "1"),
        ("800", "0"), ("800", "1"), ("800", "2"),
        ("1600", "0"), ("1600", "1"),
    ]  # fmt: skip


def test_a_run_of_one_learner_can_resume_with_two(tmp_path: Path, clock: Clock) -> None:
    group = start(tmp_path, 1)
    write(group, clock, 1, [1])
    state = kept(group)
    write(start(tmp_path, 2, state), clock, 2, [1, 1])
    assert [row["learner"] for row in rows(tmp_path)] == ["0", "1"]
    # All episodes before the resume were learner 0's.
    assert [row["episodes"] for row in rows(tmp_path)] == ["2", "1"]
