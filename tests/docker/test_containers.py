"""Clusters of containers: they can be scaled, killed, paused and stopped, and training resumes."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import time
import urllib.request

import pytest

from tests.helpers.compose import Cluster, check_engine, copy_project, docker
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500), pytest.mark.xdist_group("docker")]

IMAGES = ("impala-tf-actor:tests", "impala-tf-learner:tests")
PONG = "/runs/PongNoFrameskip-v4-ShallowConvNetAgent"
FLAGS = (
    "--batch_size=8 --envs_per_actor=8 --checkpoint_interval_s=5"
    " --metrics_interval_s=5 --total_environment_frames=1000000000"
)
ORDINARY_USER = 1000


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project, with its images built."""
    check_engine()
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


def assert_one_curve(cluster: Cluster) -> None:
    """Asserts that time, frames and updates increase from row to row, despite all interruptions."""
    found = list(csv.DictReader(io.StringIO(cluster.read(f"{PONG}/metrics.csv"))))
    assert found
    for column in ("wall_time_s", "environment_frames", "learner_updates"):
        values = [float(row[column]) for row in found]
        assert values == sorted(set(values)), column


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
        timeout=240,
    )
    uid, refused, *others = done.stdout.splitlines()
    assert int(uid) == ORDINARY_USER
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
    subprocess.run(
        ["docker", "exec", container, "python", "-c",
         "import os; [os.kill(int(p), 9) for p in os.listdir('/proc') if p.isdigit()"
         " and int(p) not in (1, os.getpid())]"],
        timeout=240,
    )  # fmt: skip
    wait_for(
        "restart", lambda: cluster.inspect(container)["RestartCount"] == 1, 60,
        lambda: docker("logs", "--tail=20", container),
    )  # fmt: skip
    wait_for("actor", lambda: container in cluster.containers("actor", "running"), 60)
    wait_for_frames(cluster, 5_000)


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
    assert cluster.containers("learner") == cluster.containers("actor") == []
    cluster.up()
    wait_for("training", lambda: frames(cluster) > kept, 240, lambda: cluster.logs("learner"))
    assert f"resuming from {PONG}/checkpoints/" in cluster.logs("learner")
    assert_one_curve(cluster)
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
_RESOLVES = """
import socket, sys
try:
    print(bool(socket.gethostbyname(sys.argv[1])))
except OSError:
    print(False)
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
    try:
        cluster.up()
        assert not cluster.containers("learner") and not cluster.containers("actor")
        wait_for(
            "training",
            lambda: cluster.status(logdir).get("state") == "training",
            200,
            lambda: cluster.logs("learner-0")[-3000:] + cluster.logs("learner-1")[-3000:],
        )
        (actor,) = cluster.containers("actor-of-0", "running")
        for learner in ("learner-0", "learner-1"):
            (container,) = cluster.containers(learner, "running")
            ports = listening(container)
            assert len(ports) > 2, "Gloo listens on several"
            reached = docker("exec", actor, "python", "-c", _OPEN_PORTS, learner, *ports)
            assert reached == "[8001]", "actors reach more than the port for actors"
        unknown = docker("exec", actor, "python", "-c", _RESOLVES, "learner-0.group")
        assert unknown == "False"
        wait_for(
            "end",
            lambda: all(cluster.containers(name, "exited") for name in names),
            400,
            lambda: cluster.logs("learner-0")[-3000:] + cluster.logs("learner-1")[-3000:],
        )
        time.sleep(2)  # longer than Docker waits before a first restart
        for name in names:
            (container,) = cluster.containers(name, "exited")
            found = cluster.inspect(container)
            assert (found["State"]["ExitCode"], found["RestartCount"]) == (0, 0), name
        status = cluster.status(logdir)
        assert status["state"] == "done"
        assert status["environment_frames"] >= 1_000_000
        # Each learner has its own actor.
        assert len(status["actors"]) == 1
        other = cluster.read(f"{logdir}/status-1.json")
        assert '"state": "done"' in other
    finally:
        cluster.remove()
