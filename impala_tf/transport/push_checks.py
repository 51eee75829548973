"""Whether what an actor says about its games and itself can be true."""

from __future__ import annotations

import math

import grpc

from impala_tf.transport import impala_pb2
from impala_tf.transport.errors import RefusedUnroll


class CallError(Exception):
    """Ends a call with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_numbers(
    request: impala_pb2.PushUnrollRequest, most_episodes: int, num_levels: int
) -> None:
    """Checks what an actor says about its games and itself.

    Raises:
      CallError: lists that cannot come from an actor of ours.
      RefusedUnroll: numbers that a broken environment may make.
    """
    returns, lengths = request.episode_returns, request.episode_lengths
    levels = request.episode_levels
    for name in ("episode_lengths", "episode_levels"):
        count = len(getattr(request, name))
        if count != len(returns):
            raise CallError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{name}: expected {len(returns)} like episode_returns, got {count}",
            )
    most = most_episodes * request.num_environments
    if len(returns) > most:
        raise CallError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"episode_returns: expected {most} at most in one unroll, got {len(returns)}",
        )
    if levels and not 0 <= min(levels) <= max(levels) < num_levels:
        raise RefusedUnroll(f"episodes: levels from {min(levels)}, but there are {num_levels}")
    rates = (request.agent_steps_per_s, request.environment_fraction, request.inference_fraction,
             request.push_wait_fraction, request.memory_mb, request.blocked_s)  # fmt: skip
    if not all(map(math.isfinite, (*returns, *rates))) or min(lengths, default=0) < 0:
        raise RefusedUnroll("episodes: a return that is NaN or infinite, or a negative length")
