"""Clusters of containers: they can be scaled, killed, paused and stopped, and training resumes."""

from __future__ import annotations

import os
import re
import subprocess
import time

import pytest

from tests.helpers.compose import Cluster, copy_project, docker
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500), pytest.mark.xdist_group("docker")]

IMAGES = ("impala-tf-actor:tests", "impala-tf-learner:tests")
PONG = "/runs/PongNoFrameskip-v4-ShallowConvNetAgent"
FLAGS = (
    "--batch_size=8 --envs_per_actor=8 --checkpoint_interval_s=5"
    " --metrics_interval_s=5 --total_environment_frames=1000000000"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project, with its images built."""
    folder = copy_project(tmp_path_factory.mktemp("docker") / "project")
    Cluster(folder, "impala-tests").compose("build", timeout_s=1400)
    return folder


@pytest.fixture(scope="module")
def cluster(project):
    """One learner, two actors and TensorBoard. The actors play Pong."""
    one = Cluster(project, f"impala-tests-{os.getpid()}", FLAGS=FLAGS)
    one.remove()
    try:
        one.up()
        yield one
    finally:
        one.remove()


def wait_for(what, condition, timeout_s, explain=str):
    """Waits until `condition()` is true, asking once per second: Docker is slow to answer."""
    return wait_until(condition, timeout_s, what=what, explain=explain, poll_s=1.0)


def frames(cluster: Cluster) -> int:
    return int(cluster.status(PONG).get("environment_frames", 0))


def wait_for_frames(cluster: Cluster, more: int = 1) -> None:
    """Waits until the learner has trained on `more` additional frames."""
    target = frames(cluster) + more

    def reached() -> bool:
        status = cluster.status(PONG)
        return status.get("state") == "training" and status["environment_frames"] >= target

    wait_for(f"{target} frames", reached, 240, lambda: cluster.logs("learner")[-3000:])


def actors(cluster: Cluster, silent_s: float = 10.0) -> dict[str, dict]:
    """Returns the actors that the learner has heard from in the last `silent_s` seconds."""
    status = cluster.status(PONG)
    since = status["updated_unix_s"] - silent_s
    return {a["name"]: a for a in status["actors"] if a["last_contact_unix_s"] > since}


def health_of(cluster: Cluster, service: str) -> set[str]:
    found = [cluster.inspect(c)["State"] for c in cluster.containers(service, "running")]
    return {state["Health"]["Status"] for state in found}


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
    command = ["docker", "run", "--rm", "--entrypoint=sh", image, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    uid, refused, *others = done.stdout.splitlines()
    assert uid == "1000"
    assert "Permission denied" in refused
    assert others == []


# --- one learner ---


def test_two_actors_train_and_every_container_is_healthy(cluster):
    wait_for_frames(cluster)
    wait_for("two actors", lambda: len(actors(cluster)) == 2, 60)
    wait_for_frames(cluster, 10_000)
    assert all(each["agent_steps_per_s"] > 0 for each in actors(cluster).values())
    services = ("learner", "actor", "tensorboard")
    wait_for(
        "good health",
        lambda: all(health_of(cluster, service) == {"healthy"} for service in services),
        120,
        lambda: str({service: health_of(cluster, service) for service in services}),
    )


def test_actors_can_be_added_during_training(cluster):
    cluster.up("--scale", "actor=4", "actor")

    def four_contribute() -> bool:
        rates = [each["agent_steps_per_s"] for each in actors(cluster).values()]
        return len(rates) == 4 and min(rates) > 0

    wait_for("unrolls from four actors", four_contribute, 180, lambda: str(actors(cluster)))
    wait_for_frames(cluster, 5_000)


def test_a_failed_actor_is_restarted(cluster):
    container = cluster.containers("actor", "running")[0]
    # The container ends with its actor, and so does this command, in the middle of its work: its
    # status says nothing.
    script = """import os
for folder in os.listdir("/proc"):
    if folder.isdigit() and int(folder) not in (1, os.getpid()):
        os.kill(int(folder), 9)"""
    subprocess.run(["docker", "exec", container, "python", "-c", script], timeout=240)
    wait_for("restart", lambda: cluster.inspect(container)["RestartCount"] == 1, 60)
    wait_for("actor", lambda: container in cluster.containers("actor", "running"), 60)
    wait_for_frames(cluster, 5_000)


def test_a_killed_learner_resumes_from_its_checkpoint(cluster):
    wait_for_frames(cluster, 5_000)
    docker("kill", *cluster.containers("learner", "running"))
    kept = cluster.status(PONG)["checkpoint"]["environment_frames"]
    assert kept > 0
    cluster.up("learner")
    wait_for_frames(cluster, 5_000)
    resumed = re.findall(r"resuming from \S+, ([\d,]+) frames", cluster.logs("learner"))
    assert int(resumed[-1].replace(",", "")) >= kept


def test_stopping_takes_some_seconds_and_writes_a_checkpoint(cluster):
    wait_for_frames(cluster, 2_000)
    (learner,) = cluster.containers("learner", "running")
    start = time.monotonic()
    docker("stop", "--time=30", learner)
    took_s = time.monotonic() - start
    state = cluster.inspect(learner)["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (os.EX_TEMPFAIL, False)
    assert took_s < 25, "it is killed after 30 s"
    status = cluster.status(PONG)
    assert status["state"] == "stopped"
    assert status["checkpoint"]["environment_frames"] == status["environment_frames"]
    running = cluster.containers("actor", "running")
    start = time.monotonic()
    docker("stop", "--time=30", *running)  # they are waiting for their learner
    assert time.monotonic() - start < 10 * len(running)
    assert {cluster.inspect(actor)["State"]["ExitCode"] for actor in running} == {0}


def test_down_and_up_again_loses_nothing(cluster):
    kept = frames(cluster)
    cluster.compose("down")
    cluster.up()
    wait_for("training", lambda: frames(cluster) > kept, 240, lambda: cluster.logs("learner"))
    assert f"resuming from {PONG}/checkpoints/" in cluster.logs("learner")
    cluster.compose("down")  # the containers of the next test need the processor


# --- two learners ---


_OPEN_PORTS = """
import socket, sys
found = []
for port in map(int, sys.argv[2:]):
    with socket.socket() as one:
        one.settimeout(2)
        if one.connect_ex((sys.argv[1], port)) == 0:
            found.append(port)
print(found)
"""


def listening(container: str) -> list[str]:
    """Returns the TCP ports on which a container listens."""
    lines = docker("exec", container, "cat", "/proc/net/tcp").splitlines()[1:]
    sockets = [line.split() for line in lines]
    return [str(int(each[1].partition(":")[2], 16)) for each in sockets if each[3] == "0A"]


def test_two_learners_finish_and_are_not_restarted(project):
    logdir = "/runs/CartPole-v1-MLPAgent"
    cluster = Cluster(
        project,
        f"impala-tests-two-{os.getpid()}",
        "two-learners",
        LEVEL_NAME="CartPole-v1",
        AGENT_NAME="MLPAgent",
        FLAGS="--total_environment_frames=1000000 --metrics_interval_s=2",
    )
    names = ("learner-0", "learner-1", "actor-of-0", "actor-of-1")

    def logs() -> str:
        return cluster.logs("learner-0")[-3000:] + cluster.logs("learner-1")[-3000:]

    try:
        cluster.up()
        wait_for("status", lambda: cluster.status(logdir).get("state") == "training", 200, logs)
        assert not cluster.containers("learner") and not cluster.containers("actor")
        (actor,) = cluster.containers("actor-of-0", "running")
        for learner in ("learner-0", "learner-1"):
            (container,) = cluster.containers(learner, "running")
            ports = listening(container)
            assert len(ports) > 2, "Gloo listens on several"
            reached = docker("exec", actor, "python", "-c", _OPEN_PORTS, learner, *ports)
            assert reached == "[8001]", "actors reach more than the port for actors"
        script = (
            "getent hosts learner-0 >/dev/null && ! getent hosts learner-0.group && echo unknown"
        )
        assert docker("exec", actor, "sh", "-c", script) == "unknown"
        wait_for(
            "end", lambda: all(cluster.containers(each, "exited") for each in names), 400, logs
        )
        time.sleep(2)  # longer than Docker waits before a first restart
        for name in names:
            (container,) = cluster.containers(name, "exited")
            found = cluster.inspect(container)
            assert (found["State"]["ExitCode"], found["RestartCount"]) == (0, 0), name
        status = cluster.status(logdir)
        assert (status["state"], len(status["actors"])) == ("done", 1), "each has its own actor"
        assert status["environment_frames"] >= 1_000_000
        assert '"state": "done"' in cluster.read(f"{logdir}/status-1.json")
    finally:
        cluster.remove()
