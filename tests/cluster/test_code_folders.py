"""The code of a run on another machine: no later launch changes it, and nothing old is left."""

from impala_tf.cluster import code
from impala_tf.cluster.record import load
from tests.helpers.waiting import wait_until


def test_a_run_keeps_its_code_whatever_is_launched_later(remote, capfd):
    (remote.project / "README.md").write_text("deleted later")
    assert remote.launch() == 0, capfd.readouterr().err
    wait_until(lambda: "actor 0 is up with -1" in remote.log())
    ((first, folder),) = remote.folders().items()
    assert (folder / "README.md").exists()
    remote.edit("new")
    assert load(remote.logdir).code == first, "a machine that joins later gets other code"
    (remote.project / "README.md").unlink()
    assert remote.launch("other") == 1, "the tmux session is in use"
    assert "exists already" in capfd.readouterr().err
    assert remote.command("restart", "actor-0") == 0
    wait_until(lambda: remote.log().count("actor 0 is up with -1") == 2)
    assert "is new" not in remote.log(), "a restart mixed two versions of the code"
    assert remote.command("stop") == 0

    assert remote.launch() == 0, capfd.readouterr().err
    wait_until(lambda: "actor 0 is new with -1" in remote.log())
    folder = remote.folders()[code.digest(code.pack())]
    assert not (folder / "README.md").exists(), "a file lingers that was deleted"
    assert remote.command("stop") == 0
    folder.rename(remote.work / "elsewhere")
    assert remote.command("stop") == 0, "what follows a run needs its code"
    assert remote.command("status") == 0
