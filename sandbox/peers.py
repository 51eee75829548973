"""Trains on Pong with a peer; `benchmark.py peers` starts this with the peer's Python.

    SF/bin/python sandbox/peers.py sample_factory --logdir=FOLDER
    SB3/bin/python sandbox/peers.py stable_baselines3
    RAY/bin/python sandbox/peers.py rllib

Prints "SECONDS STEPS RETURN" again and again, until it is stopped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import ale_py  # here, so that workers of Sample Factory, which import this file, have its levels

LEVEL = "PongNoFrameskip-v4"


def print_point(steps: int, returns: Sequence[float]) -> None:
    """Prints the agent steps until now and the mean of the last returns."""
    mean = sum(returns) / len(returns) if returns else float("nan")
    print(f"{time.time():.2f} {steps} {mean:.2f}", flush=True)


def sample_factory(options: argparse.Namespace) -> None:
    """APPO in the fastest settings that were tried on two cores.

    With --to_learn, the settings with which it learns most from a frame.
    """
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.train import make_runner
    from sf_examples.atari.train_atari import parse_atari_args, register_atari_components

    class Printing(AlgoObserver):
        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            if 0 in runner.env_steps:
                print_point(runner.env_steps[0], runner.policy_avg_stats.get("reward", [()])[0])

    encoders = {"NatureAgent": "convnet_atari", "ResNetAgent": "resnet_impala"}
    # Its defaults are four epochs per batch.
    own = ["--batch_size=512", "--num_epochs=1", "--num_batches_per_epoch=1"]
    if options.to_learn:
        own = [
            "--batch_size=256",
            "--num_batches_per_epoch=4",
            "--num_epochs=4",
            "--normalize_input=True",
            "--normalize_returns=True",
            "--learning_rate=0.00025",
        ]
    register_atari_components()
    flags = [
        "--env=atari_pong",
        "--experiment=peer",
        "--train_for_env_steps=1000000000",
        "--device=cpu",
        "--num_workers=2",
        "--num_envs_per_worker=16",
        "--worker_num_splits=2",
        "--async_rl=True",
        "--serial_mode=False",
        "--batched_sampling=False",
        "--rollout=32",
        "--summaries_use_frameskip=False",
        "--save_every_sec=100000",
        f"--train_dir={options.logdir}",
        f"--encoder_conv_architecture={encoders[options.agent_name]}",
        *own,
    ]
    _, runner = make_runner(parse_atari_args(flags))
    runner.register_observer(Printing())
    runner.init()
    runner.run()


def stable_baselines3(options: argparse.Namespace) -> None:
    """PPO with the hyperparameters of RL Baselines3 Zoo for Atari (Raffin, 2020).

    Four epochs over 1,024 agent steps.
    """
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    class Printing(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            print_point(self.num_timesteps, returns)

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


def rllib(options: argparse.Namespace) -> None:
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
            print_point(int(steps), [mean])


def _rllib_game(settings: Any) -> Any:
    """Returns the game, preprocessed as in DeepMind's papers."""
    import gymnasium
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

    gymnasium.register_envs(ale_py)
    game = gymnasium.make(LEVEL, render_mode="rgb_array")
    return wrap_atari_for_new_api_stack(game, dim=84, framestack=4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    runs = {run.__name__: run for run in (sample_factory, stable_baselines3, rllib)}
    parser.add_argument("peer", choices=runs)
    parser.add_argument("--logdir", help="for what Sample Factory writes")
    parser.add_argument("--agent_name", default="NatureAgent", help="of Sample Factory")
    parser.add_argument("--to_learn", action="store_true", help="as fast as possible in frames")
    chosen = parser.parse_args()
    runs[chosen.peer](chosen)
