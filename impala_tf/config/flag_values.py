"""The values of all flags together: as they were given, and as a run uses them."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from impala_tf.config import plug_ins
from impala_tf.config.algorithms import ALGORITHMS, algorithm
from impala_tf.config.engine_flags import EngineConfig
from impala_tf.config.flags import (
    FLAGS,
    GRADIENTS,
    RESUMED,
    WIRE,
    ClusterConfig,
    Config,
    EnvironmentConfig,
    flags_of,
)
from impala_tf.config.other_names import OTHER_NAMES
from impala_tf.types import EnvironmentSpec

Group = TypeVar("Group")
_ALIKE = 0.7
_SHORTEST_BEGINNING = 4


BUILT_IN: Mapping[str, Any] = {name: flag.default for name, flag in FLAGS.items()}
"""{flag: default}; None if it depends on other flags, or stands for "none"."""
ENGINE_FLAGS = tuple(field.name for field in dataclasses.fields(EngineConfig))
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

    None asks for a value that follows from the other flags. Raises TypeError: no such flag.
    """

    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    spec: EnvironmentSpec | None = None
    """The level's, with all flags, of a process whose parent has resolved them; else None."""

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

    def _group(self, group: type[Group]) -> Group:
        fields = dataclasses.fields(group)  # type: ignore[arg-type]
        return group(**{field.name: self[field.name] for field in fields})


def to_dict(config: Config) -> dict[str, Any]:
    """Returns {flag: value} of every flag, JSON-ready."""
    return {name: getattr(getattr(config, flag.group), name) for name, flag in FLAGS.items()}


def replace(config: Config, /, **flags: Any) -> Config:
    """Returns `config` with the named flags changed, whichever group they are in."""
    if unknown := flags.keys() - FLAGS.keys():
        raise TypeError(f"no such flags: {', '.join(sorted(unknown))}")
    changes: dict[str, dict[str, Any]] = {}
    for name, value in flags.items():
        changes.setdefault(FLAGS[name].group, {})[name] = value
    groups = {
        group: dataclasses.replace(getattr(config, group), **values)
        for group, values in changes.items()
    }
    return dataclasses.replace(config, **groups)


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


def of_text(name: str, text: str) -> Any:
    """Returns the value of a text for a flag that is no switch; raises ValueError with its name."""
    flag = FLAGS[name]
    # "auto" asks for a default, too; but a folder may have any name.
    if (flag.may_be_none and text == "None") or (
        flag.is_derived and text == "auto" and name != "logdir"
    ):
        return None
    if flag.choices and text not in flag.choices:
        raise ValueError(f"--{name}={text}: must be one of {', '.join(filter(None, flag.choices))}")
    if flag.kind in (int, float):
        number = _number(text)
        if number is None or (flag.kind is int and number != int(number)):
            what = "a whole number" if flag.kind is int else "a number"
            raise ValueError(f"--{name}={text}: must be {what}")
        return flag.kind(number)
    return (text,) if flag.is_repeated else text


def of_python(name: str, value: Any) -> Any:
    """Returns a flag's value, given as a Python value; raises ValueError, which names the flag.

    Numbers may be NumPy's or texts, paths `os.PathLike`, flags of several values lists, and
    `level_kwargs` a dictionary. None asks for the default that follows from other flags.
    """
    flag = FLAGS[name]
    if hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    if (value is None and flag.may_be_none) or (flag.kind is bool and isinstance(value, bool)):
        return value
    if flag.kind is bool:
        raise ValueError(f"--{name}={value!r}: must be True or False")
    if isinstance(value, (list, tuple)):
        texts = tuple(map(str, value))
        return texts if flag.is_repeated else of_text(name, ",".join(texts))
    if isinstance(value, Mapping):
        try:
            return json.dumps(dict(value), default=lambda array: array.tolist())
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"--{name}={value!r}: {error}") from None
    return of_text(name, str(value))


def _number(text: str) -> int | float | None:
    """Returns the number that a text is, such as 20_000_000, 2e7 or 0.5; None if it is none."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return float(text) if math.isfinite(float(text)) else None
    return None


def meant(name: str) -> str:
    """Returns the end of a message that there is no such flag: the one that may be meant."""
    name = name.lower().replace("-", "_").removeprefix("no_")
    if name in FLAGS["mode"].choices:
        return f"; did you mean impala {name}?"
    if name in OTHER_NAMES:
        return f"; did you mean --{OTHER_NAMES[name]}?"
    long_enough = len(name) >= _SHORTEST_BEGINNING
    near = [flag for flag in FLAGS if long_enough and flag.startswith(name)]
    if len(near) != 1:
        near = difflib.get_close_matches(name, FLAGS, 1, _ALIKE)
    return f"; did you mean --{near[0]}?" if near else ""


def waits_for_updates(config: Config) -> bool:
    """Returns whether actors wait for the update that uses their last unroll."""
    return actors_wait(config.loss.algorithm, config.process.synchronization)


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

    The handshake compares digests.
    """
    sends_gradients = algorithm(config.loss.algorithm).actors_send == "gradients"
    names, values = flags_of(WIRE | GRADIENTS if sends_gradients else WIRE), to_dict(config)
    shared = {name: values[name] for name in names}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]


MAY_CHANGE = frozenset(flags_of(RESUMED))
"""Flags that change how long a run trains, or where and how its processes run. Every other flag
changes how the run learns, or from what."""


def differences(
    saved: Mapping[str, Any],
    saved_sources: Mapping[str, str],
    config: Config,
    sources: Mapping[str, str],
) -> dict[str, tuple[Any, Any]]:
    """Returns {flag: (value of the run, value of the config)} that make a config another run's.

    Only flags that the saved run or the config gives count (see `config.sources`): the others
    follow from flags that may change, as ppo's batch size from the number of actors. {} stands for
    no saved run.
    """
    return {
        name: (saved[name], value)
        for name, value in to_dict(config).items()
        # A flag that a later version added is not in an earlier one's file.
        if name in saved.keys() - MAY_CHANGE
        and "given" in (sources[name], saved_sources.get(name, "given"))
        and not _is_same(name, saved[name], value)
    }


def _is_same(name: str, one: Any, other: Any) -> bool:
    if name == "start_from" and one and other:  # a launch makes the path absolute
        return Path(one).expanduser().absolute() == Path(other).expanduser().absolute()
    return bool(one == other)


def changes(saved: Mapping[str, Any], config: Config) -> str:
    """Returns which values of learning have changed in a resumed run, in words; '' if none.

    These are values that nobody gave, and that follow from the number of frames, or from those of
    environments, actors and learners.
    """
    values = to_dict(config)
    changed = [
        f"{to_flag(name, values[name])}, not {before}"
        for name, before in saved.items()
        if name in values.keys() - MAY_CHANGE and not _is_same(name, before, values[name])
    ]
    return f"what follows from other flags has changed: {', '.join(changed)}" if changed else ""
