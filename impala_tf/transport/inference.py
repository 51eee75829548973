"""The transport's part of --inference=learner, where the learner chooses its actors' actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import grpc

from impala_tf.transport import impala_pb2
from impala_tf.transport.calls import check_environments
from impala_tf.transport.errors import CallError, DecodeError, RefusedUnroll, RunOver
from impala_tf.transport.parameter_store import ParameterStore

Infer = Callable[[int, Sequence[bytes]], "Future[tuple[int, list[bytes]]]"]
"""Takes num_environments and the tensors of an InferRequest.

Results in the parameter_version and tensors of an InferReply. May fail with DecodeError or
RefusedUnroll if it cannot be answered, or with QueueClosed if the learner stops."""

# How often and for how long to poll for a new version. If none comes, the next update lacks the
# unrolls of a lost actor, and the other actors have to fill the batch.
_POLL_S = 0.002
_PATIENCE_S = 60.0


class InferenceCalls:
    """Answers Infer calls, in the event loop of the server.

    Args:
      infer: chooses actions; None: actors choose their own.
      parameters: the store where the learner publishes its parameters.
      is_over: returns whether the run is over.

    Attributes:
      num_held: calls that wait for the learner's next update.
    """

    def __init__(
        self, infer: Infer | None, parameters: ParameterStore, is_over: Callable[[], bool]
    ) -> None:
        self._infer = infer
        self._parameters = parameters
        self._is_over = is_over
        self.num_held = 0

    async def answer(
        self, request: impala_pb2.InferRequest, most_environments: int
    ) -> impala_pb2.InferReply:
        """Answers a request once there is a version other than the one that the actor knows.

        Args:
          request: the request of an actor that has a session.
          most_environments: the actor's largest number of environments.

        Raises:
          RunOver: the run is over.
          QueueClosed: the learner is stopping.
          CallError: the request cannot be answered.
        """
        if self._infer is None:
            raise CallError(
                grpc.StatusCode.INVALID_ARGUMENT, "the learner was started with --inference=actor"
            )
        check_environments(request.num_environments, most_environments)
        await self._wait_for_other_version(request.known_version)
        if self._is_over():
            raise RunOver
        try:
            answer = self._infer(request.num_environments, request.tensors)
            version, tensors = await asyncio.wrap_future(answer)
        except (DecodeError, RefusedUnroll) as error:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        return impala_pb2.InferReply(
            outcome=impala_pb2.OK, parameter_version=version, tensors=tensors
        )

    async def _wait_for_other_version(self, known_version: int) -> None:
        if known_version < 0:
            return
        deadline = time.monotonic() + _PATIENCE_S
        self.num_held += 1
        try:
            while time.monotonic() < deadline and not self._is_over():
                snapshot = self._parameters.latest
                if snapshot is not None and snapshot.parameter_version != known_version:
                    return
                await asyncio.sleep(_POLL_S)
        finally:
            self.num_held -= 1
