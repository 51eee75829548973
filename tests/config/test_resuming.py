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
        ("frame_skip", 1),
        ("agent_name", "NatureAgent"),
        ("algorithm", "ppo"),
        ("discounting", 0.9),
        ("learning_rate", 0.1),
        ("reward_clipping", "none"),
        ("batch_size", 8),
        ("unroll_length", 64),
        ("preset", "paper"),
        ("synchronization", "trajectory"),
        ("staggered_resets", False),
        ("num_levels", 100),
        ("start_from", "runs/other"),
    ],
)
def test_what_changes_learning_makes_another_run(flag: str, value: Any) -> None:
    """One line is enough for a level, agent, algorithm or preset: it decides many other flags."""
    assert flag in differing({}, {flag: value})
    assert flag in differing({flag: value}, {})
    if flag in ("level_name", "agent_name", "algorithm", "preset"):
        assert differing({}, {flag: value}) == [flag]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("total_environment_frames", 123_456),
        ("num_actors", 7),
        ("envs_per_actor", 3),
        ("learner_hosts", "10.0.0.1:8001,10.0.0.2:8001"),
        ("checkpoint_interval_s", 5.0),
        ("metrics_interval_s", 5.0),
        ("precision", "float32"),
        ("device", "cpu"),
        ("track", "wandb"),
        ("max_hours", 1.0),
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


def test_a_resume_says_what_another_number_of_actors_changes() -> None:
    """An Atari run of 2 cores continues with 16: a quarter of the gradient steps for each frame."""
    few = resolved(num_actors=2)
    line = configs.actors_change(configs.to_dict(few), resolved(num_actors=16))
    assert "--batch_size=16, not 4, --ring_batches=4, not 16, --learning_rate=0.0005, not" in line
    kept = resolved(
        num_actors=16, batch_size=4, ring_batches=16, learning_rate=3.5e-4, learning_rate_end=7e-5
    )
    longer = resolved(num_actors=15, total_environment_frames=10, logdir="elsewhere")
    assert [configs.actors_change(configs.to_dict(few), each) for each in (kept, longer)] == [
        "",
        "",
    ]


def test_the_end_of_a_schedule_is_said() -> None:
    """How many frames are named does not change what a frame of an Atari game teaches."""
    for frames in (1_000_000, 50_000_000):
        assert configs.schedule_line(resolved(total_environment_frames=frames)) == (
            "the learning rate goes from 0.00035 to 7e-05 at 8,000,000 frames (--schedule_frames)"
        )
    fixed = resolved(total_environment_frames=8_000_000, schedule_frames=80_000_000)
    assert "at 80,000,000 frames" in configs.schedule_line(fixed)


def test_a_run_says_that_the_kl_bounds_its_learning_rate() -> None:
    flags = {"learning_rate_schedule": "kl", "learning_rate": 1e-3, "total_environment_frames": 500}
    bounded = "; up to 10 times less learning rate while the KL divergence is large"
    annealed = configs.resolve(Given().replace(**flags), "vector")
    assert configs.schedule_line(annealed) == (
        f"the learning rate goes from 0.001 to 0.0001 at 500 frames (--schedule_frames){bounded}"
    )
    level = configs.resolve(Given().replace(**flags, learning_rate_end=1e-3), "vector")
    assert configs.schedule_line(level) == f"learning rate and entropy cost are constant{bounded}"


def test_a_resume_that_moves_the_end_of_a_schedule_says_what_jumps() -> None:
    flags = {"preset": "paper", "learning_rate": 0.1, "learning_rate_end": 0.01}
    saved = configs.to_dict(resolved(**flags, total_environment_frames=1000))
    longer = resolved(**flags, total_environment_frames=2000)
    change = configs.schedule_change(saved, longer, 500)
    assert change == (
        "schedules end at 2,000 frames; before, they ended at 1,000. This changes the learning rate"
        " from 0.055 to 0.0775; --schedule_frames=1000 keeps it"
    )
    fixed = resolved(**flags, total_environment_frames=2000, schedule_frames=1000)
    assert configs.schedule_change(saved, fixed, 500) == ""


def test_a_command_that_only_names_the_folder_is_told_what_resumes_its_run(run_here, tmp_path):
    """Not to type level, rate and whatever else the run was given, one by one."""
    saved = resolved(level_name="CartPole-v1", learning_rate=0.1)
    run, sources = tmp_path / "run", configs.sources(saved, "atari")
    run.mkdir()
    (run / "config.json").write_text(
        json.dumps({"flags": configs.to_dict(saved), "sources": sources})
    )
    (run / "config.yaml").write_text("level_name: CartPole-v1\nlearning_rate: 0.1\n")
    for more in ([], ["--total_environment_frames=5", "--num_actors=1"]):
        assert run_here(f"--logdir={run}", *more) == (
            2, "", f"run_experiment.py: --logdir={run}: holds a run with --level_name=CartPole-v1"
            f" --learning_rate=0.1; to resume it, add --config={run}/config.yaml, which has its"
            " flags\n",
        )  # fmt: skip
    # Who says what to learn may mean another run.
    _, _, err = run_here(f"--logdir={run}", "--seed=2")
    assert f"--seed=2, but {run} was trained with --seed=1\n" in err
    # What is not given is not said to be.
    assert "(not given), but" in err and "--learning_rate=0.1; give these flags to resume" in err
