"""Changing a launched run: restart, stop, fetch; and what it says when it ends."""

import os

from tests.helpers.waiting import wait_until


def test_processes_can_be_stopped_and_restarted_one_by_one(launched, capfd):
    before = launched.state("actor-1").pid
    assert launched.command("restart", "actor-1") == 0
    wait_until(lambda: launched.state("actor-1").pid not in (None, before))
    assert launched.state("actor-0").restarts == 0
    capfd.readouterr()
    assert launched.command("stop", "actor-1") == 0
    said = capfd.readouterr().out
    assert said.startswith("stopped actor-1; ")
    assert said.endswith(f"restart --logdir={launched.logdir} actor-1 starts them again\n")
    states = {name: each.state for name, each in launched.node().processes.items()}
    assert states == {"learner-0": "running", "actor-0": "running", "actor-1": "stopped"}
    for command in ("restart", "stop"):
        assert launched.command(command, "actor-9") == 2
        said = capfd.readouterr().err
        assert said.startswith("actor-9: no such process or machine; this run has ")


def test_processes_of_a_machine_can_be_stopped_and_restarted_together(launched):
    assert launched.command("restart", "this machine") == 0
    wait_until(lambda: launched.state("learner-0").restarts == 1)
    assert launched.command("stop", "this machine") == 0
    assert {each.state for each in launched.node().processes.values()} == {"stopped"}
    # The second one was said to be restarted, but nothing was started.
    for name in ("actor-0", "actor-1"):
        assert launched.command("restart", name) == 0
    wait_until(lambda: launched.state("actor-0").state == "running")
    wait_until(lambda: launched.state("actor-1").state == "running")


def test_results_are_fetched_and_neither_keys_nor_what_is_there_already(launched, tmp_path, capfd):
    """A machine that shares the folder would read what is being written, and lose it."""
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
    assert (target / "processes" / "actor-1.log").exists()
    assert (target / "processes" / "supervisor-node-here.log").exists()
    fetched = {path.name for path in target.iterdir()}
    assert fetched <= {"checkpoints", "processes", "status.json", "config.json"}, fetched

    before = checkpoint.stat().st_ino
    capfd.readouterr()
    link = tmp_path / "same folder"
    link.symlink_to(launched.logdir)
    for words in ((), (f"--to={link}",)):
        assert launched.command("fetch", *words) == 0
        assert ": 0 files" in capfd.readouterr().out
    assert checkpoint.stat().st_ino == before and checkpoint.read_bytes() == b"weights"


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
