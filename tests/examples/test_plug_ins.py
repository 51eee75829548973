"""Code of the user's own: the examples train, and what is broken is named, with status 2."""

from __future__ import annotations

import csv
import shutil

import pytest

from tests.helpers.runs import PROJECT, rows

EXAMPLES = PROJECT / "examples"
RUN = ("--level_name=CartPole-v1", "--num_actors=1", "--metrics_interval_s=1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder that has the examples; the current one."""
    for example in EXAMPLES.glob("own_*.py"):
        shutil.copy(example, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(start, folder, *flags, frames=10_000, status=0):
    run = start(*RUN, f"--total_environment_frames={frames}", "--logdir=run", *flags, cwd=folder)
    code, out, err = run.wait()
    log = folder / "run" / "processes" / "learner-0.log"
    assert code == status, f"{out}\n{err}\n{log.read_text()[-3000:] if log.exists() else ''}"
    return out, err


def test_a_level_a_torso_an_algorithm_and_a_callback_of_ones_own(start, folder):
    level = ("--level_name=own_level:Corridor", '--level_kwargs={"length": 8}')
    own = ("--agent_name=own_torso:SkipTorso", "--algorithm=own_algorithm:ALGORITHM")
    also = ("--level_wrappers=own_level:Impatient", "--info_metrics=wrong_steps,steps")
    train(start, folder, *level, *own, *also, "--callbacks=own_callback:Watch")
    assert float(rows(folder / "run")[-1]["info/wrong_steps"]) >= 0
    lines = list(csv.DictReader((folder / "run" / "callback_metrics.csv").open()))
    assert {line["name"] for line in lines} == {"best_return", "batches_seen"}
    batches = [float(line["value"]) for line in lines if line["name"] == "batches_seen"]
    assert batches == sorted(batches)
    assert batches[-1] > 0
    log = (folder / "run" / "processes" / "learner-0.log").read_text()
    assert "the run had " in log
    (folder / "own_callback.py").unlink()  # who plays it need not trust the callbacks' module
    # Without a terminal, consent has to be a flag: the run names modules.
    tested = ("--mode=test", "--logdir=run", "--test_num_episodes=2")
    code, _, err = start(*tested, cwd=folder).wait()
    assert code == 2
    assert "it imports the Python module own_algorithm" in err and "own_callback" not in err
    code, out, err = start(*tested, "--trust_level_module", cwd=folder).wait()
    assert code == 0, err
    assert "2 games, sampled actions: mean" in out
    assert '{"length": 8} wrapped by own_level:Impatient' in " ".join(out.split())


RAISES = """
from impala_tf.callbacks import Callback

class Raises(Callback):
    def on_row(self, row):
        raise RuntimeError("no room")
"""


def test_a_callback_that_raises_ends_the_run_after_a_checkpoint(start, folder):
    (folder / "broken.py").write_text(RAISES)
    _, err = train(start, folder, "--callbacks=broken:Raises", frames=1_000_000, status=2)
    assert "--callbacks: Raises.on_row raised" in err
    assert "RuntimeError: no room" in (folder / "run" / "processes" / "learner-0.log").read_text()
    assert len(list((folder / "run" / "checkpoints").glob("ckpt-*"))) == 2


FLAT = """
import sonnet as snt
import tensorflow as tf

class Flat(snt.Module):
    def __call__(self, observation):
        return tf.reduce_sum(observation)
"""


def test_a_torso_of_a_wrong_shape_is_one_line(start, folder):
    """The learner finds that, since the process that starts it does not load TensorFlow."""
    (folder / "flat.py").write_text(FLAT)
    _, err = train(start, folder, "--agent_name=flat:Flat", status=2)
    (line,) = err.splitlines()
    assert line.startswith("run_experiment.py: --agent_name=flat:Flat: "), line
    assert "must return float32 [B, features], but for [B, 4] with B=2 returned" in line
