"""Packages that only some levels need, and the extras of this project that bring them."""

from __future__ import annotations

from impala_tf.config import user_commands

# {package, as Python imports it: extra in pyproject.toml}
_EXTRAS = {
    "Box2D": "worlds",
    "box2d": "worlds",
    "gym": "worlds",
    "imageio": "worlds",
    "minigrid": "worlds",
    "mujoco": "worlds",
    "pygame": "worlds",
    "shimmy": "worlds",
    "envpool": "procgen",
    "stable_retro": "retro",
}


def missing_package(level_name: str, package: str) -> str:
    """Returns the line that says that a level needs a package, and how to install it.

    Args:
      level_name: the level.
      package: a key of _EXTRAS.
    """
    extra = _EXTRAS[package]
    command = user_commands.install_extra(extra)
    return f"--level_name={level_name}: needs the extra {extra}: {command}"


def explained(level_name: str, error: Exception) -> str | None:
    """Returns `missing_package` if that is what `error` comes from, else None.

    Gymnasium raises its own errors from the ImportError, and they name its own extras.
    """
    cause: BaseException | None = error
    while cause is not None:
        package = (getattr(cause, "name", None) or "").partition(".")[0]
        if isinstance(cause, ImportError) and package in _EXTRAS:
            return missing_package(level_name, package)
        cause = cause.__cause__ or cause.__context__
    return None
