"""The loss of a batch with the network's outputs at hand."""

from __future__ import annotations

import dataclasses
from typing import Any

from impala_tf import config as configs
from impala_tf.agents.distributions import Categorical
from impala_tf.config import Given, LossConfig
from impala_tf.learner import losses
from impala_tf.learner.losses import Losses, Scales, transitions
from impala_tf.types import AgentOutput, EnvOutput, NetworkOutput


def loss_config(**flags: Any) -> LossConfig:
    """Returns the paper's flags, changed by `flags`."""
    paper = configs.resolve(Given().replace(preset="paper"), "atari").loss
    return dataclasses.replace(paper, **flags)


def compute(
    outputs: NetworkOutput,
    env_outputs: EnvOutput,
    agent_outputs: AgentOutput,
    config: LossConfig,
    scales: Scales | None = None,
) -> Losses:
    """Returns the losses of steps [T + 1, B]."""
    policy = Categorical(outputs.policy_logits.shape[-1])
    steps = transitions(
        outputs.policy_logits, outputs.baseline[..., 0], env_outputs, agent_outputs, config, policy
    )
    return losses.compute(steps, config, scales or Scales(config.entropy_cost))
