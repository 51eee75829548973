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


_MOST_MATCHES = 5
_MIN_SIMILARITY = 0.8
_FAMILY = re.compile(r"(?:.*/)?(?P<name>.*?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?")
_STANDARD = "NoFrameskip-v4"


def near_matches(name: str, registered: Iterable[str]) -> list[str]:
    """Returns ids that are similar to a wrong one, best first, ignoring case.

    All versions of a level are a family, represented by its standard version: without frame skip
    for an Atari game, else the newest. So the first match of 'pong' is 'PongNoFrameskip-v4'.
    """
    families = {_family(level): level for level in sorted(registered, key=_standing)}
    alike = difflib.get_close_matches(_family(name), families, _MOST_MATCHES, _MIN_SIMILARITY)
    by_lower = {level.lower(): level for level in registered}
    similar = difflib.get_close_matches(name.lower(), by_lower, _MOST_MATCHES)
    matches = [*map(families.__getitem__, alike), *map(by_lower.__getitem__, similar)]
    return list(dict.fromkeys(matches))[:_MOST_MATCHES]


def _family(name: str) -> str:
    match = _FAMILY.fullmatch(name)
    text = name if match is None else match["name"]
    return re.sub("[^a-z0-9]", "", text.lower())


def _standing(name: str) -> tuple[bool, bool, int]:
    """Returns a sort key that is highest for the standard version of a level."""
    version = int(name.rpartition("-v")[2]) if re.search(r"-v\d+$", name) else 0
    return name.endswith(_STANDARD), "/" not in name, version
