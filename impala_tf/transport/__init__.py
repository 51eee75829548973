"""Unrolls from actors to a learner, parameters back: gRPC over mutual TLS. Nothing is pickled."""

from impala_tf.transport.client import ActorClient
from impala_tf.transport.codec import NestCodec, TensorSpec
from impala_tf.transport.errors import (
    ClientClosed,
    DecodeError,
    HandshakeRefused,
    NoNetwork,
    QueueClosed,
    RefusedUnroll,
    RunOver,
    StaleUnroll,
    TransportError,
)
from impala_tf.transport.grants import GrantLimit, Grants
from impala_tf.transport.handshake import PROTOCOL_VERSION, RunIdentity, Start, max_environments
from impala_tf.transport.inference import Infer
from impala_tf.transport.parameter_store import ParameterStore, Snapshot
from impala_tf.transport.pushes import PushReport
from impala_tf.transport.retry import RetryTimes
from impala_tf.transport.server import LearnerServer
from impala_tf.transport.service import LearnerService, Networks
from impala_tf.transport.sessions import ActorView, Sessions

__all__ = [
    "PROTOCOL_VERSION",
    "ActorClient",
    "ActorView",
    "ClientClosed",
    "DecodeError",
    "GrantLimit",
    "Grants",
    "HandshakeRefused",
    "Infer",
    "LearnerServer",
    "LearnerService",
    "NestCodec",
    "Networks",
    "NoNetwork",
    "ParameterStore",
    "PushReport",
    "QueueClosed",
    "RefusedUnroll",
    "RetryTimes",
    "RunIdentity",
    "RunOver",
    "Sessions",
    "Snapshot",
    "Start",
    "StaleUnroll",
    "TensorSpec",
    "TransportError",
    "max_environments",
]
