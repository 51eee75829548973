"""What --engine=kubernetes renders is valid, and its parts fit each other. No cluster is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from impala_tf import config as configs
from impala_tf.config import Given, command_line
from impala_tf.frontend.engines import kubernetes
from impala_tf.frontend.engines import kubernetes_manifests as manifests
from impala_tf.frontend.engines.documents import label
from impala_tf.machine.certificates import ACTOR_FILES, LEARNER_FILES, create
from impala_tf.machine.supervision import STOP_TIMEOUT_S
from tests.helpers.runs import PROJECT

VERSION = "1.34"
ROLES = ("learner", "actor")
FLAGS: dict[str, Any] = {
    "logdir": "/example/pong", "engine": "kubernetes", "level_name": "CartPole-v1",
    "algorithm": "impala", "envs_per_actor": 8, "seed": 3,
}  # fmt: skip
ONE = Given({**FLAGS, "kubernetes_actors": 3})
SEVERAL = Given(
    {**FLAGS, "kubernetes_learners": 2, "kubernetes_actors": 3, "kubernetes_namespace": "team",
     "kubernetes_actor_resources": "cpu=4,memory=4Gi", "kubernetes_storage_class": "nfs",
     "kubernetes_learner_resources": "cpu=8,memory=32Gi,nvidia.com/gpu=1"}
)  # fmt: skip
RUN = manifests.name_of(ONE)
DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


def documents(given: Given) -> list[dict[str, Any]]:
    # Not SafeLoader: the same in Python takes ten times as long.
    found = yaml.load_all(kubernetes.render(given), yaml.CSafeLoader)
    return [document for document in found if document]


def document(given: Given, kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        each
        for each in documents(given)
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def job(given: Given, role: str) -> dict[str, Any]:
    return document(given, "Job", f"{RUN}-{role}")["spec"]


def pod(given: Given, role: str) -> dict[str, Any]:
    return job(given, role)["template"]["spec"]


def container(given: Given, role: str) -> dict[str, Any]:
    (found,) = pod(given, role)["containers"]
    return dict(found)


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of an argument: $$ is $, and $(NAME) a variable that is there."""
    return re.sub(
        r"\$\$|\$\(([\w.-]+)\)",
        lambda m: "$" if m[1] is None else variables.get(m[1], m[0]),
        text,
    )


def given_to(given: Given, role: str, index: int) -> Given:
    """The flags of a pod, as the entry point reads them there."""
    word, *args = container(given, role)["args"]
    assert word == "join"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOB_COMPLETION_INDEX", str(index))
        patch.delenv("TF_CONFIG", raising=False)
        return command_line.parse(["--join", *(expanded(each, {}) for each in args)])


def labels_of(given: Given, role: str) -> dict[str, str]:
    return dict(job(given, role)["template"]["metadata"]["labels"])


def fits(selector: dict[str, str], given: Given, role: str) -> bool:
    return selector.items() <= labels_of(given, role).items()


@pytest.mark.parametrize("flags", [ONE, SEVERAL], ids=["one", "several"])
def test_every_object_matches_the_schema_of_kubernetes(flags, tmp_path):
    create(tmp_path / "credentials")
    secrets = [manifests.secret(flags, role, tmp_path / "credentials") for role in ROLES]
    kinds = [each["kind"] for each in documents(flags)]
    assert kinds[-2:] == ["Job", "Job"], "they start the run, so they come last"
    for each in [*documents(flags), *secrets]:
        kubernetes_validate.validate(each, VERSION, strict=True)


def test_all_objects_are_in_the_namespace_and_have_the_runs_label():
    for each in documents(SEVERAL):
        assert each["metadata"]["namespace"] == "team"
        assert each["metadata"]["labels"]["impala-tf/run"] == RUN
    assert not any("namespace" in each["metadata"] for each in documents(ONE))


@pytest.mark.parametrize("flags", [ONE, SEVERAL], ids=["one", "several"])
def test_learners_have_the_names_that_all_pods_are_given(flags):
    service = document(flags, "Service", RUN)["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
    assert fits(service["selector"], flags, "learner")
    assert not fits(service["selector"], flags, "actor")
    assert pod(flags, "learner")["subdomain"] == RUN
    (port,) = service["ports"]
    (listens,) = container(flags, "learner")["ports"]
    assert port["targetPort"] == listens["name"] and port["port"] == listens["containerPort"]
    size = job(flags, "learner")["completions"]
    names = [f"{RUN}-learner-{index}.{RUN}:{port['port']}" for index in range(size)]
    for role in ROLES:
        assert given_to(flags, role, 0)["learner_hosts"].split(",") == names


@pytest.mark.parametrize("role", ROLES)
def test_the_flags_of_a_pod_are_those_of_the_run_and_its_own(role):
    found = given_to(SEVERAL, role, 1)
    assert (found["job_name"], found["task"]) == (role, 1)
    for name in ("level_name", "algorithm", "envs_per_actor", "seed"):
        assert found[name] == SEVERAL[name]
    for name in configs.ENGINE_FLAGS:
        assert name not in found
    assert (found["actors_per_node"], found["num_actors"]) == (4, 12), "one per requested core"


@settings(max_examples=15, deadline=None)  # rendering takes a moment
@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.sampled_from(ROLES),
)
@example("$(HOME) $$ $", "actor")
def test_no_flag_changes_on_its_way_to_a_pod(text, role):
    flags = ONE.replace(track_group=text)
    assert given_to(flags, role, 0)["track_group"] == text


@given(st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=80))
@example("Pong_3")
@example("-")
@example("3")
@example("a" * 64)
@example("PongNoFrameskip-v4-ShallowConvNetAgent-impala-1")
def test_any_logdir_gives_names_that_dns_takes(name):
    for run in (label(name), label(name, of=f"/runs/{name}")):
        assert DNS_LABEL.fullmatch(run)
        for role in ROLES:
            assert DNS_LABEL.fullmatch(f"{run}-{role}-99999"), "the host name of a pod"


def test_names_that_look_alike_stay_different():
    alike = ("Pong 3", "pong-3", "pong_3", "PONG-3", "pong--3 ")
    assert len({label(name) for name in alike}) == len(alike)
    assert label("pong-3") == "pong-3"


def test_runs_in_folders_of_one_name_have_objects_of_their_own(tmp_path):
    """The second run replaced the first, and went on with its checkpoints."""
    one, other = (
        {
            each["metadata"]["name"]
            for each in documents(SEVERAL.replace(logdir=str(tmp_path / folder / "pong")))
        }
        for folder in ("one", "other")
    )
    assert not one & other
    assert all(name.startswith("pong-") for name in one | other)


def test_learner_and_actors_belong_to_the_same_run():
    first, second = (
        configs.wire_digest(configs.resolve(given_to(SEVERAL, role, 0), "vector")) for role in ROLES
    )
    assert first == second


def test_actors_that_wait_for_updates_have_the_batch_that_they_fill():
    """A pod cannot know how many pods there are."""
    flags = SEVERAL.replace(algorithm="ppo")
    assert given_to(flags, "learner", 0)["batch_size"] == 12 // 2 * 8
    assert given_to(flags.replace(batch_size=5), "learner", 0)["batch_size"] == 5
    assert given_to(SEVERAL, "learner", 0)["batch_size"] is None


@pytest.mark.parametrize("role", ROLES)
def test_a_job_ends_with_the_run_and_outlives_its_machines(role):
    spec = job(SEVERAL, role)
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == (2 if role == "learner" else 3)
    assert pod(SEVERAL, role)["restartPolicy"] == "Never", "podFailurePolicy needs it"
    assert pod(SEVERAL, role)["terminationGracePeriodSeconds"] > STOP_TIMEOUT_S
    drained, left, refused = spec["podFailurePolicy"]["rules"]
    assert (drained["action"], left["action"], refused["action"]) == ("Ignore", "Ignore", "FailJob")
    assert drained["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert left["onExitCodes"] == {"containerName": role, "operator": "In", "values": [75]}
    assert refused["onExitCodes"]["values"] == [2], "wrong flags do not get right by a restart"
    (over,) = spec["successPolicy"]["rules"]
    assert over == ({"succeededIndexes": "0"} if role == "learner" else {"succeededCount": 1})


def test_an_actor_does_not_wait_for_ever_for_learners_that_failed():
    assert given_to(ONE, "actor", 0)["idle_exit_minutes"] == 60
    assert given_to(ONE.replace(idle_exit_minutes=5.0), "actor", 0)["idle_exit_minutes"] == 5


@pytest.mark.parametrize("flags", [ONE, SEVERAL], ids=["one", "several"])
def test_only_this_runs_pods_can_reach_the_learners(flags):
    closed = document(flags, "NetworkPolicy", f"{RUN}-closed")["spec"]
    selector = closed["podSelector"]["matchLabels"]
    assert selector == {"impala-tf/run": RUN}
    assert all(fits(selector, flags, role) for role in ROLES)
    assert closed["policyTypes"] == ["Ingress"] and "ingress" not in closed
    opened = document(flags, "NetworkPolicy", f"{RUN}-actors")["spec"]
    (rule,) = opened["ingress"]
    (source,) = rule["from"]
    to, of = opened["podSelector"]["matchLabels"], source["podSelector"]["matchLabels"]
    assert fits(to, flags, "learner") and not fits(to, flags, "actor")
    assert fits(of, flags, "actor") and not fits(of, flags, "learner")
    assert "impala-tf/run" in of and "impala-tf/run" in to
    (listens,) = container(flags, "learner")["ports"]
    assert rule["ports"] == [{"protocol": "TCP", "port": listens["containerPort"]}]
    policies = [each for each in documents(flags) if each["kind"] == "NetworkPolicy"]
    assert len(policies) == (2 if flags is ONE else 3), "several learners also reach each other"
    if flags is SEVERAL:
        between = document(flags, "NetworkPolicy", f"{RUN}-learners")["spec"]
        (rule,) = between["ingress"]
        assert rule["from"] == [{"podSelector": between["podSelector"]}]
        assert fits(between["podSelector"]["matchLabels"], flags, "learner")
        assert not fits(between["podSelector"]["matchLabels"], flags, "actor")


@pytest.mark.parametrize("role", ROLES)
def test_pods_run_unprivileged_and_cannot_gain_privileges(role):
    context = pod(SEVERAL, role)["securityContext"]
    assert context["runAsNonRoot"] is True
    assert (context["runAsUser"], context["fsGroup"]) == (1000, 1000)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in pod(SEVERAL, role)["containers"] + pod(SEVERAL, role)["initContainers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["requests"].keys() >= {"cpu", "memory"}
        assert "memory" in each["resources"]["limits"]
        assert each["image"] == f"impala-tf-{role}:latest"


def test_a_pod_gets_the_resources_that_were_asked_for():
    assert container(SEVERAL, "learner")["resources"] == {
        "requests": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "32Gi", "nvidia.com/gpu": "1"},
    }


@pytest.mark.parametrize("role", ROLES)
def test_the_probes_run_the_images_health_check(role):
    check = (PROJECT / "docker" / "Dockerfile").read_text()
    assert 'CMD ["python", "docker/health.py"]' in check
    command = ["python", "/opt/impala_tf/docker/health.py"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container(ONE, role)[probe]["exec"]["command"] == command
    assert container(ONE, "learner")["readinessProbe"]["exec"]["command"] == command


@pytest.mark.parametrize(("role", "files"), [("learner", LEARNER_FILES), ("actor", ACTOR_FILES)])
def test_each_role_gets_only_its_own_credentials(role, files, tmp_path):
    create(tmp_path / "credentials")
    secret = manifests.secret(ONE, role, tmp_path / "credentials")
    assert secret["stringData"].keys() == {*files}
    volumes = {volume["name"]: volume for volume in pod(ONE, role)["volumes"]}
    secrets = [v["secret"]["secretName"] for v in volumes.values() if "secret" in v]
    assert secrets == [secret["metadata"]["name"]] == [f"{RUN}-{role}"]
    (copies,) = pod(ONE, role)["initContainers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in copies["volumeMounts"]}
    assert copies["command"] == [
        "install", "--mode=600", f"--target-directory={mounts['credentials']}",
        *(f"{mounts['secret']}/{name}" for name in files),
    ]  # fmt: skip
    assert volumes["credentials"]["emptyDir"]["medium"] == "Memory"
    assert given_to(ONE, role, 0)["credentials"] == mounts["credentials"]
    paths = {mount["name"]: mount["mountPath"] for mount in container(ONE, role)["volumeMounts"]}
    assert paths["credentials"] == mounts["credentials"]
    assert paths["tmp"] == "/tmp"
    assert "KEY" not in kubernetes.render(ONE)


def test_only_learners_have_the_volume_and_their_logdir_is_on_it():
    paths = {
        mount["name"]: mount["mountPath"] for mount in container(ONE, "learner")["volumeMounts"]
    }
    assert Path(given_to(ONE, "learner", 0)["logdir"]).parent == Path(paths["runs"])
    for flags, modes in ((ONE, ["ReadWriteOnce"]), (SEVERAL, ["ReadWriteMany"])):
        claim = document(flags, "PersistentVolumeClaim", RUN)
        assert claim["spec"]["accessModes"] == modes
        volumes = {volume["name"]: volume for volume in pod(flags, "learner")["volumes"]}
        assert volumes["runs"]["persistentVolumeClaim"] == {"claimName": RUN}
        of_actors = {volume["name"]: volume for volume in pod(flags, "actor")["volumes"]}
        assert "emptyDir" in of_actors["runs"]
    flags = ONE.replace(kubernetes_claim="shared")
    assert "PersistentVolumeClaim" not in [each["kind"] for each in documents(flags)]
    volumes = {volume["name"]: volume for volume in pod(flags, "learner")["volumes"]}
    assert volumes["runs"]["persistentVolumeClaim"] == {"claimName": "shared"}
