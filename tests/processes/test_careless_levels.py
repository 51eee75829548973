"""Levels whose code changes the process that they are made in: a run goes on as if it had not."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.helpers.runs import checkpointed_frames, rows, status

CARELESS = """
from gymnasium.envs.classic_control import CartPoleEnv


class Level(CartPoleEnv):
    def __init__(self, **settings):
        super().__init__(**settings)
        {when_made}

    def step(self, action):
        {in_step}
        return super().step(action)
"""
LEVEL = ("--level_name=careless:Level", "--num_actors=1", "--envs_per_actor=2", "--logdir=run")
SHORT = (*LEVEL, "--total_environment_frames=2000")


def careless(folder: Path, when_made: str = "pass", in_step: str = "pass") -> None:
    """Writes a level that does this."""
    (folder / "careless.py").write_text(CARELESS.format(when_made=when_made, in_step=in_step))


def test_a_thread_that_a_level_leaves_does_not_keep_a_process(start, tmp_path):
    careless(tmp_path, "from threading import Timer; Timer(900, print).start()")
    began_s = time.monotonic()
    code, out, err = start(*SHORT, "--dry_run", cwd=tmp_path).wait()
    assert (code, "ending without threads that still run: Thread-" in err) == (0, True), err
    assert "one learner and 1 actor with 2 environments each, on" in out
    assert time.monotonic() - began_s < 120
    code, out, err = start(*SHORT, cwd=tmp_path).wait()
    assert code == 0, out + err
    assert status(tmp_path / "run")["state"] == "done"


def test_the_signal_handlers_of_a_level_do_not_cost_the_last_checkpoint(start, tmp_path):
    careless(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    module = tmp_path / "careless.py"
    module.write_text(
        "import os, signal\n"
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, lambda *_: os._exit(9))\n" + module.read_text()
    )
    run = start(
        *LEVEL, "--total_environment_frames=1000000000", "--metrics_interval_s=1",
        "--checkpoint_interval_s=1000", cwd=tmp_path,
    )  # fmt: skip
    logdir = tmp_path / "run"
    run.wait_until(lambda: len(rows(logdir)) >= 2)
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait(120)
    assert code == 0, out + err
    assert checkpointed_frames(logdir) == int(rows(logdir)[-1]["environment_frames"]) > 0
    actor = (logdir / "processes" / "actor-0.log").read_text()
    assert "stopped" in actor or "the run is over" in actor


def test_a_level_that_changes_the_folder_does_not_move_the_run(start, tmp_path):
    careless(tmp_path, "import os, tempfile; os.chdir(tempfile.gettempdir())")
    code, out, err = start(*SHORT, "--video_every=1000000", cwd=tmp_path).wait()
    assert code == 0, out + err
    assert status(tmp_path / "run")["state"] == "done"
    code, out, err = start(
        "--mode=test", "--logdir=run", "--test_num_episodes=1", "--trust_level_module", "--video",
        cwd=tmp_path,
    ).wait()  # fmt: skip
    assert code == 0, out + err
    assert (tmp_path / "run" / "evaluation.json").exists()
    assert (tmp_path / "run" / "evaluation.mp4").exists()
