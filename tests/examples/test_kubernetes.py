"""examples/kubernetes.yaml is valid, and its parts fit each other. No cluster is needed."""

from __future__ import annotations

import os
from typing import Any

import kubernetes_validate
import pytest
import yaml

from impala_tf.cluster.engines import places
from impala_tf.config import Given, command_line
from impala_tf.machine.certificates import ACTOR_FILES, LEARNER_FILES
from impala_tf.machine.supervision import STOP_TIMEOUT_S
from tests.helpers.runs import PROJECT

VERSION = "1.34"
ROLES = ("learner", "actor")
DOCUMENTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((PROJECT / "examples" / "kubernetes.yaml").read_text())
)


def document(kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        each for each in DOCUMENTS if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def job(role: str) -> dict[str, Any]:
    return document("Job", f"pong-{role}")["spec"]


def pod(role: str) -> dict[str, Any]:
    return job(role)["template"]["spec"]


def container(role: str) -> dict[str, Any]:
    (found,) = pod(role)["containers"]
    return dict(found)


def given_to(role: str, index: int) -> Given:
    """The flags of a pod, as the entry point reads them there."""
    word, *args = container(role)["args"]
    assert word == "join"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOB_COMPLETION_INDEX", str(index))
        patch.delenv("TF_CONFIG", raising=False)
        return places.applied(command_line.parse(["--join", *args]), os.environ)


def fits(selector: dict[str, str], role: str) -> bool:
    return selector.items() <= job(role)["template"]["metadata"]["labels"].items()


def test_every_object_matches_the_schema_of_kubernetes() -> None:
    assert [each["kind"] for each in DOCUMENTS][-2:] == ["Job", "Job"], "they start the run"
    for each in DOCUMENTS:
        kubernetes_validate.validate(each, VERSION, strict=True)


def test_learners_have_the_names_that_all_pods_are_given() -> None:
    service = document("Service", "pong")["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
    assert fits(service["selector"], "learner") and not fits(service["selector"], "actor")
    assert pod("learner")["subdomain"] == "pong"
    (listens,) = container("learner")["ports"]
    name = f"pong-learner-0.pong:{listens['containerPort']}"
    for role in ROLES:
        assert given_to(role, 0)["learner_hosts"] == name


def test_the_number_of_actors_is_that_of_their_pods() -> None:
    found = given_to("actor", 3)
    assert (found["job_name"], found["task"]) == ("actor", 3)
    assert found["num_actors"] == found["actors_per_node"] * job("actor")["completions"]


@pytest.mark.parametrize("role", ROLES)
def test_a_job_outlives_its_machines_and_ends_with_wrong_flags(role: str) -> None:
    spec = job(role)
    assert spec["completions"] == spec["parallelism"]
    assert pod(role)["terminationGracePeriodSeconds"] > STOP_TIMEOUT_S
    drained, left, refused = spec["podFailurePolicy"]["rules"]
    assert (drained["action"], left["action"], refused["action"]) == ("Ignore", "Ignore", "FailJob")
    assert drained["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert left["onExitCodes"] == {"containerName": role, "operator": "In", "values": [75]}
    assert refused["onExitCodes"]["values"] == [2]
    assert given_to(role, 0)["idle_exit_minutes"] == 60, "no actor waits for ever"


def test_only_this_runs_pods_can_reach_the_learners() -> None:
    closed = document("NetworkPolicy", "pong-closed")["spec"]
    assert all(fits(closed["podSelector"]["matchLabels"], role) for role in ROLES)
    assert closed["policyTypes"] == ["Ingress"] and "ingress" not in closed
    assert len([each for each in DOCUMENTS if each["kind"] == "NetworkPolicy"]) == 3
    for role, name in (("actor", "pong-actors"), ("learner", "pong-learners")):
        opened = document("NetworkPolicy", name)["spec"]
        to = opened["podSelector"]["matchLabels"]
        assert fits(to, "learner") and not fits(to, "actor") and "impala-tf/run" in to
        (rule,) = opened["ingress"]
        (source,) = rule["from"]
        of = source["podSelector"]["matchLabels"]
        assert [each for each in ROLES if fits(of, each)] == [role] and "impala-tf/run" in of


@pytest.mark.parametrize(("role", "files"), [("learner", LEARNER_FILES), ("actor", ACTOR_FILES)])
def test_each_role_gets_only_its_own_credentials(role: str, files: tuple[str, ...]) -> None:
    volumes = pod(role)["volumes"]
    assert [v["secret"]["secretName"] for v in volumes if "secret" in v] == [f"pong-{role}"]
    (copies,) = pod(role)["initContainers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in copies["volumeMounts"]}
    install, mode, target, *paths = copies["command"]
    assert (install, mode) == ("install", "--mode=600")
    assert target == f"--target-directory={mounts['credentials']}"
    assert {*paths} == {f"{mounts['secret']}/{name}" for name in files}
    used = {mount["name"]: mount["mountPath"] for mount in container(role)["volumeMounts"]}
    assert given_to(role, 0)["credentials"] == used["credentials"] == mounts["credentials"]
