"""The interface of a suite of levels, and hints for users whose level cannot be made."""

from __future__ import annotations

import abc
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gymnasium.vector import VectorEnv

from impala_tf.config import EnvironmentConfig, user_commands
from impala_tf.types import EnvironmentSpec


class Suite(abc.ABC):
    """A suite of levels. Each suite's file defines one.

    Attributes:
      about: a line about its levels.
      lists: {name: level names}, names that stand for several levels in --level_name.
    """

    about: str
    lists: Mapping[str, tuple[str, ...]] = {}

    @abc.abstractmethod
    def owns(self, level_name: str) -> bool:
        """Returns whether a level name belongs to this suite."""

    @abc.abstractmethod
    def spec(self, env: EnvironmentConfig) -> EnvironmentSpec:
        """Describes a level. May make it to see what it is like.

        Raises:
          ConfigError: there is no such level, or it cannot be used.
        """

    @abc.abstractmethod
    def make(
        self, env: EnvironmentConfig, spec: EnvironmentSpec, num_envs: int, num_threads: int
    ) -> VectorEnv[Any, Any, Any]:
        """Returns N environments with NEXT_STEP autoreset.

        Their observations are as in `spaces.space_of`; they take the level's own actions, or those
        of `spaces.agent_space`. Raises what `spec` raises.

        Args:
          env: the level's flags.
          spec: what `spec` returned.
          num_envs: N.
          num_threads: threads of native environments.
        """

    def make_rendered(
        self, env: EnvironmentConfig, spec: EnvironmentSpec
    ) -> VectorEnv[Any, Any, Any]:
        """Returns one environment whose `render()` returns (uint8 [H, W, 3],)."""
        return self.make(env, spec, num_envs=1, num_threads=1)

    @abc.abstractmethod
    def installed(self) -> Iterable[str]:
        """Returns the names of the levels on this machine."""

    def score_range(self, env: EnvironmentConfig) -> tuple[float, float] | None:
        """Returns the published returns that are normalised to 0 and 1; None if none are."""
        return None

    def level_range(self, env: EnvironmentConfig) -> str:
        """Returns the range of generated levels; '' if levels are not generated."""
        return ""

    def unseen(self, env: EnvironmentConfig) -> EnvironmentConfig | None:
        """Returns the flags for all generated levels that training does not use; None: none."""
        return None


# Packages that only some levels need: {the package's import name: extra in pyproject.toml}.
_OF_WORLDS = "Box2D box2d gym imageio minatar minigrid mujoco pygame seaborn shimmy"
_EXTRAS = {
    **dict.fromkeys(_OF_WORLDS.split(), "worlds"),
    "envpool": "procgen",
    "stable_retro": "retro",
}


def missing_package(flag: str, package: str) -> str:
    """Returns a line that says which extra is missing.

    Args:
      flag: what needs the package, as --flag=value.
      package: a key of _EXTRAS.
    """
    extra = _EXTRAS[package]
    return f"{flag}: needs the extra {extra}: {user_commands.install_extra(extra)}"


def explain_import(flag: str, error: BaseException) -> str | None:
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


def near_matches(name: str, names: Iterable[str]) -> str:
    """Returns a text with the names that are similar to a wrong one, best first.

    Case and version do not matter. Of the versions of a level, it is the standard one: without
    frame skip for an Atari game, else the newest. The first match of 'pong' is
    'PongNoFrameskip-v4'.
    """

    def rank(level: str) -> tuple[bool, int]:
        version = re.search(r"\d*$", level)
        return "NoFrameskip" in level, int((version and version[0]) or 0)

    standard = {_bare(level): level for level in sorted(names, key=rank)}
    near = difflib.get_close_matches(_bare(name), standard, n=5, cutoff=0.75)
    found = ", ".join(standard[each] for each in near)
    return f"near matches: {found}" if found else "no name is similar"


def _bare(level: str) -> str:
    return re.sub(r"(noframeskip|deterministic)?(-v\d+)?$", "", level.lower())
