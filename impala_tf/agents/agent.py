"""The agent: a torso, a core and heads. Actors step it, learners unroll it."""

from __future__ import annotations

import re

import sonnet as snt
import tensorflow as tf

from impala_tf.agents import networks, precision, torsos
from impala_tf.agents.distributions import Distribution, EpsilonGreedy, distribution_of, masked
from impala_tf.agents.interface import array_specs, interface_of
from impala_tf.config import AgentConfig, check_observation, composition, plug_ins
from impala_tf.environments.observations import layout_of, parts_of
from impala_tf.types import (
    ACTION_MASK,
    EnvironmentSpec,
    EnvOutput,
    Nest,
    NetworkOutput,
    ObservationSpec,
    Unroll,
)

# The last reward is clipped to this range when it is an input, whatever --reward_clipping is.
LAST_REWARD_LIMIT = 1.0


class Agent(snt.Module):
    """The network that a config describes, of a composition (see `config.AGENTS`).

    Each part of an observation has its own torso: the composition's for images, others for vectors
    and texts (see `torsos.make_torso`). Their features are concatenated. Variables are created at
    the first step. An action mask (see `environments.masks`) is no input of a torso: the actions
    that it does not allow get the logit, or the Q-value, MASKED_LOGIT.

    Args:
      config: the agent's flags.
      spec: the level's specification.

    Attributes:
      interface: what actors have to know about the agent.
      distribution: the distribution over actions that policy_logits parametrise.
      has_q_values: whether policy_logits are Q-values.
      num_levels: the number of levels that it learns, each with its own baseline.
      suits_xla: whether XLA can compile it. XLA cannot compile the network for texts, because the
        number of distinct texts varies, and perhaps not a user's own torso.
      observation_normalizer: normalises observations before the torso; a dictionary by part if
        there are several. Where it is None, images are scaled to [0, 1], and vectors are unchanged.
    """

    def __init__(self, config: AgentConfig, spec: EnvironmentSpec) -> None:
        super().__init__(name=re.sub(r"\W", "_", config.agent_name))
        parts = composition(config.agent_name).with_core(config.core)
        self.interface = interface_of(parts.core, config.heads, spec.actions)
        self.has_q_values = self.interface.has_q_values
        self.distribution: Distribution = (
            EpsilonGreedy(spec.actions.sizes[0])
            if self.has_q_values
            else distribution_of(spec.actions)
        )
        normalizes = config.observation_normalization == "elementwise"
        seen: Nest = spec.observation
        if spec.masks_actions:
            seen = {name: part for name, part in seen.items() if name != ACTION_MASK}
        self._masks_actions = spec.masks_actions
        self.observation_normalizer = tf.nest.map_structure(
            lambda part: _normalizer(part) if normalizes else None, seen
        )
        self._observes_last = parts.observes_last_action_and_reward
        kinds = {part.kind for part in parts_of(seen).values()}
        self.suits_xla = not (plug_ins.is_own(parts.torso.name) or "text" in kinds)

        def torso_of_each_part() -> Nest:
            return tf.nest.map_structure(
                lambda part: torsos.make_torso(
                    parts.torso,
                    part,
                    torsos.initializer(config.initialization),
                    config.width_scale,
                    config.layer_norm,
                ),
                seen,
            )

        self._torso = torso_of_each_part()
        is_separate = parts.separate_baseline and not self.has_q_values
        with tf.name_scope("baseline"):
            self._baseline_torso = torso_of_each_part() if is_separate else None
        self._core = networks.CORES[parts.core]()
        self.num_levels = len(spec.levels)
        num_logits = self.distribution.num_logits
        self._heads: networks.Heads | networks.QHeads = (
            networks.QHeads(num_logits, config.heads == "dueling", config.initialization)
            if self.has_q_values
            else networks.Heads(spec.actions, num_logits, config.initialization, self.num_levels)
        )
        self._torso_dtype = tf.float32

    @property
    def q_heads(self) -> networks.QHeads:
        """The heads of an agent with Q-values."""
        assert isinstance(self._heads, networks.QHeads)
        return self._heads

    @property
    def policy_heads(self) -> networks.Heads:
        """The heads of an agent with a policy and a baseline."""
        assert isinstance(self._heads, networks.Heads)
        return self._heads

    def parts(self) -> dict[str, dict[str, Nest]]:
        """Returns {part: {attribute: module or variable, or a dictionary of them}}.

        The parts are torso, core and Q-values; or torso, core, policy and baseline.
        """
        normalizer, baseline = self.observation_normalizer, self._baseline_torso
        parts = {
            "torso": {"_torso": self._torso}
            | ({} if normalizer is None else {"observation_normalizer": normalizer}),
            "core": {"_core": self._core},
            **{name: {"_heads": modules} for name, modules in self._heads.parts().items()},
        }
        if baseline is not None:
            parts["baseline"]["_baseline_torso"] = baseline
        return parts

    def constrain(self) -> None:
        """Clips variables that have a range to it. Call it after every optimizer step."""
        if isinstance(self._heads, networks.Heads):
            self._heads.constrain()

    def initial_state(self, batch_size: int | tf.Tensor) -> Nest:
        """Returns the core state of `batch_size` environments before their first step."""
        return self._core.initial_state(batch_size)

    def step(self, env_output: EnvOutput, core_state: Nest) -> tuple[NetworkOutput, Nest]:
        """Runs the network on one step of N environments.

        Args:
          env_output: a step as the network sees it, [N, ...].
          core_state: float32 [N, ...], before this step.

        Returns:
          (NetworkOutput [N, ...], core state after this step).
        """
        outputs, core_state = self.unroll(
            tf.nest.map_structure(lambda t: tf.expand_dims(t, 0), env_output), core_state
        )
        return tf.nest.map_structure(lambda t: tf.squeeze(t, axis=0), outputs), core_state

    def unroll(self, env_outputs: EnvOutput, core_state: Nest) -> tuple[NetworkOutput, Nest]:
        """Runs the network on T steps at once; equivalent to T calls of `step`.

        Args:
          env_outputs: steps as the network sees them, [T, B, ...]. T must be known when the graph
            is built.
          core_state: float32 [B, ...], before step 0.

        Returns:
          (NetworkOutput [T, B, ...], core state after the last step).
        """
        parts = dict(parts_of(env_outputs.observation))
        mask = parts.pop(ACTION_MASK) if self._masks_actions else None
        is_long = env_outputs.reward.shape[0] != 1

        def features_by(torso: Nest) -> tf.Tensor:
            return snt.BatchApply(lambda steps: self._features(torso, steps, is_long))(parts)

        features = features_by(self._torso)
        if self._observes_last:
            features = tf.concat([features, *self._last_inputs(env_outputs)], axis=-1)
        core_output, core_state = self._core(features, env_outputs.episode_start, core_state)
        torso = self._baseline_torso
        inputs = [core_output] if torso is None else [core_output, features_by(torso)]
        outputs: NetworkOutput = snt.BatchApply(self._heads)(*inputs)
        if mask is None:
            return outputs, core_state
        logits = masked(outputs.policy_logits, mask)
        outputs = outputs._replace(policy_logits=logits)
        if self.has_q_values:
            outputs = outputs._replace(baseline=tf.reduce_max(logits, -1, keepdims=True))
        return outputs, core_state

    def set_torso_dtype(self, dtype: tf.DType) -> None:
        """Makes the torso compute in `dtype` on images; everything else stays float32.

        Call it after the variables are created: they take the dtype of the first inputs.
        """
        self._torso_dtype = dtype

    @property
    def torso_dtype(self) -> str:
        """The name of the dtype in which the torso computes on images."""
        return str(self._torso_dtype.name)

    def _features(self, torso: Nest, parts: dict[str, tf.Tensor], is_long: bool) -> tf.Tensor:
        """Maps the parts of observations [M, ...] to float32 [M, F].

        Args:
          torso: a torso, or a dictionary of torsos by part.
          parts: the parts of the observations, by name.
          is_long: whether the observations are those of many steps, not of one.
        """
        torsos_by_part = parts_of(torso)
        features = [
            self._part_features(torsos_by_part[part], part, parts[part], is_long)
            for part in sorted(parts)
        ]
        return features[0] if len(features) == 1 else tf.concat(features, axis=-1)

    def _part_features(
        self, torso: snt.Module, part: str, observation: tf.Tensor, is_long: bool
    ) -> tf.Tensor:
        if is_long and isinstance(torso, torsos.LanguageTorso):
            return torso.of_many(observation)
        normalizer = parts_of(self.observation_normalizer)[part]
        is_image = observation.dtype == tf.uint8
        dtype = self._torso_dtype if is_image else tf.float32
        if normalizer is not None:
            inputs = normalizer(observation, dtype)
        elif is_image:
            inputs = torsos.to_unit_floats(observation, dtype)
        else:
            inputs = observation
        return tf.cast(torso(inputs), tf.float32)

    def _last_inputs(self, env_outputs: EnvOutput) -> list[tf.Tensor]:
        """Returns the clipped last reward [T, B, 1] and the last action's features [T, B, F].

        Both are 0 where an episode starts: they belong to the previous episode.
        """
        same_episode = tf.cast(tf.logical_not(env_outputs.episode_start), tf.float32)[..., None]
        reward = tf.clip_by_value(env_outputs.reward, -LAST_REWARD_LIMIT, LAST_REWARD_LIMIT)
        action = self.distribution.features(env_outputs.last_action)
        return [reward[..., None] * same_episode, action * same_episode]


def _normalizer(part: ObservationSpec) -> torsos.ObservationNormalizer | None:
    return None if part.kind == "text" else torsos.ObservationNormalizer(part.shape, part.dtype)


def agent_of(config: AgentConfig, spec: EnvironmentSpec, torso_dtype: str = "float32") -> Agent:
    """Returns the agent that a config describes, with its variables created.

    Args:
      config: the agent's flags.
      spec: the level's specification.
      torso_dtype: the dtype in which the torso computes on images; see `agents.precision`.

    Raises:
      ConfigError: the agent does not accept the level's observations.
    """
    check_observation(config.agent_name, spec)
    agent = Agent(config, spec)
    zeros = tf.nest.map_structure(
        lambda t: tf.zeros(t.shape, t.dtype), layout_of(spec).network_specs(1)
    )
    agent.step(zeros, agent.initial_state(1))
    agent.set_torso_dtype(tf.as_dtype(torso_dtype))
    return agent


def agent_here(config: AgentConfig, spec: EnvironmentSpec) -> Agent:
    """Returns `agent_of` a config, with the dtype that suits this machine (see `precision`)."""
    dtype = precision.torso_dtype(config)
    precision.disable_failing_fusion(config)
    return agent_of(config, spec, dtype)


def parameter_specs(agent: Agent) -> list[tuple[str, tuple[int, ...], str]]:
    """Returns (name, shape, dtype) of every variable, as it is sent to actors.

    Args:
      agent: an agent whose variables have been created.
    """
    return [(each.name, tuple(each.shape), str(each.dtype.name)) for each in agent.variables]


def tensor_specs(specs: Nest) -> Nest:
    """Converts a nest of ArraySpec, or of tensors, to a nest of tf.TensorSpec."""
    return tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), specs)


def unroll_specs(agent: Agent, spec: EnvironmentSpec, unroll_length: int) -> Unroll:
    """Returns an Unroll of tf.TensorSpec: T decisions of one environment, as they are sent."""
    specs: Unroll = tensor_specs(array_specs(agent.interface, spec, unroll_length))
    return specs
