"""--dry_run: what a launch would start, and what is refused before anything is touched."""

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
ONE, TWO, ACTOR = "learner,10.9.9.1,8001,", "learner,10.9.9.2,8001,", "actor,10.9.9.3,,"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "w.csv"
    path.write_text(ROWS)
    return Given().replace(
        workers_csv_path=str(path), logdir=str(tmp_path / "logs"), envs_per_actor=16, dry_run=True
    )


def write(config, *rows, header="job,ip,tf_port,envs"):
    Path(str(config.cluster.workers_csv_path)).write_text("\n".join([header, *rows]) + "\n")


def warnings(config):
    return [line for line in ssh.render(config).splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize("columns", ["40", "300"])
def test_the_text_is_as_agreed_on_every_terminal(config, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("impala_tf.frontend.launch.connected", lambda *_: pytest.fail("connected"))
    assert ssh.render(config) == Path(__file__).with_name("ssh.golden.txt").read_text()
    assert not (tmp_path / "logs").exists()


def test_a_dry_run_on_this_machine_starts_nothing(tmp_path):
    flags = ["--dry_run", "--num_actors=3", "--envs_per_actor=5", f"--logdir={tmp_path}/logs"]
    status, out, err = runs.Run("--level_name=CartPole-v1", *flags).wait()
    assert status == 0, err
    assert "one learner and 3 actors with 5 environments each, on this machine" in out
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("flags", "rows", "named"),
    [
        ({"secret": ("NOT_SET",)}, (ONE, ACTOR), ["--secret=NOT_SET: not set in this shell"]),
        (
            {},  # only the text of the addresses was compared
            ("learner,127.0.0.1,8001,", "learner,localhost,8001,", "actor,127.0.0.1,,"),
            [":3: tf_port: 8001 is already used by the learner in line 2"],
        ),
        (
            {"min_learners": 3, "min_actors": 4},  # it waited for a learner that did not exist
            (ONE, TWO, ACTOR, ACTOR),
            ["--min_learners=3: ", "--min_actors=4: "],
        ),
    ],
)
def test_what_could_not_start_or_continue_is_named(config, flags, rows, named):
    write(config, *rows)
    with pytest.raises(ConfigError) as caught:
        ssh.render(config.replace(**flags))
    for line, part in zip(caught.value.problems, named, strict=True):
        assert part in line


@pytest.mark.parametrize("flags", [{"algorithm": "ppo"}, {"synchronization": "trajectory"}])
def test_actors_that_do_not_divide_by_the_learners_are_said_to_waste_play(config, flags):
    write(config, ONE, TWO, *[ACTOR] * 5)
    (line,) = warnings(config.replace(**flags))
    assert "what 16 of the environments play is dropped" in line
    assert "batches of 32 unrolls; give each of the 2 learners the same number of env" in line
    assert warnings(config) == []
    write(config, ONE, TWO, *[ACTOR] * 4)
    assert warnings(config.replace(**flags)) == []
    write(config, ONE, TWO, ACTOR)
    (line,) = warnings(config.replace(**flags))
    assert "1 actor(s) for 2 learners: learner-1 would train nothing" in line


def test_a_learner_on_loopback_is_named_if_others_must_reach_it(config):
    """Machines behind forwarded ports have loopback addresses, so the CSV looked right."""
    rows, header = (
        ["learner,127.0.0.1,8001,2201", "actor,127.0.0.1,,2201"],
        "job,ip,tf_port,ssh_port",
    )
    write(config, *rows, header=header)
    assert warnings(config) == []
    write(config, *rows, "actor,127.0.0.1,,2202", header=header)
    (line,) = warnings(config)
    assert "learner-0 is at 127.0.0.1, which is another machine on " in line
    assert "@127.0.0.1:2202: give as ip the address at which they reach it" in line
