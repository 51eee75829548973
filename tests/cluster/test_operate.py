"""Changing a launched run: restart, fetch, stop."""

import os

from tests.helpers.waiting import wait_until


def test_a_process_can_be_restarted(launched, capfd):
    before = launched.state("actor-1").pid
    assert launched.command("restart", "actor-1") == 0
    wait_until(lambda: launched.state("actor-1").pid not in (None, before))
    assert launched.state("actor-0").restarts == 0
    assert launched.command("restart", "this machine") == 0
    wait_until(lambda: launched.state("learner-0").restarts == 1)
    assert launched.command("restart", "actor-9") == 2
    assert capfd.readouterr().err.startswith("actor-9: no such process or machine; this run has ")


def test_processes_of_a_stopped_machine_can_be_restarted_one_by_one(launched):
    """The second one was said to be restarted, but nothing was started."""
    assert launched.command("stop", "this machine") == 0
    assert launched.command("restart", "actor-0") == 0
    wait_until(lambda: launched.state("actor-0").state == "running")
    assert launched.command("restart", "actor-1") == 0
    wait_until(lambda: launched.state("actor-1").state == "running")


def test_files_are_fetched_without_private_keys(launched, tmp_path):
    wait_until((launched.logdir / "status.json").exists)
    target = tmp_path / "fetched"
    # W&B links to its newest run, and a mirror links files while it copies them.
    checkpoint, copied = launched.logdir / "checkpoints" / "v", launched.logdir / ".mirror-1" / "v"
    for path in (checkpoint, copied):
        path.parent.mkdir()
    checkpoint.write_bytes(b"weights")
    os.link(checkpoint, copied)
    (launched.logdir / "a-link").symlink_to("checkpoints")
    assert launched.command("fetch", f"--to={target}") == 0
    assert (target / "checkpoints" / "v").read_bytes() == b"weights"
    assert not {"a-link", ".mirror-1"} & {path.name for path in target.iterdir()}
    assert (target / "status.json").exists()
    assert (target / "processes" / "actor-1.log").exists()
    assert not (target / "credentials").exists()
    assert not list(target.glob(".fetch-*"))


def test_what_is_there_already_is_not_fetched_over_itself(launched, capfd):
    """A machine that shares the folder would read what is being written, and lose it."""
    large = launched.logdir / "checkpoints" / "ckpt-1" / "variables"
    large.parent.mkdir(parents=True)
    large.write_bytes(b"x" * 3_000_000)
    before = large.stat().st_ino
    capfd.readouterr()
    assert launched.command("fetch") == 0
    assert capfd.readouterr().out.startswith(f"{launched.logdir}: 0 files")
    assert large.stat().st_ino == before and large.read_bytes() == b"x" * 3_000_000
    link = launched.project / "same folder"
    link.symlink_to(launched.logdir)
    assert launched.command("fetch", f"--to={link}") == 0
    assert large.read_bytes() == b"x" * 3_000_000


def test_a_run_that_has_ended_is_not_said_to_be_stopped(launched, capfd):
    capfd.readouterr()
    assert launched.command("stop") == 0
    assert capfd.readouterr().out == "stopped: no process of the run is left on 1 machine(s)\n"
    assert launched.command("stop") == 0
    assert capfd.readouterr().out == "nothing was running on 1 machine(s)\n"


def test_one_process_or_those_of_a_machine_can_be_stopped(launched, capfd):
    assert launched.command("stop", "actor-1") == 0
    said = capfd.readouterr().out
    assert said.startswith("stopped actor-1; ")
    assert said.endswith(f"restart --logdir={launched.logdir} actor-1 starts them again\n")
    states = {name: each.state for name, each in launched.node().processes.items()}
    assert states == {"learner-0": "running", "actor-0": "running", "actor-1": "stopped"}
    assert launched.command("restart", "actor-1") == 0
    wait_until(lambda: launched.state("actor-1").state == "running")
    assert launched.command("stop", "this machine") == 0
    assert {each.state for each in launched.node().processes.values()} == {"stopped"}
    assert launched.command("stop", "actor-9") == 2
    assert capfd.readouterr().err.startswith("actor-9: no such process or machine; this run has ")


def test_the_launcher_and_status_say_what_ended_a_run_early(run, capfd):
    """Its frames are not why, and its log is on another machine."""
    reason = "--stop_at_return=40 is reached: the mean return is 53.6"
    (run.project / "reached").write_text(reason)

    def finish(status):
        if status is not None:
            (run.project / "finish").touch()

    assert run.launch(finish) == 0
    assert run.display.final == f"done: {reason}; logdir {run.logdir} on this machine"
    assert run.command("status") == 0
    assert f"; {reason}\n" in capfd.readouterr().out


def test_the_launcher_says_that_the_hours_have_passed(run):
    assert run.launch(max_hours=10.0 / 3600) == 0
    where = f"logdir {run.logdir} on this machine"
    assert run.display.final == f"stopped: --max_hours=0.00277778 have passed; {where}"
    assert run.state("learner-0").detail == "--max_hours=0.00277778 have passed"
