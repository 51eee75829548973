"""A launched run is looked at and stopped while something is wrong with it."""

import shutil
from pathlib import Path

import pytest

from impala_tf.cluster.node.state import living_pids
from tests.helpers.disks import fill
from tests.helpers.waiting import wait_until


def test_a_run_can_be_looked_at_and_stopped_while_its_csv_is_edited(launched, capfd):
    with launched.csv.open("a") as file:
        file.write("actr,localhost,,-1,,\n")
    for command in ("status", "stop"):
        assert launched.command(command) == 0
        assert "must be learner or actor\nso no passwords are read" in capfd.readouterr().err
    assert launched.command("add") == 2
    assert not living_pids(launched.node())


@pytest.mark.faults
def test_a_learner_that_cannot_save_is_named_when_its_run_is_stopped(launched, capfd):
    """`stop` said that no process was left, and nobody knew that hours of training were lost."""
    (launched.project / "full").touch()
    wait_until(lambda: "learner 0 is up" in launched.log("learner-0"))
    capfd.readouterr()
    assert launched.command("stop") == 1
    (line,) = capfd.readouterr().err.splitlines()
    lost = "what was learned since the last checkpoint may be lost; see "
    assert line.startswith(f"this machine: learner-0: exit status 1; {lost}")
    assert line.endswith(f" logs --logdir={launched.logdir} learner-0")
    assert launched.command("restart", "learner-0") == 0
    wait_until(lambda: launched.log("learner-0").count("learner 0 is up") == 2)
    assert launched.command("stop", "learner-0") == 1
    assert f"learner-0: exit status 1; {lost}" in capfd.readouterr().err


@pytest.mark.faults
def test_an_attached_launcher_names_a_learner_that_cannot_save(run):
    (run.project / "full").touch()
    statuses: list[int] = []

    def stop(status):
        if status is not None and not statuses:
            statuses.append(run.command("stop"))

    assert run.launch(stop) == 1
    stopped = "learner-0 stopped: told to stop; exit status 1; what was learned since the last"
    assert run.display.final.startswith(f"failed: {stopped} checkpoint may be lost; see ")


@pytest.mark.faults
def test_a_run_whose_files_were_deleted_can_be_stopped(launched, capfd):
    """`stop` said that nothing was running, and a launch was refused because that still ran."""
    state = launched.node()
    assert len(living_pids(state)) == 4
    shutil.rmtree(launched.logdir / "processes")
    capfd.readouterr()
    assert launched.command("stop") == 0
    assert capfd.readouterr().out == "stopped: no process of the run is left on 1 machine(s)\n"
    wait_until(lambda: living_pids(state) == {})
    assert launched.launch(detach=True, fresh=True) == 0


@pytest.mark.faults
def test_a_run_on_a_full_disk_can_be_stopped(small_disk, launched, capfd):
    pids = living_pids(launched.node())
    fill(small_disk)
    assert launched.command("stop", "actor-0") == 1
    assert "No space left on device" in capfd.readouterr().err
    assert launched.command("stop", "--timeout_s=20") == 1
    said = capfd.readouterr().err
    assert said.startswith("this machine: learner-0: how it ended is not known; what was learned ")
    # Of a process that has ended, the shell of its window takes note a moment later.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()))
