"""Trains on Pong with a peer; `benchmark.py peers` starts this with the peer's Python.

    SB3/bin/python sandbox/peers.py stable_baselines3
    RAY/bin/python sandbox/peers.py rllib

Prints "SECONDS STEPS RETURN" again and again, until it is stopped.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

LEVEL = "PongNoFrameskip-v4"


def stable_baselines3() -> None:
    """PPO with the hyperparameters of RL Baselines3 Zoo for Atari (Raffin, 2020).

    Four epochs over 1,024 agent steps.
    """
    import ale_py
    import gymnasium
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    class Printing(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            mean = sum(returns) / len(returns) if returns else float("nan")
            print(f"{time.time():.2f} {self.num_timesteps} {mean:.2f}", flush=True)

    gymnasium.register_envs(ale_py)
    environments = make_atari_env(
        LEVEL, n_envs=8, seed=1, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"}
    )
    agent = PPO(
        "CnnPolicy",
        VecFrameStack(environments, 4),
        n_steps=128,
        n_epochs=4,
        batch_size=256,
        learning_rate=lambda left: 2.5e-4 * left,
        clip_range=lambda left: 0.1 * left,
        vf_coef=0.5,
        ent_coef=0.01,
        device="cpu",
        seed=1,
    )
    agent.learn(10_000_000, callback=Printing())


def rllib() -> None:
    """IMPALA with the Nature CNN and batches of 512 agent steps."""
    import ray
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    ray.init(num_cpus=4, include_dashboard=False)
    register_env("game", _rllib_game)
    network = DefaultModelConfig(
        conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
        conv_activation="relu",
        head_fcnet_hiddens=[512],
        vf_share_layers=True,
    )
    config = (
        IMPALAConfig()
        .environment("game")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=16, rollout_fragment_length=32)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=512, lr=6e-4, entropy_coeff=0.01)
        .rl_module(model_config=network)
        .reporting(min_time_s_per_iteration=2)
    )
    algorithm = config.build_algo()
    while True:
        runners = algorithm.train()["env_runners"]
        mean = runners.get("episode_return_mean", float("nan"))
        steps = runners.get("num_env_steps_sampled_lifetime")
        if steps is not None:  # None before the first samples
            print(f"{time.time():.2f} {int(steps)} {mean:.2f}", flush=True)


def _rllib_game(settings: Any) -> Any:
    """Returns the game, preprocessed as in DeepMind's papers."""
    import ale_py
    import gymnasium
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

    gymnasium.register_envs(ale_py)
    game = gymnasium.make(LEVEL, render_mode="rgb_array")
    return wrap_atari_for_new_api_stack(game, dim=84, framestack=4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=("stable_baselines3", "rllib"))
    {"stable_baselines3": stable_baselines3, "rllib": rllib}[parser.parse_args().peer]()
