from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromActor(_message.Message):
    __slots__ = ("hello", "parameters", "push", "infer", "network", "trouble", "pong", "part")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    parameters: ParametersRequest
    push: PushRequest
    infer: InferRequest
    network: NetworkRequest
    trouble: str
    pong: bool
    part: Part
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., parameters: _Optional[_Union[ParametersRequest, _Mapping]] = ..., push: _Optional[_Union[PushRequest, _Mapping]] = ..., infer: _Optional[_Union[InferRequest, _Mapping]] = ..., network: _Optional[_Union[NetworkRequest, _Mapping]] = ..., trouble: _Optional[str] = ..., pong: bool = ..., part: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class FromLearner(_message.Message):
    __slots__ = ("welcome", "parameters", "push", "infer", "network", "ping", "refused", "moved", "over")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    parameters: ParametersReply
    push: PushReply
    infer: InferReply
    network: NetworkReply
    ping: bool
    refused: str
    moved: int
    over: bool
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., parameters: _Optional[_Union[ParametersReply, _Mapping]] = ..., push: _Optional[_Union[PushReply, _Mapping]] = ..., infer: _Optional[_Union[InferReply, _Mapping]] = ..., network: _Optional[_Union[NetworkReply, _Mapping]] = ..., ping: bool = ..., refused: _Optional[str] = ..., moved: _Optional[int] = ..., over: bool = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("data", "last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    def __init__(self, data: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "shape", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
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

class Welcome(_message.Message):
    __slots__ = ("run_id", "parameter_specs", "run_steps", "restarts", "level")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SPECS_FIELD_NUMBER: _ClassVar[int]
    RUN_STEPS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    parameter_specs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    run_steps: int
    restarts: int
    level: str
    def __init__(self, run_id: _Optional[str] = ..., parameter_specs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., run_steps: _Optional[int] = ..., restarts: _Optional[int] = ..., level: _Optional[str] = ...) -> None: ...

class ParametersRequest(_message.Message):
    __slots__ = ("known_version", "sequence", "used")
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    known_version: int
    sequence: int
    used: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, known_version: _Optional[int] = ..., sequence: _Optional[int] = ..., used: _Optional[_Iterable[int]] = ...) -> None: ...

class ParametersReply(_message.Message):
    __slots__ = ("parameter_version", "tensors", "unchanged")
    PARAMETER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    parameter_version: int
    tensors: _containers.RepeatedScalarFieldContainer[bytes]
    unchanged: bool
    def __init__(self, parameter_version: _Optional[int] = ..., tensors: _Optional[_Iterable[bytes]] = ..., unchanged: bool = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("sequence", "num_environments", "tensors", "episode_returns", "episode_lengths", "episode_levels", "episode_infos", "agent_steps_per_s", "environment_fraction", "inference_fraction", "environment_restarts", "push_wait_fraction", "memory_mb", "blocked_s")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_RETURNS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_LEVELS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_INFOS_FIELD_NUMBER: _ClassVar[int]
    AGENT_STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PUSH_WAIT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_S_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    num_environments: int
    tensors: _containers.RepeatedScalarFieldContainer[bytes]
    episode_returns: _containers.RepeatedScalarFieldContainer[float]
    episode_lengths: _containers.RepeatedScalarFieldContainer[int]
    episode_levels: _containers.RepeatedScalarFieldContainer[int]
    episode_infos: _containers.RepeatedScalarFieldContainer[float]
    agent_steps_per_s: float
    environment_fraction: float
    inference_fraction: float
    environment_restarts: int
    push_wait_fraction: float
    memory_mb: float
    blocked_s: float
    def __init__(self, sequence: _Optional[int] = ..., num_environments: _Optional[int] = ..., tensors: _Optional[_Iterable[bytes]] = ..., episode_returns: _Optional[_Iterable[float]] = ..., episode_lengths: _Optional[_Iterable[int]] = ..., episode_levels: _Optional[_Iterable[int]] = ..., episode_infos: _Optional[_Iterable[float]] = ..., agent_steps_per_s: _Optional[float] = ..., environment_fraction: _Optional[float] = ..., inference_fraction: _Optional[float] = ..., environment_restarts: _Optional[int] = ..., push_wait_fraction: _Optional[float] = ..., memory_mb: _Optional[float] = ..., blocked_s: _Optional[float] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("duplicate", "unused")
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    UNUSED_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    unused: str
    def __init__(self, duplicate: bool = ..., unused: _Optional[str] = ...) -> None: ...

class NetworkRequest(_message.Message):
    __slots__ = ("num_environments",)
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    num_environments: int
    def __init__(self, num_environments: _Optional[int] = ...) -> None: ...

class NetworkReply(_message.Message):
    __slots__ = ("network", "none")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    network: bytes
    none: str
    def __init__(self, network: _Optional[bytes] = ..., none: _Optional[str] = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ("num_environments", "tensors", "known_version")
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    num_environments: int
    tensors: _containers.RepeatedScalarFieldContainer[bytes]
    known_version: int
    def __init__(self, num_environments: _Optional[int] = ..., tensors: _Optional[_Iterable[bytes]] = ..., known_version: _Optional[int] = ...) -> None: ...

class InferReply(_message.Message):
    __slots__ = ("parameter_version", "tensors")
    PARAMETER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    parameter_version: int
    tensors: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, parameter_version: _Optional[int] = ..., tensors: _Optional[_Iterable[bytes]] = ...) -> None: ...
