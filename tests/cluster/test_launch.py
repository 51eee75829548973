"""Launches of a stand-in run on this machine: show it, manage it from outside, stop it."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.launch import Launcher
from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.state import living_pids
from impala_tf.cluster.record import claimed, load, save
from impala_tf.cluster.runner import ClusterError
from impala_tf.config import ConfigError
from impala_tf.machine import supervision
from tests.helpers.launched_run import windows
from tests.helpers.ports import free_port
from tests.helpers.stand_in import write_csv
from tests.helpers.waiting import wait_until


def test_a_detached_run_can_be_managed_and_stopped(run, capfd):
    assert run.launch(detach=True) == 0
    assert windows() == ["supervisor 0", "learner-0 0", "actor-0 0", "actor-1 0"]
    wait_until((run.logdir / "status.json").exists)
    capfd.readouterr()
    assert run.command("status") == 0
    shown = {line.split()[0]: line for line in capfd.readouterr().out.splitlines()}
    for name, rate, lag in (("actor-1", "1,234", "2.5"), ("learner-0", "5,678", "3.2")):
        assert all(word in shown[name] for word in ("running", rate, lag, " s ago")), shown[name]
    wait_until((run.logdir / "processes" / "actor-1.log").read_text)
    assert run.command("logs", "actor-1") == 0
    assert "actor 1 is up with -1\n" in capfd.readouterr().out
    state = run.node()
    subprocess.run(["tmux", "new-window", "-d", "-t", "=impala:", "-n", "mine"], check=True)
    assert run.command("stop") == 0
    assert living_pids(state) == {}
    assert windows() == ["mine 0"], "a window that the user opened was closed"
    assert capfd.readouterr().out == "stopped: no process of the run is left on 1 machine(s)\n"
    assert run.command("stop") == 0
    assert capfd.readouterr().out == "nothing was running on 1 machine(s)\n"
    run.command("logs", "learner-0")
    assert "stopped cleanly" in capfd.readouterr().out


def test_processes_get_search_paths_and_private_keys_and_no_tokens(run, monkeypatch):
    # Longer than a command of tmux, as `module load` makes such paths on clusters.
    paths = ":".join(f"/opt/it's here/{number}/lib; $(touch x) é" for number in range(1500))
    monkeypatch.setenv("LD_LIBRARY_PATH", paths)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    assert run.launch(detach=True) == 0
    for pid in living_pids(run.node()).values():
        variables = Path(f"/proc/{pid}/environ").read_bytes()
        assert f"LD_LIBRARY_PATH={paths}".encode() in variables.split(b"\0")
        assert b"canary" not in variables
    keys = run.logdir / "credentials"
    assert keys.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}


def test_a_second_launch_is_refused_and_names_what_is_in_use(run, capfd):
    assert run.launch(detach=True) == 0
    record = load(run.logdir)
    capfd.readouterr()
    assert run.launch(detach=True) == 1
    said = capfd.readouterr().err.splitlines()
    assert (
        "tmux session impala exists already, with supervisor, learner-0, actor-0, actor-1"
        in said[0]
    )
    assert f"{run.logdir} is in use by supervisor (pid {run.node().pid})" in said[1]
    assert said[1].endswith(f"stop --logdir={run.logdir}")
    assert run.launch(detach=True, tmux_sess="other") == 1
    assert load(run.logdir) == record
    assert [run.state(n).state for n in ("learner-0", "actor-0")] == ["running", "running"]


def test_two_launches_at_once_leave_one_run(run, capfd):
    """The record of the one that is refused must not replace the other's."""
    with claimed(run.logdir):
        assert run.launch(detach=True) == 1
    said = f"--logdir={run.logdir}: another launch is starting there now"
    assert said in capfd.readouterr().err.splitlines()


def test_a_file_that_cannot_be_written_here_is_named(run, capfd):
    (run.logdir / "code.tar.gz").mkdir(parents=True)
    assert run.launch(detach=True) == 1
    assert f"{run.logdir}/code.tar.gz: Is a directory\n" in capfd.readouterr().err


def test_a_run_does_not_begin_again_because_its_first_learner_has_another_machine(run, capfd):
    """The checkpoints are on the machine that it was on."""
    mirror = {"mirror": str(run.logdir.parent / "mirror")}
    assert run.launch(detach=True, **mirror) == 0
    assert run.command("stop") == 0
    record = load(run.logdir)
    (here,) = record.plan.nodes
    before = record.plan._replace(
        nodes=(here._replace(name="10.9.8.7"),),
        processes=tuple(each._replace(node="10.9.8.7") for each in record.plan.processes),
    )
    save(record._replace(plan=before), run.logdir)
    with pytest.raises(ConfigError, match="learner-0 was on 10.9.8.7, which may have the run"):
        run.launch(detach=True)
    assert load(run.logdir).plan == before
    assert run.launch(detach=True, **mirror) == 0, "a mirror brings the checkpoints"


def test_a_logdir_of_another_user_is_refused(run, capfd):
    run.logdir.mkdir()
    os.chown(run.logdir, 12345, -1)
    assert run.launch(detach=True) == 1
    assert "belongs to another user (uid 12345)" in capfd.readouterr().err
    assert list(run.logdir.iterdir()) == []


def test_the_launcher_shows_the_run_until_it_ends_and_the_windows_stay(run):
    def finish(status):
        if status is not None:
            (run.project / "finish").touch()

    assert run.launch(finish) == 0
    assert run.display.final == f"done; logdir {run.logdir} on this machine"
    wait_until(lambda: windows() == ["supervisor 1", "learner-0 1", "actor-0 1", "actor-1 1"])
    # Those windows do not prevent another launch.
    assert run.launch() == 0


def test_a_failed_learner_ends_the_run_and_is_named(run, monkeypatch):
    monkeypatch.setattr(supervision, "LEARNER_RESTARTS", 0)
    (run.project / "finish").write_text("7")
    assert run.launch() == 1
    assert run.display.final.startswith("failed: learner-0 failed: exit status 7 after ")
    assert run.display.final.endswith(f" logs --logdir={run.logdir} learner-0")
    wait_until(lambda: living_pids(run.node()) == {})


def test_ctrl_c_in_the_launcher_leaves_the_run_running(run):
    def interrupt(status):
        if status is not None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    assert run.launch(interrupt) == 0
    assert run.display.final.startswith("left running: 3 processes on 1 machine(s); ")
    assert run.state("learner-0").state == "running"


def test_ctrl_c_during_the_start_leaves_nothing_that_starts_later(run, monkeypatch):
    start = Launcher.start
    late: list[object] = []

    def start_late(launcher, runner):
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(files.cancelled_path(run.logdir, "node-here").exists)
        try:
            late.append(start(launcher, runner))
        except ClusterError as error:
            late.append(str(error))

    monkeypatch.setattr(Launcher, "start", start_late)
    with pytest.raises(KeyboardInterrupt):
        run.launch(detach=True)
    wait_until(lambda: late)
    assert "the launch was interrupted" in str(late[0])
    assert windows() == []
    monkeypatch.setattr(Launcher, "start", start)
    assert run.launch(detach=True) == 0, "another launch is refused, too"


def test_a_run_whose_actors_have_all_failed_ends_and_names_the_cause(run):
    """Its learner would wait for unrolls for ever."""
    (run.project / "broken").touch()
    assert run.launch() == 1
    cause = r"exit status 3 after \d+ s: the level is broken"
    assert re.match(f"failed: actor-0 failed: {cause}; actor-1 failed:", run.display.final)
    notes = [note for note in run.display.notes if note.startswith("actor-0 ")]
    assert re.fullmatch(f"actor-0 on this machine failed: {cause}", notes[-1])
    assert run.state("learner-0").state == "stopped"


def test_a_launch_into_the_folder_of_another_run_is_refused_and_fresh_moves_that_aside(
    run, run_here
):
    """The folder is on learner 0's machine, so that machine is asked before anything is started."""
    logdir = run.logdir
    logdir.mkdir()
    described = {"flags": {"discounting": 0.5}, "sources": {"discounting": "given"}}
    (logdir / "config.json").write_text(json.dumps(described))
    flags = [f"--workers_csv_path={run.csv}", "--level_name=CartPole-v1", f"--logdir={logdir}"]
    code, _, err = run_here(*flags, "--detach")
    assert code == 2
    difference, advice = err.splitlines()
    assert "--discounting=0.99 (not given), but" in difference
    assert f"{logdir} was trained with --discounting=0.5" in difference
    assert f"--logdir={logdir}" in advice and "--fresh" in advice
    assert [path.name for path in logdir.iterdir()] == ["config.json"]

    code, _, err = run_here(*flags, "--detach", "--fresh")
    assert code == 0, err
    assert f"the run that was there is now in {logdir}.1" in err
    assert (Path(f"{logdir}.1") / "config.json").exists()
    assert not (logdir / "config.json").exists()
    # The processes would refuse it.
    assert not any("--fresh" in each.arguments for each in load(logdir).plan.processes)


def test_wrong_input_is_refused_before_any_machine_is_used(run, run_here, monkeypatch):
    for name in ("remote.SshRunner.run", "runner.LocalRunner.run"):
        monkeypatch.setattr(f"impala_tf.cluster.{name}", lambda *_: pytest.fail("connected"))
    flags = [f"--workers_csv_path={run.csv}", f"--logdir={run.logdir}"]
    code, _, err = run_here(*flags, "--level_name=CartPoel-v1")
    assert (code, err.count("\n")) == (2, 1)
    assert "--level_name=CartPoel-v1: no such level" in err
    run.csv.write_text("job,ip\nactor,10.0.0.1\nboss,$(id)\n")
    code, _, err = run_here(*flags, "--level_name=CartPole-v1")
    assert (code, err.count("\n")) == (2, 2)
    assert not run.logdir.exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["stop", "--logdir=/none"], "--logdir=/none: holds no launched run (No such file"),
        (["fetch", "--to=~/pong"], "argument --to: ~/pong: shells leave ~ as it is there"),
        (["status", "--probelms"], "unrecognized arguments: --probelms; see "),
        (["setup", "--workers_csv_path=x", "--extras=y"], "--extras=y: must be some of worlds,"),
        (["dance"], "argument COMMAND: invalid choice: 'dance'"),
        (["doctor"], "the following arguments are required: --workers_csv_path; see "),
        (["doctor", "--workers_csv_path=/none"], "--workers_csv_path=/none: No such file"),
    ],
)
def test_unusable_arguments_give_one_line_and_exit_status_2(words, problem, capfd):
    assert main(words) == 2
    said = capfd.readouterr().err
    assert said.startswith(problem)
    assert said.count("\n") == 1


def test_the_doctor_finds_a_port_in_use_and_accepts_a_good_machine(run, capfd, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        csv = write_csv(tmp_path / "taken.csv", run.project, learners=[str(port)])
        assert main(["doctor", f"--workers_csv_path={csv}", f"--logdir={run.logdir}"]) == 1
        assert "Address already in use" in capfd.readouterr().out
    assert main(["doctor", f"--workers_csv_path={csv}", f"--logdir={run.logdir}"]) == 0
    assert f"reaches localhost:{port}" in capfd.readouterr().out


def test_files_of_the_user_hide_no_module_of_python(run, capfd, tmp_path, monkeypatch):
    """The current folder may have any, and so may the home folder of another machine."""
    (tmp_path / "random.py").write_text("raise SystemExit('this is not the standard library')\n")
    monkeypatch.chdir(tmp_path)
    csv = write_csv(tmp_path / "any.csv", run.project)
    assert main(["doctor", f"--workers_csv_path={csv}"]) == 0, capfd.readouterr().out
    assert main(["setup", f"--workers_csv_path={csv}"]) == 0, capfd.readouterr().out


def test_several_learners_without_horovod_are_refused_before_anything_starts(
    run, monkeypatch, tmp_path, capfd
):
    """The launch said that it had started them; actors then waited for ever."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; sys.modules['horovod'] = None")
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    run.csv = write_csv(run.csv, run.project, [free_port(), free_port()])
    assert run.launch(detach=True) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("this machine: ") and "Horovod" in line
    assert "install_horovod.sh" in line and line.endswith("python")
    assert not run.logdir.exists()


@pytest.mark.parametrize("above", [0, 1])
def test_a_port_in_use_is_named_before_anything_starts(run, capfd, above):
    """Of two learners, the second port is where they find each other."""
    first = free_port()
    write_csv(run.csv, run.project, learners=(first, first - 2) if above else (first,))
    with socket.create_server(("localhost", first + above)):
        assert run.launch(detach=True) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert f"another process listens on localhost:{first + above}; " in line and "tf_port" in line
    assert windows() == []
