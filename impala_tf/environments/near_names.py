"""The levels that a user may have meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_MOST = 5
_ALIKE = 0.8
_FAMILY = re.compile(r"(?:.*/)?(?P<name>.*?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?")
_STANDARD = "NoFrameskip-v4"
# Levels that are registered once their package is imported.
_PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid"}


def near_matches(name: str, registered: Iterable[str]) -> list[str]:
    """Returns ids like a wrong one, best first; the case of letters does not matter.

    The versions of a level are one family. Its standard one comes first: of an Atari game the one
    without frame skip, of others the newest. So 'pong' gives 'PongNoFrameskip-v4' first.
    """
    packages = [module for start, module in _PACKAGES.items() if name.startswith(start)]
    if packages:
        return [f"{packages[0]}:{name}"]
    families: dict[str, str] = {}
    for each in sorted(registered, key=_standing):
        families[_family(each)] = each
    by_family = difflib.get_close_matches(_family(name), families, _MOST, _ALIKE)
    known = {each.lower(): each for each in registered}
    by_name = difflib.get_close_matches(name.lower(), known, _MOST)
    found = [*(families[each] for each in by_family), *(known[each] for each in by_name)]
    return list(dict.fromkeys(found))[:_MOST]


def _family(name: str) -> str:
    match = _FAMILY.fullmatch(name)
    text = name if match is None else match["name"]
    return re.sub("[^a-z0-9]", "", text.lower())


def _standing(name: str) -> tuple[bool, bool, int]:
    """Returns a key that is the highest for the standard version of a level."""
    version = int(name.rpartition("-v")[2]) if re.search(r"-v\d+$", name) else 0
    return name.endswith(_STANDARD), "/" not in name, version
