"""Clusters of containers: scaled, killed, paused and taken down, they resume their training."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.compose import Cluster, check_engine, copy_project, docker, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]

IMAGES = ("impala-tf-actor:tests", "impala-tf-learner:tests")
PONG = "/runs/PongNoFrameskip-v4-ShallowConvNetAgent"
FLAGS = (
    "--batch_size=8 --envs_per_actor=8 --queue_capacity=16 --checkpoint_interval_s=5"
    " --metrics_interval_s=5 --total_environment_frames=1000000000"
)
ORDINARY_USER = 1000
WINDOW_S = 60


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project, with its images built."""
    check_engine()
    folder = copy_project(tmp_path_factory.mktemp("docker") / "project")
    Cluster(folder, "impala-tests").compose("build", timeout_s=1400)
    return folder


@pytest.fixture(scope="module")
def cluster(project):
    """One learner, two actors and TensorBoard, playing Pong."""
    one = Cluster(project, f"impala-tests-{os.getpid()}", FLAGS=FLAGS)
    one.remove()
    try:
        one.up()
        yield one
    finally:
        one.remove()


def frames(cluster: Cluster, logdir: str = PONG) -> int:
    return int(cluster.status(logdir).get("environment_frames", 0))


def wait_for_frames(cluster: Cluster, more: int = 1) -> int:
    """Waits until the learner has used `more` frames more; returns how many it has used in all."""
    target = frames(cluster) + more

    def reached() -> int:
        status = cluster.status(PONG)
        fresh = status.get("state") == "training" and status["environment_frames"] >= target
        return int(status["environment_frames"]) if fresh else 0

    return int(wait_for(f"{target} frames", reached, 240, lambda: cluster.logs("learner")[-3000:]))


def actors(cluster: Cluster, silent_s: float = 10.0) -> dict[str, dict]:
    """The actors that the learner has heard from in the last seconds."""
    status = cluster.status(PONG)
    since = status["updated_unix_s"] - silent_s
    return {a["name"]: a for a in status["actors"] if a["last_contact_unix_s"] > since}


def health_of(cluster: Cluster, service: str) -> set[str]:
    found = [cluster.inspect(c)["State"] for c in cluster.containers(service, "running")]
    return {state["Health"]["Status"] for state in found}


def rows(cluster: Cluster) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(cluster.read(f"{PONG}/metrics.csv"))))


class Pace(NamedTuple):
    """How fast a cluster trained over a period."""

    agent_steps_per_s: float
    learner_idle: float  # share of its time in which it waited for batches
    machine_idle: float  # share of the processors' time that was unused


def pace(cluster: Cluster, seconds: float) -> Pace:
    def jiffies() -> list[int]:
        return [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]

    known, before = len(rows(cluster)), jiffies()
    time.sleep(seconds)
    spent = [b - a for a, b in zip(before, jiffies(), strict=True)]
    fresh = rows(cluster)[known:]
    assert fresh
    return Pace(
        sum(float(row["agent_steps_per_s"]) for row in fresh) / len(fresh),
        sum(float(row["learner_idle_fraction"]) for row in fresh) / len(fresh),
        (spent[3] + spent[4]) / sum(spent),
    )


# --- images ---


def test_images_can_be_built_without_certificates(project, tmp_path):
    bare = copy_project(tmp_path / "project")
    for certificate in (bare / "docker" / "certificates").glob("*.crt"):
        certificate.unlink()
    has_buildx = subprocess.run(["docker", "buildx", "version"], capture_output=True)
    docker(
        "build", "-q", "-f", str(bare / "docker" / "Dockerfile"), "--target=installer", str(bare),
        timeout_s=300, env={**os.environ, "DOCKER_BUILDKIT": str(int(not has_buildx.returncode))},
    )  # fmt: skip


@pytest.mark.parametrize("image", IMAGES)
def test_images_run_unprivileged_and_have_no_compiler_pip_or_added_authorities(project, image):
    script = (
        "id -u; touch /opt/impala_tf/x 2>&1; command -v gcc g++ cmake pip;"
        "ls /usr/local/share/ca-certificates /etc/ssl/certs/ca-certificates.crt 2>/dev/null"
    )
    done = subprocess.run(
        ["docker", "run", "--rm", "--entrypoint=sh", image, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    uid, refused, *others = done.stdout.splitlines()
    assert int(uid) == ORDINARY_USER
    assert "Permission denied" in refused
    assert others == []


def test_the_actor_image_is_the_smaller_one(project):
    sizes = [int(docker("image", "inspect", "-f", "{{.Size}}", image)) for image in IMAGES]
    assert sizes[0] < 1.6e9
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("image", IMAGES)
def test_unusable_flags_give_one_line_and_exit_status_2(project, image):
    role = re.search("tf-([a-z]+)", image)[1]  # type: ignore[index]
    command = ["docker", "run", "--rm", image, role, "--learner_hosts=l:1", "--btach_size=3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "run_experiment.py: --btach_size: no such flag; did you mean --batch_size?"
    ]


# --- one learner ---


def test_two_actors_train_for_a_minute(cluster):
    before = wait_for_frames(cluster)
    wait_for("two actors", lambda: len(actors(cluster)) == 2, 60)
    time.sleep(WINDOW_S)
    gained = frames(cluster) - before
    print(f"{gained} frames in {WINDOW_S} s with 2 actors")
    assert gained > 10_000
    assert all(each["agent_steps_per_s"] > 0 for each in actors(cluster).values())
    services = ("learner", "actor", "tensorboard")
    wait_for(
        "good health",
        lambda: all(health_of(cluster, service) == {"healthy"} for service in services),
        120,
        lambda: str({service: health_of(cluster, service) for service in services}),
    )


def test_every_process_runs_unprivileged(cluster):
    for service in ("learner", "actor", "tensorboard"):
        for container in cluster.containers(service, "running"):
            lines = docker("top", container, "-eo", "pid,uid,args").splitlines()[1:]
            assert lines
            assert {int(line.split()[1]) for line in lines} == {ORDINARY_USER}


def test_only_tensorboard_can_be_reached_and_only_from_this_machine(cluster):
    for service in ("learner", "actor"):
        for container in cluster.containers(service, "running"):
            settings = cluster.inspect(container)["NetworkSettings"]
            assert not any((settings["Ports"] or {}).values())
            (network,) = settings["Networks"]
            assert docker("network", "inspect", "-f", "{{.Internal}}", network) == "true"
    (board,) = cluster.containers("tensorboard", "running")
    bound = [b for ports in cluster.inspect(board)["NetworkSettings"]["Ports"].values()
             for b in ports or ()]  # fmt: skip
    port = cluster.settings["TENSORBOARD_PORT"]
    assert bound == [{"HostIp": "127.0.0.1", "HostPort": port}]
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30)
    assert b"TensorBoard" in page.read()


def test_learner_and_actors_see_only_their_own_credentials(cluster):
    for role in ("learner", "actor"):
        container = cluster.containers(role, "running")[0]
        listed = docker("exec", container, "ls", "/credentials/learner", "/credentials/actor")
        other = {"learner": "actor", "actor": "learner"}[role]
        assert f"{role}.key" in listed
        assert f"{other}.key" not in listed
        key = docker("exec", container, "stat", "-c", "%u %a", f"/credentials/{role}/{role}.key")
        assert key == f"{ORDINARY_USER} 600"


def test_actors_can_be_added_during_training(cluster):
    two = pace(cluster, WINDOW_S / 3)
    cluster.up("--scale", "actor=4", "actor")
    wait_for("four actors", lambda: len(actors(cluster)) == 4, 120)
    wait_for("rates of all", lambda: all(
        each["agent_steps_per_s"] > 0 for each in actors(cluster).values()), 60)  # fmt: skip
    four = pace(cluster, WINDOW_S / 3)
    print(f"2 actors: {two}", f"4 actors: {four}", sep="\n")
    # More actors help until the learner or the machine, which all of them share here, is busy.
    faster = four.agent_steps_per_s > 1.1 * two.agent_steps_per_s
    assert faster or four.learner_idle < 0.1 or two.machine_idle < 0.2


def test_training_continues_when_an_actor_is_killed(cluster):
    wait_for_frames(cluster)
    victim, *others = cluster.containers("actor", "running")
    docker("kill", victim)
    wait_for_frames(cluster, 5_000)
    assert victim not in cluster.containers("actor", "running")
    assert set(others) <= set(cluster.containers("actor", "running"))


def test_a_failed_actor_is_restarted(cluster):
    container = cluster.containers("actor", "running")[0]
    docker("exec", container, "python", "-c",
           "import os, signal; [os.kill(int(p), 9) for p in os.listdir('/proc') if p.isdigit()"
           " and int(p) not in (1, os.getpid())]")  # fmt: skip
    wait_for(
        "a restart", lambda: cluster.inspect(container)["RestartCount"] == 1, 60,
        lambda: docker("logs", "--tail=20", container),
    )  # fmt: skip
    wait_for("the actor", lambda: container in cluster.containers("actor", "running"), 60)
    wait_for_frames(cluster, 5_000)


def test_a_paused_actor_reconnects(cluster):
    running = cluster.containers("actor", "running")
    wait_for("all actors", lambda: len(actors(cluster)) == len(running), 120)
    docker("pause", running[0])
    try:
        wait_for("its silence", lambda: len(actors(cluster)) == len(running) - 1, 60)
        time.sleep(20)
        wait_for_frames(cluster, 5_000)
    finally:
        docker("unpause", running[0])
    wait_for(
        "the paused actor", lambda: len(actors(cluster)) == len(running), 120,
        lambda: docker("logs", "--tail=20", running[0]),
    )  # fmt: skip


def test_a_killed_learner_resumes_from_its_checkpoint(cluster):
    wait_for_frames(cluster, 5_000)
    (learner,) = cluster.containers("learner", "running")
    docker("kill", learner)
    kept = cluster.status(PONG)["checkpoint"]["environment_frames"]
    assert kept > 0
    cluster.up("learner")
    wait_for_frames(cluster, 5_000)
    resumed = re.findall(r"resuming from \S+, ([\d,]+) frames", cluster.logs("learner"))
    assert int(resumed[-1].replace(",", "")) >= kept
    assert_one_curve(cluster)


def assert_one_curve(cluster: Cluster) -> None:
    """Asserts that time, frames and updates increase from row to row, whatever was interrupted."""
    found = rows(cluster)
    for column in ("wall_time_s", "environment_frames", "learner_updates"):
        values = [float(row[column]) for row in found]
        assert values == sorted(set(values)), column


def test_stopping_takes_less_than_ten_seconds_and_writes_a_checkpoint(cluster):
    wait_for_frames(cluster, 2_000)
    (learner,) = cluster.containers("learner", "running")
    start = time.monotonic()
    docker("stop", "--time=30", learner)
    took_s = time.monotonic() - start
    print(f"docker stop took {took_s:.1f} s")
    state = cluster.inspect(learner)["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)
    assert took_s < 10
    status = cluster.status(PONG)
    assert status["checkpoint"]["environment_frames"] == status["environment_frames"]
    start = time.monotonic()
    for actor in cluster.containers("actor", "running"):  # they are waiting for their learner
        docker("stop", "--time=30", actor)
        assert cluster.inspect(actor)["State"]["ExitCode"] == 0
    assert time.monotonic() - start < 40


def test_down_and_up_again_loses_nothing(cluster):
    cluster.up()
    wait_for_frames(cluster, 5_000)
    cluster.compose("down")
    assert cluster.containers("learner") == cluster.containers("actor") == []
    cluster.up()
    wait_for_frames(cluster, 5_000)
    assert "resuming from" in cluster.logs("learner")
    assert_one_curve(cluster)


# --- two learners ---


def test_two_learners_finish_and_are_not_restarted(project):
    logdir = "/runs/CartPole-v1-MLPAgent"
    cluster = Cluster(
        project,
        f"impala-tests-two-{os.getpid()}",
        "two-learners",
        LEVEL_NAME="CartPole-v1",
        AGENT_NAME="MLPAgent",
        FLAGS="--total_environment_frames=200000 --metrics_interval_s=2",
    )
    names = ("learner-0", "learner-1", "actor-of-0", "actor-of-1")
    try:
        cluster.up()
        assert not cluster.containers("learner") and not cluster.containers("actor")
        wait_for(
            "the end",
            lambda: all(cluster.containers(name, "exited") for name in names),
            400,
            lambda: cluster.logs("learner-0")[-3000:] + cluster.logs("learner-1")[-3000:],
        )
        time.sleep(10)  # longer than Docker waits before a restart
        for name in names:
            (container,) = cluster.containers(name, "exited")
            found = cluster.inspect(container)
            assert (found["State"]["ExitCode"], found["RestartCount"]) == (0, 0), name
        status = cluster.status(logdir)
        assert status["state"] == "done"
        assert status["environment_frames"] >= 200_000
        # Each learner has its own actor.
        assert len(status["actors"]) == 1
        other = cluster.read(f"{logdir}/status-1.json")
        assert '"state": "done"' in other
    finally:
        cluster.remove()
