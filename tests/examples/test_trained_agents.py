"""The trained agents of examples/: they play as their cards say, and are small."""

from __future__ import annotations

import json

import pytest

import impala_tf as impala
from tests.helpers.runs import PROJECT

FOLDERS = [PROJECT / "examples" / name for name in ("cartpole", "pong")]


def test_they_play() -> None:
    """A whole game of Pong would take ten seconds; random play has lost points by then."""
    assert impala.evaluate(FOLDERS[0], 5).mean > 400
    played = impala.evaluate(FOLDERS[1], 1, max_episode_frames=2400)
    assert played.lengths == (600,)
    assert played.mean >= 4


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_small_and_says_what_it_is(folder) -> None:
    """Everyone who clones the project downloads it."""
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 1_000_000
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert f"| {evaluation['mean']:.2f} |" in (folder / "README.md").read_text()
