"""Whether a config continues a saved run: flags that are not RESUMED would make it another one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.config.flag_values import to_dict, to_flag
from impala_tf.config.flags import RESUMED, Config, flags_of

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
