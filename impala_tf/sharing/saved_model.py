"""Exports a trained agent as a TensorFlow SavedModel, which does not need this package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from impala_tf.agents.agent import Agent, tensor_specs
from impala_tf.environments.observations import layout_of, parts_of
from impala_tf.types import EnvironmentSpec, EnvOutput, Nest, ObservationSpec

_CORE_STATE = "core_state_{}"


class Policy(tf.Module):
    """The agent's step, with named inputs and outputs, for N environments.

    Inputs:
      observation, or observation_PART for each part (see `input_names`): as the environment
        returns it (stacks of frames [N, K, H, W]), images uint8, vectors float32 [N, D], from
        which what the protocol names is subtracted already, hashed words int32.
      reward: float32 [N], the reward of the last action.
      last_action: the last output `action`, zeros at first.
      episode_start: bool [N], whether this is the first step of an episode.
      core_state_0, ...: the last step's outputs of these names, zeros at first.

    Outputs:
      action: int32, from 0 on, or float32, where -1 and 1 are the ends of the level's Box.
      policy_logits: float32 [N, P]; baseline: float32 [N], of several levels [N, levels];
      core_state_0, ...

    Args:
      agent: the agent; its variables, normalisers among them, are saved with it.
      spec: the level's specification.
    """

    def __init__(self, agent: Agent, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.agent = agent
        if not agent.has_q_values:  # not part of the agent, but the SavedModel needs it
            self.value_unit = [agent.policy_heads.unit.mean, agent.policy_heads.unit.std]
        self._layout = layout_of(spec)
        self._spec = spec
        self._inputs = input_names(spec.observation)
        self._generator = tf.random.Generator.from_non_deterministic_state()
        self._core_state = agent.initial_state(1)

    def signature(self, choice: Literal["sampled", "greedy"]) -> Any:
        """Returns the compiled step that samples its actions, or takes the most likely ones."""

        def act(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._act(inputs, choice)

        return tf.function(act, autograph=False).get_concrete_function(**self._input_specs())

    def _input_specs(self) -> dict[str, tf.TensorSpec]:
        specs = tensor_specs(self._layout.step_specs(1))
        named = {
            **{self._inputs[name]: part for name, part in parts_of(specs.observation).items()},
            **{name: getattr(specs, name) for name in ("reward", "last_action", "episode_start")},
            **self._named_state(self._core_state),
        }
        return {
            name: tf.TensorSpec((None, *spec.shape[1:]), spec.dtype, name=name)
            for name, spec in named.items()
        }

    def _named_state(self, core_state: Nest) -> dict[str, tf.Tensor]:
        flat = tf.nest.flatten(core_state)
        return {_CORE_STATE.format(index): part for index, part in enumerate(flat)}

    def _act(self, inputs: dict[str, tf.Tensor], choice: str) -> dict[str, tf.Tensor]:
        parts = {part: inputs[name] for part, name in self._inputs.items()}
        whole = not isinstance(self._spec.observation, dict)
        never = tf.zeros_like(inputs["episode_start"])
        env_output = EnvOutput(
            reward=inputs["reward"],
            terminated=never,
            truncated=never,
            autoreset=never,
            episode_start=inputs["episode_start"],
            observation=next(iter(parts.values())) if whole else parts,
            last_action=inputs["last_action"],
        )
        state = [inputs[name] for name in self._named_state(self._core_state)]
        outputs, core_state = self.agent.step(
            self._layout.to_network(env_output), tf.nest.pack_sequence_as(self._core_state, state)
        )
        distribution, logits = self.agent.distribution, outputs.policy_logits
        baseline = outputs.baseline
        action = (
            distribution.mode(logits)
            if choice == "greedy"
            else distribution.sample(logits, self._generator)
        )
        return {
            "action": action,
            "policy_logits": logits,
            "baseline": baseline[..., 0] if baseline.shape[-1] == 1 else baseline,
            **self._named_state(core_state),
        }


def input_names(observation: ObservationSpec | dict[str, ObservationSpec]) -> dict[str, str]:
    """Returns {part of the observation, named by `parts_of`: name of its input}.

    TensorFlow's names have only letters, digits and _. Parts whose names become equal get a number.
    """
    if not isinstance(observation, dict):
        return dict.fromkeys(parts_of(observation), "observation")
    names: dict[str, str] = {}
    for part in observation:
        name = plain = "observation_" + re.sub(r"[^A-Za-z0-9_]", "_", part)
        number = 1
        while name in names.values():
            number += 1
            name = f"{plain}_{number}"
        names[part] = name
    return names


def write(agent: Agent, spec: EnvironmentSpec, folder: Path) -> None:
    """Writes a SavedModel with the signatures "sampled" and "greedy".

    Args:
      agent: the trained agent.
      spec: the level's specification.
      folder: the folder to write.
    """
    policy = Policy(agent, spec)
    signatures = {choice: policy.signature(choice) for choice in ("sampled", "greedy")}
    tf.saved_model.save(policy, str(folder), signatures=signatures)
