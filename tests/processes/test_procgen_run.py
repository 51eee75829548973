"""A whole run on Procgen, and its evaluation on unseen levels."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.long

FLAGS = ("--level_name=procgen:bigfish", "--num_levels=20", "--start_level=5", "--num_actors=1",
         "--agent_name=ShallowConvNetAgent")  # fmt: skip


def test_an_evaluation_shows_the_generalisation_gap(start, tmp_path):
    logdir = f"--logdir={tmp_path}"
    code, out, err = start(*FLAGS, "--total_environment_frames=8000", logdir).wait()
    assert code == 0, err + out
    code, out, err = start("--mode=test", "--test_num_episodes=6", logdir).wait()
    assert code == 0, err + out
    result = json.loads((tmp_path / "evaluation.json").read_text())
    found = result["generalization"]
    assert found["train"]["episode_returns"] == result["episode_returns"]
    assert found["train"]["num_episodes"] == found["test"]["num_episodes"] == 6
    lines = [line.split() for line in out.splitlines()]
    for name, levels in (("train", ["5-24"]), ("test", ["from", "25"])):
        numbers = [f"{found[name]['mean']:.2f}", f"{found[name]['normalized_mean']:.3f}"]
        assert [name, *levels, "6", *numbers] in lines, out
    assert ["gap", f"{found['gap']:.2f}", f"{found['normalized_gap']:.3f}"] in lines, out
