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
from impala_tf.learner import arrivals
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


def copy_of(agent: Agent, name: str) -> Agent:
    made = make_agent(name, SPEC)
    for mine, its in zip(made.variables, agent.variables, strict=True):
        mine.assign(its)
    return made


@pytest.mark.parametrize("name", ["MLPAgent", "MLPLSTMAgent"])
def test_a_gradient_moves_the_learner_like_the_unrolls_it_comes_from(name: str) -> None:
    """And its statistics reach the curves under their own names."""
    agent = make_agent(name, SPEC)
    learners = [
        Learner(copy_of(agent, name), SPEC, config(algorithm=each, batch_size=N), LearnerGroup())
        for each in ("impala", "a3c")
    ]
    made = unrolls(agent)
    sent = gradient(agent, config(), made)
    batches: list[Sent] = [made, sent]
    found = []
    for learner, batch in zip(learners, batches, strict=True):
        learner.restore_counters({**learner.counters(), "learner_updates": 3})
        found.append(learner.update(tree.map_structure(tf.constant, batch)))
        assert learner.agent_steps == played_steps(made) < N * T
        assert learner.environment_frames == 4 * played_steps(made)
        assert learner.parameter_version == 4
    for mine, its, before in zip(
        *(learner.parameters() for learner in learners),
        (variable.numpy() for variable in agent.variables),
        strict=True,
    ):
        np.testing.assert_allclose(mine - before, its - before, rtol=1e-3, atol=1e-7)
    unrolled, gradients = found
    assert gradients.policy_lag_mean == gradients.policy_lag_max == 3
    for field in unrolled._fields:
        np.testing.assert_allclose(
            getattr(gradients, field), getattr(unrolled, field), rtol=1e-3, atol=1e-6, err_msg=field
        )


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


def test_what_is_sent_fits_the_wire_and_the_inspection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN would poison every parameter; a gradient of another run's version is refused."""
    agent = make_agent("MLPLSTMAgent", SPEC)
    sent = gradient(agent, config(), unrolls(agent, version=7))
    codec = NestCodec(sent_specs(agent, SPEC, config()))
    count, tensors = codec.encode(sent)
    assert count == 1
    monkeypatch.setattr(arrivals, "MAX_POLICY_LAG", 5)
    inspector = Inspector(SPEC, config())
    inspector.check(codec.decode(1, tensors), 9)
    for version, problem in ((6, "version 7"), (13, "6 updates old")):
        with pytest.raises(RefusedUnroll, match=problem):
            inspector.check(sent, version)
    for steps in (-1, N * T + 1):
        with pytest.raises(RefusedUnroll, match=f"num_played: .* {steps}"):
            inspector.check(sent._replace(num_played=np.array([steps], np.int32)), 9)
    sent.gradients[2].flat[0] = np.nan
    with pytest.raises(RefusedUnroll, match=r"gradients\.2: NaN, infinite"):
        inspector.check(sent, 9)


class WithAnother:
    """This learner, and another one that sends gradients of 2 everywhere and has a batch."""

    rank, size = 0, 2

    def sum(self, nest: Any, name: str) -> Any:
        gradients, sums = nest
        return [each + 2.0 for each in gradients], sums


@pytest.mark.parametrize("has_batch", [True, False])
def test_several_learners_step_along_the_mean_of_those_that_have_a_gradient(
    has_batch: bool,
) -> None:
    agent = make_agent("MLPAgent", SPEC)
    sent = gradient(agent, config(), unrolls(agent))
    settings = config(optimizer="rmsprop", decay=0.0, epsilon=1e6, gradients_clipping=0.0)
    learner = Learner(agent, SPEC, settings, WithAnother())  # type: ignore[arg-type]
    before = learner.parameters()
    if has_batch:
        learner.update(tree.map_structure(tf.constant, sent), [N * T, N * T])
    else:
        learner.update(None, [None, N * T])
    steps = [old - new for old, new in zip(before, learner.parameters(), strict=True)]
    along = [(each[0] + 2.0) / 2 if has_batch else np.full_like(each[0], 2.0)
             for each in sent.gradients]  # fmt: skip
    scale = np.sum(steps[0]) / np.sum(along[0])
    assert scale > 0
    for step, mean in zip(steps, along, strict=True):
        np.testing.assert_allclose(step, scale * mean, rtol=0.02, atol=2e-2 * scale)
    assert learner.agent_steps == (2 if has_batch else 1) * N * T


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"observation_normalization": "elementwise"}, "--observation_normalization=elementwise:"),
        ({"value_normalization": "running"}, "--value_normalization=running: .* none"),
        ({"advantage_scaling": "rms"}, "--advantage_scaling=rms: .* none or batch"),
        ({"updates_per_batch": 2}, "--updates_per_batch=2: .* 1"),
        ({"learning_rate_schedule": "kl"}, "--learning_rate_schedule=kl: .* linear or constant"),
        ({"entropy_cost_end": 0.5}, "--entropy_cost_end=0.5: "),
        ({"batch_size": 5}, "--batch_size=5: "),
    ],
)
def test_what_actors_cannot_do_alone_is_refused(flags: dict[str, Any], problem: str) -> None:
    configs.check_algorithm(config(), SPEC)
    with pytest.raises(ConfigError, match=problem):
        configs.check_algorithm(config(**flags), SPEC)
