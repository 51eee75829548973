"""The manifests of docker/k8s are valid and fit each other. No cluster is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from impala_tf import config as configs
from impala_tf.config import command_line
from impala_tf.machine.certificates import ACTOR_FILES, LEARNER_FILES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "k8s"
VERSION = "1.34"


def documents() -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            found[document["kind"], document["metadata"]["name"]] = document
    return found


DOCUMENTS = documents()
LEARNER = DOCUMENTS["StatefulSet", "learner"]["spec"]
ACTOR = DOCUMENTS["Deployment", "actor"]["spec"]
PODS = {"learner": LEARNER["template"]["spec"], "actor": ACTOR["template"]["spec"]}
LABELS = {role: spec["template"]["metadata"]["labels"]
          for role, spec in (("learner", LEARNER), ("actor", ACTOR))}  # fmt: skip


def labels(document: dict[str, Any]) -> set[tuple[str, str]]:
    return set(document["matchLabels"].items())


def fits(selector: dict[str, Any], role: str) -> bool:
    return labels(selector) <= set(LABELS[role].items())


def container(role: str) -> dict[str, Any]:
    (found,) = PODS[role]["containers"]
    return dict(found)


def given_to(role: str) -> configs.Given:
    job, *given = container(role)["args"]
    assert job == role
    return command_line.parse([f"--job_name={role}", *given])


def wire_digest(role: str) -> str:
    return configs.wire_digest(configs.resolve(given_to(role), "atari"))


@pytest.mark.parametrize("key", DOCUMENTS, ids="-".join)
def test_manifests_match_the_schema_of_kubernetes(key):
    kubernetes_validate.validate(DOCUMENTS[key], VERSION, strict=True)


def test_everything_is_in_the_namespace():
    for (kind, _), document in DOCUMENTS.items():
        if kind != "Namespace":
            assert ("Namespace", document["metadata"]["namespace"]) in DOCUMENTS


def test_selectors_select_only_their_own_pods():
    for role, spec in (("learner", LEARNER), ("actor", ACTOR)):
        assert fits(spec["selector"], role)
    assert fits(LEARNER["selector"], "learner") and not fits(LEARNER["selector"], "actor")
    assert fits(ACTOR["selector"], "actor") and not fits(ACTOR["selector"], "learner")
    service = DOCUMENTS["Service", "learner"]["spec"]
    assert {"matchLabels": service["selector"]} == LEARNER["selector"]
    assert LEARNER["serviceName"] == "learner" and service["clusterIP"] == "None"


def test_actors_use_the_port_that_the_learner_serves():
    (host,) = configs.hosts(given_to("actor")["learner_hosts"])
    (port,) = DOCUMENTS["Service", "learner"]["spec"]["ports"]
    (listens,) = container("learner")["ports"]
    assert host == f"learner:{port['port']}"
    assert port["targetPort"] == listens["name"]
    (bound,) = configs.hosts(given_to("learner")["learner_hosts"])
    assert bound == f"0.0.0.0:{listens['containerPort']}"
    assert "ports" not in container("actor")


def test_only_actors_of_this_run_can_reach_the_learners_port():
    closed = DOCUMENTS["NetworkPolicy", "nobody-reaches-the-run"]["spec"]
    assert fits(closed["podSelector"], "learner") and fits(closed["podSelector"], "actor")
    assert closed["policyTypes"] == ["Ingress"] and "ingress" not in closed
    opened = DOCUMENTS["NetworkPolicy", "actors-reach-the-learner"]["spec"]
    assert fits(opened["podSelector"], "learner") and not fits(opened["podSelector"], "actor")
    (rule,) = opened["ingress"]
    (source,) = rule["from"]
    assert fits(source["podSelector"], "actor") and not fits(source["podSelector"], "learner")
    assert labels(source["podSelector"]) & labels(closed["podSelector"])  # both name this run
    (port,) = rule["ports"]
    assert port == {"protocol": "TCP", "port": container("learner")["ports"][0]["name"]}


@pytest.mark.parametrize("role", PODS)
def test_pods_run_unprivileged_and_cannot_gain_privileges(role):
    context = PODS[role]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert (context["runAsUser"], context["fsGroup"]) == (1000, 1000)
    for each in PODS[role]["containers"] + PODS[role]["initContainers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in each["resources"]["limits"]
        assert each["image"] == f"impala-tf-{role}:latest"


@pytest.mark.parametrize("role", PODS)
def test_the_probes_run_the_images_health_check(role):
    check = (ROOT / "docker" / "Dockerfile").read_text()
    assert 'CMD ["python", "docker/health.py"]' in check
    command = ["python", "/opt/impala_tf/docker/health.py"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container(role)[probe]["exec"]["command"] == command
    assert container("learner")["readinessProbe"]["exec"]["command"] == command


@pytest.mark.parametrize(("role", "files"), [("learner", LEARNER_FILES), ("actor", ACTOR_FILES)])
def test_each_role_gets_only_its_own_credentials(role, files):
    volumes = {volume["name"]: volume for volume in PODS[role]["volumes"]}
    secrets = [v["secret"]["secretName"] for v in PODS[role]["volumes"] if "secret" in v]
    assert secrets == [f"{role}-credentials"]
    (copies,) = PODS[role]["initContainers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in copies["volumeMounts"]}
    assert copies["command"] == [
        "install", "--mode=600", f"--target-directory={mounts['credentials']}",
        *(f"{mounts['secret']}/{name}" for name in files),
    ]  # fmt: skip
    assert volumes["credentials"]["emptyDir"]["medium"] == "Memory"
    assert given_to(role)["credentials"] == mounts["credentials"]
    paths = {mount["name"]: mount["mountPath"] for mount in container(role)["volumeMounts"]}
    assert paths["credentials"] == mounts["credentials"]
    assert paths["tmp"] == "/tmp"


def test_checkpoints_are_on_the_claimed_volume():
    (claim,) = LEARNER["volumeClaimTemplates"]
    paths = {mount["name"]: mount["mountPath"] for mount in container("learner")["volumeMounts"]}
    logdir = given_to("learner")["logdir"]
    assert logdir is not None
    assert logdir.startswith(f"{paths[claim['metadata']['name']]}/")


def test_learner_and_actors_belong_to_the_same_run():
    assert wire_digest("learner") == wire_digest("actor")
