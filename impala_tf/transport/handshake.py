"""The handshake: what a learner and its actors must agree on before they exchange data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from impala_tf.config import ConfigError
from impala_tf.transport import impala_pb2
from impala_tf.transport.codec import NestCodec, TensorSpec
from impala_tf.transport.grpc_options import MAX_UNROLL_BYTES
from impala_tf.types import Sent

PROTOCOL_VERSION = 14

# What is said of an actor goes to logs and terminals, and the actor wrote it.
_LONGEST_SHOWN = 80
_LONGEST_REFUSAL = 2000
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class RunIdentity(NamedTuple):
    """What a learner requires of its actors; the same after a restart of the learner."""

    protocol_version: int  # PROTOCOL_VERSION
    run_id: str  # random, made once per run
    config_digest: str  # impala_tf.config.wire_digest
    unroll_specs: Sent  # of (shape, dtype), without the leading N; a3c: of gradients
    parameter_specs: Sequence[tuple[str, tuple[int, ...], str]]  # (name, shape, dtype)
    most_episodes: int  # that can end in a push, for each N of it
    max_environments: int = 4096  # N at most, of one actor
    num_levels: int = 1  # that the agent learns


class Start(NamedTuple):
    """Which start of an actor this is: (0, 0) is the first one of a run."""

    run_steps: int = 0  # agent steps that the run had when the actor's learner started
    restarts: int = 0  # of the actor, since its learner started


def max_environments(unroll_specs: Sent, envs_per_actor: int) -> int:
    """Returns how many environments an actor may have: more than the flag says, but not any number.

    Args:
      unroll_specs: of (shape, dtype) or tf.TensorSpec, without the leading N.
      envs_per_actor: what --envs_per_actor says.

    Raises:
      ConfigError: an unroll of so many environments is too large to be sent.
    """
    unroll_bytes = NestCodec(unroll_specs).nbytes
    most = MAX_UNROLL_BYTES // unroll_bytes
    if most < envs_per_actor:
        raise ConfigError(
            f"--envs_per_actor={envs_per_actor}: an unroll would have"
            f" {envs_per_actor * unroll_bytes / 2**20:,.0f} MB, and {MAX_UNROLL_BYTES // 2**20} MB"
            f" can be sent; give {most} at most, or a smaller --unroll_length"
        )
    return min(most, 4 * envs_per_actor)


def spec_messages(specs: Sequence[TensorSpec]) -> list[impala_pb2.TensorSpec]:
    """Returns specs as messages."""
    return [impala_pb2.TensorSpec(name=s.name, shape=s.shape, dtype=s.dtype) for s in specs]


def specs_from_messages(messages: Sequence[impala_pb2.TensorSpec]) -> list[TensorSpec]:
    """Returns messages as specs; ValueError names one whose dtype cannot be sent."""
    return [TensorSpec.of(m.name, tuple(m.shape), m.dtype) for m in messages]


def mismatches(
    request: impala_pb2.HandshakeRequest, run: RunIdentity, unroll_specs: Sequence[TensorSpec]
) -> str:
    """Returns a phrase for each difference, naming both sides; '' if the actor fits."""
    if not _NAME.fullmatch(request.actor_id):
        return f"actor_id: expected {_NAME.pattern}, got {shown(request.actor_id)}"
    found = _differences(request, run, unroll_specs)
    if not 1 <= request.num_environments <= run.max_environments:
        found.append(
            f"--envs_per_actor: the actor has {request.num_environments}, the learner takes 1 to"
            f" {run.max_environments}: 4 times its own flag, but at most 240 MB an unroll"
        )
    return "; ".join(found)[:_LONGEST_REFUSAL]


def shown(text: str, longest: int = _LONGEST_SHOWN) -> str:
    """Returns the beginning of a text from an actor, made harmless for logs and terminals."""
    return "".join(c if c.isprintable() else "?" for c in text[:longest])


def _differences(
    request: impala_pb2.HandshakeRequest, run: RunIdentity, unroll_specs: Sequence[TensorSpec]
) -> list[str]:
    pairs = [
        ("protocol version", request.protocol_version, run.protocol_version),
        ("config digest", request.config_digest, run.config_digest),
    ]
    if request.run_id:  # an actor learns it from the first reply
        pairs.append(("run", request.run_id, run.run_id))
    if len(request.unroll_specs) > 10 * len(unroll_specs):
        return [f"tensors: the actor has {len(request.unroll_specs)}"]
    theirs = {shown(m.name): shown(str(_spec_as_sent(m))) for m in request.unroll_specs}
    ours = {spec.name: str(spec) for spec in unroll_specs}
    pairs += [
        (f"tensor {name}", theirs.get(name, "nothing"), ours.get(name, "nothing"))
        for name in dict.fromkeys([*ours, *theirs])
    ]
    found = [
        f"{what}: the actor has {shown(str(actor))}, the learner has {learner}"
        for what, actor, learner in pairs
        if actor != learner
    ]
    if not found and list(theirs) != list(ours):
        found.append(f"order of tensors: the actor has {[*theirs]}, the learner has {[*ours]}")
    return found


def _spec_as_sent(message: impala_pb2.TensorSpec) -> TensorSpec:
    """Keeps unknown dtypes, so that the refusal can name them."""
    return TensorSpec(message.name, tuple(message.shape), message.dtype)
