"""Small learners, alone and in a group, and their batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tree

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import Config
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.types import ActorGradient, ActorReport, Episode, Unroll
from tests.helpers.agents import make_agent
from tests.helpers.samples import resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

B, T = 3, 4
SPEC = vector_spec(frames_per_step=4)


def config(**flags: Any) -> Config:
    """Returns the config of a run that one learner completes in 10 updates."""
    defaults = {
        "batch_size": B,
        "unroll_length": T,
        "total_environment_frames": 10 * B * T * SPEC.frames_per_step,
        "learning_rate": 0.05,
        "epsilon": 0.2,  # large enough to show whether it is inside the root
    }
    return resolved_config(**{**defaults, **flags})


def batch(agent: Agent, seed: int = 0) -> Unroll:
    unrolls = random_unrolls(unroll_specs(agent, SPEC, T), B, seed)
    return tree.map_structure(tf.constant, unrolls)


def make(agent_name: str = "MLPLSTMAgent", **flags: Any) -> tuple[Learner, Agent]:
    agent = make_agent(agent_name, SPEC)
    return Learner(agent, SPEC, config(**flags), LearnerGroup()), agent


class Kept:
    """A learner that keeps what it gets."""

    def __init__(self) -> None:
        self.sent: list[ActorGradient] = []

    def push(self, sent: ActorGradient, /, episodes: list[Episode], report: ActorReport) -> None:
        self.sent.append(sent)


class GroupOf:
    """This learner and others, which send what the test says: gradients."""

    rank = 0

    def __init__(self, *others: list[np.ndarray]) -> None:
        self.size = 1 + len(others)
        self._others = others

    def sum(self, nest: Any, name: str) -> Any:
        """The others have no statistics."""
        gradients, sums = nest
        everyones = [sum(column) for column in zip(gradients, *self._others, strict=True)]
        return everyones, sums

    def gather(self, value: Any) -> list[Any]:
        """The others have no actors."""
        return [value]


def sent(agent: Agent, seed: int, scale: float = 1.0) -> list[np.ndarray]:
    """Returns the gradients of another learner; without a batch, they are zero (the scale is 0)."""
    rng = np.random.default_rng(seed)
    shapes = [variable.shape for variable in agent.trainable_variables]
    return [scale * rng.normal(size=shape).astype(np.float32) for shape in shapes]
