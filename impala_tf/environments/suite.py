"""The interface of a suite of levels, and hints for users whose level cannot be made."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gymnasium.vector import VectorEnv

from impala_tf.config import EnvironmentConfig, user_commands
from impala_tf.types import EnvironmentSpec


@dataclasses.dataclass(frozen=True)
class Suite:
    """A suite of levels. Each suite's file defines one.

    Attributes:
      owns: returns whether a level name belongs to this suite.
      spec: describes a level.
      make: makes N environments, given (flags, N, threads); their observation spaces have the
        simple form of `spaces.simplified`.
      make_rendered: makes one environment whose `render()` returns (uint8 [H, W, 3],).
      about: a line about its levels.
      installed: returns the names of the levels on this machine.
      lists: {name: level names}, names that stand for several levels in --level_name.
      score_range: returns the published returns that are normalised to 0 and 1; None if none are.
      level_range: returns the range of generated levels, as text; '' if levels are not generated.
      unseen: returns the flags for all generated levels that training does not use; None if there
        are none.
    """

    owns: Callable[[str], bool]
    spec: Callable[[EnvironmentConfig], EnvironmentSpec]
    make: Callable[[EnvironmentConfig, int, int], VectorEnv[Any, Any, Any]]
    make_rendered: Callable[[EnvironmentConfig], VectorEnv[Any, Any, Any]]
    about: str
    installed: Callable[[], Iterable[str]]
    lists: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    score_range: Callable[[EnvironmentConfig], tuple[float, float] | None] = lambda env: None
    level_range: Callable[[EnvironmentConfig], str] = lambda env: ""
    unseen: Callable[[EnvironmentConfig], EnvironmentConfig | None] = lambda env: None


# Packages that only some levels need: {the package's import name: extra in pyproject.toml}.
_EXTRAS = {
    **dict.fromkeys(("Box2D", "box2d", "gym", "imageio", "minatar", "minigrid", "mujoco", "pygame",
                     "seaborn", "shimmy"), "worlds"),
    "envpool": "procgen",
    "stable_retro": "retro",
}  # fmt: skip


def missing_package(flag: str, package: str) -> str:
    """Returns a line that says which extra is missing.

    Args:
      flag: what needs the package, as --flag=value.
      package: a key of _EXTRAS.
    """
    extra = _EXTRAS[package]
    command = user_commands.install_extra(extra)
    return f"{flag}: needs the extra {extra}: {command}"


def explained(flag: str, error: BaseException) -> str | None:
    """Returns the line of `missing_package` if a missing package caused `error`, else None.

    Gymnasium raises its own errors from the ImportError, which name Gymnasium's extras.
    """
    cause: BaseException | None = error
    while cause is not None:
        package = (getattr(cause, "name", None) or "").partition(".")[0]
        if isinstance(cause, ImportError) and package in _EXTRAS:
            return missing_package(flag, package)
        cause = cause.__cause__ or cause.__context__
    return None


_FAMILY = re.compile(r"(?P<name>.*?)(?:noframeskip|deterministic)?(?:-v(?P<version>\d+))?")


def near_matches(name: str, registered: Iterable[str]) -> list[str]:
    """Returns ids that are similar to a wrong one, best first; case and version do not matter.

    Of the versions of a level, it is the standard one: without frame skip for an Atari game, else
    the newest. So the first match of 'pong' is 'PongNoFrameskip-v4'.
    """
    families = {_family(level)[0]: level for level in sorted(registered, key=_standing)}
    alike = difflib.get_close_matches(_family(name)[0], families, n=5, cutoff=0.75)
    if not alike:  # the mistake may be in the rest of the name
        families = {level.lower(): level for level in registered}
        alike = difflib.get_close_matches(name.lower(), families, n=5)
    return [families[family] for family in alike]


def _family(name: str) -> tuple[str, int]:
    """Returns what all versions of a level are called, and the version; 0: none."""
    match = _FAMILY.fullmatch(name.lower())
    return (match["name"], int(match["version"] or 0)) if match else (name, 0)


def _standing(name: str) -> tuple[bool, int]:
    """Returns a sort key that is highest for the standard version of a level."""
    return "NoFrameskip" in name, _family(name)[1]
