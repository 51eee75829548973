"""The handshake: what a learner and its actors must agree on before they exchange data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from impala_tf.transport import impala_pb2
from impala_tf.transport.codec import TensorSpec
from impala_tf.types import Unroll

PROTOCOL_VERSION = 4


class RunIdentity(NamedTuple):
    """What a learner requires of its actors; the same after a restart of the learner."""

    protocol_version: int  # PROTOCOL_VERSION
    run_id: str  # random, made once per run
    config_digest: str  # impala_tf.config.wire_digest
    unroll_specs: Unroll  # of (shape, dtype), without the leading N
    parameter_specs: Sequence[tuple[str, tuple[int, ...], str]]  # (name, shape, dtype)


def spec_messages(specs: Sequence[TensorSpec]) -> list[impala_pb2.TensorSpec]:
    """Returns specs as messages."""
    return [impala_pb2.TensorSpec(name=s.name, shape=s.shape, dtype=s.dtype) for s in specs]


def specs_from_messages(messages: Sequence[impala_pb2.TensorSpec]) -> list[TensorSpec]:
    """Returns messages as specs; ValueError names one whose dtype cannot be sent."""
    return [TensorSpec.of(m.name, tuple(m.shape), m.dtype) for m in messages]


def mismatches(
    request: impala_pb2.HandshakeRequest, run: RunIdentity, unroll_specs: Sequence[TensorSpec]
) -> list[str]:
    """Returns one phrase for each difference, naming both sides; [] if the actor fits."""
    pairs = [
        ("protocol version", request.protocol_version, run.protocol_version),
        ("config digest", request.config_digest, run.config_digest),
    ]
    if request.run_id:  # an actor learns it from the first reply
        pairs.append(("run", request.run_id, run.run_id))
    theirs = {spec.name: str(spec) for spec in map(_spec_as_sent, request.unroll_specs)}
    ours = {spec.name: str(spec) for spec in unroll_specs}
    pairs += [
        (f"tensor {name}", theirs.get(name, "nothing"), ours.get(name, "nothing"))
        for name in dict.fromkeys([*ours, *theirs])
    ]
    found = [
        f"{what}: the actor has {actor}, the learner has {learner}"
        for what, actor, learner in pairs
        if actor != learner
    ]
    if not found and list(theirs) != list(ours):
        found.append(f"order of tensors: the actor has {[*theirs]}, the learner has {[*ours]}")
    return found


def _spec_as_sent(message: impala_pb2.TensorSpec) -> TensorSpec:
    """Keeps unknown dtypes, so that the refusal can name them."""
    return TensorSpec(message.name, tuple(message.shape), message.dtype)
