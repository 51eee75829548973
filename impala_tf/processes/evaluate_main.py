"""The evaluation process: --mode=test."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.console import Console

from impala_tf import config as configs
from impala_tf.agents.policy import compile_policy
from impala_tf.config import Config, EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.evaluation import generalization, many_levels, play, video
from impala_tf.logdir import Logdir, write_atomically
from impala_tf.monitoring import wandb_writer
from impala_tf.processes import trained_agent
from impala_tf.processes.common import logdir_of, resolve, seed_of
from impala_tf.processes.tensorflow_startup import select_device, start_xla
from impala_tf.processes.trained_agent import TrainedAgent
from impala_tf.types import Episode

# Games played in parallel: enough to fill a batch, few enough that the last one is not long alone.
_MAX_ENVS = 16


def main(config: Config) -> int:
    """Plays whole games with the newest checkpoint and prints a summary; returns 0.

    Raises:
      ConfigError: no logdir, no whole checkpoint, or one of another level or network.
    """
    config, spec = resolve(trained_agent.as_trained(config))
    select_device(config.process.device)
    start_xla()
    logdir = logdir_of(config)
    trained = trained_agent.load(config, spec)
    frames = trained.environment_frames
    print(f"{trained.checkpoint} at {frames:,} frames; {spec.protocol}", flush=True)
    if spec.tasks:
        return _evaluate_levels(trained, logdir)
    sets = generalization.level_sets(config.environment)
    summaries = {name: play.summary(_play(trained, levels)) for name, levels in sets.items()}
    result = {
        **summaries["train"],
        **generalization.normalized_mean(config.environment, summaries["train"]),
        "test_policy": config.evaluation.test_policy,
        "level_name": spec.level_name,
        "agent_name": config.agent.agent_name,
        "protocol": spec.protocol,
        "checkpoint": str(trained.checkpoint),
        "environment_frames": frames,
        "seed": config.run.seed,
    }
    if "test" in sets:
        result["generalization"] = generalization.report(sets, summaries)
    path = logdir.path / "evaluation.json"
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    print(
        "{num_episodes} games, {test_policy} actions: mean {mean:.2f}, median {median:.2f}, "
        "std {std:.2f}, min {min:g}, max {max:g}".format(**result)
        + (f", normalised {result['normalized_mean']:.3f}" if "normalized_mean" in result else "")
    )
    if "test" in sets:
        Console().print(generalization.table(result["generalization"]))
    print(f"written to {path}")
    if config.evaluation.video:
        film = _film(trained, logdir.path / "evaluation.mp4")
        print(f"written to {film}")
        if config.run.track == "wandb":
            wandb_writer.log_video(logdir.path, film, frames)
    return 0


def _evaluate_levels(trained: TrainedAgent, logdir: Logdir) -> int:
    """Plays each of several levels; returns 0."""
    config = trained.config
    levels = suites.levels(config.environment)
    summaries = []
    for index, level in enumerate(levels):
        print(f"{level.level_name}:", flush=True)
        summaries.append(play.summary(_play(trained, config.environment, index)))
    found = many_levels.report(levels, summaries)
    result = {
        **found,
        "test_policy": config.evaluation.test_policy,
        "agent_name": config.agent.agent_name,
        "protocol": trained.spec.protocol,
        "checkpoint": str(trained.checkpoint),
        "environment_frames": trained.environment_frames,
        "seed": config.run.seed,
    }
    path = logdir.path / "evaluation.json"
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    Console().print(many_levels.table(found))
    print(f"written to {path}")
    if config.evaluation.video:
        for index, level in enumerate(levels):
            name = f"evaluation-{configs.slug(level.level_name)}.mp4"
            print(f"written to {_film(trained, logdir.path / name, index)}")
    return 0


def _play(trained: TrainedAgent, env: EnvironmentConfig, index: int | None = None) -> list[Episode]:
    """Plays whole games in the environments of `env`; of its level `index`, if it lists several."""
    config, spec, agent = trained.config, trained.spec, trained.agent
    wanted = config.evaluation.test_num_episodes
    num_envs = min(wanted, _MAX_ENVS)
    seed = seed_of(config.run.seed, "test")
    policy = compile_policy(agent, spec, num_envs, seed, config.evaluation.test_policy)
    made = (
        suites.make(env, num_envs, seed, num_threads=0)
        if index is None
        else suites.make_one(env, index, num_envs, seed, num_threads=0)
    )
    environment = BatchedEnvironment(made)
    episodes: list[Episode] = []
    printed_at = time.monotonic()
    try:
        for episode in play.play(
            policy, agent.initial_state(num_envs), environment, num_envs, wanted
        ):
            if episode is not None:
                episodes.append(episode)
            if time.monotonic() - printed_at >= config.run.metrics_interval_s:
                printed_at = time.monotonic()
                print(f"{len(episodes)} of {wanted} games played", flush=True)
    finally:
        environment.close()
    return episodes


def _film(trained: TrainedAgent, path: Path, index: int = 0) -> Path:
    """Plays one more game, of level `index` if there are several, and writes it to an mp4."""
    with trained_agent.filmed(trained, index=index) as (pictures, fps):
        video.write_mp4(path, pictures, fps)
    return path
