"""Defaults that were measured: each change needs a new measurement, recorded in sandbox/."""

from __future__ import annotations

from typing import Any

from impala_tf import config as configs
from impala_tf.config import Given, to_dict

COLUMNS = (
    "agent_name", "discounting", "learning_rate", "learning_rate_schedule", "epsilon", "batch_size",
    "unroll_length", "updates_per_batch", "minibatches", "reward_clipping", "value_normalization",
    "observation_normalization",
)  # fmt: skip
# Kind of level ("robots": vectors with continuous actions), algorithm, and the columns; two actors.
MEASURED = """
atari impala ShallowConvNetAgent 0.99 0.0005 linear 1e-05 16 32 2 1 abs_one none elementwise
atari appo ShallowConvNetAgent 0.99 0.00035 linear 1e-05 4 32 2 1 abs_one none elementwise
atari ppo ShallowConvNetAgent 0.99 0.0005 linear 1e-05 32 128 4 4 abs_one none elementwise
atari a3c ShallowConvNetAgent 0.99 0.0005 linear 1e-05 4 32 1 1 abs_one none none
atari dqn ShallowConvNetAgent 0.99 0.0003 constant 0.00015 4 64 2 1 abs_one none elementwise
atari pqn ShallowConvNetAgent 0.99 0.0005 linear 1e-05 32 32 2 8 abs_one none elementwise
procgen impala ResNetAgent 0.99 0.0005 linear 1e-05 16 32 2 1 none running elementwise
procgen appo ResNetAgent 0.99 0.00035 linear 1e-05 4 32 2 1 none running elementwise
procgen ppo ResNetAgent 0.99 0.0005 linear 1e-05 16 128 4 4 none running elementwise
procgen a3c ResNetAgent 0.99 0.001 linear 1e-05 4 32 1 1 abs_one none none
procgen dqn ResNetAgent 0.99 0.0003 constant 0.00015 4 64 2 1 abs_one none elementwise
procgen pqn ResNetAgent 0.99 0.0005 linear 1e-05 16 32 2 4 abs_one none elementwise
image appo ShallowConvNetAgent 0.99 0.00035 linear 1e-05 4 32 2 1 none running elementwise
vector impala MLPAgent 0.99 0.0025 linear 1e-05 16 20 2 1 none running elementwise
vector appo MLPAgent 0.99 0.0025 kl 1e-05 16 20 2 1 none running elementwise
vector ppo MLPAgent 0.99 0.0025 linear 1e-05 64 128 4 4 none running elementwise
vector a3c MLPAgent 0.99 0.003 linear 1e-05 8 20 1 1 none none none
vector dqn MLPAgent 0.99 0.0025 linear 0.00015 4 64 2 1 none running elementwise
vector pqn MLPAgent 0.99 0.001 linear 1e-05 16 32 2 4 none running elementwise
robots impala SeparateMLPAgent 0.993 0.0007 linear 1e-05 4 64 2 1 none running elementwise
robots appo SeparateMLPAgent 0.993 0.0007 linear 1e-05 8 64 8 1 none running elementwise
robots ppo SeparateMLPAgent 0.99 0.0003 linear 1e-05 16 128 10 8 none running elementwise
robots a3c MLPAgent 0.99 0.003 linear 1e-05 8 20 1 1 none none none
"""


def test_the_tuned_defaults_are_those_that_were_measured() -> None:
    """Who changes one by mistake makes every default run learn worse, and no other test sees it."""
    for row in MEASURED.strip().splitlines():
        level, algorithm, *expected = row.split()
        kind: Any = "vector" if level == "robots" else level
        flags = Given({"algorithm": algorithm, "num_actors": 2})
        found = to_dict(configs.resolve(flags, kind, level == "robots"))
        assert [str(found[name]) for name in COLUMNS] == expected, row
