"""An exported folder: it plays as its checkpoint does, without TensorFlow, and the hub reads it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

import impala_tf as impala
from impala_tf import main
from impala_tf.agents.agent import agent_of
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import signature_of
from impala_tf.config import Given, command_line
from impala_tf.learner import conversion
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.processes import provenance
from impala_tf.processes.common import logdir_of, resolve
from tests.helpers.agents import make_agent
from tests.helpers.runs import PROJECT
from tests.helpers.states import state

pytestmark = pytest.mark.xdist_group("share")

METRICS = """wall_time_s,agent_steps,environment_frames,episode_return_mean
60,5000,5000,20.0
120,10000,10000,30.0
"""
# What acts where TensorFlow is not installed: first in Python, then on the command line.
PLAY = """
import json, sys
sys.modules["tensorflow"] = sys.modules["sonnet"] = None
import numpy as np
import impala_tf as impala
import run_experiment

agent, actions = impala.load("shared"), []
for observation in np.array(json.load(open("observations.json")), np.float32):
    actions.append(int(agent.act(observation, reward=1.0, greedy=True)))
lengths = impala.evaluate("shared", 2).lengths
print(json.dumps({"actions": actions, "lengths": lengths, "frames": agent.environment_frames}))
sys.argv[1:] = ["--mode=test", "--logdir=shared", "--test_num_episodes=2"]
sys.exit(run_experiment.main())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `run`, whose agent has a memory, and what was exported of it, `shared`."""
    folder = tmp_path_factory.mktemp("share")
    flags = {"level_name": "CartPole-v1", "agent_name": "MLPLSTMAgent", "seed": 7}
    config, spec = resolve(Given({**flags, "logdir": str(folder / "run")}))
    learner = Learner(agent_of(config.agent, spec), spec, config, LearnerGroup())
    saved = state(1000, identity=signature_of(config, spec))
    logdir = logdir_of(config)
    Checkpointer(logdir.checkpoints, learner.trackables()).save(saved, 1000)
    described = provenance.describe(config, spec, {}, 0, "CPU")
    logdir.config.write_text(json.dumps(described))
    logdir.metrics.write_text(METRICS)
    (folder / "mount").mkdir()
    (folder / "shared").symlink_to("mount")
    export(folder, "shared")
    return folder


def export(folder: Path, target: str) -> None:
    words = ["--mode=export", "--logdir=run", "--test_num_episodes=3", f"--to={target}"]
    with contextlib.chdir(folder):
        assert main.run(command_line.parse(words)) == 0


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_it_plays_as_its_checkpoint_does_where_there_is_no_tensorflow(folder: Path) -> None:
    """Whoever downloads an agent gets what was trained, on a machine with few packages."""
    observations = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)
    (folder / "observations.json").write_text(json.dumps(observations.tolist()))
    agent, actions = impala.load(folder / "run"), []
    for observation in observations:
        actions.append(int(agent.act(observation, reward=1.0, greedy=True)))
    before = files_of(folder / "shared")
    done = subprocess.run(
        [sys.executable, "-c", PLAY], cwd=folder, env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    in_python, _, on_command_line = done.stdout.partition("\n")
    played = json.loads(in_python)
    assert played["actions"] == actions
    assert played["frames"] == agent.environment_frames == 10_000
    assert min(played["lengths"]) > 5
    assert "shared/model.tflite at 10,000 frames" in on_command_line
    assert "2 games, sampled actions: mean " in on_command_line
    assert files_of(folder / "shared") == before


def test_the_hub_reads_the_card(folder: Path) -> None:
    shared = folder / "shared"
    found = ModelCard.load(shared / "README.md")
    (result,) = found.data.eval_results
    evaluation = json.loads((shared / "evaluation.json").read_text())
    assert found.data.library_name == "impala_tf"
    assert {"reinforcement-learning", "CartPole-v1"} <= set(found.data.tags)
    assert (found.data.model_name, result.dataset_name) == ("MLPLSTMAgent", "CartPole-v1")
    assert result.metric_value == f"{evaluation['mean']:.2f} +/- {evaluation['std']:.2f}"
    commit = json.loads((folder / "run" / "config.json").read_text())["git_commit"]
    promised = (evaluation["protocol"], commit, "--config=config.yaml", "| 3 | ", "(curve.svg)")
    assert all(text in found.text for text in promised)
    for path in shared.iterdir():
        assert path.name in {*found.text.replace("`", " ").split(), "README.md"} | {"curve.svg"}


def test_the_folder_has_what_else_the_card_promises(folder: Path) -> None:
    """A run that repeats it, and a policy for programs without this project."""
    shared = folder / "mount"  # an empty folder stays the same one: it may be a container's mount
    assert 'agent_name: "MLPLSTMAgent"' in (shared / "config.yaml").read_text()
    assert "seed: 7" in (shared / "config.yaml").read_text()
    assert "<svg " in (shared / "curve.svg").read_text()
    assert len((shared / "curve.csv").read_text().splitlines()) > 1
    assert (shared / "saved_model" / "saved_model.pb").is_file()
    assert not any(
        str(folder).encode() in content
        for path, content in files_of(shared).items()
        if path.suffix != ".tflite"
    )


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("shared", "--to=shared: is not empty; name a folder that is new or empty"),
        ("file/new", "--to=file/new: cannot write there: Not a directory"),
    ],
)
def test_nothing_is_overwritten(folder: Path, target: str, problem: str) -> None:
    (folder / "file").touch()
    before = sorted(folder.rglob("*"))
    with pytest.raises(impala.ConfigError) as caught:
        export(folder, target)
    assert caught.value.problems == [problem]
    assert sorted(folder.rglob("*")) == before


def test_a_model_of_other_weights_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody shall publish an agent that plays otherwise than what was trained."""
    whole_file = conversion.whole_file

    def of_another_agent(agent: Any, spec: Any) -> bytes:
        return whole_file(make_agent("MLPLSTMAgent", spec), spec)

    monkeypatch.setattr(conversion, "whole_file", of_another_agent)
    with pytest.raises(impala.ConfigError, match="^--to: model.tflite would differ from the train"):
        export(folder, "wrong")
    assert not (folder / "wrong").exists()
