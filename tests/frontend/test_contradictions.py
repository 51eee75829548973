"""Ports and counts with which a run could not start or continue are refused before it starts."""

from pathlib import Path

import pytest

from impala_tf.config import ConfigError, Given
from impala_tf.frontend.engines import ssh

HEADER = "job,ip,tf_port"
ONE, TWO = "learner,10.9.9.1,8001", "learner,10.9.9.2,8001"
ACTOR = "actor,10.9.9.3,"


@pytest.fixture
def given(tmp_path):
    """The flags of a launch; `write` fills its CSV."""
    path, logdir = tmp_path / "w.csv", tmp_path / "logs"
    return Given().replace(workers_csv_path=str(path), logdir=str(logdir), envs_per_actor=4)


def write(given: Given, *rows: str) -> str:
    path = str(given.cluster.workers_csv_path)
    Path(path).write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def refused(given: Given) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        ssh.render(given)
    return caught.value.problems


def test_learners_on_one_port_of_this_machine_are_refused_whatever_they_call_it(given):
    """Only the text of the addresses was compared."""
    csv = write(given, "learner,127.0.0.1,8001", "learner,localhost,8001", "actor,127.0.0.1,")
    assert refused(given) == [
        f"{csv}:3: tf_port: 8001 is already used by the learner in line 2, which is on the same"
        " machine"
    ]


def test_more_machines_than_the_csv_has_cannot_be_asked_for(given):
    """After a loss, a run waited for a third learner that did not exist, and then ended."""
    csv = write(given, ONE, TWO, ACTOR, ACTOR)
    assert refused(given.replace(min_learners=3, min_actors=4)) == [
        f"--min_learners=3: {csv} has 2 learner(s); give at most 2",
        f"--min_actors=4: {csv} has 2 actor(s); give at most 2",
    ]
    assert "warning" not in ssh.render(given.replace(min_learners=2, min_actors=2))


@pytest.mark.parametrize("algorithm", ["vtrace", "ppo"])
def test_learners_without_an_actor_are_warned_about(given, algorithm):
    """Two of three rented machines would have done nothing."""
    write(given, ONE, TWO, "learner,10.9.9.4,8001", ACTOR)
    *_, before, line = ssh.render(given.replace(algorithm=algorithm)).splitlines()
    assert line == (
        "warning: 1 actor(s) for 3 learners: learner-1 to learner-2 would train nothing, because"
        " each actor plays for one learner; give 3 actors or more"
    )
    assert "warning" not in before
