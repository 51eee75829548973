"""Trains on Pong with Stable-Baselines3; `benchmark_peers.py` starts this with the peer's Python.

PPO with the hyperparameters of RL Baselines3 Zoo for Atari (Raffin, 2020): four epochs over 1,024
agent steps. Prints "SECONDS STEPS RETURN" after every rollout.
"""

from __future__ import annotations

import os
import time

import ale_py
import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

ENVS = 8


class Printing(BaseCallback):
    """Prints the progress of training."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        mean = sum(returns) / len(returns) if returns else float("nan")
        print(f"{time.time():.2f} {self.num_timesteps} {mean:.2f}", flush=True)


def main() -> None:
    """Trains until it is stopped."""
    gymnasium.register_envs(ale_py)
    workers = {"start_method": "fork"}
    level = os.environ["PEER_LEVEL"]
    environments = make_atari_env(
        level, n_envs=ENVS, seed=1, vec_env_cls=SubprocVecEnv, vec_env_kwargs=workers
    )
    agent = PPO(
        "CnnPolicy", VecFrameStack(environments, 4), n_steps=128, n_epochs=4, batch_size=256,
        learning_rate=lambda left: 2.5e-4 * left, clip_range=lambda left: 0.1 * left,
        vf_coef=0.5, ent_coef=0.01, device="cpu", seed=1,
    )  # fmt: skip
    agent.learn(10_000_000, callback=Printing())


if __name__ == "__main__":
    main()
