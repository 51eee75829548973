"""Trains on Pong with RLlib; `benchmark_peers.py` starts this with the peer's Python.

IMPALA with the Nature CNN and batches of 512 agent steps. Prints "SECONDS STEPS RETURN" after every
iteration.
"""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

RUNNERS, ENVS, UNROLL, BATCH = 2, 16, 32, 512


def make(settings: Any) -> gymnasium.Env[Any, Any]:
    """Returns the game, preprocessed as in DeepMind's papers."""
    import ale_py

    gymnasium.register_envs(ale_py)
    game = gymnasium.make(os.environ["PEER_LEVEL"], render_mode="rgb_array")
    return wrap_atari_for_new_api_stack(game, dim=84, framestack=4)


def main() -> None:
    """Trains until it is stopped."""
    variables = {"PEER_LEVEL": os.environ["PEER_LEVEL"]}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": variables})
    register_env("game", make)
    network = DefaultModelConfig(
        conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]], conv_activation="relu",
        head_fcnet_hiddens=[512], vf_share_layers=True,
    )  # fmt: skip
    config = (
        IMPALAConfig()
        .environment("game")
        .env_runners(
            num_env_runners=RUNNERS, num_envs_per_env_runner=ENVS, rollout_fragment_length=UNROLL
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=BATCH, lr=6e-4, entropy_coeff=0.01)
        .rl_module(model_config=network)
        .reporting(min_time_s_per_iteration=2)
    )
    algorithm = config.build_algo()
    while True:
        runners = algorithm.train()["env_runners"]
        mean = runners.get("episode_return_mean", float("nan"))
        steps = runners.get("num_env_steps_sampled_lifetime")
        if steps is None:  # before the first samples
            continue
        print(f"{time.time():.2f} {int(steps)} {mean:.2f}", flush=True)


if __name__ == "__main__":
    main()
