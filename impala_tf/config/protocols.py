"""--protocol: flags of Atari and retro games that belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
"""{name: {flag: default}}."""
