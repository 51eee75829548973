"""examples/own_level.py, as its docstring says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.runs import PROJECT, rows, status

pytestmark = pytest.mark.long

EXAMPLES = PROJECT / "examples"


def test_it_is_trained_on_and_evaluated(start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, out, err = start(
        "--level_name=own_level:Corridor", '--level_kwargs={"length": 8}', f"--logdir={run}",
        "--level_wrappers=own_level:Impatient", "--total_environment_frames=4000",
        "--num_actors=1", "--envs_per_actor=4", "--info_metrics=wrong_steps,steps",
        "--metrics_interval_s=1", cwd=EXAMPLES,
    ).wait()  # fmt: skip
    assert code == 0, err + out
    assert status(run)["state"] == "done"
    last = rows(run)[-1]
    assert float(last["info/wrong_steps"]) > 0
    assert last["info/steps"] == ""
    assert "--info_metrics=steps: the level's info has no number of this name" in out
    code, out, err = start(
        "--mode=test", f"--logdir={run}", "--test_num_episodes=2", "--trust_level_module",
        cwd=EXAMPLES,
    ).wait()  # fmt: skip
    assert code == 0, err + out
    assert '{"length": 8} wrapped by own_level:Impatient' in " ".join(out.split())
