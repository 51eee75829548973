"""What a suite of levels is, and the hints for users whose level cannot be made."""

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
    """A suite of levels. The file of each suite makes one.

    Attributes:
      owns: tells whether a level name belongs to this suite.
      spec: describes a level.
      make: makes N environments, given (flags, N, threads); their observation spaces have the
        simple form of `spaces.simplified`.
      make_rendered: makes one environment whose `render()` returns (uint8 [H, W, 3],).
      may_render: tells quickly whether `make_rendered` seems to work with a level.
      recipe: tells how to make one environment without this package (see `suites.recipe`).
      about: one line on its levels.
      installed: returns the names of the levels that this machine has.
      lists: {name: level names}, names that --level_name may have in place of several levels.
      flags_beside_others: the flags of a level that is learned together with others.
      takes_own: whether --level_kwargs and --level_wrappers mean something to its levels.
      module_of: the Python module that a level name imports; '' if none.
      score_range: the published returns that normalise to 0 and to 1; None if there are none.
      level_range: which generated levels are played, as text; '' if levels are not generated.
      unseen: the flags of all generated levels after those that are played; None if there are none.
    """

    owns: Callable[[str], bool]
    spec: Callable[[EnvironmentConfig], EnvironmentSpec]
    make: Callable[[EnvironmentConfig, int, int], VectorEnv[Any, Any, Any]]
    make_rendered: Callable[[EnvironmentConfig], VectorEnv[Any, Any, Any]]
    about: str
    installed: Callable[[], Iterable[str]]
    may_render: Callable[[EnvironmentConfig], bool] = lambda env: True
    recipe: Callable[[EnvironmentConfig], dict[str, Any] | None] = lambda env: None
    lists: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    flags_beside_others: Callable[[EnvironmentConfig], EnvironmentConfig] = lambda env: env
    takes_own: bool = False
    module_of: Callable[[str], str] = lambda level_name: ""
    score_range: Callable[[EnvironmentConfig], tuple[float, float] | None] = lambda env: None
    level_range: Callable[[EnvironmentConfig], str] = lambda env: ""
    unseen: Callable[[EnvironmentConfig], EnvironmentConfig | None] = lambda env: None


# Packages that only some levels need: {package, as Python imports it: extra in pyproject.toml}.
_EXTRAS = {
    **dict.fromkeys(("Box2D", "box2d", "gym", "imageio", "minatar", "minigrid", "mujoco", "pygame",
                     "seaborn", "shimmy"), "worlds"),
    "envpool": "procgen",
    "stable_retro": "retro",
}  # fmt: skip


def missing_package(flag: str, package: str) -> str:
    """Returns the line that says which extra a level needs; `package` is a key of _EXTRAS.

    `flag` names what needs it, as --flag=value.
    """
    extra = _EXTRAS[package]
    command = user_commands.install_extra(extra)
    return f"{flag}: needs the extra {extra}: {command}"


def explained(flag: str, error: BaseException) -> str | None:
    """Returns the line of `missing_package` if a missing package caused `error`, else None.

    Gymnasium raises its own errors from the ImportError, and they name its own extras.
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
    """Returns ids that are similar to a wrong one, best first; case does not matter.

    The versions of a level are one family. Its standard one comes first: of an Atari game the one
    without frame skip, of others the newest. So 'pong' gives 'PongNoFrameskip-v4' first.
    """
    families = {_family(level): level for level in sorted(registered, key=_standing)}
    alike = difflib.get_close_matches(_family(name), families, _MOST_MATCHES, _MIN_SIMILARITY)
    by_lower = {level.lower(): level for level in registered}
    spelled_alike = difflib.get_close_matches(name.lower(), by_lower, _MOST_MATCHES)
    matches = [*map(families.__getitem__, alike), *map(by_lower.__getitem__, spelled_alike)]
    return list(dict.fromkeys(matches))[:_MOST_MATCHES]


def _family(name: str) -> str:
    match = _FAMILY.fullmatch(name)
    text = name if match is None else match["name"]
    return re.sub("[^a-z0-9]", "", text.lower())


def _standing(name: str) -> tuple[bool, bool, int]:
    """Returns a sort key that is highest for the standard version of a level."""
    version = int(name.rpartition("-v")[2]) if re.search(r"-v\d+$", name) else 0
    return name.endswith(_STANDARD), "/" not in name, version
