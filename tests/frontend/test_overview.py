"""--dry_run and doctor: what a launch would start, before anything is touched."""

from pathlib import Path

import pytest

from impala_tf.config import ConfigError, Given
from impala_tf.frontend.engines import ssh
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


@pytest.mark.parametrize("columns", ["40", "300"])
def test_the_text_is_as_agreed_on_every_terminal(config, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("impala_tf.frontend.launch.connected", unexpected)
    assert ssh.render(config) == Path(__file__).with_name("ssh.golden.txt").read_text()
    assert not (tmp_path / "logs").exists()


def test_a_dry_run_names_a_secret_that_is_not_set(config):
    with pytest.raises(ConfigError, match="--secret=NOT_SET: not set in this shell"):
        ssh.render(config.replace(secret=("NOT_SET",)))


def test_a_dry_run_on_this_machine_starts_nothing(tmp_path):
    flags = ["--dry_run", "--num_actors=3", "--envs_per_actor=5", f"--logdir={tmp_path}/logs"]
    status, out, err = runs.Run("--level_name=CartPole-v1", *flags).wait()
    assert status == 0, err
    assert "one learner and 3 actors with 5 environments each, on this machine" in out
    assert "0 of 1,500,000 frames so far" in out
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("flags", [{"algorithm": "ppo"}, {"synchronization": "trajectory"}])
def test_actors_that_do_not_divide_by_the_learners_are_said_to_waste_play(config, flags):
    learners = ["job,ip,tf_port,envs", "learner,10.9.9.1,8001,", "learner,10.9.9.2,8001,"]

    def warning(*actors: str, **more: str) -> str:
        path = Path(str(config.cluster.workers_csv_path))
        path.write_text("\n".join([*learners, *actors]) + "\n")
        return "".join(
            line for line in ssh.render(config.replace(**more)).splitlines() if "warning" in line
        )

    actor = "actor,10.9.9.3,,"
    assert warning(*[actor] * 5, **flags) == (
        "warning: what 16 of the environments play is dropped: actors wait for updates"
        " (--algorithm=ppo, --synchronization), so all learners have batches of 32 unrolls; 4 or 6"
        " actors fit"
    )
    assert warning(*[actor] * 3, f"{actor}20", **flags).endswith(
        "32 unrolls; give all actors the same number of environments"
    )
    assert warning(*[actor] * 4, **flags) == ""
    assert warning(*[actor] * 5) == ""


def test_a_learner_on_loopback_is_named_if_others_must_reach_it(config, monkeypatch):
    """Machines behind forwarded ports have loopback addresses, so the CSV looked right."""
    monkeypatch.setattr("impala_tf.frontend.launch.connected", unexpected)
    rows = ["job,ip,tf_port,ssh_port", "learner,127.0.0.1,8001,2201", "actor,127.0.0.1,,2201"]
    path = Path(str(config.cluster.workers_csv_path))
    path.write_text("\n".join(rows) + "\n")
    assert "warning" not in ssh.render(config)
    path.write_text("\n".join([*rows, "actor,127.0.0.1,,2202"]) + "\n")
    *_, line = ssh.render(config).splitlines()
    assert line.startswith("warning: learner-0 is at 127.0.0.1, which is another machine on ")
    assert "@127.0.0.1:2202: give as ip the address at which they reach it" in line
