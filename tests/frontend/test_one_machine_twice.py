"""A CSV that names one machine in two ways: its nodes would close each other's windows."""

import sys

import pytest

from impala_tf.config import ConfigError, Given
from impala_tf.frontend.launch import launch
from impala_tf.frontend.main import main
from impala_tf.frontend.plan import NodeSpec, named_twice
from tests.helpers.ports import free_port
from tests.helpers.stand_in import make_project

NODE = NodeSpec("a", "node-0", "a", False, "w", "python", "logs")


@pytest.fixture
def csv(sshd, tmp_path, monkeypatch):
    """A CSV with a learner at 127.0.0.1 and an actor at localhost, which are one machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    work = make_project(tmp_path / "work")
    rest = f"{sshd.port},root,{sshd.user_key},{work},{sys.executable}"
    rows = [
        f"learner,127.0.0.1,{free_port()},-1,127.0.0.1,{rest}",
        f"actor,127.0.0.1,,-1,localhost,{rest}",
    ]
    header = "job,ip,tf_port,cuda_visible_devices,ssh_host,ssh_port,ssh_username,key_filename"
    path = tmp_path / "w.csv"
    path.write_text("\n".join([f"{header},workdir,python", *rows]) + "\n")
    return path


@pytest.mark.slow
def test_a_machine_that_the_csv_names_in_two_ways_is_refused_before_anything_starts(
    csv, tmp_path, capfd
):
    """The second node's start closed the windows of the first; the launcher said "done"."""
    config = Given().replace(
        workers_csv_path=str(csv), logdir=str(tmp_path / "logs"), detach=True,
        accept_new_host_keys=True,
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        launch(config, make_display=lambda status: pytest.fail("the run was started"))
    (line,) = caught.value.problems
    assert line.startswith(f"{csv}:3: localhost is the same machine and user as 127.0.0.1 in line")
    assert "in line 2: give both rows" in line
    assert "give both rows the same ssh_host (or ip), ssh_port and ssh_username" in line
    assert not (tmp_path / "logs" / "cluster.json").exists()
    capfd.readouterr()
    assert main(["doctor", f"--workers_csv_path={csv}", f"--logdir={tmp_path}/logs"]) == 1
    assert "is the same machine and user as" in " ".join(capfd.readouterr().out.split())


def test_only_nodes_that_say_they_are_the_same_are_one_machine():
    first = NODE._replace(machine_id="1", csv_line=2)
    second = NODE._replace(name="b", machine_id="2", csv_line=3)
    unknown = [NODE._replace(name=name) for name in "cd"]
    assert named_twice([first, second, *unknown], "w.csv") == []
    assert len(named_twice([first, second._replace(machine_id="1")], "w.csv")) == 1
