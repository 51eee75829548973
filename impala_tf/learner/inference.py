"""Dynamic batching: one network answers all actors of a learner (paper, section 3.1)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala_tf.actor.acting import Codecs
from impala_tf.agents.agent import Agent
from impala_tf.agents.interface import Policy
from impala_tf.agents.policy import compile_policy
from impala_tf.learner.arrivals import check_steps
from impala_tf.transport import DecodeError, ParameterStore, QueueClosed, RefusedUnroll
from impala_tf.types import AgentOutput, EnvironmentSpec, Nest

# Per batch. This many fill the processor; more would make the first question wait longer.
_MOST_ENVIRONMENTS = 512
_POLL_S = 0.5

_log = logging.getLogger("impala_tf.learner")


class _Question(NamedTuple):
    num_envs: int
    tensors: Sequence[bytes]  # the encoded step
    answer: Future[tuple[int, list[bytes]]]


class InferenceService:
    """Answers all waiting questions as one batch, with the newest parameters.

    Batches are padded to powers of two, so that few sizes are compiled.

    Args:
      agent: an agent that nothing else uses; its variables are overwritten.
      spec: the level's specification.
      parameters: the store where the learner publishes its parameters.
      seed: the seed for sampling actions.
      patience_s: for how many seconds actors that step together wait for a missing one, which may
        be lost.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvironmentSpec,
        parameters: ParameterStore,
        seed: int,
        patience_s: float = 60.0,
    ) -> None:
        self._agent = agent
        self._spec = spec
        self._parameters = parameters
        self._seed = seed
        self._patience_s = patience_s
        self._together: Callable[[], int] | None = None
        self._codecs = Codecs(agent.interface, spec)
        self._policies: dict[int, Policy] = {}  # by number of environments
        self._version: int | None = None
        self._questions: deque[_Question] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._thread.start()

    def wait_for(self, together: Callable[[], int]) -> None:
        """Makes each batch wait until it has as many questions as `together` returns."""
        self._together = together

    def ask(self, num_envs: int, tensors: Sequence[bytes]) -> Future[tuple[int, list[bytes]]]:
        """Queues a question and returns its future answer; see `transport.Infer`."""
        question = _Question(num_envs, tensors, Future())
        with self._changed:
            if self._closed:
                _fail(question, QueueClosed("the learner is stopping"))
            else:
                self._questions.append(question)
                self._changed.notify()
        return question.answer

    def close(self) -> None:
        """Stops answering. Waiting questions fail with QueueClosed."""
        with self._changed:
            self._closed = True
            waiting, self._questions = self._questions, deque()
            self._changed.notify()
        for question in waiting:
            if question.answer.set_running_or_notify_cancel():
                _fail(question, QueueClosed("the learner is stopping"))

    def _run(self) -> None:
        while (questions := self._next_batch()) is not None:
            try:
                self._answer(self._decoded(questions))
            except Exception as error:  # fails the calls, and the service logs it
                for question in questions:
                    _fail(question, error)

    def _next_batch(self) -> list[_Question] | None:
        """Waits for questions and takes those whose actors still wait; None: it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._questions)
            if self._together is not None:
                self._wait_for_all(self._together)
            if self._closed:
                return None
            batch: list[_Question] = []
            num_envs = 0
            while self._questions:
                num_envs += self._questions[0].num_envs
                if batch and num_envs > _MOST_ENVIRONMENTS:
                    break
                question = self._questions.popleft()
                # A lost actor's question is cancelled, and must not be answered. Once marked as
                # running, it can no longer be cancelled.
                if question.answer.set_running_or_notify_cancel():
                    batch.append(question)
            return batch

    def _wait_for_all(self, together: Callable[[], int]) -> None:
        deadline = time.monotonic() + self._patience_s
        while not self._closed and self._num_waiting() < together():
            if time.monotonic() > deadline:
                _log.warning("--synchronization=step: continues without a slow or lost actor")
                return
            self._changed.wait(_POLL_S)

    def _num_waiting(self) -> int:
        return sum(not question.answer.cancelled() for question in self._questions)

    def _decoded(self, questions: list[_Question]) -> list[tuple[_Question, Nest]]:
        """Returns each valid question with its decoded inputs; the others fail."""
        valid = []
        for question in questions:
            try:
                inputs = self._codecs.question.decode(question.num_envs, question.tensors)
                check_steps(self._spec, inputs[0])
            except (DecodeError, RefusedUnroll) as error:
                _fail(question, error)
            else:
                valid.append((question, inputs))
        return valid

    def _answer(self, questions: list[tuple[_Question, Nest]]) -> None:
        if not questions:
            return
        version = self._update_parameters()
        sizes = [question.num_envs for question, _ in questions]
        padded = 1 << (sum(sizes) - 1).bit_length()
        env_output, core_state = tf.nest.map_structure(
            lambda *parts: _padded(parts, padded), *(inputs for _, inputs in questions)
        )
        output, state = self._policy(padded)(env_output, core_state)
        output = AgentOutput(output.action.numpy(), output.policy_logits.numpy())
        answer = tf.nest.map_structure(np.asarray, (output, state))
        ends = np.cumsum(sizes)
        for (question, _), size, end in zip(questions, sizes, ends, strict=True):
            part = tf.nest.map_structure(lambda array: array[end - size : end], answer)  # noqa: B023
            question.answer.set_result((version, self._codecs.answer.encode(part)[1]))

    def _policy(self, num_envs: int) -> Policy:
        if num_envs not in self._policies:
            seed = self._seed + num_envs
            self._policies[num_envs] = compile_policy(self._agent, self._spec, num_envs, seed)
        return self._policies[num_envs]

    def _update_parameters(self) -> int:
        snapshot = self._parameters.latest
        assert snapshot is not None  # the learner publishes before it opens the port
        if snapshot.parameter_version != self._version:
            for variable, array in zip(self._agent.variables, snapshot.tensors, strict=True):
                variable.assign(array)
            self._version = snapshot.parameter_version
        return snapshot.parameter_version


def _padded(parts: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Returns the concatenation of arrays [N, ...], padded with zeros to [size, ...]."""
    missing = size - sum(len(part) for part in parts)
    fill = np.zeros((missing, *parts[0].shape[1:]), parts[0].dtype)
    return np.concatenate([*parts, fill])


def _fail(question: _Question, error: Exception) -> None:
    if not question.answer.done():
        question.answer.set_exception(error)
