"""One network answers several actors: the same answers as each one's own network would give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.actor.acting import Codecs, LearnerActing
from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.agents.policy import compile_policy
from impala_tf.environments.observations import layout_of
from impala_tf.learner.inference import InferenceService
from impala_tf.transport import DecodeError, ParameterStore, QueueClosed, RefusedUnroll
from impala_tf.types import EnvOutput, Nest, ObservationSpec
from tests.helpers.agents import make_agent
from tests.helpers.samples import vector_spec
from tests.helpers.unrolls import random_array

SPEC = vector_spec()._replace(
    observation={"where": ObservationSpec("vector", (3,)), "mission": ObservationSpec("text", (6,))}
)
PATIENCE_S = 60.0


def publish(agent: Agent, store: ParameterStore, version: int) -> None:
    """Publishes parameters that depend on the version."""
    rng = np.random.default_rng(version)
    store.publish(
        version,
        [rng.normal(0.0, 0.1, v.shape).astype(v.dtype.as_numpy_dtype) for v in agent.variables],
    )


@pytest.fixture
def agent() -> Agent:
    return make_agent("MLPLSTMAgent", SPEC)


@pytest.fixture
def store(agent: Agent) -> ParameterStore:
    store = ParameterStore()
    publish(agent, store, 3)
    return store


@pytest.fixture
def service(store: ParameterStore) -> Iterator[InferenceService]:
    made = InferenceService(make_agent("MLPLSTMAgent", SPEC), SPEC, store, seed=1, patience_s=5.0)
    yield made
    made.close()


def question(agent: Agent, num_envs: int) -> tuple[EnvOutput, Nest]:
    """Returns a random step and core state [N, ...]."""
    step = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), layout_of(SPEC).step_specs(1)
    )
    core_state = unroll_specs(agent, SPEC, 1).core_state
    rng = np.random.default_rng(num_envs)
    asked: tuple[EnvOutput, Nest] = tf.nest.map_structure(
        lambda spec: random_array(spec, (num_envs,), rng), (step, core_state)
    )
    return asked


def encoded(agent: Agent, asked: tuple[EnvOutput, Nest]) -> list[bytes]:
    return Codecs(agent.interface, SPEC).question.encode(asked)[1]


def own_answer(agent: Agent, store: ParameterStore, asked: tuple[EnvOutput, Nest]) -> Nest:
    """Returns logits and core state of an actor that has the newest parameters."""
    assert store.latest is not None
    for variable, array in zip(agent.variables, store.latest.tensors, strict=True):
        variable.assign(array)
    num_envs = len(asked[0].reward)
    answer, state = compile_policy(agent, SPEC, num_envs, 0)(asked[0], asked[1])
    return tf.nest.map_structure(lambda t: t.numpy(), (answer.policy_logits, state))


def test_each_actor_gets_its_own_answers(
    agent: Agent, store: ParameterStore, service: InferenceService
) -> None:
    """Also if they have different numbers of environments, which are no power of two together."""
    asked = [question(agent, num_envs) for num_envs in (2, 3, 1)]
    service.wait_for(lambda: 3)
    answers = [service.ask(len(one[0].reward), encoded(agent, one)) for one in asked]
    for one, future in zip(asked, answers, strict=True):
        version, tensors = future.result(PATIENCE_S)
        assert version == 3
        got, state = Codecs(agent.interface, SPEC).answer.decode(len(one[0].reward), tensors)
        expected = own_answer(agent, store, one)
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            (got.policy_logits, state),
            expected,
        )
        assert (got.action < SPEC.actions.sizes[0]).all()


def test_an_unroll_has_the_version_that_answered_its_first_step(
    agent: Agent, store: ParameterStore, service: InferenceService
) -> None:
    """The oldest of the unroll. Later steps are answered with newer parameters at once."""
    known: list[int] = []

    def infer(
        num_environments: int, tensors: Sequence[bytes], known_version: int
    ) -> tuple[int, list[bytes]]:
        known.append(known_version)
        return service.ask(num_environments, tensors).result(PATIENCE_S)

    acting = LearnerActing(infer, Codecs(agent.interface, SPEC), waits=True)
    asked = question(agent, 2)
    acting.begin_unroll(lambda: False)
    first, _ = acting.answer(*asked)
    publish(agent, store, 4)
    second, _ = acting.answer(*asked)
    assert acting.parameter_version == 3
    assert not np.allclose(first.policy_logits, second.policy_logits)
    acting.begin_unroll(lambda: False)
    acting.answer(*asked)
    assert acting.parameter_version == 4
    assert known == [-1, -1, 3]  # only what begins an unroll has to be newer


def test_those_that_step_together_wait_for_each_other_but_not_for_a_lost_one(
    agent: Agent, service: InferenceService
) -> None:
    service.wait_for(lambda: 2)
    tensors = encoded(agent, question(agent, 1))
    first = service.ask(1, tensors)
    with pytest.raises(TimeoutError):
        first.result(1.0)
    second = service.ask(1, tensors)
    assert first.result(PATIENCE_S)[0] == second.result(PATIENCE_S)[0] == 3
    assert service.ask(1, tensors).result(PATIENCE_S)[0] == 3


def test_a_broken_question_or_a_lost_actor_spoils_no_other(
    agent: Agent, service: InferenceService
) -> None:
    """A word that does not exist would fail the batch; a lost actor's question is cancelled."""
    service.wait_for(lambda: 3)
    asked = question(agent, 1)
    good = encoded(agent, asked)
    asked[0].observation["mission"][0, 2] = 5000
    lost, whole, unreadable = (service.ask(n, good) for n in (1, 1, 2))
    lost.cancel()
    unknown = service.ask(1, encoded(agent, asked))
    with pytest.raises(RefusedUnroll, match="mission, words: from 0 to 5000"):
        unknown.result(PATIENCE_S)
    with pytest.raises(DecodeError):
        unreadable.result(PATIENCE_S)
    assert whole.result(PATIENCE_S)[0] == 3


def test_a_learner_that_stops_leaves_nobody_waiting(
    agent: Agent, service: InferenceService
) -> None:
    service.wait_for(lambda: 3)
    tensors = encoded(agent, question(agent, 1))
    waiting, lost = service.ask(1, tensors), service.ask(1, tensors)
    lost.cancel()
    service.close()
    for answer in (waiting, service.ask(1, tensors)):
        with pytest.raises(QueueClosed):
            answer.result(PATIENCE_S)
