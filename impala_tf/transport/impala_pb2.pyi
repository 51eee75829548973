from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNSPECIFIED: _ClassVar[Outcome]
    OK: _ClassVar[Outcome]
    DUPLICATE: _ClassVar[Outcome]
    UNCHANGED: _ClassVar[Outcome]
    REFUSED: _ClassVar[Outcome]
    RUN_OVER: _ClassVar[Outcome]
    WAIT: _ClassVar[Outcome]
    STALE: _ClassVar[Outcome]
    MOVED: _ClassVar[Outcome]
UNSPECIFIED: Outcome
OK: Outcome
DUPLICATE: Outcome
UNCHANGED: Outcome
REFUSED: Outcome
RUN_OVER: Outcome
WAIT: Outcome
STALE: Outcome
MOVED: Outcome

class TensorSpec(_message.Message):
    __slots__ = ("name", "shape", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("actor_id", "session", "run_id", "protocol_version", "config_digest", "unroll_specs", "num_environments", "learners")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    UNROLL_SPECS_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    session: int
    run_id: str
    protocol_version: int
    config_digest: str
    unroll_specs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    num_environments: int
    learners: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, actor_id: _Optional[str] = ..., session: _Optional[int] = ..., run_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., config_digest: _Optional[str] = ..., unroll_specs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., num_environments: _Optional[int] = ..., learners: _Optional[_Iterable[int]] = ...) -> None: ...

class HandshakeReply(_message.Message):
    __slots__ = ("outcome", "message", "run_id", "parameter_specs", "run_steps", "restarts", "learner")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SPECS_FIELD_NUMBER: _ClassVar[int]
    RUN_STEPS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    message: str
    run_id: str
    parameter_specs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    run_steps: int
    restarts: int
    learner: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., message: _Optional[str] = ..., run_id: _Optional[str] = ..., parameter_specs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., run_steps: _Optional[int] = ..., restarts: _Optional[int] = ..., learner: _Optional[int] = ...) -> None: ...

class PushUnrollRequest(_message.Message):
    __slots__ = ("actor_id", "session", "run_id", "sequence", "num_environments", "tensors", "episode_returns", "episode_lengths", "agent_steps_per_s", "environment_fraction", "inference_fraction", "environment_restarts", "push_wait_fraction", "episode_levels", "episode_infos", "memory_mb", "blocked_s")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_RETURNS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    AGENT_STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PUSH_WAIT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    EPISODE_LEVELS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_INFOS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_S_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    session: int
    run_id: str
    sequence: int
    num_environments: int
    tensors: _containers.RepeatedScalarFieldContainer[bytes]
    episode_returns: _containers.RepeatedScalarFieldContainer[float]
    episode_lengths: _containers.RepeatedScalarFieldContainer[int]
    agent_steps_per_s: float
    environment_fraction: float
    inference_fraction: float
    environment_restarts: int
    push_wait_fraction: float
    episode_levels: _containers.RepeatedScalarFieldContainer[int]
    episode_infos: _containers.RepeatedScalarFieldContainer[float]
    memory_mb: float
    blocked_s: float
    def __init__(self, actor_id: _Optional[str] = ..., session: _Optional[int] = ..., run_id: _Optional[str] = ..., sequence: _Optional[int] = ..., num_environments: _Optional[int] = ..., tensors: _Optional[_Iterable[bytes]] = ..., episode_returns: _Optional[_Iterable[float]] = ..., episode_lengths: _Optional[_Iterable[int]] = ..., agent_steps_per_s: _Optional[float] = ..., environment_fraction: _Optional[float] = ..., inference_fraction: _Optional[float] = ..., environment_restarts: _Optional[int] = ..., push_wait_fraction: _Optional[float] = ..., episode_levels: _Optional[_Iterable[int]] = ..., episode_infos: _Optional[_Iterable[float]] = ..., memory_mb: _Optional[float] = ..., blocked_s: _Optional[float] = ...) -> None: ...

class PushUnrollReply(_message.Message):
    __slots__ = ("outcome", "message")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    message: str
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., message: _Optional[str] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("actor_id", "session", "run_id")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    session: int
    run_id: str
    def __init__(self, actor_id: _Optional[str] = ..., session: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...

class AttendReply(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("actor_id", "session", "run_id", "trouble")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    session: int
    run_id: str
    trouble: str
    def __init__(self, actor_id: _Optional[str] = ..., session: _Optional[int] = ..., run_id: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ...) -> None: ...

class GetParametersRequest(_message.Message):
    __slots__ = ("actor_id", "session", "run_id", "known_version", "sequence", "used")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    session: int
    run_id: str
    known_version: int
    sequence: int
    used: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, actor_id: _Optional[str] = ..., session: _Optional[int] = ..., run_id: _Optional[str] = ..., known_version: _Optional[int] = ..., sequence: _Optional[int] = ..., used: _Optional[_Iterable[int]] = ...) -> None: ...

class GetNetworkRequest(_message.Message):
    __slots__ = ("actor_id", "session", "run_id", "num_environments")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    session: int
    run_id: str
    num_environments: int
    def __init__(self, actor_id: _Optional[str] = ..., session: _Optional[int] = ..., run_id: _Optional[str] = ..., num_environments: _Optional[int] = ...) -> None: ...

class GetNetworkReply(_message.Message):
    __slots__ = ("outcome", "message", "network")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    message: str
    network: bytes
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., message: _Optional[str] = ..., network: _Optional[bytes] = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ("actor_id", "session", "run_id", "num_environments", "tensors", "known_version")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    session: int
    run_id: str
    num_environments: int
    tensors: _containers.RepeatedScalarFieldContainer[bytes]
    known_version: int
    def __init__(self, actor_id: _Optional[str] = ..., session: _Optional[int] = ..., run_id: _Optional[str] = ..., num_environments: _Optional[int] = ..., tensors: _Optional[_Iterable[bytes]] = ..., known_version: _Optional[int] = ...) -> None: ...

class InferReply(_message.Message):
    __slots__ = ("outcome", "parameter_version", "tensors")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    parameter_version: int
    tensors: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., parameter_version: _Optional[int] = ..., tensors: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetParametersReply(_message.Message):
    __slots__ = ("outcome", "parameter_version", "tensors")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    parameter_version: int
    tensors: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., parameter_version: _Optional[int] = ..., tensors: _Optional[_Iterable[bytes]] = ...) -> None: ...
