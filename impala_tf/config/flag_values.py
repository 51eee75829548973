"""The values of all flags together: by name, as a command line, as JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from impala_tf.config.flags import Config


def flat_items(config: Config) -> Iterator[tuple[str, Any]]:
    """Yields (flag name, value) of every flag. No name is in two groups."""
    for group in dataclasses.fields(config):
        values = getattr(config, group.name)
        for field in dataclasses.fields(values):
            yield field.name, getattr(values, field.name)


def replace(config: Config, **flags: Any) -> Config:
    """Returns `config` with the named flags changed, whichever group they are in."""
    groups = {}
    for group in dataclasses.fields(config):
        values = getattr(config, group.name)
        mine = {f.name: flags.pop(f.name) for f in dataclasses.fields(values) if f.name in flags}
        groups[group.name] = dataclasses.replace(values, **mine)
    if flags:
        raise TypeError(f"no such flags: {', '.join(flags)}")
    return Config(**groups)


def to_flags(config: Config) -> list[str]:
    """Returns the command line that gives `config` back: every flag that is not at its default."""
    defaults = dict(flat_items(Config()))
    flags = []
    for name, value in flat_items(config):
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no_{name}")
        elif isinstance(value, (tuple, list)):
            flags += [f"--{name}={each}" for each in value]
        else:
            flags.append(f"--{name}={value}")
    return flags


def to_dict(config: Config) -> dict[str, Any]:
    """Returns {flag: value}, JSON-ready."""
    return dict(flat_items(config))


def hosts(text: str) -> tuple[str, ...]:
    """Splits a comma-separated flag such as --learner_hosts; '' gives ()."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def waits_for_updates(config: Config) -> bool:
    """Returns whether actors wait for the update that uses their last unroll."""
    return config.loss.algorithm == "ppo" or config.process.synchronization != "none"


def actors_use_tensorflow(config: Config) -> bool:
    """Returns whether actors of a resolved config import TensorFlow."""
    return config.process.inference == "actor" and config.process.acting == "tensorflow"


def wire_digest(config: Config) -> str:
    """Returns a short digest of the flags that actor and learner must share.

    These are the level's protocol, the agent with its inputs, the unroll length, and what
    processes wait for; for a3c, also whatever changes gradients. The handshake compares it.
    """
    shared = {
        **dataclasses.asdict(config.environment),
        "agent_name": config.agent.agent_name,
        "width_scale": config.agent.width_scale,
        "core": config.agent.core,
        "heads": config.agent.heads,
        "observation_normalization": config.agent.observation_normalization,
        "algorithm": config.loss.algorithm,
        "unroll_length": config.optimizer.unroll_length,
        "inference": config.process.inference,
        "synchronization": config.process.synchronization,
    }
    if config.loss.algorithm == "a3c":
        of_actors = {"envs_per_actor": config.process.envs_per_actor}
        shared = {**shared, **dataclasses.asdict(config.loss), **of_actors}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]
