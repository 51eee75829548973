"""The values of all flags together: as they were given, and as a run uses them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from impala_tf.config import plug_ins
from impala_tf.config.algorithms import ALGORITHMS, algorithm
from impala_tf.config.flags import ClusterConfig, Config, EnvironmentConfig
from impala_tf.config.mode_flags import EvaluationConfig

Group = TypeVar("Group")


def to_dict(config: Config) -> dict[str, Any]:
    """Returns {flag: value} of every flag, JSON-ready. No name is in two groups."""
    groups = [getattr(config, group.name) for group in dataclasses.fields(config)]
    return {
        field.name: getattr(group, field.name)
        for group in groups
        for field in dataclasses.fields(group)
    }


BUILT_IN: Mapping[str, Any] = to_dict(Config())
"""{flag: default}; None if it depends on other flags, or stands for "none"."""
ENGINES = tuple(
    name for name in typing.get_args(typing.get_type_hints(ClusterConfig)["engine"]) if name
)
"""The values of --engine."""
ENGINE_FLAGS = tuple(name for name in BUILT_IN if name.partition("_")[0] in ("engine", *ENGINES))
"""The flags for the machine that submits a run to an engine: the run's processes get none of them.
The flags of one engine begin with its name."""
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    # Mnih et al. (2015, 2016), and the IMPALA paper: the built-in defaults.
    "classic": {},
    # Machado et al. (2018, arXiv 1709.06009), with the game's minimal actions as in Dopamine.
    "sticky": {
        "repeat_action_probability": 0.25,
        "noop_max": 0,
        "terminal_on_life_loss": False,
    },
}
"""--protocol: {name: {flag: default}}, for the flags of Atari and retro games that belong
together."""


@dataclasses.dataclass(frozen=True)
class Given:
    """The flags that somebody gave, in a command line or a file. `resolve` fills in the others.

    Args:
      flags: {flag: value}; None asks for a value that follows from the other flags.

    Raises:
      TypeError: there is no such flag.
    """

    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := self.flags.keys() - BUILT_IN.keys():
            raise TypeError(f"no such flags: {', '.join(sorted(unknown))}")

    @classmethod
    def of(cls, config: Config) -> Given:
        """Returns all flags of a config as given flags."""
        return cls(to_dict(config))

    def __contains__(self, name: str) -> bool:
        return name in self.flags

    def __getitem__(self, name: str) -> Any:
        """Returns a flag's value, or its default (see `defaults`)."""
        return self.flags[name] if name in self.flags else self.defaults[name]

    def everything(self) -> dict[str, Any]:
        """Returns {flag: value} of all flags, as `__getitem__` returns them."""
        return {**self.defaults, **self.flags}

    @property
    def defaults(self) -> Mapping[str, Any]:
        """{flag: value if it is not given}: that of `BUILT_IN`, or of --protocol."""
        # A wrong name is reported where all flags are checked; in a file, it can be of any type.
        changes = PROTOCOLS.get(str(self.flags.get("protocol", BUILT_IN["protocol"])))
        return {**BUILT_IN, **changes} if changes else BUILT_IN

    def replace(self, **flags: Any) -> Given:
        """Returns these flags with some changed or added."""
        return Given({**self.flags, **flags})

    def without(self, *names: str) -> Given:
        """Returns these flags without some, which then count as not given."""
        return Given({name: value for name, value in self.flags.items() if name not in names})

    # The groups whose defaults do not depend on other flags:

    @property
    def environment(self) -> EnvironmentConfig:
        """The level and its protocol."""
        return self._group(EnvironmentConfig)

    @property
    def cluster(self) -> ClusterConfig:
        """What a launch needs."""
        return self._group(ClusterConfig)

    @property
    def evaluation(self) -> EvaluationConfig:
        """What --mode=test needs."""
        return self._group(EvaluationConfig)

    def _group(self, group: type[Group]) -> Group:
        fields = dataclasses.fields(group)  # type: ignore[arg-type]
        return group(**{field.name: self[field.name] for field in fields})


def replace(config: Config, /, **flags: Any) -> Config:
    """Returns `config` with the named flags changed, whichever group they are in."""
    groups = {}
    for group in dataclasses.fields(config):
        values = getattr(config, group.name)
        changes = {f.name: flags.pop(f.name) for f in dataclasses.fields(values) if f.name in flags}
        groups[group.name] = dataclasses.replace(values, **changes)
    if flags:
        raise TypeError(f"no such flags: {', '.join(flags)}")
    return Config(**groups)


def to_flags(given: Given) -> list[str]:
    """Returns the words of a command line that gives these flags, except those at their default."""
    flags = []
    for name, default in given.defaults.items():
        value = given[name]
        if value == default:
            continue
        values = value if isinstance(value, (tuple, list)) else (value,)
        flags += [to_flag(name, item) for item in values]
    return flags


def to_flag(name: str, value: Any) -> str:
    """Returns a flag as it is typed."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no_{name}"
    return f"--{name}={value}"


def waits_for_updates(config: Config) -> bool:
    """Returns whether actors wait for the update that uses their last unroll."""
    waits = algorithm(config.loss.algorithm).actors_wait
    return config.process.synchronization != "none" or waits


def actors_wait(name: str | None, synchronization: str) -> bool:
    """Returns `waits_for_updates` for --algorithm (None: not given) and --synchronization."""
    if synchronization != "none":
        return True
    exists = name is not None and (name in ALGORITHMS or plug_ins.is_own(name))
    return exists and algorithm(str(name)).actors_wait


def actors_use_tensorflow(config: Config) -> bool:
    """Returns whether actors import TensorFlow."""
    acts = config.process.inference == "actor"
    return acts and algorithm(config.loss.algorithm).acting == "tensorflow"


def wire_digest(config: Config) -> str:
    """Returns a short digest of the flags that actor and learner must share.

    These are the level's protocol and its --info_metrics, the agent with its inputs, the unroll
    length, and what actors wait for; if actors send gradients, also the flags that change those.
    The handshake compares digests.
    """
    shared = {
        **dataclasses.asdict(config.environment),
        "agent_name": config.agent.agent_name,
        "width_scale": config.agent.width_scale,
        "core": config.agent.core,
        "heads": config.agent.heads,
        "layer_norm": config.agent.layer_norm,
        "observation_normalization": config.agent.observation_normalization,
        "algorithm": config.loss.algorithm,
        "unroll_length": config.optimizer.unroll_length,
        "inference": config.process.inference,
        "info_metrics": config.run.info_metrics,
        "synchronization": config.process.synchronization,
    }
    if algorithm(config.loss.algorithm).actors_send == "gradients":
        of_actors = {"envs_per_actor": config.process.envs_per_actor}
        shared = {**shared, **dataclasses.asdict(config.loss), **of_actors}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]
