"""The learner's calls in gRPC, their deadlines and options, with the reason for each number."""

from __future__ import annotations

from types import SimpleNamespace

import grpc
from google.protobuf.message_factory import GetMessageClass

from impala_tf.transport import impala_pb2

_LEARNER = impala_pb2.DESCRIPTOR.services_by_name["Learner"]
SERVICE: str = _LEARNER.full_name
METHODS: tuple[str, ...] = tuple(method.name for method in _LEARNER.methods)

DEADLINES_S = {  # except for Attend, which stays open while the actor lives
    "Handshake": 10.0,
    # A push waits while the learner's queue is full. A minute is longer than a learner pauses in
    # normal operation (compiling its first update, writing a checkpoint).
    "PushUnroll": 60.0,
    # A deep network has about 10 MB of parameters: seconds, even on a slow link that many share.
    "GetParameters": 30.0,
    # An answer may wait a minute for a lost actor, and for the learner's first compilation.
    "Infer": 150.0,
    # Converting the network takes seconds, or more while the learner compiles on a busy machine.
    "GetNetwork": 120.0,
    # A few hundred bytes; only a busy learner's machine takes long.
    "Report": 5.0,
}

# 64 Atari environments of unroll length 100 send 45 MB; gRPC's own limit is 4 MB.
MAX_MESSAGE_BYTES = 256 * 2**20
MAX_UNROLL_BYTES = 240 * 2**20  # the rest is for episodes
MAX_PARAMETER_BYTES = 255 * 2**20  # the rest is for the lengths of many small tensors
# For all messages except unrolls and parameters: names, and the specs of a few dozen tensors.
MAX_HANDSHAKE_BYTES = 256 * 2**10

_COMMON = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
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
    ("grpc.so_reuseport", 0),  # a second learner on the same port must fail, not share it
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # permits the actors' pings
    # An actor has one call of each kind open at most, and retries.
    ("grpc.max_concurrent_streams", 16),
    # Soon drop clients that connect without a certificate. gRPC's default is 2 minutes.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Refuse compressed messages: a small one might unpack to a huge one.
    ("grpc.compression_enabled_algorithms_bitset", 1),
]

CHANNEL_OPTIONS = [
    *_COMMON,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # gRPC's default is 2 minutes, longer than a restart takes.
    ("grpc.max_reconnect_backoff_ms", 10_000),
    ("grpc.enable_http_proxy", 0),  # connect to learners directly, whatever http_proxy says
]


def stub(channel: grpc.Channel) -> SimpleNamespace:
    """Returns a function for each call of `impala.proto`, under its name.

    The functions take a request and `timeout=` seconds, and return the reply. They raise
    grpc.RpcError if the call fails, and ValueError if the channel is closed.
    """
    return SimpleNamespace(
        **{
            method.name: channel.unary_unary(
                f"/{SERVICE}/{method.name}",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            for method in _LEARNER.methods
        }
    )
