"""Variables and secrets of processes on machines: who gets them, and where nobody finds them."""

import contextlib
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from impala_tf.cluster.record import load
from impala_tf.config import ConfigError
from tests.helpers.remote_run import Remote
from tests.helpers.waiting import wait_until

CANARY = "canary-90d1"
FLAGS = {"env": ("WANDB_MODE=offline",), "secret": ("WANDB_API_KEY",)}
SAY = """
import hashlib, os
key = hashlib.sha256(os.environ.get("WANDB_API_KEY", "").encode()).hexdigest()[:8]
others = os.environ.get("AWS_KEY")
print("mode", os.environ.get("WANDB_MODE"), "key", key, "other", others, flush=True)
"""
SAID = "mode offline key d7aa347b other None"


@pytest.fixture
def run(remote: Remote, monkeypatch):
    """A run whose processes say what they get; the launching shell has the secret."""
    script = remote.project / "run_experiment.py"
    script.write_text(SAY + script.read_text())
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    monkeypatch.setenv("AWS_KEY", "not theirs")
    return remote


def secrets_of(run):
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)  # sshd does not know that of the test
    return list(home.glob(f".impala_tf/secrets/{load(run.logdir).run_id}-*"))


def logs(run):
    folder = run.work / "logs" / "processes"
    return [path.read_text() for path in folder.glob("[al]*-0.log")]


def text_of(path):
    with contextlib.suppress(FileNotFoundError):  # the learner replaces its status all the time
        return path.read_bytes().decode(errors="replace")
    return ""


def test_processes_get_variables_and_secrets_also_after_a_restart(run, tmp_path, capfd):
    assert run.launch(**FLAGS) == 0, capfd.readouterr().err
    wait_until(lambda: len(logs(run)) == 2 and all(SAID in text for text in logs(run)))
    (kept,) = secrets_of(run)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    command_lines = subprocess.check_output(["ps", "axww", "-o", "args="], text=True)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != kept]
    said = capfd.readouterr()
    written = "".join(map(text_of, files))
    assert CANARY not in command_lines + written + said.out + said.err
    assert run.command("restart", "actor-0") == 0
    wait_until(lambda: run.log().count(SAID) == 2)
    assert run.command("stop") == 0
    assert secrets_of(run) == []


def test_a_run_that_had_ended_is_restarted_with_its_secrets_or_not_at_all(run, capfd, monkeypatch):
    assert run.launch(**FLAGS) == 0, capfd.readouterr().err
    (run.work / "finish").touch()
    wait_until(lambda: secrets_of(run) == [], what="end of the run")
    (run.work / "finish").unlink()
    monkeypatch.delenv("WANDB_API_KEY")
    wait_until(lambda: run.command("restart", "actor-0") == 1)
    assert "--secret=WANDB_API_KEY: was removed when the run ended" in capfd.readouterr().err
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    assert run.command("restart", "actor-0") == 0, capfd.readouterr().err
    wait_until(lambda: run.log().count(SAID) == 2)


def test_a_secret_that_the_shell_does_not_have_is_named(run, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(ConfigError, match="--secret=WANDB_API_KEY: not set in this shell"):
        run.launch(**FLAGS)
