"""The options of the actors' streams in gRPC, and the sizes of messages, with their reasons."""

from __future__ import annotations

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
