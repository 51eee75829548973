"""`fetch` names in one line what it cannot write here."""

import sys

import pytest

from impala_tf.config import Given
from impala_tf.frontend.launcher import new_record, plan_of
from impala_tf.frontend.main import main
from impala_tf.frontend.record import save

pytestmark = pytest.mark.slow


def test_places_that_cannot_be_written_are_named(launched, tmp_path, capfd):
    """Each ended with a traceback."""
    (tmp_path / "a file").touch()
    target = tmp_path / "fetched"
    (target / "processes" / "actor-1.log").mkdir(parents=True)
    capfd.readouterr()
    for place, reason in (
        (tmp_path / "a file", "File exists"),
        (tmp_path / "a file" / "there", "Not a directory"),
        ("/proc/x", "No such file or directory"),
    ):
        assert launched.command("fetch", f"--to={place}") == 2
        assert capfd.readouterr().err == f"{place}: {reason}\n"
    assert launched.command("fetch", f"--to={target}") == 2
    assert f"{target}/processes/actor-1.log: Is a directory\n" in capfd.readouterr().err
    assert not list(target.glob(".fetch-*"))


def test_an_older_record_there_does_not_replace_that_of_the_launch(sshd, home, tmp_path, capfd):
    """`stop` then acted on the other run."""
    there, here, csv = tmp_path / "there", tmp_path / "here", tmp_path / "w.csv"
    (home / "known_hosts").write_text(sshd.known_hosts.read_text())
    rest = f"{sshd.port},root,{sshd.user_key},{tmp_path}"
    csv.write_text(
        "job,ip,tf_port,ssh_port,ssh_username,key_filename,workdir\n"
        f"learner,127.0.0.1,8001,{rest}\nactor,127.0.0.1,,{rest}\n"
    )
    given = Given({"workers_csv_path": str(csv), "logdir": str(there)})
    save(new_record(plan_of(given, sys.executable)[0], given), here)
    written = (here / "cluster.json").read_text()
    there.mkdir()
    for name in ("cluster.json", "code.tar.gz", "metrics.csv"):
        (there / name).write_text("old")
    assert main(["fetch", f"--logdir={here}"]) == 0, capfd.readouterr().err
    assert (here / "cluster.json").read_text() == written
    assert sorted(path.name for path in here.iterdir()) == ["cluster.json", "metrics.csv"]
    there.rename(tmp_path / "elsewhere")
    capfd.readouterr()
    assert main(["fetch", f"--logdir={here}"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"127.0.0.1: {there}: ")
