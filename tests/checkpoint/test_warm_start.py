"""--start_from names a checkpoint: a run's newest one, its best, or any one."""

from __future__ import annotations

from pathlib import Path

import pytest

from impala_tf.checkpoint import files, warm_start
from impala_tf.config import ConfigError

IDENTITY = {"level_name": "Level-v0", "agent_name": "MLPAgent", "core": "feedforward"}


def write(folder: Path, updates: int) -> Path:
    checkpoint = folder / files.folder_name(updates)
    checkpoint.mkdir(parents=True)
    counters = {"environment_frames": 10 * updates}
    files.write_state(checkpoint, {"identity": IDENTITY, "counters": counters}, updates)
    files.write_manifest(checkpoint)
    return checkpoint


def test_a_run_means_its_newest_checkpoint_and_other_paths_mean_what_they_name(tmp_path):
    run = tmp_path / "run"
    older, newest = (write(run / "checkpoints", updates) for updates in (3, 5))
    best = write(run / "best", 4)
    found = {
        path: warm_start.find(str(path)).path
        for path in (run, run / "checkpoints", run / "best", older)
    }
    assert found == {
        run: newest, run / "checkpoints": newest, run / "best": best, older: older
    }  # fmt: skip
    assert warm_start.find(str(older)).environment_frames == 30


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path):
    older, newest = (write(tmp_path / "checkpoints", updates) for updates in (3, 5))
    (newest / "state.json").write_text("{")
    assert warm_start.find(str(tmp_path)).path == older


def test_what_holds_no_checkpoint_is_refused_in_one_line(tmp_path):
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "agent.json").write_text("{}")
    for path, reason in {
        tmp_path / "missing": "there is no such folder; give the folder of a run",
        tmp_path: "holds no checkpoint; give the folder of a run",
        exported: "holds an exported agent; give the folder of its run",
    }.items():
        with pytest.raises(ConfigError) as caught:
            warm_start.find(str(path))
        (problem,) = caught.value.problems
        assert problem.startswith(f"--start_from={path}: {reason}")


@pytest.mark.parametrize("part", ["", "best", "checkpoints/ckpt-000000000003"])
def test_a_run_cannot_start_from_itself(part, tmp_path):
    path = tmp_path / part
    with pytest.raises(ConfigError, match=r"is the run in --logdir=.* itself; leave --start_from"):
        warm_start.check_is_another(str(path), tmp_path)
    warm_start.check_is_another(str(path), tmp_path.with_name("other"))
