"""The trained agents of examples/: they play as their cards say, and are small."""

from __future__ import annotations

import json
import re

import pytest
from huggingface_hub import ModelCard

import impala_tf as impala
from tests.helpers.runs import PROJECT

FOLDERS = [PROJECT / "examples" / name for name in ("cartpole", "pong")]


def test_cartpole_balances() -> None:
    assert impala.evaluate(FOLDERS[0], 5).mean > 400


def test_pong_scores() -> None:
    """A whole game would take ten seconds; an agent that acts at random has lost points by then."""
    played = impala.evaluate(FOLDERS[1], 1, max_episode_frames=2400)
    assert played.lengths == (600,)
    assert played.mean >= 4


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_small_and_says_what_it_is(folder) -> None:
    """Everyone who clones the project downloads it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    texts = [path.read_text() for path in files if path.suffix != ".tflite"]
    assert not [text for text in texts if re.search(r"(?<![\w.])/(tmp|home|root|work)/", text)]
    evaluation = json.loads((folder / "evaluation.json").read_text())
    card = ModelCard.load(folder / "README.md")
    assert f"| {evaluation['mean']:.2f} |" in card.text
    assert evaluation["num_episodes"] >= 30
