"""The evaluation process: --mode=test."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from impala_tf import config as configs
from impala_tf.agents.policy import compile_policy
from impala_tf.config import ConfigError, EnvironmentConfig, Given
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.evaluation import games, video
from impala_tf.logdir import Logdir, write_atomically
from impala_tf.monitoring import wandb_writer
from impala_tf.processes import trained_agent
from impala_tf.processes.common import logdir_of, resolve, seed_of
from impala_tf.processes.tensorflow_startup import select_device, start_xla
from impala_tf.processes.trained_agent import TrainedAgent
from impala_tf.types import Episode

# Games played in parallel: enough to fill a batch, few enough that the last one is not long alone.
_MAX_ENVS = 16


def main(given: Given) -> int:
    """Plays whole games with the newest checkpoint and prints a summary; returns 0.

    The flags that are not given are the run's.

    Raises:
      ConfigError: no logdir, no whole checkpoint, or one of another level or network.
    """
    agent = trained(given)
    frames, spec = agent.environment_frames, agent.spec
    print(f"{agent.checkpoint} at {frames:,} frames; {spec.protocol}", flush=True)
    result, shown = played(agent)
    path = write(agent, result)
    console = Console()
    for each in shown:
        console.print(each, highlight=False, soft_wrap=isinstance(each, str))
    print(f"written to {path}")
    if agent.config.evaluation.video:
        _write_films(agent, logdir_of(agent.config))
    return 0


def trained(given: Given) -> TrainedAgent:
    """Returns the agent of a run; the flags that are not given are the run's.

    Raises:
      ConfigError: as `main`.
    """
    config, spec = resolve(trained_agent.as_trained(given))
    select_device(config.process.device)
    start_xla()
    return trained_agent.load(config, spec)


def check_one_level(agent: TrainedAgent) -> None:
    """Raises ConfigError if an agent learned several levels."""
    if len(agent.spec.levels) > 1:
        raise ConfigError(f"--logdir={agent.config.run.logdir}: it learned several levels; play"
                          " them with --mode=test")  # fmt: skip


def played(agent: TrainedAgent) -> tuple[dict[str, Any], list[str | Table]]:
    """Plays whole games; returns what evaluation.json holds, and what to print."""
    found, shown = _levels(agent) if len(agent.spec.levels) > 1 else _level(agent)
    config, spec = agent.config, agent.spec
    result = {
        **found,
        "test_policy": config.evaluation.test_policy,
        "level_name": spec.level_name,
        "agent_name": config.agent.agent_name,
        "protocol": spec.protocol,
        "checkpoint": str(agent.checkpoint),
        "environment_frames": agent.environment_frames,
        "seed": config.run.seed,
    }
    return result, shown


def write(agent: TrainedAgent, result: dict[str, Any]) -> Path:
    """Writes evaluation.json; returns its path."""
    path = logdir_of(agent.config).path / "evaluation.json"
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    return path


def _level(trained: TrainedAgent) -> tuple[dict[str, Any], list[str | Table]]:
    """Plays the level; returns what is found, and what to print."""
    config = trained.config
    sets = games.level_sets(config.environment)
    summaries = {name: games.summary(_play(trained, levels)) for name, levels in sets.items()}
    found = games.with_normalized(config.environment, summaries["train"])
    text = (
        "{num_episodes} games, {policy} actions: mean {mean:.2f}, median {median:.2f}, "
        "std {std:.2f}, min {min:g}, max {max:g}"
    ).format(policy=config.evaluation.test_policy, **found)
    if "normalized_mean" in found:
        text += f", normalised {found['normalized_mean']:.3f}"
    if "test" not in sets:
        return found, [text]
    report = games.generalization(sets, summaries)
    return {**found, "generalization": report}, [text, games.generalization_table(report)]


def _levels(trained: TrainedAgent) -> tuple[dict[str, Any], list[str | Table]]:
    """Plays each of several levels; returns what is found, and what to print."""
    environment = trained.config.environment
    levels = suites.levels(environment)
    summaries = []
    for index, level in enumerate(levels):
        print(f"{level.level_name}:", flush=True)
        summaries.append(games.summary(_play(trained, environment, index)))
    report = games.several_levels(levels, summaries)
    return report, [games.several_levels_table(report)]


def _write_films(trained: TrainedAgent, logdir: Logdir) -> None:
    """Plays one more game of each level, and writes them to mp4 files."""
    levels = suites.levels(trained.config.environment) if len(trained.spec.levels) > 1 else []
    names = [f"evaluation-{configs.slug(level.level_name)}" for level in levels] or ["evaluation"]
    paths = [logdir.path / f"{name}.mp4" for name in names]
    for index, path in enumerate(paths):
        with trained_agent.filmed(trained, index=index) as (pictures, fps):
            video.write_mp4(path, pictures, fps)
        print(f"written to {path}", flush=True)
    if trained.config.run.track == "wandb":
        flags = configs.to_dict(trained.config)
        wandb_writer.log_videos(logdir.path, paths, trained.environment_frames, flags)


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
        for episode in games.play(
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
