"""What goes over the wire: gRPC's options, with their reasons, and the handshake.

In the handshake, a learner and an actor make sure that they agree before they exchange data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from impala_tf.printable import printable
from impala_tf.transport import impala_pb2
from impala_tf.transport.codec import NamedSpec
from impala_tf.transport.failures import HandshakeRefused
from impala_tf.types import Nest

PROTOCOL_VERSION = 22

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
SERVICE, METHOD = "impala.Learner", "Act"

# 64 Atari environments of unroll length 100 send 45 MB. Longer messages of actors than this are
# sent in parts, so that others wait for one part at most.
PART_BYTES = 2**20
MAX_RECEIVED_BYTES = PART_BYTES + 2**10

PING_S = 20.0
"""Seconds between a learner's signs of life on each stream."""
SILENT_S = 60.0
"""After this many seconds without one, an actor calls again. Longer than parameters take."""

_COMMON = [
    ("grpc.max_send_message_length", -1),  # parameters may have hundreds of MB
    # A crashed machine does not close its connections. So ping after 20 s without data, even during
    # a push that waits, and give up 15 s later.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.http2.ping_timeout_ms", 15_000),  # without this, an answer may take a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # 0: no limit
]

SERVER_OPTIONS = [
    *_COMMON,
    ("grpc.max_receive_message_length", MAX_RECEIVED_BYTES),
    ("grpc.so_reuseport", 0),  # a second learner on the same port must fail, not share it
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # permits the actors' pings
    ("grpc.max_concurrent_streams", 4),  # an actor has one, or two while it calls again
    # Soon drop clients that connect without a certificate. gRPC's default is 2 minutes.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Refuse compressed messages: a small one might unpack to a huge one.
    ("grpc.compression_enabled_algorithms_bitset", 1),
]

CHANNEL_OPTIONS = [
    *_COMMON,
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # connect to learners directly, whatever http_proxy says
]


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


def show(text: str, longest: int = 80) -> str:
    """Returns the start of a text from an actor, made safe for logs and terminals."""
    return printable(text[:longest])
