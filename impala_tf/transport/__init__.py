"""Unrolls from actors to a learner, parameters back: gRPC over mutual TLS. Nothing is pickled.

What an actor says, and what its learner answers (impala.proto describes each message):

    Handshake(name, session, specs)  ->  OK, REFUSED with the reason, or MOVED to another learner
    Attend                           ->  stays open: while it is, the name is taken
    GetParameters(sequence 7)        ->  WAIT while enough actors act; then parameters and a grant
    PushUnroll(7, tensors)           ->  OK: it is in the queue; REFUSED, STALE: it is not used

A call without an answer is retried. No unroll counts twice, because its retries have its number:

    PushUnroll(8, tensors)           ->  taken, but the answer is lost
    PushUnroll(8, asks)              ->  DUPLICATE: it is here; the next one is 9
    PushUnroll(9, tensors)           ->  lost on the way
    PushUnroll(9, asks)              ->  SEND: it is not here, and there is room
    PushUnroll(9, tensors)           ->  OK

A restarted learner knows no session. It answers FAILED_PRECONDITION, and the actor does another
Handshake before it retries. Unrolls that were in the learner's queue before that are lost.
"""

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
    RefusedVersion,
    RunOver,
    StaleUnroll,
    TransportError,
    kind_of,
)
from impala_tf.transport.grants import GrantLimit, Grants
from impala_tf.transport.handshake import (
    PROTOCOL_VERSION,
    RunTerms,
    check_parameters,
    max_environments,
)
from impala_tf.transport.inference import Infer
from impala_tf.transport.parameter_store import ParameterStore, Snapshot
from impala_tf.transport.pushes import Pushes, PushReport
from impala_tf.transport.quantization import Parameter, Quantized, quantize
from impala_tf.transport.route import Route, preferred
from impala_tf.transport.server import LearnerServer
from impala_tf.transport.service import LearnerService, Networks
from impala_tf.transport.sessions import ActorView, Sessions
