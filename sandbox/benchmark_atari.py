"""Which engine steps Atari games faster: ALE's own vector environment, or EnvPool's?

    python sandbox/benchmark_atari.py [GAME] [SECONDS]

Steps GAME (default: Pong) with random actions, for SECONDS (default: 5) each, with 16 and 64 games
on one and two threads, under the same protocol. EnvPool comes with the extra `procgen`. Each line
is the median of three rounds; the engines take turns.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import benchmark_procgen

from impala_tf.config import EnvironmentConfig
from impala_tf.environments import atari


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("game", nargs="?", default="Pong", metavar="GAME")
    parser.add_argument("seconds", nargs="?", type=float, default=5.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    import envpool  # here, so that --help works without it

    game, seconds = options.game, options.seconds
    env = EnvironmentConfig(level_name=f"{game}NoFrameskip-v4")
    for num_envs, num_threads in itertools.product((16, 64), (1, 2)):
        ale = atari.make(env, num_envs, num_threads)
        pool = envpool.make(
            f"{game}-v5", env_type="gymnasium", num_envs=num_envs, num_threads=num_threads,
            episodic_life=False, use_fire_reset=False, reward_clip=False,
            repeat_action_probability=0.0,
        )  # fmt: skip
        ale.reset()
        pool.reset()
        actions = atari.spec(env).actions.sizes[0]
        steps = {"ALE": ale.step, "EnvPool": pool.step}
        benchmark_procgen.take_turns(steps, num_envs, num_threads, seconds, actions)


if __name__ == "__main__":
    main(sys.argv[1:])
