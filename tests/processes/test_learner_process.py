"""The parts of a learner: what it serves, keeps, restores and says."""

from __future__ import annotations

import contextlib
import csv
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impala_tf import config as configs
from impala_tf.agents.agent import unroll_specs
from impala_tf.config import ConfigError
from impala_tf.learner import arrivals
from impala_tf.learner.arrivals import Batches
from impala_tf.learner.learner_group import LearnerGroup, check_equal_flags
from impala_tf.learner.update import MAX_SKIPPED_IN_A_ROW, NotFiniteError
from impala_tf.monitoring.metrics import EVALUATION_METRICS
from impala_tf.monitoring.status_file import read_status
from impala_tf.monitoring.writers import CsvWriter
from impala_tf.processes import warm_start
from impala_tf.processes.common import credentials_dir
from impala_tf.processes.learner_main import LearnerProcess
from impala_tf.transport import ActorClient
from impala_tf.types import Episode, Unroll
from tests.helpers.unrolls import random_unrolls
from tests.helpers.waiting import wait_until
from tests.helpers.wire import PATIENCE_S

Build = Callable[..., LearnerProcess]


def specs_of(parts: LearnerProcess) -> Unroll:
    length = parts.config.optimizer.unroll_length
    return unroll_specs(parts.learner.agent, parts.spec, length)


def client_of(
    parts: LearnerProcess, num_environments: int = 1, name: str = "actor-0"
) -> ActorClient:
    return ActorClient(
        f"127.0.0.1:{parts.server.port}",
        credentials_dir(parts.config),
        name,
        specs_of(parts),
        configs.wire_digest(parts.config),
        num_environments=num_environments,
    )


def first_parameters(parts: LearnerProcess) -> tuple[int, list[np.ndarray]]:
    """Serves, and returns what an actor without parameters gets."""
    assert parts.store.latest is not None, "a server started now would have no parameters"
    actor = client_of(parts)
    parts.server.start()
    try:
        found = actor.fetch_parameters(-1)
    finally:
        actor.close()
    assert found is not None
    return found


class Others(LearnerGroup):
    """Another learner, which has other flags."""

    def __init__(self, **flags: Any) -> None:
        super().__init__(None)
        self._flags = flags

    def gather(self, value: Any) -> list[Any]:
        return [value, {**value, **self._flags}]


def test_learners_with_other_defaults_are_refused(build: Build) -> None:
    """They may have counted their actors by the cores of their machines."""
    config = build().config
    check_equal_flags(config, Others())
    with pytest.raises(ConfigError) as caught:
        check_equal_flags(config, Others(ring_batches=99, schedule_frames=7))
    schedule, ring = caught.value.problems
    assert ring.startswith("--ring_batches: ") and f"{config.optimizer.ring_batches}, 99" in ring
    assert schedule.startswith("--schedule_frames: ")


def test_after_a_resume_the_first_actor_gets_the_parameters_of_the_checkpoint(build: Build) -> None:
    first = build()
    for variable in first.learner.agent.trainable_variables:
        variable.assign_add(np.ones(variable.shape))
    first.learner.restore_counters(
        {"learner_updates": 7, "agent_steps": 70, "environment_frames": 70, "kl_factor": 1.0}
    )
    first.run_state.save()
    expected = first.learner.parameters()

    resumed = build()
    assert resumed.resumed
    version, arrays = first_parameters(resumed)
    assert version == 7
    for got, array in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(got, array)


def test_a_resumed_run_of_dqn_says_that_its_replay_refills(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "impala_tf.learner")
    build(algorithm="dqn").run_state.save()
    resumed = build(algorithm="dqn")
    resumed.learner.finish()
    resumed.run("CPU", lambda: False)
    assert "resuming from" in caplog.text
    assert "replay: refills; learning resumes in 1,000 agent steps" in caplog.text


def test_a_new_run_starts_with_the_network_of_another_and_then_needs_it_no_more(
    build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "impala_tf.learner")
    other, new = (str(tmp_path / name) for name in ("other", "new"))
    parts = build(logdir=other)
    parts.run_state.save()
    expected = parts.learner.parameters()
    parts = build(logdir=new, start_from=other, seed=2)
    assert "taken: torso, policy, baseline" in caplog.text
    for got, array in zip(parts.learner.parameters(), expected, strict=True):
        np.testing.assert_array_equal(got, array)
    parts.run_state.save()
    shutil.rmtree(other)
    parts = build(logdir=new, start_from=other, seed=2)
    assert parts.resumed
    warm_start.check(parts.config, parts.spec, parts.logdir)  # as the command does


def test_a_resumed_run_keeps_the_evaluations_of_its_checkpoint_and_no_later_ones(
    build: Build,
) -> None:
    parts = build(eval_every=10)
    parts.run_state.save()
    parts.recorder.close()
    writer = CsvWriter(parts.logdir.evaluations, EVALUATION_METRICS)
    writer.rewind(50)
    for frames in (0, 50):
        writer.write({"environment_frames": frames})
    writer.close()
    assert build(eval_every=10).resumed
    with parts.logdir.evaluations.open() as file:
        assert [row["environment_frames"] for row in csv.DictReader(file)] == ["0"]


def test_a_checkpoint_never_holds_nan(build: Build) -> None:
    parts = build()
    parts.run_state.save()
    good = parts.run_state.latest_checkpoint
    weights = parts.learner.agent.trainable_variables[0]
    weights.assign(np.full(weights.shape, np.nan, np.float32))
    parts.learner.learner_updates = 9
    with pytest.raises(NotFiniteError, match="not saved: .* would hold NaN"):
        parts.run_state.save()
    assert parts.run_state.latest_checkpoint == good
    assert [path.name for path in parts.logdir.checkpoints.iterdir()] == [Path(str(good)).name]


@pytest.mark.parametrize("version", [0, 9])
def test_games_count_whose_unroll_is_too_old_or_from_before_a_crash(
    build: Build, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were played; without them, the mean return would be that of fewer games."""
    monkeypatch.setattr(arrivals, "MAX_POLICY_LAG", 2)
    parts = build()
    actor = client_of(parts)
    parts.server.start()
    try:
        actor.handshake()
        parts.learner.learner_updates = 7
        made = random_unrolls(specs_of(parts), 1)
        versions = np.full(1, version, np.int64)
        actor.push(made._replace(parameter_version=versions), [Episode(4.0, 9)])
        wait_until(lambda: parts.server.service.sessions.shown()[0].trouble != "", what="refusal")
        part = parts.recorder.interval()
        assert part["unrolls_refused"] == 1
        assert [episode[0] for episode in part["episodes"]] == [4.0]
    finally:
        actor.close()


def test_an_actor_whose_numbers_break_updates_is_named_and_cannot_end_the_run(
    build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Finite numbers pass the door, and their squares are infinite."""
    parts = build(level_name="Pendulum-v1", batch_size=4, unroll_length=3, updates_per_batch=1)
    honest, hostile = (client_of(parts, 2, f"actor-{n}") for n in range(2))
    parts.server.start()
    coming = Batches(parts.queue, 4)

    def push(actor: ActorClient, logits: float) -> None:
        made = random_unrolls(specs_of(parts), 2)
        outputs = made.agent_outputs._replace(policy_logits=made.agent_outputs.policy_logits * 0)
        outputs.policy_logits[0] = logits
        versions = np.full(2, parts.learner.parameter_version, np.int64)
        actor.push(made._replace(parameter_version=versions, agent_outputs=outputs), [])

    def update() -> Any:
        batch = coming.get(PATIENCE_S)
        assert batch is not None
        return parts.learner.update(batch)

    def trouble() -> dict[str, str]:
        return {actor.actor_id: actor.trouble for actor in parts.server.service.sessions.shown()}

    monkeypatch.setattr(arrivals, "REFUSED_S", 0.0)
    try:
        for actor in (honest, hostile):
            actor.handshake()
        for _ in range(MAX_SKIPPED_IN_A_ROW + 1):
            push(honest, 0.0)
            push(hostile, 1e25)
            assert update() is None
        assert parts.learner.updates_skipped == MAX_SKIPPED_IN_A_ROW + 1
        monkeypatch.setattr(arrivals, "REFUSED_S", 60.0)
        push(honest, 0.0)
        push(hostile, 1e25)
        assert update() is None
        for _ in range(2):
            push(hostile, 0.0)
            push(honest, 0.0)
        assert update() is not None, "of the honest actor's alone"
        wait_until(lambda: "not finite" in trouble()["actor-1"], what="refusal")
        assert trouble()["actor-0"] == ""
        assert parts.recorder.interval()["unrolls_refused"] == 4
    finally:
        honest.close()
        hostile.close()
    named = [record.getMessage() for record in caplog.records if "was skipped" in record.message]
    assert len(named) == 1 and named[0].startswith("actor-1: "), named


def test_returns_below_the_smallest_unit_are_told_once(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    """Rewards of 1e-4 are hardly learned from, and the run looked like any other."""
    outputs = build().outputs
    assert outputs is not None
    row = {"episodes": 100, "episode_return_mean": 0.01}
    for largest_return in (0.5, 0.01, 0.01):
        outputs.follow_row(row, largest_return)
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "--value_normalization" in line and "0.01" in line


def state(parts: LearnerProcess) -> str | None:
    found = read_status(parts.logdir.status())
    return None if found is None else found["state"]


@pytest.mark.parametrize(("frames_left", "expected"), [(100, "stopped"), (0, "done")])
def test_the_status_says_whether_a_run_that_ended_can_be_resumed(
    build: Build, frames_left: int, expected: str
) -> None:
    parts = build()
    frames = parts.learner.total_frames - frames_left
    counts = {"learner_updates": 1, "agent_steps": frames, "environment_frames": frames}
    with parts.reporting(0.02):
        wait_until(lambda: state(parts) == "starting", what="status of a run that starts")
        parts.learner.restore_counters({**counts, "kl_factor": 1.0})
    assert state(parts) == expected


def test_the_status_says_that_a_run_has_failed(build: Build) -> None:
    """Because of an error, or because a callback raised."""
    parts = build()
    with contextlib.suppress(FloatingPointError), parts.reporting(0.02):
        raise FloatingPointError
    assert state(parts) == "failed"
    with parts.reporting(0.02):
        parts.learner.finish()
        assert parts.outputs is not None
        parts.outputs.callbacks.failure = "--callbacks: Upload.on_row raised OSError: no network"
    assert state(parts) == "failed"
