"""Unrolls from actors to a learner, parameters back: gRPC over mutual TLS. Nothing is pickled."""

from impala_tf.transport.backoff import RetryTimes
from impala_tf.transport.client import ActorClient
from impala_tf.transport.codec import NamedSpec, NestCodec
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
from impala_tf.transport.handshake import PROTOCOL_VERSION, RunTerms, max_environments
from impala_tf.transport.inference import Infer
from impala_tf.transport.parameter_store import ParameterStore, Snapshot
from impala_tf.transport.pushes import Pushes, PushReport
from impala_tf.transport.quantization import Parameter, Quantized, quantize
from impala_tf.transport.route import Route, preferred
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
    "NamedSpec",
    "NestCodec",
    "Networks",
    "NoNetwork",
    "Parameter",
    "ParameterStore",
    "PushReport",
    "Pushes",
    "Quantized",
    "QueueClosed",
    "RefusedUnroll",
    "RetryTimes",
    "Route",
    "RunOver",
    "RunTerms",
    "Sessions",
    "Snapshot",
    "StaleUnroll",
    "TransportError",
    "max_environments",
    "quantize",
    "preferred",
]
