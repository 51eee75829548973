"""A learner has parameters before it serves actors."""

from __future__ import annotations

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
from impala_tf.processes.common import credentials_dir
from impala_tf.processes.learner_main import LearnerProcess
from impala_tf.transport import ActorClient
from impala_tf.types import Episode, Unroll
from tests.helpers.runs import Run
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


def test_an_actor_subtracts_what_the_learner_does(
    build: Build, start: Callable[..., Run], tmp_path: Path
) -> None:
    """Also one that does not see the run's folder, and would find another offset by itself."""
    level = "tests.helpers.worlds:Clock-v0"
    parts = build(level_name=level, unroll_length=4)
    parts.server.start()
    start(
        f"--level_name={level}",
        "--unroll_length=4",
        "--job_name=actor",
        f"--learner_hosts=127.0.0.1:{parts.server.port}",
        f"--credentials={credentials_dir(parts.config)}",
        f"--logdir={tmp_path / 'elsewhere'}",
        environment={"IMPALA_TF_TEST_CLOCK_S": "2e9"},
    )
    unroll: Any = parts.queue.take(1)
    assert 0.9e9 < float(np.max(unroll.env_outputs.observation)) < 1.1e9


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
        wait_until(lambda: parts.server.service.actors()[0].trouble != "", what="refusal")
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
        return {actor.actor_id: actor.trouble for actor in parts.server.service.actors()}

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


@pytest.mark.parametrize(
    "flags",
    [
        {"algorithm": "ppo", "minibatches": 1},
        {"algorithm": "impala", "synchronization": "trajectory"},
    ],
)
def test_where_actors_wait_nothing_older_is_learned_from_and_all_of_it_is_counted(
    build: Build, flags: dict[str, Any]
) -> None:
    parts = build(num_actors=1, envs_per_actor=2, **flags)
    actor = client_of(parts, num_environments=2)
    parts.server.start()
    coming = Batches(
        parts.queue, 2, lambda: parts.learner.parameter_version, parts.recorder.record_stale
    )

    def push(version: int, episodes: list[Episode]) -> None:
        made = random_unrolls(specs_of(parts), 2)
        versions = np.full(2, version, np.int64)
        before = made.env_outputs.last_action % 2, made.agent_outputs.action % 2
        actor.push(
            made._replace(
                parameter_version=versions,
                env_outputs=made.env_outputs._replace(last_action=before[0]),
                agent_outputs=made.agent_outputs._replace(action=before[1]),
            ),
            episodes,
        )

    try:
        actor.handshake()
        push(0, [Episode(1.0, 9)])
        wait_until(lambda: parts.queue.size() == 2, what="unroll in the queue")
        parts.learner.learner_updates = (
            5  # one of another actor's unrolls; that in the queue is late
        )
        push(0, [Episode(2.0, 9)])
        push(5, [Episode(3.0, 9)])
        batch = coming.get(PATIENCE_S)
        assert batch is not None
        assert batch.parameter_version.numpy().tolist() == [5, 5]
        wait_until(
            lambda: parts.server.service.actors()[0].parameter_version == 5, what="unroll counted"
        )
        part = parts.recorder.interval()
        assert part["unrolls_stale"] == 4, "two at the door, and two that were in the queue"
        assert part["unrolls_refused"] == 0
        assert [episode[0] for episode in part["episodes"]] == [1.0, 2.0, 3.0]
    finally:
        actor.close()


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
