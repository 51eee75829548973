"""a3c: gradients that actors compute, and the steps of the learner along them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tree

from impala_tf import config as configs
from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.agents.n_step_returns import played_steps
from impala_tf.config import Config, ConfigError
from impala_tf.learner.actor_gradients import GradientSender, sent_specs
from impala_tf.learner.arrivals import Inspector
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.transport import NestCodec, RefusedUnroll
from impala_tf.types import ActorGradient, ActorReport, Sent, Unroll
from tests.helpers.agents import make_agent
from tests.helpers.learners import Kept
from tests.helpers.samples import resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

N, T, A = 3, 5, 4
SPEC = vector_spec(num_actions=A, frames_per_step=4)


def config(**flags: Any) -> Config:
    defaults = {
        "algorithm": "a3c",
        "envs_per_actor": N,
        "unroll_length": T,
        "baseline_cost": 0.3,
        "advantage_scaling": "none",
        "loss_reduction": "sum",
        "initialization": "default",
        "learning_rate": 0.01,
        "epsilon": 0.01,
    }
    return resolved_config(**{**defaults, **flags})


def unrolls(agent: Agent, version: int = 0) -> Unroll:
    made = random_unrolls(unroll_specs(agent, SPEC, T), N)
    return made._replace(parameter_version=np.full((N,), version, np.int64))


def gradient(agent: Agent, settings: Config, unroll: Unroll) -> ActorGradient:
    """Returns what an actor sends."""
    learner = Kept()
    GradientSender(learner.push, agent, SPEC, settings).push(unroll, [], ActorReport())
    (sent,) = learner.sent
    return sent


@pytest.mark.parametrize("name", ["MLPAgent", "MLPLSTMAgent"])
def test_a_gradient_moves_the_learner_like_the_unrolls_it_comes_from(name: str) -> None:
    """And its statistics reach the curves under their own names."""
    agent = make_agent(name, SPEC)
    before = [variable.numpy() for variable in agent.variables]
    made = unrolls(agent)
    batches: dict[str, Sent] = {"impala": made, "a3c": gradient(agent, config(), made)}
    steps, stats = [], []
    for algorithm, batch in batches.items():
        for variable, array in zip(agent.variables, before, strict=True):
            variable.assign(array)
        settings = config(algorithm=algorithm, batch_size=N)
        learner = Learner(agent, SPEC, settings, LearnerGroup())
        learner.restore_counters({**learner.counters(), "learner_updates": 3})
        stats.append(learner.update(tree.map_structure(tf.constant, batch)))
        steps.append([new - old for new, old in zip(learner.parameters(), before, strict=True)])
        assert learner.agent_steps == played_steps(made) < N * T
        assert learner.environment_frames == 4 * played_steps(made)
    for mine, its in zip(*steps, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-3, atol=1e-7)
    assert stats[1].policy_lag_mean == stats[1].policy_lag_max == 3
    for field, mine, its in zip(stats[0]._fields, *stats, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-3, atol=1e-6, err_msg=field)


def n_step_gradient(agent: Agent, unroll: Unroll, settings: Config) -> list[np.ndarray]:
    """Algorithm S3 of the A3C paper, with the entropy bonus, one environment after another."""
    loss = settings.loss
    outputs = unroll.env_outputs
    with tf.GradientTape() as tape:
        total = 0.0
        for n in range(N):
            seen = tree.map_structure(lambda a, n=n: tf.constant(a[n][:, None]), outputs)
            logits, values = agent.unroll(seen, agent.initial_state(1))[0]
            value = float(values[T, 0])
            for t in reversed(range(T)):
                log_policy = tf.nn.log_softmax(logits[t, 0])
                if outputs.autoreset[n, t + 1]:
                    value = float(values[t, 0])
                    continue
                reward = np.clip(outputs.reward[n, t + 1], -1, 1)
                keeps = 0.0 if outputs.terminated[n, t + 1] else loss.discounting
                value = reward + keeps * value
                advantage = value - values[t, 0]
                action = unroll.agent_outputs.action[n, t]
                total -= log_policy[action] * tf.stop_gradient(advantage)
                total += loss.baseline_cost * 0.5 * tf.square(advantage)
                total += loss.entropy_cost * tf.reduce_sum(tf.exp(log_policy) * log_policy)
    return [each.numpy() for each in tape.gradient(total, agent.trainable_variables)]


def test_on_its_own_steps_it_is_the_gradient_of_n_step_returns() -> None:
    """What a3c means: V-trace with pi = mu."""
    agent = make_agent("MLPAgent", SPEC)
    settings = config(reward_clipping="abs_one", discounting=0.9)
    made = unrolls(agent)
    seen = tree.map_structure(lambda a: tf.constant(a.swapaxes(0, 1)), made.env_outputs)
    logits = agent.unroll(seen, agent.initial_state(N))[0].policy_logits[:-1].numpy()
    own = made.agent_outputs._replace(policy_logits=np.ascontiguousarray(logits.swapaxes(0, 1)))
    made = made._replace(agent_outputs=own)
    sent = gradient(agent, settings, made)
    for mine, expected in zip(sent.gradients, n_step_gradient(agent, made, settings), strict=True):
        np.testing.assert_allclose(mine[0], expected, rtol=2e-3, atol=2e-5)


def test_what_is_sent_fits_the_wire_and_the_inspection() -> None:
    """A NaN would poison every parameter."""
    agent = make_agent("MLPLSTMAgent", SPEC)
    sent = gradient(agent, config(), unrolls(agent, version=7))
    codec = NestCodec(sent_specs(agent, SPEC, config()))
    _, tensors = codec.encode(sent)
    inspector = Inspector(SPEC, config())
    inspector.check(codec.decode(1, tensors), 9)
    for steps in (-1, N * T + 1):
        with pytest.raises(RefusedUnroll, match=f"num_played: .* {steps}"):
            inspector.check(sent._replace(num_played=np.array([steps], np.int32)), 9)
    sent.gradients[2].flat[0] = np.nan
    with pytest.raises(RefusedUnroll, match=r"gradients\.2: NaN, infinite"):
        inspector.check(sent, 9)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"advantage_scaling": "rms"}, "--advantage_scaling=rms: .* none or batch"),
        ({"batch_size": 5}, "--batch_size=5: "),
    ],
)
def test_what_actors_cannot_do_alone_is_refused(flags: dict[str, Any], problem: str) -> None:
    configs.check_algorithm(config(), SPEC)
    with pytest.raises(ConfigError, match=problem):
        configs.check_algorithm(config(**flags), SPEC)
