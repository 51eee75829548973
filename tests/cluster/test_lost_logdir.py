"""Machines that have lost the run that was started there."""

import shutil

import pytest

from impala_tf.config import ConfigError
from tests.helpers.waiting import wait_until


@pytest.mark.faults
def test_a_run_does_not_begin_again_because_a_disk_is_not_mounted(remote, capfd):
    """The run started again at frame 0, and nothing said that days of training were missing."""
    assert remote.launch() == 0, capfd.readouterr().err
    wait_until(lambda: "is up with" in remote.log())
    assert remote.command("stop") == 0
    (remote.work / "logs").rename(remote.work / "disk")
    lost = f": the run was started there, but {remote.work}/logs has nothing of it"
    with pytest.raises(ConfigError) as caught:
        remote.launch()
    assert lost in caught.value.problems[0]
    capfd.readouterr()
    assert remote.command("restart", "learner-0") == 2
    assert lost in capfd.readouterr().err
    (remote.work / "disk").rename(remote.work / "logs")
    assert remote.launch() == 0
    assert remote.command("stop") == 0
    shutil.rmtree(remote.work / "logs")
    assert remote.launch(fresh=True) == 0


@pytest.mark.faults
def test_a_launcher_says_that_learner_0s_machine_has_lost_the_run(run):
    """It called the machine reachable, and waited for ever."""
    folder, away = run.logdir / "processes", run.logdir / "away"

    def lose_it_for_a_while(status):
        if status is not None and not run.display.notes and folder.exists():
            folder.rename(away)
        if run.display.notes and away.exists():
            away.rename(folder)
            (run.project / "finish").touch()

    assert run.launch(lose_it_for_a_while) == 0
    lost = f"this machine: {run.logdir} has nothing of the run any more (a disk that is not mount"
    assert run.display.notes[0].startswith(lost)
    assert run.display.notes[1] == "this machine: reachable again"
