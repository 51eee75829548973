"""Which of pyproject.toml's extras a run needs, as far as its flags tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Of MuJoCo, Box2D, MiniGrid, MinAtar and the library before Gymnasium.
_OF_WORLDS = re.compile(
    r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum"
    r"|Pusher|Reacher|Swimmer|Walker2d|BipedalWalker|BipedalWalkerHardcore|CarRacing|LunarLander"
    r"|LunarLanderContinuous)-v\d+|(MiniGrid-|BabyAI-|MinAtar/).*|(gym|minigrid|minatar)[.:].*"
)


def of_run(flags: Mapping[str, Any]) -> list[str]:
    """Returns the extras besides `learner` that the levels and other flags of a run need.

    What a module of the user's own imports is not known.

    Args:
      flags: all of them.
    """
    levels = [name.strip() for name in flags["level_name"].split(",")]
    needed = {
        "procgen": any(name == "procgen16" or name.startswith("procgen:") for name in levels),
        "retro": any(name.startswith("retro:") for name in levels),
        "worlds": any(_OF_WORLDS.fullmatch(name) for name in levels),
        "wandb": flags["track"] == "wandb",
        "mirror": "://" in flags["mirror"],
    }
    return [extra for extra, is_needed in needed.items() if is_needed]
