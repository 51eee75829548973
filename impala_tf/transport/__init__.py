"""Sends unrolls from actors to a learner, and parameters back: gRPC over mutual TLS, no pickling.

An actor's calls and its learner's answers (impala.proto describes each message):

    Handshake(name, session, specs)  ->  OK, REFUSED with the reason, or MOVED to another learner
    Attend                           ->  stays open; meanwhile the name is taken
    GetParameters(sequence 7)        ->  WAIT while enough actors act; then parameters and a grant
    PushUnroll(7, tensors)           ->  OK: it is in the queue; REFUSED, STALE: it is not used

A call without an answer is retried. No unroll counts twice, because retries repeat its number:

    PushUnroll(8, tensors)           ->  it is in the queue, but the answer is lost
    PushUnroll(8, tensors)           ->  DUPLICATE: the learner has it; the next one is 9

A restarted learner knows no sessions. It answers FAILED_PRECONDITION, and the actor repeats the
Handshake before it retries. Unrolls in the queue of the learner that was restarted are lost.
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
from impala_tf.transport.parameter_store import ParameterStore, Snapshot
from impala_tf.transport.pushes import Pushes, PushReport
from impala_tf.transport.route import Route, preferred
from impala_tf.transport.server import LearnerServer
from impala_tf.transport.service import Infer, LearnerService, Networks
from impala_tf.transport.sessions import ActorView, Sessions
