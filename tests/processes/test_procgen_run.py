"""A whole run on Procgen, and its evaluation on unseen levels."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.long

FLAGS = ("--level_name=procgen:bigfish", "--num_levels=20", "--start_level=5", "--num_actors=1",
         "--agent_name=ShallowConvNetAgent")  # fmt: skip


def test_an_evaluation_also_plays_unseen_levels(start, tmp_path):
    logdir = f"--logdir={tmp_path}"
    code, out, err = start(*FLAGS, "--total_environment_frames=8000", logdir).wait()
    assert code == 0, err + out
    code, out, err = start("--mode=test", "--test_num_episodes=6", logdir).wait()
    assert code == 0, err + out
    result = json.loads((tmp_path / "evaluation.json").read_text())
    unseen = result["unseen"]
    assert result["num_episodes"] == unseen["num_episodes"] == 6
    for name, row in (("procgen:bigfish", result), ("levels from 25", unseen)):
        assert f"{name}: 6 games, sampled actions: mean {row['mean']:.2f}, " in out
        assert f", normalised {row['normalized_mean']:.3f}\n" in out
