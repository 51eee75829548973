"""A level of one's own, in the current folder, whose code changes the process that it is made in.

A run goes on as if it had not.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.helpers.runs import checkpointed_frames, rows

MODULE = """
import os, signal, tempfile
from threading import Timer
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

made = os.path.abspath("made")
gymnasium.register("Careless-v0", entry_point="my_env:Careless", max_episode_steps=20)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: os._exit(9))


class Careless(CartPoleEnv):
    def __init__(self, **settings):
        import beside_my_env

        super().__init__(**settings)
        with open(made, "a") as file:
            file.write(".")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.chdir(tempfile.gettempdir())
        Timer(900, print).start()
"""
LEVEL = "--level_name=my_env:Careless-v0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a level, and files with the names of modules that must not be mistaken for theirs."""
    (tmp_path / "my_env.py").write_text(MODULE)
    (tmp_path / "beside_my_env.py").touch()
    for name in ("json.py", "grpc.py", "tree.py"):
        (tmp_path / name).write_text("raise RuntimeError('taken for another module')")
    (tmp_path / "impala_tf").mkdir()
    (tmp_path / "impala_tf" / "__init__.py").write_text("raise RuntimeError('not ours')")
    return tmp_path


def test_it_is_trained_on_until_ctrl_c_and_then_evaluated(start, folder):
    """Its signal handlers cost no checkpoint, its folder moves no file, its threads end."""
    run = start(
        LEVEL, "--num_actors=1", "--envs_per_actor=2", "--logdir=run", "--metrics_interval_s=1",
        "--checkpoint_interval_s=1000", "--total_environment_frames=1000000000", cwd=folder,
    )  # fmt: skip
    logdir = folder / "run"
    run.wait_until(lambda: len(rows(logdir)) >= 2)
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait(120)
    assert code == 0, out + err
    assert run.alive() == []
    assert checkpointed_frames(logdir) == int(rows(logdir)[-1]["environment_frames"]) > 0
    actor = (logdir / "processes" / "actor-0.log").read_text()
    assert "stopped" in actor or "the run is over" in actor
    assert (folder / "made").read_text() == "." * (2 + 1), "each level, and one to look at"
    code, out, err = start(
        "--mode=test", "--logdir=run", "--test_num_episodes=2", "--trust_level_module", "--video",
        cwd=folder,
    ).wait(120)  # fmt: skip
    assert code == 0, err + out
    assert "2 games" in out
    assert "ending without threads that still run: Thread-" in err
    assert {"evaluation.json", "evaluation.mp4"} <= {path.name for path in logdir.iterdir()}
