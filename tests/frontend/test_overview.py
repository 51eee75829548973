"""--dry_run and doctor: what a launch would start, before anything is touched."""

from pathlib import Path

import pytest
from rich.console import Console

from impala_tf.config import Given
from impala_tf.frontend import overview
from impala_tf.frontend.launch import launch
from tests.helpers import runs

ROWS = """job,ip,tf_port,cuda_visible_devices,ssh_host,ssh_username,ssh_port,envs
learner,10.9.9.1,8001,0,gpu_1,root,2201,
learner,10.9.9.2,8001,0,,,,
actor,10.9.9.3,,-1,,me,,32
actor,10.9.9.3,,-1,,me,,32
actor,10.9.9.4,,-1,,,,
actor,10.9.9.3,,-1,,me,,32
actor,127.0.0.1,,-1,,,,4
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "w.csv"
    path.write_text(ROWS)
    return Given().replace(
        workers_csv_path=str(path), logdir=str(tmp_path / "logs"), envs_per_actor=16, dry_run=True
    )


def unexpected(*_):
    raise AssertionError("something was touched")


def test_a_dry_run_shows_what_each_machine_carries_and_touches_nothing(
    config, capfd, tmp_path, monkeypatch
):
    monkeypatch.setattr(overview, "wide_console", lambda: Console(width=200))
    monkeypatch.setattr("impala_tf.frontend.launch.connected", unexpected)
    assert launch(config, make_display=unexpected) == 0
    *rows, total = capfd.readouterr().out.splitlines()
    assert [" ".join(row.split()) for row in rows[1:]] == [
        "gpu_1 root@gpu_1, port 2201 learner-0 0 1 GiB or more 10.9.9.1:8001, 8002 (rendezvous),"
        " any port (Gloo, from the other learners)",
        "10.9.9.2 10.9.9.2 learner-1 0 1 GiB or more 10.9.9.2:8001, any port (Gloo, from the"
        " other learners)",
        "10.9.9.3 me@10.9.9.3 actor-0 to actor-1, actor-3 96 0.6 GiB or more -",
        "10.9.9.4 10.9.9.4 actor-2 16 0.2 GiB or more -",
        "this machine - actor-4 4 0.2 GiB or more -",
    ]
    assert total == "2 learner(s) and 5 actor(s) on 5 machine(s), 116 environments"
    assert not (tmp_path / "logs").exists()


def test_a_dry_run_on_this_machine_starts_nothing(tmp_path):
    flags = ["--dry_run", "--num_actors=3", "--envs_per_actor=5", f"--logdir={tmp_path}/logs"]
    status, out, err = runs.Run("--level_name=CartPole-v1", *flags).wait()
    assert status == 0, err
    assert "one learner and 3 actors with 5 environments each, on this machine" in out
    assert "0 of 1,500,000 frames so far" in out
    assert not (tmp_path / "logs").exists()


def test_a_learner_on_loopback_is_named_if_others_must_reach_it(config, capfd, monkeypatch):
    """Machines behind forwarded ports have loopback addresses, so the CSV looked right."""
    monkeypatch.setattr("impala_tf.frontend.launch.connected", unexpected)
    rows = ["job,ip,tf_port,ssh_port", "learner,127.0.0.1,8001,2201", "actor,127.0.0.1,,2201"]
    path = Path(str(config.cluster.workers_csv_path))
    path.write_text("\n".join(rows) + "\n")
    assert launch(config, make_display=unexpected) == 0
    assert capfd.readouterr().err == ""
    path.write_text("\n".join([*rows, "actor,127.0.0.1,,2202"]) + "\n")
    assert launch(config, make_display=unexpected) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: learner-0 is at 127.0.0.1, which is another machine on ")
    assert "@127.0.0.1:2202: give as ip the address at which they reach it" in line
