"""A level in a module of your own, in the folder where the run is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.runs import status

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("My-v0", entry_point="my_env:MyEnv", max_episode_steps=20)


class MyEnv(CartPoleEnv):
    def __init__(self, **settings):
        import beside_my_env

        super().__init__(**settings)
"""


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


def test_a_level_in_the_current_folder_is_trained_on_and_evaluated(start, folder):
    """Its environments run in processes of the actors."""
    code, out, err = start(
        "--level_name=my_env:My-v0", "--total_environment_frames=3000", "--num_actors=1",
        "--envs_per_actor=2", "--environment_processes", "--logdir=run", cwd=folder,
    ).wait()  # fmt: skip
    assert code == 0, err + out
    assert status(folder / "run")["state"] == "done"
    code, out, err = start(
        "--mode=test", "--logdir=run", "--test_num_episodes=2", "--trust_level_module", cwd=folder
    ).wait()
    assert code == 0, err + out
    assert "2 games" in out
