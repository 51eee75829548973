"""How --engine=kubernetes uses kubectl. The kubectl here notes its calls and answers from files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from impala_tf.config import ConfigError, Given
from impala_tf.frontend import main as launcher
from impala_tf.frontend.engines import kubernetes
from impala_tf.frontend.engines import kubernetes_manifests as manifests
from impala_tf.frontend.errors import ClusterError
from impala_tf.machine.certificates import create

KUBECTL = """\
#!/bin/sh
echo "$*" >>"$KUBECTL/calls"
for word; do
    case $word in -*) ;; *) verb=${verb:-$word} ;; esac
    [ "$word" = -f=- ] && cat >>"$KUBECTL/applied" && echo >>"$KUBECTL/applied"
    [ -f "$KUBECTL/refuses" ] && [ "$word" = "$(cat "$KUBECTL/refuses")" ] && {
        echo "a warning" >&2
        echo "Error from server (Forbidden): no" >&2
        exit 1
    }
done
cat "$KUBECTL/$verb" 2>/dev/null || true
"""


class Kubectl:
    """The stand-in, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def answers(self, verb: str, text: str) -> None:
        (self.folder / verb).write_text(text)

    def refuses(self, word: str) -> None:
        (self.folder / "refuses").write_text(word)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    folder = tmp_path / "kubectl"
    folder.mkdir()
    (folder / "bin").mkdir()
    program = folder / "bin" / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECTL", str(folder))
    return Kubectl(folder)


def flags(tmp_path: Path, **more: Any) -> Given:
    return Given(
        {"engine": "kubernetes", "level_name": "CartPole-v1", "logdir": str(tmp_path / "pong"),
         "algorithm": "appo", "envs_per_actor": 32, "kubernetes_namespace": "team",
         "kubernetes_actor_resources": "cpu=4,memory=2Gi", **more}
    )  # fmt: skip


def name(tmp_path: Path) -> str:
    """What the run's objects are called."""
    return manifests.name_of(flags(tmp_path))


def submitted(tmp_path: Path, kubectl: Kubectl) -> str:
    assert kubernetes.submit(flags(tmp_path)) == 0
    (kubectl.folder / "calls").unlink()
    return f"--logdir={tmp_path / 'pong'}"


def test_a_run_is_checked_by_the_server_before_anything_of_it_is_applied(
    kubectl: Kubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = flags(tmp_path)
    assert kubernetes.submit(given) == 0
    out = capsys.readouterr().out
    assert f"the run is {name(tmp_path)} in Kubernetes" in out
    assert "status" in out and "logs learner-0" in out and "stop" in out
    calls = kubectl.calls()
    assert all(call.startswith("--namespace=team ") for call in calls)
    applies = [call for call in calls if " apply " in call]
    assert [("--dry-run=server" in call) for call in applies] == [True] * 3 + [False] * 3
    assert f"-f={tmp_path / 'pong' / 'kubernetes.yaml'}" in applies[-1], "the Jobs come last"
    assert (tmp_path / "pong" / "kubernetes.yaml").read_text() == kubernetes.render(given)
    secrets = [json.loads(line) for line in (kubectl.folder / "applied").read_text().splitlines()]
    names = [each["metadata"]["name"] for each in secrets[:2]]
    assert names == [f"{name(tmp_path)}-{role}" for role in ("learner", "actor")]
    keys = [file for file in secrets[1]["stringData"] if file.endswith(".key")]
    assert keys == ["actor.key"], "a machine of actors must not be able to play a learner"
    ours = tmp_path / "pong" / "credentials" / "actor.key"
    assert secrets[1]["stringData"]["actor.key"] == ours.read_text()
    assert ours.stat().st_mode & 0o077 == 0


def test_what_the_server_refuses_starts_nothing(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.refuses("--dry-run=server")
    with pytest.raises(ClusterError, match=r"^kubectl apply: Error from server \(Forbidden\): no$"):
        kubernetes.submit(flags(tmp_path))
    assert not any(" apply " in call and "dry-run" not in call for call in kubectl.calls())


def test_a_run_that_trains_is_not_started_twice(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.answers("get", "pong-learner pong-actor ")
    with pytest.raises(ConfigError, match="pong-learner pong-actor in Kubernetes .* stop it first"):
        kubernetes.submit(flags(tmp_path))
    assert not any(" apply " in call or " delete " in call for call in kubectl.calls())
    assert not (tmp_path / "pong").exists()


def test_credentials_that_lack_a_file_are_named(kubectl: Kubectl, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    create(folder)
    (folder / "actor.key").unlink()
    with pytest.raises(ConfigError, match="mine/actor.key: No such file"):
        kubernetes.submit(flags(tmp_path, credentials=str(folder)))
    assert not any(" apply " in call for call in kubectl.calls())


def test_a_finished_run_goes_on_with_new_jobs_and_the_same_certificates(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    submitted(tmp_path, kubectl)
    before = (tmp_path / "pong" / "credentials" / "ca.pem").read_text()
    assert kubernetes.submit(flags(tmp_path)) == 0
    verbs = [call.split()[1] for call in kubectl.calls()]
    assert verbs.index("delete") < verbs.index("apply")
    (delete,) = (call for call in kubectl.calls() if " delete " in call)
    selector = f"--selector=impala-tf/run={name(tmp_path)}"
    assert f"delete jobs {selector} --cascade=foreground --wait=true" in delete
    assert (tmp_path / "pong" / "credentials" / "ca.pem").read_text() == before


def test_a_run_keeps_the_name_that_it_was_submitted_with(
    kubectl: Kubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier versions took the folder's name alone, and the run's volume has that name."""
    logdir = tmp_path / "pong"
    logdir.mkdir()
    record = {"job": "pong", "namespace": "team", "logdir": "/runs/pong", "actors_per_pod": 4}
    (logdir / "kubernetes.json").write_text(json.dumps(record))
    assert kubernetes.submit(flags(tmp_path)) == 0
    assert "the run is pong in Kubernetes" in capsys.readouterr().out
    assert "claimName: pong\n" in (logdir / "kubernetes.yaml").read_text()
    assert json.loads((logdir / "kubernetes.json").read_text())["job"] == "pong"
    kubectl.answers("get", "job.batch/pong-learner\n")
    assert launcher.main(["stop", f"--logdir={logdir}"]) == 0
    assert "delete jobs --selector=impala-tf/run=pong " in kubectl.calls()[-1]


def test_status_shows_what_kubernetes_says_and_the_frames(
    kubectl: Kubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logdir = submitted(tmp_path, kubectl)
    kubectl.answers("get", "job.batch/pong-learner   Running\n")
    status = {"state": "training", "environment_frames": 20160, "total_environment_frames": 40000}
    kubectl.answers("exec", json.dumps(status))
    capsys.readouterr()
    assert launcher.main(["status", logdir]) == 0
    out = capsys.readouterr().out
    assert "job.batch/pong-learner   Running" in out
    assert "training: 20,160 of 40,000 frames" in out
    assert launcher.main(["status", logdir, "--problems"]) == 2
    assert "status --problems: only for runs over SSH" in capsys.readouterr().err
    assert kubectl.calls()[-1].endswith(f"-c=learner -- cat /runs/{name(tmp_path)}/status.json")
    kubectl.answers("get", "")
    assert launcher.main(["status", logdir]) == 0
    assert "no Jobs in Kubernetes any more" in capsys.readouterr().out


def test_a_pod_that_has_just_started_has_no_frames_yet(
    kubectl: Kubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logdir = submitted(tmp_path, kubectl)
    kubectl.answers("get", "pong-learner-0-abcde")
    kubectl.refuses("exec")
    assert launcher.main(["status", logdir]) == 0
    assert "has not written its status yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("process", "role", "index"), [("learner-1", "learner", 1), ("actor-9", "actor", 2)]
)
def test_logs_are_those_of_the_pod_that_has_the_process(
    kubectl: Kubectl, tmp_path: Path, process: str, role: str, index: int
) -> None:
    """Each pod has four actors."""
    logdir = submitted(tmp_path, kubectl)
    assert launcher.main(["logs", process, "-f", logdir]) == 0
    (call,) = kubectl.calls()
    assert f"app.kubernetes.io/name={role},impala-tf/run={name(tmp_path)}," in call
    assert f"batch.kubernetes.io/job-completion-index={index} -c={role} " in call
    assert call.endswith(" -f")


def test_stop_takes_the_jobs_away_and_waits_for_the_checkpoint(
    kubectl: Kubectl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logdir = submitted(tmp_path, kubectl)
    kubectl.answers("get", "job.batch/pong-learner\n")
    assert launcher.main(["stop", logdir]) == 0
    assert "the learners write a checkpoint" in capsys.readouterr().out
    assert "--cascade=foreground" in kubectl.calls()[-1], "the Jobs must stay until it is written"
    kubectl.answers("get", "")
    assert launcher.main(["stop", logdir]) == 0
    assert "no Jobs in Kubernetes any more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["logs", "supervisor"], 1, "supervisor: no process of a run"),
        (["stop", "actor-1"], 2, "stop actor-1: only for runs over SSH"),
    ],
)
def test_what_it_cannot_do_is_said_in_one_line(
    kubectl: Kubectl,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    line: str,
) -> None:
    logdir = submitted(tmp_path, kubectl)
    capsys.readouterr()
    assert launcher.main([*words, logdir]) == status
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1
    assert kubectl.calls() == []


def test_without_kubectl_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_here: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    logdir = tmp_path / "run"
    given = ("--engine=kubernetes", "--level_name=CartPole-v1", f"--logdir={logdir}")
    status, _, err = run_here(*given)
    assert (status, err.count("\n")) == (2, 1)
    assert "--engine=kubernetes: no kubectl here" in err
    assert not logdir.exists()


def test_the_text_with_comments_is_still_yaml(tmp_path: Path) -> None:
    found = list(yaml.load_all(kubernetes.render(flags(tmp_path)), yaml.CSafeLoader))
    assert [each["kind"] for each in found if each][:1] == ["Service"]
