"""Which flags may change when a run resumes, and what schedules do then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import Config, Given


def resolved(**flags: Any) -> Config:
    return configs.resolve(Given().replace(**flags), "atari")


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns the flags that tell a run from the one whose config.json is in the folder."""
    saved, config = resolved(**before), resolved(**now)
    flags = json.loads(json.dumps(configs.to_dict(saved)))
    sources = configs.sources(saved, "atari")
    return list(configs.differences(flags, sources, config, configs.sources(config, "atari")))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("seed", 2),
        ("level_name", "BreakoutNoFrameskip-v4"),
        ("repeat_action_probability", 0.25),
        ("agent_name", "NatureAgent"),
        ("algorithm", "ppo"),
        ("discounting", 0.9),
        ("learning_rate", 0.1),
        ("reward_clipping", "none"),
        ("batch_size", 8),
        ("unroll_length", 64),
        ("preset", "paper"),
        ("synchronization", "trajectory"),
        ("start_from", "runs/other"),
    ],
)
def test_what_changes_learning_makes_another_run(flag: str, value: Any) -> None:
    assert flag in differing({}, {flag: value})
    assert flag in differing({flag: value}, {})
    assert differing({}, {flag: value}) == [flag], "what follows from it is not listed"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("total_environment_frames", 123_456),
        ("num_actors", 7),
        ("envs_per_actor", 3),
        ("learner_hosts", "10.0.0.1:8001,10.0.0.2:8001"),
        ("precision", "float32"),
        ("device", "cpu"),
        ("track", "wandb"),
        ("logdir", "elsewhere"),
        ("fresh", True),
    ],
)
def test_how_long_and_where_a_run_trains_may_change(flag: str, value: Any) -> None:
    assert differing({}, {flag: value}) == []
    assert differing({flag: value}, {}) == []


def test_another_name_of_the_same_folder_is_the_same_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch makes the path absolute for processes on its own machine."""
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "runs/a"), "./runs/a"):
        assert differing({"start_from": name}, {"start_from": "runs/a"}) == []
    assert differing({"start_from": "runs/b"}, {"start_from": "runs/a"}) == ["start_from"]


def test_what_follows_from_the_number_of_actors_may_change_unless_it_was_given() -> None:
    """Ppo's batch is an unroll of every environment, so another machine has another batch."""
    for actors in (2, 16):
        few, many = {"algorithm": "ppo", "num_actors": 2}, {"algorithm": "ppo"}
        assert differing(few, {**many, "num_actors": actors}) == []
        assert differing({**many, "num_actors": actors}, few) == []
    given = {"algorithm": "ppo", "batch_size": 7}
    assert differing(given, {"algorithm": "ppo"}) == ["batch_size"]
    assert differing({"algorithm": "ppo"}, given) == ["batch_size"]


def test_a_run_goes_on_with_more_actors_than_small_steps_are_for() -> None:
    """Their defaults differ; who resumes on a larger machine has not asked for anything else."""
    assert differing({"num_actors": 2}, {"num_actors": 100}) == []
    assert differing({"num_actors": 2, "batch_size": 8}, {"num_actors": 100}) == ["batch_size"]
    # With as few actors, the other value is one that somebody asked for.
    assert differing({"num_actors": 2}, {"num_actors": 2, "batch_size": 16}) == ["batch_size"]
    assert differing({"num_actors": 2, "batch_size": 16}, {"num_actors": 2}) == ["batch_size"]
    few, many = resolved(num_actors=15), resolved(num_actors=16)
    assert (few.optimizer.batch_size, many.optimizer.batch_size) == (4, 16)


def test_a_resume_says_what_follows_from_other_flags_and_has_changed() -> None:
    """An Atari run of 2 cores continues with 16: a quarter of the gradient steps for each frame."""
    saved = configs.to_dict(resolved(num_actors=2, preset="tuned"))
    change = configs.changes(saved, resolved(num_actors=16))
    assert "--batch_size=16, not 4, --ring_batches=4, not 16, --learning_rate=0.0005, not" in change
    kept = {"batch_size": 4, "ring_batches": 16, "learning_rate": 3.5e-4, "learning_rate_end": 7e-5}
    assert configs.changes(saved, resolved(num_actors=16, **kept)) == ""
    assert configs.changes(saved, resolved(num_actors=15, logdir="elsewhere")) == ""
    paper = configs.to_dict(resolved(preset="paper", total_environment_frames=1000))
    longer = resolved(preset="paper", total_environment_frames=2000)
    assert "--schedule_frames=2000, not 1000" in configs.changes(paper, longer)


def test_a_command_that_only_names_the_folder_is_told_the_flags_of_its_run(run_here, tmp_path):
    """All of them at once."""
    saved = resolved(level_name="CartPole-v1", learning_rate=0.1)
    described = {"flags": configs.to_dict(saved), "sources": configs.sources(saved, "atari")}
    (tmp_path / "config.json").write_text(json.dumps(described))
    code, out, err = run_here(f"--logdir={tmp_path}")
    assert (code, out) == (2, "")
    level, rate, advice = err.splitlines()
    assert "(not given)" in level and "--level_name=CartPole-v1" in level
    assert "--learning_rate=0.1" in rate and f"--logdir={tmp_path}" in advice
