"""How the flags that are not given get their values: from the preset, other flags, the machine."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

from impala_tf.config import presets
from impala_tf.config.algorithms import algorithm
from impala_tf.config.compositions import composition
from impala_tf.config.flag_values import (
    Given,
    actors_wait,
    replace,
    to_dict,
    waits_for_updates,
)
from impala_tf.config.flags import Config
from impala_tf.config.plug_ins import split
from impala_tf.config.this_machine import cores_here
from impala_tf.types import Kind

KL_RANGE = 10.0
"""The most that --learning_rate_schedule=kl may divide the learning rate by."""
_LONGEST_NAME = 100  # file systems allow 255 bytes
_LOOPBACK = ("127.", "localhost:", "[::1]:")
_GRADIENTS = 2  # in the queue: each is as large as all parameters, and soon stale
_MEASURED_ACTORS = 2  # the defaults were measured with them, see sandbox/vectors.md
_STEPS_OF_A_PART = 128  # measured: with 32, an update takes 1.4 times as long
# {the flag with a schedule's end: the flag with its start}.
_SCHEDULES = {"learning_rate_end": "learning_rate", "entropy_cost_end": "entropy_cost"}


def resolve(given: Given, kind: Kind, continuous: bool = False) -> Config:
    """Returns a run's config on a kind of level: the given flags, and values for the others."""
    everything = given.everything()
    preset = presets.values(
        given["preset"], kind, given["algorithm"], continuous, _actors_of_a_learner(everything)
    )
    flags: dict[str, Any] = {
        name: preset.get(name) if value is None else value for name, value in everything.items()
    }
    flags.update(_ends(given, preset, flags))
    flags["core"] = composition(flags["agent_name"]).with_core(flags["core"]).core
    flags["num_actors"] = flags["num_actors"] or cores_here()
    waits = flags["synchronization"] != "none" and given["batch_size"] is None
    record = algorithm(flags["algorithm"])
    of_one = record.actors_send == "gradients"
    if waits or flags["batch_size"] is None:
        senders = 1 if of_one else _actors_of_a_learner(flags)
        flags["batch_size"] = senders * flags["envs_per_actor"]
    if given["minibatches"] is None and record.estimates_once:
        flags["minibatches"] = _minibatches(flags)
    if given["n_step"] is None and record.replays:
        flags["n_step"] = min(flags["n_step"], flags["unroll_length"])
    if flags["schedule_frames"] is None:
        flags["schedule_frames"] = flags["total_environment_frames"]
    if flags["logdir"] is None:  # the folder's name has what tells runs apart
        names = [slug(flags[name]) for name in ("level_name", "agent_name", "algorithm")]
        flags["logdir"] = f"runs/{'-'.join(names)}-{flags['seed']}"
    return replace(Config(), **flags)


def _ends(
    given: Given, preset: Mapping[str, Any], flags: Mapping[str, Any]
) -> dict[str, float | None]:
    """Returns the last values of the schedules for which none is given."""
    ends: dict[str, float | None] = {}
    for end, start in _SCHEDULES.items():
        if given[end] is None and preset[end] == preset[start]:
            ends[end] = flags[start]
        elif given[end] is None and preset[start]:
            ends[end] = flags[start] * (preset[end] / preset[start])
    # A constant preset ends where it starts: with that end, "linear" would be constant, too.
    is_constant = flags["learning_rate_schedule"] == "constant"
    was_constant = preset["learning_rate_schedule"] == "constant"
    if was_constant and not is_constant and "learning_rate_end" in ends:
        ends["learning_rate_end"] = 0.0
    return ends


def sources(config: Config, kind: Kind, continuous: bool = False) -> dict[str, str]:
    """Returns {flag: "given", or "default" if its value follows from other flags and the level}.

    A given flag that changes nothing does not count as given.
    """
    values, everything = to_dict(config), Given.of(config)

    def is_given(name: str) -> bool:
        otherwise = resolve(everything.without(name), kind, continuous)
        return bool(to_dict(otherwise)[name] != values[name])

    return {name: "given" if is_given(name) else "default" for name in values}


def sent_per_push(config: Config) -> int:
    """Returns how many unrolls an actor sends at once; 1 if it sends a gradient."""
    return 1 if _sends_gradients(config) else config.process.envs_per_actor


def sent_per_batch(config: Config) -> int:
    """Returns how many unrolls make a batch; 1 if actors send gradients."""
    return 1 if _sends_gradients(config) else config.optimizer.batch_size


def queue_capacity(config: Config) -> int:
    """Returns how many unrolls, or gradients of a3c, a learner's queue holds."""
    if _sends_gradients(config):
        return _GRADIENTS
    return max(config.optimizer.batch_size, config.process.envs_per_actor)


def learner_threads(config: Config) -> int:
    """Returns how many threads this learner uses for an operation, on this machine."""
    process, cores = config.process, cores_here()
    agent = composition(config.agent.agent_name).with_core(config.agent.core)
    address = dict(enumerate(split(process.learner_hosts))).get(process.task, "")
    # Fewer threads were measured to help only beside busy actors, with these networks and uses.
    beside_actors = (
        address.startswith(_LOOPBACK)
        and process.num_actors >= cores
        and process.inference == "actor"
        and not waits_for_updates(config)
    )
    measured = config.loss.algorithm == "appo" and config.agent.width_scale == 1
    shares = beside_actors and measured and agent.learns_as_fast_as_it_acts
    return max(1, cores // 2) if shares else cores


def _sends_gradients(config: Config) -> bool:
    return algorithm(config.loss.algorithm).actors_send == "gradients"


def slug(level_name: str) -> str:
    """Returns a name, such as a level's, as a folder's name: 'ALE/Pong-v5' -> 'ALE-Pong-v5'."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", level_name).strip("-")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{zlib.crc32(level_name.encode()):08x}"


def micro_batches(config: Config) -> int:
    """Returns into how many parts, up to 4, a batch is split if its activations take much memory.

    The gradients of the parts are computed one after another and added up. A part has enough steps
    for its operations to take longer than starting them does.
    """
    is_deep = composition(config.agent.agent_name).torso.is_residual
    record, optimizer = algorithm(config.loss.algorithm), config.optimizer
    splits = record.splits_batches and not record.estimates_once
    # --advantage_scaling=batch needs the whole batch: a part would be scaled by its own advantages.
    if not is_deep or not splits or config.loss.advantage_scaling == "batch":
        return 1
    most = max(1, min(4, optimizer.batch_size * optimizer.unroll_length // _STEPS_OF_A_PART))
    return max(parts for parts in range(1, most + 1) if optimizer.batch_size % parts == 0)


def _minibatches(flags: Mapping[str, Any]) -> int:
    """Returns how many parts a batch is split into: none is larger than in the measurements.

    Where actors wait, the batch grows with their number; so must the parts, or many actors would
    mean far fewer gradient steps for each frame.
    """
    measured: int = flags["minibatches"]
    batch_size: int = flags["batch_size"]  # the most parts of whole unrolls
    if not actors_wait(flags["algorithm"], flags["synchronization"]):
        return min(measured, batch_size)
    unrolls = _MEASURED_ACTORS * flags["envs_per_actor"]
    parts = -(-measured * batch_size // unrolls)
    return min(max(measured, parts), batch_size)


def _actors_of_a_learner(flags: Mapping[str, Any]) -> int:
    actors = len(split(flags["actor_hosts"])) or flags["num_actors"] or cores_here()
    learners = len(split(flags["learner_hosts"])) or 1
    return max(1, int(actors) // learners)


def linear(start: float, end: float, frames: int, last_frame: int) -> float:
    """Returns a value that goes linearly from `start` at frame 0 to `end` at `last_frame`."""
    return end + (start - end) * max(0.0, 1.0 - frames / last_frame)


def schedule_line(config: Config) -> str:
    """Returns what changes over a run, and until when, in words."""
    optimizer, loss = config.optimizer, config.loss
    is_constant = optimizer.learning_rate_schedule == "constant"
    last_rate = optimizer.learning_rate if is_constant else optimizer.learning_rate_end
    changes = [
        f"{what} goes from {start:g} to {end:g}"
        for what, start, end in (
            ("the learning rate", optimizer.learning_rate, last_rate),
            ("the entropy cost", loss.entropy_cost, loss.entropy_cost_end),
        )
        if start != end
    ]
    if not changes:
        return "learning rate and entropy cost are constant"
    return f"{' and '.join(changes)} at {config.run.schedule_frames:,} frames (--schedule_frames)"
