"""The learner's calls on a channel. `impala.proto` says what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from impala_tf.transport import impala_pb2

SERVICE = "impala.Learner"
Call = Callable[..., Any]


class Stub:
    """Functions that take a request and `timeout=` seconds, and return the reply.

    Each raises grpc.RpcError if the call fails, and ValueError if the channel is closed.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        def call(name: str, reply: type[Message]) -> Call:
            found: Call = channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=reply.FromString,
            )
            return found

        self.Handshake = call("Handshake", impala_pb2.HandshakeReply)
        self.Attend = call("Attend", impala_pb2.AttendReply)
        self.GetParameters = call("GetParameters", impala_pb2.GetParametersReply)
        self.GetNetwork = call("GetNetwork", impala_pb2.GetNetworkReply)
        self.Infer = call("Infer", impala_pb2.InferReply)
        self.PushUnroll = call("PushUnroll", impala_pb2.PushUnrollReply)
        self.Report = call("Report", impala_pb2.ReportReply)
