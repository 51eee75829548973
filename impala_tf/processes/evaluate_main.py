"""The evaluation process: --mode=test."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from impala_tf import config as configs
from impala_tf.agents import precision
from impala_tf.agents.agent import Agent, agent_of
from impala_tf.agents.policy import compile_policy
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import check_compatible, signature_of
from impala_tf.config import Config, ConfigError, EnvironmentConfig
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.rendering import RenderedGame
from impala_tf.evaluation import generalization, play, video
from impala_tf.logdir import Logdir, write_atomically
from impala_tf.processes.common import logdir_of, resolve, seed_of
from impala_tf.processes.tensorflow_startup import select_device, start_xla
from impala_tf.types import EnvironmentSpec, Episode

# Games played in parallel: enough to fill a batch, few enough that the last one is not long alone.
_MAX_ENVS = 16


def main(config: Config) -> int:
    """Plays whole games with the newest checkpoint and prints a summary; returns 0.

    Raises:
      ConfigError: no logdir, no whole checkpoint, or one of another level or network.
    """
    config, spec = resolve(_as_trained(config))
    select_device(config.process.device)
    start_xla()
    logdir = logdir_of(config)
    dtype = precision.torso_dtype(config.agent)
    precision.disable_failing_fusion(config.agent)
    agent = agent_of(config.agent, spec, dtype)
    checkpointer = Checkpointer(logdir.checkpoints, {"agent": agent})
    signature = signature_of(config, spec)
    state = checkpointer.restore(
        lambda state: check_compatible(state["identity"], signature, config.run.logdir),
        partial=True,
    )
    if state is None:
        raise ConfigError(f"--logdir={config.run.logdir}: holds no checkpoint to test")
    frames = state["counters"]["environment_frames"]
    print(f"{checkpointer.latest} at {frames:,} frames; {spec.protocol}", flush=True)
    sets = generalization.level_sets(config.environment)
    summaries = {
        name: play.summary(_play(config, levels, spec, agent)) for name, levels in sets.items()
    }
    result = {
        **summaries["train"],
        **generalization.normalized_mean(config.environment, summaries["train"]),
        "test_policy": config.evaluation.test_policy,
        "level_name": spec.level_name,
        "agent_name": config.agent.agent_name,
        "protocol": spec.protocol,
        "checkpoint": str(checkpointer.latest),
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
        print(f"written to {_film(config, spec, agent, logdir)}")
    return 0


def _as_trained(config: Config) -> Config:
    """Returns the config with the level, protocol and agent of the run in --logdir."""
    defaults = dict(configs.flat_items(Config()))
    given = {name: value for name, value in configs.flat_items(config) if value != defaults[name]}
    if config.run.logdir is None:
        raise ConfigError("--mode=test: needs --logdir of a run")
    path = Logdir(Path(config.run.logdir)).config
    try:
        trained: dict[str, Any] = json.loads(path.read_text())["flags"]
    except FileNotFoundError:
        raise ConfigError(f"--logdir={config.run.logdir}: holds no run (no config.json)") from None
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{path}: is not a run's config.json ({error})") from None
    # Runs from before there were presets are of the paper's.
    trained = {"preset": "paper", **trained}
    kept = {name: value for name, value in trained.items() if name in defaults}
    run_only = dict.fromkeys(("mode", "job_name", "learner_hosts", "task", "seed", "logdir"))
    kept = {name: value for name, value in kept.items() if name not in run_only}
    return configs.replace(config, **{**kept, **given})


def _play(
    config: Config, env: EnvironmentConfig, spec: EnvironmentSpec, agent: Agent
) -> list[Episode]:
    """Plays whole games in the environments of `env`."""
    wanted = config.evaluation.test_num_episodes
    num_envs = min(wanted, _MAX_ENVS)
    seed = seed_of(config.run.seed, "test")
    policy = compile_policy(agent, spec, num_envs, seed, config.evaluation.test_policy)
    environment = BatchedEnvironment(suites.make(env, num_envs, seed, num_threads=0))
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


def _film(config: Config, spec: EnvironmentSpec, agent: Agent, logdir: Logdir) -> Path:
    """Plays one more game and writes it to evaluation.mp4."""
    seed = seed_of(config.run.seed, "video")
    game = RenderedGame(config.environment, seed)
    policy = compile_policy(agent, spec, 1, seed, config.evaluation.test_policy)

    def frames() -> Iterator[np.ndarray]:
        for episode in play.play(policy, agent.initial_state(1), game.environment, 1, 1):
            if episode is None:
                yield game.frame()

    path = logdir.path / "evaluation.mp4"
    try:
        video.write_mp4(path, frames(), game.fps)
    finally:
        game.close()
    return path
