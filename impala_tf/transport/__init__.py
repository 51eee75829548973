"""Sends unrolls from actors to a learner, and parameters back: gRPC over mutual TLS, no pickling.

Each actor has one stream to its learner (impala.proto describes the messages):

    hello(name, session, specs)   ->  welcome; or refused with the reason, or moved elsewhere
    parameters(for push 7)        ->  parameters, once the learner can use another unroll
    push(7, tensors)              ->  it is in the queue; or why it is not used
                                  <-  ping, over

While the stream is open, the actor is present and its name is taken. After a broken one it opens
another, and repeats its hello and its open requests. No unroll counts twice, as a push keeps its
number:

    push(8, tensors)              ->  it is in the queue, but the stream breaks
    hello(...), push(8, tensors)  ->  welcome; a duplicate, and the next one is 9

A restarted learner knows no sessions; unrolls in the queue of the learner before it are lost.
"""

from impala_tf.transport.client import ActorClient
from impala_tf.transport.codec import NamedSpec, NestCodec
from impala_tf.transport.failures import (
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
)
from impala_tf.transport.grants import GrantLimit, Grants
from impala_tf.transport.parameter_store import ParameterStore, Snapshot
from impala_tf.transport.pushes import Pushes
from impala_tf.transport.route import Route, order_learners
from impala_tf.transport.server import LearnerServer
from impala_tf.transport.service import Infer, LearnerService, Networks
from impala_tf.transport.sessions import Session, Sessions
from impala_tf.transport.wire import PROTOCOL_VERSION, RunTerms
