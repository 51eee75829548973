"""An agent is a torso, a core and heads: what actors step and learners unroll."""

from __future__ import annotations

import sonnet as snt
import tensorflow as tf

from impala_tf import frame_stack, networks
from impala_tf.config import AGENTS, AgentComposition, check_observation
from impala_tf.types import AgentOutput, EnvironmentSpec, EnvOutput, Nest, NetworkOutput, Unroll

# The most that a last reward counts for as an input, whatever the loss clips to.
LAST_REWARD_LIMIT = 1.0


class Agent(snt.Module):
    """The network of one composition (see `config.AGENTS`).

    Observations are as the agent sees them: uint8 [..., H, W, C] or float32 [..., D].
    """

    def __init__(
        self, composition: AgentComposition, num_actions: int, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self._num_actions = num_actions
        self._observes_last = composition.observes_last_action_and_reward
        self._torso = networks.TORSOS[composition.torso]()
        self._core = networks.CORES[composition.core]()
        self._heads = networks.Heads(num_actions)
        self._precision = tf.float32

    def initial_state(self, batch_size: int | tf.Tensor) -> Nest:
        """Returns the core state of `batch_size` environments that have seen nothing."""
        return self._core.initial_state(batch_size)

    def step(self, env_output: EnvOutput, core_state: Nest) -> tuple[NetworkOutput, Nest]:
        """Answers one step of N environments.

        Args:
          env_output: [N].
          core_state: [N], before this step.

        Returns:
          (NetworkOutput [N], core state after this step).
        """
        outputs, core_state = self.unroll(
            tf.nest.map_structure(lambda t: tf.expand_dims(t, 0), env_output), core_state
        )
        return tf.nest.map_structure(lambda t: tf.squeeze(t, axis=0), outputs), core_state

    def unroll(self, env_outputs: EnvOutput, core_state: Nest) -> tuple[NetworkOutput, Nest]:
        """Answers many steps at once; equal to as many calls of `step`.

        Args:
          env_outputs: [T, B], T known when the graph is built.
          core_state: [B], before step 0.

        Returns:
          (NetworkOutput [T, B], core state after the last step).
        """
        features = snt.BatchApply(self._features)(env_outputs.observation)
        if self._observes_last:
            features = tf.concat([features, *self._last_inputs(env_outputs)], axis=-1)
        core_output, core_state = self._core(features, env_outputs.episode_start, core_state)
        return snt.BatchApply(self._heads)(core_output), core_state

    def see_in(self, precision: tf.DType) -> None:
        """Lets the torso compute on images in `precision`; everything else stays float32.

        The variables must have been made: they take the type of the first inputs.
        """
        self._precision = precision

    def _features(self, observation: tf.Tensor) -> tf.Tensor:
        """Maps observations [M, ...] to float32 [M, F]."""
        if observation.dtype != tf.uint8:
            return self._torso(tf.cast(observation, tf.float32))
        images = networks.to_unit_floats(observation, self._precision)
        if self._precision == tf.float32:
            return self._torso(images)
        with networks.computing_in(self._precision):
            return tf.cast(self._torso(images), tf.float32)

    def _last_inputs(self, env_outputs: EnvOutput) -> list[tf.Tensor]:
        """Returns clipped last reward [T, B, 1] and one-hot last action [T, B, A].

        Both are 0 where an episode starts: they belong to the episode before.
        """
        goes_on = tf.cast(tf.logical_not(env_outputs.episode_start), tf.float32)[..., None]
        reward = tf.clip_by_value(env_outputs.reward, -LAST_REWARD_LIMIT, LAST_REWARD_LIMIT)
        action = tf.one_hot(env_outputs.last_action, self._num_actions)
        return [reward[..., None] * goes_on, action * goes_on]


def make(agent_name: str, spec: EnvironmentSpec, precision: str = "float32") -> Agent:
    """Returns the named agent with its variables made.

    Args:
      agent_name: of `config.AGENTS`.
      spec: of the level.
      precision: what its torso computes on images in; see `config.AgentConfig`.

    Raises:
      ConfigError: the agent cannot take the level's observations.
    """
    check_observation(agent_name, spec)
    agent = Agent(AGENTS[agent_name], spec.num_actions, name=agent_name)
    observation = tf.zeros((1, *spec.observation_shape), spec.observation_dtype)
    flags = tf.zeros((1,), tf.bool)
    agent.step(
        EnvOutput(
            reward=tf.zeros((1,)),
            terminated=flags,
            truncated=flags,
            autoreset=flags,
            episode_start=flags,
            observation=observation,
            last_action=tf.zeros((1,), tf.int32),
        ),
        agent.initial_state(1),
    )
    agent.see_in(tf.as_dtype(precision))
    return agent


def sample_actions(policy_logits: tf.Tensor, generator: tf.random.Generator) -> tf.Tensor:
    """Draws actions int32 [N] from softmax policies [N, A] (the Gumbel-max way)."""
    tiny = tf.constant(1e-20)
    uniform = generator.uniform(tf.shape(policy_logits), minval=tiny)
    return tf.argmax(policy_logits - tf.math.log(-tf.math.log(uniform)), -1, tf.int32)


def greedy_actions(policy_logits: tf.Tensor) -> tf.Tensor:
    """Returns the likeliest actions, int32 [N], of policies [N, A]."""
    return tf.argmax(policy_logits, -1, tf.int32)


def unroll_specs(agent: Agent, spec: EnvironmentSpec, unroll_length: int) -> Unroll:
    """Returns an Unroll of tf.TensorSpec: one environment's T decisions as they cross the wire."""
    steps = unroll_length + 1
    packed = spec.observation_shape
    if spec.stacked_frames:
        packed = (frame_stack.packed_length(unroll_length, spec.stacked_frames), *packed[:-1])
    else:
        packed = (steps, *packed)
    flags = tf.TensorSpec((steps,), tf.bool)
    return Unroll(
        parameter_version=tf.TensorSpec((), tf.int64),
        core_state=tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape[1:], t.dtype), agent.initial_state(1)
        ),
        env_outputs=EnvOutput(
            reward=tf.TensorSpec((steps,), tf.float32),
            terminated=flags,
            truncated=flags,
            autoreset=flags,
            episode_start=flags,
            observation=tf.TensorSpec(packed, spec.observation_dtype),
            last_action=tf.TensorSpec((steps,), tf.int32),
        ),
        agent_outputs=AgentOutput(
            action=tf.TensorSpec((unroll_length,), tf.int32),
            policy_logits=tf.TensorSpec((unroll_length, spec.num_actions), tf.float32),
        ),
    )
