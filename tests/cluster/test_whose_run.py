"""Commands act on what this user launched, whatever a folder says."""

import pytest

from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.launch import new_record
from impala_tf.cluster.plan import plan_of
from impala_tf.cluster.record import Launch, save, write
from impala_tf.config import Given

ENGINES = ("ssh", "slurm", "ray")


@pytest.fixture
def state(tmp_path, monkeypatch):
    """An empty folder of the user's records."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "impala_tf" / "launches"


def launched(path, tmux_sess="impala"):
    """Records a launch on this machine, of which no process runs; returns its logdir."""
    csv = path.parent / "w.csv"
    csv.write_text("job,ip,tf_port\nlearner,localhost,8001\nactor,localhost,\n")
    given = Given({"workers_csv_path": str(csv), "logdir": str(path), "tmux_sess": tmux_sess})
    record = new_record(plan_of(given, "/a/python")[0], given)
    save(record, path)
    return record.run_id


@pytest.mark.parametrize("words", [
    ["status"], ["stop"], ["logs", "learner-0"], ["restart", "learner-0"], ["add"],
    ["revoke", "x"], ["fetch"], ["attach", "x"], ["watch"],
])  # fmt: skip
@pytest.mark.parametrize("engine", ENGINES)
def test_a_folder_that_somebody_else_launched_is_refused(engine, words, state, tmp_path, capfd):
    """It chose the program that `stop` ran, and the address to which `status` connected."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    write("a" * 16, Launch(engine, str(theirs), 1.0, {"job": "7", "address": "10.9.9.9:1"}))
    (state / f"{'a' * 16}.json").rename(
        tmp_path / f"{'b' * 16}.json"
    )  # a record, but not the user's
    own = launched(mine)
    for text in ("a" * 16, f"../../../{'b' * 16}", str(tmp_path / ("b" * 16)), own, "", "\0", "é"):
        (theirs / "launch_id").write_text(text)
        assert main([words[0], f"--logdir={theirs}", *words[1:]]) == 2
        said = capfd.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert f"--logdir={theirs}: was not launched from this account" in said.err


def test_the_newest_of_the_session_is_meant_without_a_logdir(state, tmp_path, capfd):
    """A stranger's folder below runs/ was taken for it, by the time that it said."""
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    launched(first)
    launched(second)
    launched(other, "another")
    (tmp_path / "first" / "launch_id").rename(tmp_path / "away")
    assert main(["stop", "--timeout_s=1"]) == 1, "its interpreter is missing"
    assert "/a/python" in capfd.readouterr().err
    (second / "launch_id").unlink()
    assert main(["stop"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "--tmux_sess=impala" in line and line.endswith(f": --logdir={other}")
