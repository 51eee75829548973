"""What the scopes of flags decide: who must agree, what may change on a resume, what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.config import FLAGS, Config, EnvironmentConfig, Given, to_dict
from impala_tf.config.flags import USER, flags_of


def test_these_flags_of_a_file_are_used_only_with_consent() -> None:
    """A file of flags may be somebody else's. A flag may leave this list for a reason only."""
    names = (
        "workers_csv_path end_command env secret join engine slurm_actors slurm_options"
        " slurm_learner_options ray_learner_resources mirror to job_name learner_hosts"
        " actor_hosts credentials trust_level_module"
    )
    assert set(flags_of(USER)) == set(names.split())


def another(name: str, default: Any) -> Any:
    """Returns a value that differs from the default."""
    if name == "algorithm":
        return "ppo"
    if isinstance(default, bool):
        return not default
    if isinstance(default, (int, float)):
        return default + 1
    return ("x",) if isinstance(default, tuple) else f"{default}x"


def test_the_wire_digest_depends_on_the_flags_that_must_agree_and_on_no_others() -> None:
    """Too few: an actor plays another game. Too many: a harmless flag locks actors out."""

    def changing(config: Config) -> set[str]:
        before = configs.wire_digest(config)
        assert before == configs.wire_digest(config)
        return {
            name
            for name, value in to_dict(config).items()
            if configs.wire_digest(configs.replace(config, **{name: another(name, value)}))
            != before
        }

    shared = {
        "info_metrics", *vars(EnvironmentConfig()), "agent_name", "width_scale", "core", "heads",
        "layer_norm", "observation_normalization", "algorithm", "unroll_length", "inference",
        "synchronization",
    }  # fmt: skip
    assert changing(resolved()) == shared
    of_gradients = {name for name, flag in FLAGS.items() if flag.group == "loss"}
    assert changing(resolved(algorithm="a3c")) == shared | of_gradients | {"envs_per_actor"}


def resolved(**flags: Any) -> Config:
    return configs.resolve(Given(flags), "atari")


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns the flags that tell a run from the one whose config.json is in the folder."""
    saved, config = resolved(**before), resolved(**now)
    flags = json.loads(json.dumps(to_dict(saved)))
    sources = configs.sources(saved, "atari")
    return list(configs.differences(flags, sources, config, configs.sources(config, "atari")))


def test_what_changes_learning_makes_another_run() -> None:
    changed = {
        "seed": 2,
        "level_name": "BreakoutNoFrameskip-v4",
        "repeat_action_probability": 0.25,
        "agent_name": "NatureAgent",
        "algorithm": "ppo",
        "discounting": 0.9,
        "batch_size": 8,
        "preset": "paper",
        "synchronization": "trajectory",
        "start_from": "runs/other",
    }
    for flag, value in changed.items():
        assert flag in differing({flag: value}, {})
        assert differing({}, {flag: value}) == [flag], "what follows from it is not listed"


def test_how_long_and_where_a_run_trains_may_change() -> None:
    for flag, value in (("total_environment_frames", 123_456), ("num_actors", 7), ("fresh", True)):
        assert differing({}, {flag: value}) == differing({flag: value}, {}) == []
    # A launch makes the path absolute for processes on its own machine.
    assert differing({"start_from": "a"}, {"start_from": str(Path("a").absolute())}) == []


def test_another_machine_may_resume_a_run() -> None:
    """Ppo's batch is an unroll of every environment; small batches are for few actors."""
    few, many = {"algorithm": "ppo", "num_actors": 2}, {"algorithm": "ppo", "num_actors": 16}
    assert differing(few, many) == differing(many, few) == []
    assert differing({"algorithm": "ppo", "batch_size": 7}, {"algorithm": "ppo"}) == ["batch_size"]
    assert differing({"num_actors": 2}, {"num_actors": 100}) == []
    # With as few actors, the other value is one that somebody asked for.
    assert differing({"num_actors": 2}, {"num_actors": 2, "batch_size": 16}) == ["batch_size"]
    assert differing({"num_actors": 2, "batch_size": 16}, {"num_actors": 2}) == ["batch_size"]


def test_a_resume_says_what_follows_from_other_flags_and_has_changed() -> None:
    """An Atari run of 2 cores continues with 16: a quarter of the gradient steps for each frame."""
    saved = to_dict(resolved(num_actors=2, preset="tuned"))
    change = configs.changes(saved, resolved(num_actors=16))
    for now, before in (("batch_size=16", 4), ("ring_batches=4", 16), ("learning_rate=0.0005", "")):
        assert f"--{now}, not {before}" in change
    kept = {"batch_size": 4, "ring_batches": 16, "learning_rate": 3.5e-4, "learning_rate_end": 7e-5}
    assert configs.changes(saved, resolved(num_actors=16, **kept)) == ""
    paper = to_dict(resolved(preset="paper", total_environment_frames=1000))
    longer = resolved(preset="paper", total_environment_frames=2000)
    assert "--schedule_frames=2000, not 1000" in configs.changes(paper, longer)


def test_a_command_that_only_names_the_folder_is_told_the_flags_of_its_run(run_here, tmp_path):
    """All of them at once."""
    saved = resolved(level_name="CartPole-v1", learning_rate=0.1)
    described = {"flags": to_dict(saved), "sources": configs.sources(saved, "atari")}
    (tmp_path / "config.json").write_text(json.dumps(described))
    code, out, err = run_here(f"--logdir={tmp_path}")
    assert (code, out) == (2, "")
    level, rate, advice = err.splitlines()
    assert "(not given)" in level and "--level_name=CartPole-v1" in level
    assert "--learning_rate=0.1" in rate and f"--logdir={tmp_path}" in advice
