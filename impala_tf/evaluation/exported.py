"""The folder that `impala export` writes, and an agent that acts with its model.

It does not need TensorFlow: LiteRT runs the network, as it does for actors.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tree

from impala_tf.actor.network import ActingModel, LiteRtNetwork
from impala_tf.agents.interface import AgentInterface, Policy, num_logits
from impala_tf.agents.sampling import epsilon_greedy_of, greedy_of, sampler_of
from impala_tf.config import ConfigError, EnvironmentConfig, Given
from impala_tf.environments.observations import layout_of
from impala_tf.logdir import Logdir, read_json
from impala_tf.types import AgentOutput, ArraySpec, EnvironmentSpec, EnvOutput, Nest

FORMAT = 1
_KINDS: dict[str, type] = {
    "flags": dict,
    "level": dict,
    "agent_name": str,
    "algorithm": str,
    "environment_frames": int,
    "core_state": list,
    "has_q_values": bool,
}
_LARGEST_STATE = 2**20  # numbers in a part of a core state
MODEL = "model.tflite"
EVALUATION = "evaluation.json"
CONFIG = "config.yaml"
CARD = "README.md"
CURVE, CURVE_CSV = "curve.svg", "curve.csv"
SAVED_MODEL = "saved_model"


class About(NamedTuple):
    """The contents of agent.json, except the format's version."""

    flags: Mapping[str, Any]  # the level and its protocol
    level: Mapping[str, Any]  # what `seen` returns for the level
    agent_name: str
    algorithm: str
    environment_frames: int
    core_state: list[list[int]]  # shapes without the leading N; [] for a feed-forward core
    has_q_values: bool


def seen(spec: EnvironmentSpec) -> dict[str, Any]:
    """Returns the properties of a level on which an agent's network depends, JSON-able."""
    observation = spec.observation
    parts = observation if isinstance(observation, dict) else {"": observation}
    properties = {
        "observation": {name: dataclasses.asdict(part) for name, part in parts.items()},
        "stacked_frames": spec.stacked_frames,
        "actions": dataclasses.asdict(spec.actions),
        "levels": len(spec.levels),
    }
    offsets = [{"offsets": dict(part.offsets)} for part in (spec, *spec.parts)]
    if any(each["offsets"] for each in offsets):
        properties |= {**offsets[0], "parts": offsets[1:]}
    return dict(json.loads(json.dumps(properties)))  # converts tuples to lists


def level_flags(env: EnvironmentConfig) -> dict[str, Any]:
    """Returns the level and its protocol: {flag: value}, without flags at their default.

    The defaults are those of --protocol.
    """
    defaults = Given({"protocol": env.protocol}).defaults
    return {
        name: value
        for name, value in vars(env).items()
        if name == "level_name" or value != defaults[name]
    }


def text_of(about: About) -> str:
    """Returns the content of agent.json."""
    return json.dumps({"format": FORMAT, **about._asdict()}, indent=1) + "\n"


def read(folder: Path) -> About:
    """Reads agent.json.

    Raises:
      ConfigError: it is not a valid agent.json, is of another version, or the model is missing.
    """
    path = Logdir(folder).agent
    try:
        content = read_json(path)
        version = content.pop("format")
        if version != FORMAT:
            raise ConfigError(
                f"{path}: has format {version!r}, but this version of impala_tf reads format"
                f" {FORMAT}; install the one that wrote it, or a newer one"
            )
        about = About(**content)
        for name, kind in _KINDS.items():
            if type(value := getattr(about, name)) is not kind:
                raise TypeError(f"{name}: {value!r:.60}")
        for shape in about.core_state:
            is_shape = {type(size) for size in shape} == {int} and min(shape) >= 1
            if not is_shape or math.prod(shape) > _LARGEST_STATE:
                raise ValueError(f"core_state: {shape!r:.60}")
    except ConfigError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not an exported agent's agent.json ({reason})") from None
    if not (folder / MODEL).is_file():
        raise ConfigError(f"--logdir={folder}: is an exported agent without its {MODEL}")
    return about


class ExportedAgent:
    """Acts with an exported model.

    Args:
      folder: the exported folder.
      about: the contents of its agent.json.
      spec: the specification of the level on this machine.

    Raises:
      ConfigError: the level differs from the one that the agent was trained on, or the model cannot
        be run.
    """

    def __init__(self, folder: Path, about: About, spec: EnvironmentSpec) -> None:
        here = seen(spec)
        for name in here:
            if about.level.get(name) != here[name]:
                raise ConfigError(
                    f"--logdir={folder}: its agent learned a level with {name}"
                    f" {about.level.get(name)}, but {spec.level_name} has {here[name]} here"
                )
        self._spec, self._layout = spec, layout_of(spec)
        path = folder / MODEL
        self.interface = AgentInterface(
            core_state=tuple(ArraySpec(tuple(shape), "float32") for shape in about.core_state),
            num_logits=num_logits(spec.actions),
            has_q_values=about.has_q_values,
        )
        try:
            self._network = LiteRtNetwork(ActingModel(path.read_bytes(), ()))
            self._network.set_parameters([])
            specs = self._layout.network_specs(1)
            step = tree.map_structure(lambda spec: np.zeros(spec.shape, spec.dtype), specs)
            state = self.interface.initial_state(1)
            shapes = [answer.shape for answer in self._network(tree.flatten((step, state)))]
            if shapes != [(1, self.interface.num_logits), *(part.shape for part in state)]:
                raise ValueError(f"it computes {shapes}")
        except (OSError, ValueError, RuntimeError, LookupError, AssertionError) as error:
            raise ConfigError(f"{path}: is not this agent's model: {error}") from None

    def policy(self, num_envs: int, seed: int, choice: Literal["sampled", "greedy"]) -> Policy:
        """Returns the policy for N environments, which it computes one after another.

        Args:
          num_envs: N; the policy accepts any other number, too.
          seed: the seed for sampling actions.
          choice: whether to sample from the policy, or to take the most likely action.
        """
        actions, rng = self._spec.actions, np.random.default_rng(seed)
        sampled = epsilon_greedy_of if self.interface.has_q_values else sampler_of
        choose = greedy_of(actions) if choice == "greedy" else sampled(actions, rng)

        def policy(env_output: EnvOutput, core_state: Nest) -> tuple[AgentOutput, Nest]:
            inputs = tree.flatten((self._layout.to_network(env_output), core_state))
            answers = [
                self._network([array[n : n + 1] for array in inputs])
                for n in range(len(env_output.reward))
            ]
            logits, *state = (np.concatenate(parts) for parts in zip(*answers, strict=True))
            return AgentOutput(choose(logits), logits), tuple(state)

        return policy
