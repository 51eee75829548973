"""The handshake: what a learner and its actors must agree on before they exchange data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from impala_tf.transport import impala_pb2
from impala_tf.transport.actor_stream import show
from impala_tf.transport.codec import NamedSpec
from impala_tf.transport.failures import HandshakeRefused
from impala_tf.types import Nest

PROTOCOL_VERSION = 22

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class RunTerms(NamedTuple):
    """What a learner requires of its actors, and tells them."""

    run_id: str  # random, made once per run
    config_digest: str  # impala_tf.config.wire_digest
    sent_specs: Nest  # specs of what actors push, without N; has a field parameter_version
    parameter_specs: Sequence[tuple[str, tuple[int, ...], str]]  # (name, shape, dtype)
    most_episodes: int  # the most that can end in a push, per environment
    max_environments: int = 4096  # the largest N of an actor
    num_levels: int = 1  # the number of levels that the agent learns
    num_infos: int = 0  # the number of --info_metrics
    run_steps: int = 0  # agent steps of the run so far, see `ActorClient.run_steps`
    level: str = "{}"  # JSON of EnvironmentSpec, whose offsets all actors subtract


def encode_specs(specs: Sequence[NamedSpec]) -> list[impala_pb2.TensorSpec]:
    """Converts specs to messages."""
    return [impala_pb2.TensorSpec(name=s.name, shape=s.shape, dtype=s.dtype) for s in specs]


def decode_specs(messages: Sequence[impala_pb2.TensorSpec]) -> list[NamedSpec]:
    """Converts messages to specs; ValueError names one whose dtype cannot be sent."""
    return [NamedSpec.of(m.name, tuple(m.shape), m.dtype) for m in messages]


def check_fits(hello: impala_pb2.Hello, terms: RunTerms, sent_specs: Sequence[NamedSpec]) -> None:
    """Raises HandshakeRefused, with both sides of each difference, if the actor does not match."""
    if not _NAME.fullmatch(hello.actor_id):
        raise HandshakeRefused(f"actor_id: expected {_NAME.pattern}, got {show(hello.actor_id)}")
    # Not NamedSpec.of, which raises on unknown dtypes: the refusal should name them.
    theirs = {
        show(m.name): show(str(NamedSpec(tuple(m.shape), m.dtype, m.name)))
        for m in hello.unroll_specs[: 10 * len(sent_specs)]
    }
    ours = {spec.name: str(spec) for spec in sent_specs}
    pairs: dict[str, tuple[object, object]] = {
        "protocol version": (hello.protocol_version, PROTOCOL_VERSION),
        "flags for level, network or unrolls, which must be the same": (
            hello.config_digest,
            terms.config_digest,
        ),
        "run": (hello.run_id or terms.run_id, terms.run_id),  # unknown before the first welcome
    }
    for name in dict.fromkeys([*ours, *theirs]):
        pairs[f"tensor {name}"] = theirs.get(name, "nothing"), ours.get(name, "nothing")
    if theirs == ours:
        pairs["order of tensors"] = [*theirs], [*ours]
    problems = [
        f"{what}: the actor has {show(str(actor))}, the learner has {learner}"
        for what, (actor, learner) in pairs.items()
        if actor != learner
    ]
    if not 1 <= hello.num_environments <= terms.max_environments:
        problems.append(
            f"--envs_per_actor: the actor has {hello.num_environments}, the learner takes 1 to"
            f" {terms.max_environments} (four times its own flag)"
        )
    if problems:
        raise HandshakeRefused("; ".join(problems)[:2000])
