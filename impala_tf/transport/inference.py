"""Actions that a learner chooses for its actors: the transport's side of --inference=learner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import grpc

from impala_tf.transport import impala_pb2
from impala_tf.transport.calls import check_environments
from impala_tf.transport.errors import DecodeError, QueueClosed, RefusedUnroll
from impala_tf.transport.parameter_store import ParameterStore
from impala_tf.transport.push_checks import CallError

Infer = Callable[[int, Sequence[bytes]], "Future[tuple[int, list[bytes]]]"]
"""Takes num_environments and the tensors of an InferRequest.

Results in the parameter_version and tensors of an InferReply. May fail with DecodeError or
RefusedUnroll if it cannot be answered, or with QueueClosed if the learner stops."""

# How often it is looked for a new version, and how long: then the unrolls that an update would need
# are those of a lost actor, and the other actors have to fill the batch.
_POLL_S = 0.002
_PATIENCE_S = 60.0


class InferenceCalls:
    """Answers actors' calls, in the event loop of the server.

    Args:
      infer: chooses actions; None: actors do that themselves.
      parameters: where the learner publishes.
      is_over: whether the run is.

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
    ) -> bytes | None:
        """Returns the InferReply, once there is another version than the actor knows.

        None if the run is over first.

        Args:
          request: of an actor with a session.
          most_environments: that the actor may have.

        Raises:
          CallError: the request cannot be answered.
        """
        if self._infer is None:
            raise CallError(
                grpc.StatusCode.INVALID_ARGUMENT, "the learner was started with --inference=actor"
            )
        check_environments(request.num_environments, most_environments)
        await self._wait_for_other_version(request.known_version)
        if self._is_over():
            return None
        try:
            found = self._infer(request.num_environments, request.tensors)
            version, tensors = await asyncio.wrap_future(found)
        except (DecodeError, RefusedUnroll) as error:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        except QueueClosed as error:
            if self._is_over():
                return None
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the learner is stopping") from error
        return impala_pb2.InferReply(
            outcome=impala_pb2.OK, parameter_version=version, tensors=tensors
        ).SerializeToString()

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
