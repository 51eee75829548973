"""Machines that have lost the run that was started there."""

import shutil

import pytest

from impala_tf.config import ConfigError
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow


def test_a_run_does_not_begin_again_because_a_disk_is_not_mounted(remote, capfd):
    """Days of training went on from frame 0 without a word."""
    assert remote.launch() == 0, capfd.readouterr().err
    wait_until(lambda: "is up with" in remote.log())
    assert remote.command("stop") == 0
    (remote.work / "logs").rename(remote.work / "disk")
    lost = f"127.0.0.1: the run was started there, but {remote.work}/logs has nothing of it"
    with pytest.raises(ConfigError) as caught:
        remote.launch()
    assert caught.value.problems[0].startswith(lost)
    capfd.readouterr()
    assert remote.command("restart", "learner-0") == 2
    assert capfd.readouterr().err.startswith(lost)
    (remote.work / "disk").rename(remote.work / "logs")
    assert remote.launch() == 0
    assert remote.command("stop") == 0
    shutil.rmtree(remote.work / "logs")
    assert remote.launch(fresh=True) == 0
