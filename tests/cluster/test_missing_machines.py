"""Machines that are not there at a launch, that come later, and that are shut out."""

import functools
import os
import shutil
import subprocess
import sys

import pytest
from cryptography import x509

from impala_tf.cluster import code
from impala_tf.cluster.record import load
from impala_tf.cluster.runner import ClusterError, LocalRunner
from impala_tf.machine import certificates
from tests.helpers.waiting import wait_until

NOBODY = "192.0.2.1"
"""An address that no machine has."""


class OtherMachine(LocalRunner):
    """This machine in the role of another one, with a tmux server of its own."""

    def __init__(self, node, tmux):
        super().__init__(node)
        self._tmux = ["env", f"TMUX_TMPDIR={tmux}"]

    def run(self, argv, *arguments, **settings):
        return super().run([*self._tmux, *argv], *arguments, **settings)

    def start(self, argv, *arguments, **settings):
        return super().start([*self._tmux, *argv], *arguments, **settings)


@pytest.fixture
def one_is_missing(run, monkeypatch, tmp_path):
    """The CSV has a second machine, which refuses connections until the fixture's file exists."""
    header, *rows = run.csv.read_text().splitlines()
    rows = [f"{row}," for row in rows]
    rows.append(f"actor,localhost,,-1,{run.project},{sys.executable},{NOBODY}")
    run.csv.write_text("\n".join([f"{header},ssh_host", *rows]) + "\n")
    door = run.project / "door is open"
    (run.project / "there" / "credentials").mkdir(parents=True)
    tmux = tmp_path / "tmux"
    tmux.mkdir()

    def open_runner(node, password):
        if not door.exists():
            raise ClusterError(f"{node.name}: nothing answers SSH at {node.ssh_host}:22")
        return OtherMachine(node._replace(logdir=str(run.project / "there")), tmux)

    files_of = functools.partial(code.pack, root=run.project)
    monkeypatch.setattr(code, "pack", files_of)
    monkeypatch.setattr("impala_tf.cluster.remote.SshRunner", open_runner)
    yield door
    subprocess.run(["tmux", "kill-server"], env={**os.environ, "TMUX_TMPDIR": str(tmux)})


def test_a_machine_can_be_shut_out(run, one_is_missing, capfd):
    one_is_missing.touch()
    assert run.launch(detach=True) == 0
    theirs = run.project / "there" / "credentials"
    name = certificate_name(theirs)
    assert name.startswith(NOBODY)
    assert certificate_name(run.logdir / "credentials") == certificates.ACTOR_NAME
    wait_until(lambda: "actor 2 is up" in run.log("actor-2"))
    assert run.command("revoke", "this machine") == 2
    assert "only another machine that has no learner" in capfd.readouterr().err
    assert run.command("revoke", NOBODY) == 0
    assert (run.logdir / "credentials" / "revoked").read_text() == f"{name}\n"
    wait_until(lambda: "stopped cleanly" in run.log("actor-2"))
    assert run.state("actor-1").state == "running"
    assert run.command("restart", NOBODY) == 1
    assert f"{NOBODY}: was revoked" in capfd.readouterr().err
    run.command("stop")
    assert run.launch(detach=True) == 1
    folder = certificates.revoked_folder(run.logdir / "credentials", NOBODY)
    assert folder is not None
    said = capfd.readouterr().err
    assert f"{NOBODY}: was revoked; take it out of the workers CSV, or delete {folder} and" in said
    shutil.rmtree(folder)
    assert run.launch(detach=True) == 0
    assert certificate_name(theirs) != name


def certificate_name(folder):
    certificate = x509.load_pem_x509_certificate((folder / "actor.pem").read_bytes())
    (attribute,) = certificate.subject
    return attribute.value


def test_a_run_starts_with_those_who_are_there_and_takes_in_the_rest(run, one_is_missing, capfd):
    assert run.launch() == 1
    warning, *said = capfd.readouterr().err.splitlines()
    assert warning.startswith("warning: learner-0 is at localhost, ")
    assert said[0].startswith(f"{NOBODY}: nothing answers")
    assert said[1].startswith("--min_actors=2 starts the run without them")
    assert not (run.logdir / "launch_id").exists()

    def open_the_door_then_finish(status):
        if status is None:
            return
        one_is_missing.touch()
        if "actor 2 is up" in run.log("actor-2"):
            (run.project / "finish").touch()

    assert run.launch(open_the_door_then_finish, min_actors=2) == 0
    assert f"{NOBODY}: nothing answers" in capfd.readouterr().err
    assert f"{NOBODY}: joined the run" in run.display.notes


def test_status_sums_up_and_shows_only_what_is_asked_for(run, one_is_missing, capfd):
    """Among the rows of hundreds of processes, the one that had failed was hard to find."""
    assert run.launch(detach=True, min_actors=1) == 0
    wait_until((run.logdir / "status.json").exists)

    def rows(*words, status=1):
        capfd.readouterr()
        assert run.command("status", *words) == status
        return {line.split("  ")[0] for line in capfd.readouterr().out.splitlines()[2:]}

    everything = {"process", "learner-0", "actor-0", "actor-1", "actor-2"}
    unreachable = f"{NOBODY}: nothing answers SSH at {NOBODY}:22"
    assert rows() == {*everything, unreachable}
    assert rows("--problems") == {"process", "actor-2", unreachable}
    assert rows("actor-1", NOBODY) == {"process", "actor-1", "actor-2", unreachable}
    assert rows("actor-1", "--problems") == {"no process needs attention", unreachable}
    run.command("status", "actor-1")
    assert capfd.readouterr().out.splitlines()[:2] == [
        "learners: 1 running; actors: 2 running, 1 unknown; 5,678 agent steps/s; "
        "1 of 2 machine(s) answer",
        "training: 1 of 9 frames; mean return 1.00",
    ]
    assert run.command("status", "actor-1", "actor-7") == 2
    assert capfd.readouterr().err == (
        "actor-7: no such process or machine; this run has learner-0, actor-0 to actor-2 on "
        f"this machine, {NOBODY}\n"
    )
    assert run.command("restart", NOBODY) == 1
    assert f"{NOBODY}: nothing answers" in capfd.readouterr().err
    one_is_missing.touch()
    assert run.command("restart", NOBODY) == 0
    assert rows("--problems", status=0) == {"no process needs attention"}


def test_the_same_stop_ends_what_is_left_once_the_machine_answers(run, one_is_missing, capfd):
    one_is_missing.touch()
    assert run.launch(detach=True) == 0
    wait_until(lambda: "actor 2 is up" in run.log("actor-2"))
    one_is_missing.unlink()
    assert run.command("stop", "--timeout_s=20") == 1
    assert f"{NOBODY}: processes may still run there; stop the run" in capfd.readouterr().err
    assert "stopped cleanly" not in run.log("actor-2")
    one_is_missing.touch()
    assert run.launch(detach=True) == 1, "a launch beside what is left"
    said = capfd.readouterr().err
    assert f"{NOBODY}:" in said and "is in use by" in said and "stop --logdir=" in said
    assert run.command("stop", "--timeout_s=20") == 0
    assert "stopped cleanly" in run.log("actor-2")


def test_a_run_starts_without_a_learner_that_is_missing(run, one_is_missing, capfd):
    header, first, *actors = run.csv.read_text().replace("localhost", "127.0.0.1").splitlines()
    missing = f"learner,127.0.0.1,8002,,{run.project},{sys.executable},{NOBODY}"
    run.csv.write_text("\n".join([header, missing, first, *actors]) + "\n")
    assert run.launch(detach=True, min_actors=1, min_learners=1) == 1
    assert "learner-0 is needed" in capfd.readouterr().err
    run.csv.write_text("\n".join([header, first, missing, *actors]) + "\n")
    assert run.launch(detach=True, min_actors=1, min_learners=2) == 1
    assert "--min_learners=1 starts the run without them" in capfd.readouterr().err
    assert run.launch(detach=True, min_actors=1, min_learners=1) == 0
    assert f"{NOBODY}: nothing answers" in capfd.readouterr().err
    names = [process.name for process in load(run.logdir).plan.processes]
    assert names == ["learner-0", "learner-1", "actor-0", "actor-1", "actor-2"]
    wait_until(lambda: run.state("learner-0").state == "running")
    assert "learner-0 of 2 learners start without learner-1" in run.log("supervisor-node-here")
    one_is_missing.touch()
    assert run.command("restart", NOBODY) == 0
    wait_until(lambda: "actor 2 is up" in run.log("actor-2"))
