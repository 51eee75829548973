"""An exported folder: it plays as its checkpoint does, without TensorFlow, and the hub reads it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from huggingface_hub import ModelCard

import impala_tf as impala
from impala_tf import main
from impala_tf.config import command_line
from impala_tf.evaluation.exported import About
from impala_tf.evaluation.games import summary
from impala_tf.processes import players
from impala_tf.sharing import card, export_main
from impala_tf.types import Episode
from tests.helpers.runs import PROJECT

pytestmark = pytest.mark.xdist_group("share")

# What acts where TensorFlow is not installed.
PLAY = """
import json, sys
sys.modules["tensorflow"] = sys.modules["sonnet"] = None
import numpy as np
import impala_tf as impala

agent, actions = impala.load("shared"), []
for observation in np.array(json.load(open("observations.json")), np.float32):
    actions.append(int(agent.act(observation, reward=1.0, greedy=True)))
lengths = impala.evaluate("shared", 2).lengths
print(json.dumps({"actions": actions, "lengths": lengths, "frames": agent.environment_frames}))
"""
TEST = """
import sys
sys.modules["tensorflow"] = sys.modules["sonnet"] = None
import run_experiment
sys.exit(run_experiment.main())
"""


def python(*words: str, cwd: Path, status: int = 0) -> str:
    """Returns what a command prints on standard output."""
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short run that has a memory, `run`, and what was exported of it, `shared`."""
    folder = tmp_path_factory.mktemp("share")
    script = str(PROJECT / "run_experiment.py")
    python(
        script, "--level_name=CartPole-v1", "--agent_name=MLPLSTMAgent", "--logdir=run",
        "--total_environment_frames=10000", "--num_actors=1", "--seed=7",
        "--metrics_interval_s=1", cwd=folder,
    )  # fmt: skip
    export(folder, "shared")
    return folder


def export(folder: Path, target: str | None) -> None:
    """Exports the run in this process, which has TensorFlow anyway."""
    words = ["--mode=export", "--logdir=run", "--test_num_episodes=3"]
    words += [] if target is None else [f"--to={target}"]
    with contextlib.chdir(folder):
        assert main.run(command_line.parse(words)) == 0


def test_it_acts_as_its_checkpoint_does_where_there_is_no_tensorflow(folder: Path) -> None:
    """Whoever downloads an agent gets what was trained, on a machine with few packages."""
    observations = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)
    (folder / "observations.json").write_text(json.dumps(observations.tolist()))
    agent, actions = impala.load(folder / "run"), []
    for observation in observations:
        actions.append(int(agent.act(observation, reward=1.0, greedy=True)))
    played = json.loads(python("-c", PLAY, cwd=folder))
    assert played["actions"] == actions
    assert played["frames"] == agent.environment_frames >= 10_000
    assert min(played["lengths"]) > 5


def test_the_command_plays_it_without_tensorflow_and_leaves_it_as_it_is(folder: Path) -> None:
    """The figures of a card are those of the games that it names."""
    before = {path: path.read_bytes() for path in (folder / "shared").iterdir() if path.is_file()}
    flags = ("--mode=test", "--logdir=shared", "--test_num_episodes=2")
    said = python("-c", TEST, *flags, cwd=folder)
    assert "shared/model.tflite at 10," in said
    assert "2 games, sampled actions: mean " in said
    after = {path: path.read_bytes() for path in (folder / "shared").iterdir() if path.is_file()}
    assert after == before


def test_the_hub_reads_the_card(folder: Path) -> None:
    shared = folder / "shared"
    found = ModelCard.load(shared / "README.md")
    (result,) = found.data.eval_results
    evaluation = json.loads((shared / "evaluation.json").read_text())
    assert found.data.library_name == "impala_tf"
    assert {"reinforcement-learning", "CartPole-v1"} <= set(found.data.tags)
    assert (found.data.model_name, result.dataset_name) == ("MLPLSTMAgent", "CartPole-v1")
    assert result.metric_type == "mean_reward"
    assert result.metric_value == f"{evaluation['mean']:.2f} +/- {evaluation['std']:.2f}"
    commit = json.loads((folder / "run" / "config.json").read_text())["git_commit"]
    promised = (evaluation["protocol"], commit, "--config=config.yaml", "| 3 | ", "(curve.svg)")
    assert all(text in found.text for text in promised)
    for path in shared.iterdir():
        assert path.name in {*found.text.replace("`", " ").split(), "README.md"} | {"curve.svg"}


def test_the_folder_has_what_else_the_card_promises(folder: Path) -> None:
    """A run that repeats it, and a policy for programs without this project."""
    shared = folder / "shared"
    assert 'agent_name: "MLPLSTMAgent"' in (shared / "config.yaml").read_text()
    assert "seed: 7" in (shared / "config.yaml").read_text()
    assert "<svg " in (shared / "curve.svg").read_text()
    assert len((shared / "curve.csv").read_text().splitlines()) > 1
    assert (shared / "saved_model" / "saved_model.pb").is_file()
    assert str(folder) not in "".join(
        path.read_text() for path in shared.iterdir() if path.is_file() and path.suffix != ".tflite"
    )


def test_an_empty_folder_that_is_there_stays_the_same_one(folder: Path) -> None:
    """It may be the mount of a container. Without --to, it is in the run's folder."""
    mount = folder / "run" / "export"
    mount.mkdir()
    before = mount.stat().st_ino
    export(folder, None)
    assert mount.stat().st_ino == before
    names = [{path.name for path in each.iterdir()} for each in (mount, folder / "shared")]
    assert names[0] == names[1]


@pytest.mark.parametrize("levels", [1, 2])
def test_a_card_says_how_to_play(levels: int) -> None:
    """`load` does not know which one of several levels is meant."""
    level = {"levels": levels, "observation": {"": {}}}
    about = About({}, level, "MLPLSTMAgent", "appo", 10, [], False)
    row = {"level_name": "CartPole-v1", **summary([Episode(9.0, 9)])}
    results = {"levels": [row] * levels} if levels > 1 else row
    protocol = "CartPole, vector 4" + " minus [5.0, 0.0]" * (levels == 1)
    evaluation = {**results, "protocol": protocol, "test_policy": "sampled", "seed": 1}
    run: Any = SimpleNamespace(frames=10, minutes=1.0, machine="", commit="")
    text = card.text(about, run, evaluation, [], [])
    assert ('impala.load("FOLDER")' in text) == (levels == 1)
    assert "`impala test --logdir=FOLDER` plays whole games." in text
    assert ("subtract the numbers after" in text) == (levels == 1)  # the SavedModel does not


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("run", "--to=run: is not empty; name a folder that is new or empty"),
        ("shared", "--to=shared: is not empty; name a folder that is new or empty"),
        ("observations.json/new", "--to=observations.json/new: cannot write there: Not a dir"),
    ],
)
def test_nothing_is_overwritten(folder: Path, target: str, problem: str) -> None:
    (folder / "observations.json").touch()
    before = sorted(folder.rglob("*"))
    with pytest.raises(impala.ConfigError) as caught:
        export(folder, target)
    (line,) = caught.value.problems
    assert line.startswith(problem)
    assert sorted(folder.rglob("*")) == before


def test_a_full_disk_is_that_of_the_folder_to_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the run's: who cleans up there gains nothing."""

    def full(*given: object, **options: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(impala.ConfigError, match="^--to=full: cannot write there: No space left"):
        export(folder, "full")
    assert not (folder / "full").exists()


def test_a_model_of_other_weights_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody shall publish an agent that plays otherwise than what was trained."""
    load_exported = players.load_exported

    def wrong(given: Any) -> players.Player:
        player = load_exported(given)

        def policy(*arguments: Any) -> Any:
            act = player.policy(*arguments)

            def act_otherwise(*inputs: Any) -> Any:
                answer, core = act(*inputs)
                return answer._replace(policy_logits=answer.policy_logits + 0.1), core

            return act_otherwise

        return player._replace(policy=policy)

    monkeypatch.setattr(export_main.players, "load_exported", wrong)
    with pytest.raises(impala.ConfigError, match="^--to: model.tflite would differ from the train"):
        export(folder, "wrong")
    assert not (folder / "wrong").exists()
