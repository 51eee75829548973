"""What --engine=kubernetes and --engine=skypilot write, and the flags that they refuse."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_tf.config import ENGINES, ConfigError, Given, command_line, problems, user_commands
from impala_tf.frontend import main as launcher
from impala_tf.frontend.engines import kubernetes, ray, registry, skypilot
from impala_tf.frontend.inventory import Row
from impala_tf.frontend.plan import LocalNode, make_plan

FOLDER = Path(__file__).parent
REQUIRED = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"][
    "requires-python"
]
FLAGS: dict[str, Any] = {
    "logdir": "runs/pong", "level_name": "CartPole-v1", "seed": 3, "level_kwargs": '{"a": "b c"}',
    "algorithm": "appo", "envs_per_actor": 32,
}  # fmt: skip
KUBERNETES = Given(
    {**FLAGS, "logdir": "/example/pong", "engine": "kubernetes",
     "kubernetes_learners": 2, "kubernetes_actors": 3, "kubernetes_namespace": "team",
     "kubernetes_actor_resources": "cpu=4,memory=4Gi",
     "kubernetes_learner_resources": "cpu=8,memory=32Gi,nvidia.com/gpu=1",
     "kubernetes_learner_image": "registry.example/learner:1", "kubernetes_storage_class": "nfs"}
)  # fmt: skip
SKYPILOT = Given(
    {**FLAGS, "engine": "skypilot", "skypilot_learners": 2, "skypilot_actors": 3,
     "skypilot_resources": "infra=aws,cpus=16+,use_spot=true,disk_size=100",
     "mirror": "s3://bucket/pong"}
)  # fmt: skip


@pytest.mark.parametrize(
    ("render", "flags", "golden"),
    [
        (kubernetes.render, KUBERNETES, "kubernetes.golden.yaml"),
        (skypilot.render, SKYPILOT, "skypilot.golden.yaml"),
    ],
)
def test_the_text_is_as_agreed(render: Callable[[Given], str], flags: Given, golden: str) -> None:
    """Look at every change of it: no cluster of these is there to try it on."""
    assert render(flags) == (FOLDER / golden).read_text()


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_can_be_chosen_and_prints_without_touching_anything(
    name: str, tmp_path: Path, run_here: Callable[..., tuple[int, str, str]]
) -> None:
    logdir, csv = tmp_path / "run", tmp_path / "w.csv"
    csv.write_text("job,ip,tf_port\nlearner,10.9.9.1,8001\nactor,10.9.9.2,\n")
    flags = [f"--engine={name}", "--level_name=CartPole-v1", f"--logdir={logdir}", "--dry_run"]
    flags += [f"--workers_csv_path={csv}"] if name == "ssh" else []
    status, out, err = run_here(*flags)
    assert (status, err) == (0, "")
    assert ("learner-0" if name == "ssh" else "--level_name=CartPole-v1") in out
    assert not logdir.exists()
    assert registry.found(tmp_path).name == "ssh", "it says that there is no run"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        *((words, "") for words in (["attach", "x"], ["exec", "--", "x"], ["fetch"],
           ["restart", "x"], ["add"], ["revoke", "x"], ["stacks"], ["watch"])),
        (["status", "--follow"], " --follow"), (["logs", "learner-0", "x"], " HOST"),
        (["stop", "--timeout_s=0"], " --timeout_s"),
    ],
)  # fmt: skip
def test_what_only_ssh_has_is_refused_for_others(
    words: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slurm.json").write_text('{"job": 7}')
    assert launcher.main([words[0], f"--logdir={tmp_path}", *words[1:]]) == 2
    assert capsys.readouterr().err == (
        f"{words[0]}{option}: only for runs over SSH; {tmp_path} has a run of --engine=slurm\n"
    )


def test_every_way_of_starting_a_run_gives_it_the_same_batch(tmp_path: Path) -> None:
    """An unroll of every environment, of the learner that has the fewest actors."""
    run = Given({"algorithm": "ppo", "envs_per_actor": 8, "logdir": str(tmp_path)})
    rows = [
        *(Row(2, "learner", f"10.9.9.{number}", 8001) for number in (1, 2)),
        *(Row(9, "actor", "10.9.9.3") for _ in range(5)),
    ]
    plan = make_plan(run, rows, LocalNode(tmp_path, "p", tmp_path, lambda host: False))
    pods = run.replace(kubernetes_learners=2, kubernetes_actors=5, actors_per_node=1)
    for text in (
        "\n".join(plan.processes[0].arguments),
        ray.render(run.replace(ray_learners=2, ray_actors=5)),
        kubernetes.render(pods),
    ):
        assert "--num_actors=5" in text and "--batch_size=16" in text


def task(flags: Given) -> dict[str, Any]:
    return dict(yaml.safe_load(skypilot.render(flags)))


def given_to_a_node(flags: Given) -> Given:
    """The flags of a node of SkyPilot, as its shell reads them there."""
    lines = task(flags)["run"].splitlines()
    program, script, *words = shlex.split(lines[-1], comments=False)
    assert (program, script) == (".venv/bin/python", "run_experiment.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYPILOT_NODE_RANK", "1")
        patch.setenv("SKYPILOT_NODE_IPS", "\n".join(f"10.0.0.{n}" for n in range(5)))
        patch.delenv("TF_CONFIG", raising=False)
        return command_line.parse(words)


def test_a_node_of_skypilot_has_the_runs_flags_and_its_part() -> None:
    found = given_to_a_node(SKYPILOT)
    assert (found["job_name"], found["task"]) == ("learner", 1)
    assert found["learner_hosts"] == "10.0.0.0:8001,10.0.0.1:8001"
    for name in (*FLAGS, "mirror"):
        assert name == "logdir" or found[name] == SKYPILOT[name]
    assert task(SKYPILOT)["num_nodes"] == 5


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=["Cs", "Cc"])))
def test_no_flag_changes_on_its_way_to_a_node_of_skypilot(text: str) -> None:
    assert given_to_a_node(SKYPILOT.replace(track_group=text))["track_group"] == text


def test_bash_can_read_what_skypilot_runs() -> None:
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task(SKYPILOT)[part], text=True, check=True)


@pytest.mark.parametrize(
    ("flags", "extras"),
    [
        ({}, "learner"),
        ({"level_name": "procgen:coinrun"}, "learner,procgen"),
        ({"level_name": "retro:Airstriker-Genesis-v0"}, "learner,retro"),
        ({"level_name": "CartPole-v1,Ant-v5", "track": "wandb"}, "learner,worlds,wandb"),
        ({"mirror": "gs://bucket/run"}, "learner,mirror"),
    ],
)
def test_machines_of_skypilot_install_what_the_run_needs(
    flags: dict[str, str], extras: str
) -> None:
    """Every node ended because a package of its level was missing, on machines that cost money."""
    setup = task(SKYPILOT.without("mirror").replace(**flags))["setup"]
    assert f" -e '.[{extras}]'" in setup
    assert (" gcsfs" in setup) == flags.get("mirror", "").startswith("gs://")
    assert ("libqt5gui5" in setup) == ("procgen" in extras)
    subprocess.run(["bash", "-n"], input=setup, text=True, check=True)


FITS, IS_OLD, HAS_NO_VENV = "", "sys.version_info = 3, 10, 14", "sys.modules['ensurepip'] = None"
"""What is special about a stand-in for Python; this interpreter is what it is otherwise."""
BY_UV = f"uv venv --seed --allow-existing --python {REQUIRED} .venv"


def set_up_by_skypilot(
    folder: Path, programs: dict[str, str]
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Runs what SkyPilot runs on a new machine; returns its end, and what its programs did."""
    work = folder / "work"
    work.mkdir()
    for name, special in programs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"""#!/bin/bash
[ "$1" != -c ] || exec {sys.executable} -c "import sys; {special}
$2"
echo {path.name} "$@" >> calls
{shutil.which("mkdir")} -p .venv/bin
printf '#!/bin/sh\\necho pip "$@" >> calls\\n' > .venv/bin/python
{shutil.which("chmod")} 755 .venv/bin/python
""")
        path.chmod(0o755)
    text = task(SKYPILOT.without("mirror").replace(skypilot_learners=1))["setup"]
    done = subprocess.run(
        [str(shutil.which("bash")), "-c", text], cwd=work, capture_output=True, text=True,
        env={"PATH": str(folder / "bin"), "HOME": str(folder)}, timeout=60,
    )  # fmt: skip
    calls = work / "calls"
    return done, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(
    ("programs", "call"),
    [
        ({"bin/python3": IS_OLD, ".local/bin/uv": ""}, BY_UV),
        ({"bin/python3.12": HAS_NO_VENV, "bin/uv": ""}, BY_UV),
        ({"bin/python3.11": FITS, "bin/python3": IS_OLD, "bin/uv": ""}, "python3.11 -m venv .venv"),
        ({"bin/python3.11": HAS_NO_VENV, "bin/python3.12": FITS}, "python3.12 -m venv .venv"),
        ({"bin/python3": FITS}, "python3 -m venv .venv"),
    ],
)
def test_a_machine_of_skypilot_gets_a_python_that_fits(
    programs: dict[str, str], call: str, tmp_path: Path
) -> None:
    """SkyPilot's own images have Python 3.10: pip refused the project on machines that cost money.

    They have uv, for SkyPilot itself.
    """
    done, calls = set_up_by_skypilot(tmp_path, programs)
    assert (done.returncode, done.stderr, calls[0]) == (0, "", call)
    assert calls[1].startswith("pip -m pip install -c impala_tf/constraints.txt -e .[learner]")


def test_a_machine_of_skypilot_without_a_python_that_fits_says_so(tmp_path: Path) -> None:
    done, calls = set_up_by_skypilot(tmp_path, {"bin/python3": IS_OLD})
    line = "setup: there is neither Python 3.11 or 3.12 with venv, nor uv; choose another image\n"
    assert (done.returncode, done.stderr, calls) == (1, line, [])


def test_only_a_run_with_a_mirror_can_be_recovered_on_other_machines() -> None:
    assert task(SKYPILOT)["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    assert "sky jobs launch -n pong " in skypilot.render(SKYPILOT)
    kept = SKYPILOT.without("mirror")
    assert "job_recovery" not in task(kept)["resources"]
    assert "sky launch -c pong " in skypilot.render(kept)


@pytest.mark.parametrize("is_checkout", [True, False])
def test_skypilot_copies_no_other_folder_to_rented_machines(
    is_checkout: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be the home folder with ~/.ssh, if the user stands there."""
    monkeypatch.setattr(user_commands, "IS_CHECKOUT", is_checkout)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--engine=skypilot: SkyPilot copies the current folder"):
        skypilot.submit(SKYPILOT.replace(logdir=str(tmp_path / "pong")))
    assert not (tmp_path / "pong").exists()


def test_skypilots_resources_have_the_types_of_yaml() -> None:
    found = task(SKYPILOT)["resources"]
    assert (found["cpus"], found["use_spot"], found["disk_size"]) == ("16+", True, 100)


@pytest.mark.parametrize("value", ["*/us-east-1", "@x", "{a", "2026-13-01"])
def test_a_resource_of_skypilot_that_is_no_yaml_is_a_text(value: str) -> None:
    """Such as the place in any cloud, */us-east-1: it was a traceback of the YAML parser."""
    found = task(SKYPILOT.replace(skypilot_resources=f"infra={value}"))
    assert found["resources"]["infra"] == value


def test_what_skypilot_needs_is_written_and_its_commands_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = SKYPILOT.replace(logdir=str(tmp_path / "pong"))
    assert skypilot.submit(flags) == 0
    assert "sky jobs launch -n pong" in capsys.readouterr().out
    assert (tmp_path / "pong" / "skypilot.yaml").read_text() == skypilot.render(flags)
    for there, here in task(flags)["file_mounts"].items():
        assert Path(there).parent == Path("~/impala_tf-credentials")
        assert Path(here).stat().st_mode & 0o077 == 0 and Path(here).name == Path(there).name
    for words, said in (
        (["status"], "sky jobs queue"),
        (["logs", "learner-0"], "sky jobs logs -n pong"),
        (["stop"], "sky jobs cancel -n pong"),
    ):
        assert launcher.main([*words, f"--logdir={flags['logdir']}"]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"kubernetes_actors": 2}, "--kubernetes_actors: only with --engine=kubernetes"),
        (
            {"engine": "skypilot", "kubernetes_claim": "x"},
            "--kubernetes_claim: only with --engine=kubernetes",
        ),
        ({"engine": "kubernetes", "fresh": True}, "--fresh: the run's folder is with kubernetes"),
        ({"engine": "kubernetes", "join": True}, "--join: --engine=kubernetes gives"),
        ({"engine": "kubernetes", "mode": "test"}, "--engine=kubernetes: trains"),
        ({"engine": "ssh"}, "--engine=ssh: name the machines with --workers_csv_path=FILE"),
        (
            {"engine": "ssh", "workers_csv_path": "w.csv", "slurm_actors": 2},
            "--slurm_actors: only with --engine=slurm",
        ),
        (
            {"engine": "skypilot", "join_learners": 2},
            "--join_learners: with --engine=skypilot, give --skypilot_learners",
        ),
        *(
            ({"engine": "skypilot", "mirror": place}, f"--mirror={place}: would be lost with")
            for place in ("/mnt/share/pong", "pong", "file:///mnt/pong")
        ),
        ({"engine": "skypilot", "skypilot_resources": "aws"}, "--skypilot_resources=aws: 'aws'"),
        ({"engine": "skypilot", "skypilot_resources": "a-b=1"}, "--skypilot_resources=a-b=1: a-b"),
        (
            {"engine": "skypilot", "skypilot_resources": "cpus=1,cpus=2"},
            "--skypilot_resources=cpus=1,cpus=2: cpus is given twice",
        ),
        *(
            ({"engine": "kubernetes", f"kubernetes_{name}": text}, f"--kubernetes_{name}={text}: ")
            for name, text in (
                ("namespace", "Team"),
                ("namespace", "-n"),
                ("claim", "a b"),
                ("storage", "big"),
                ("storage_class", "x\n"),
                ("learner_image", ""),
                ("actor_image", "a image"),
                ("actor_resources", "cpu"),
                ("actor_resources", "memory=1Gi"),
                ("actor_resources", "cpu=2Gi,memory=2"),
                ("learner_resources", "cpu=2k,memory=2Gi"),
                ("learner_resources", "cpu=two,memory=1Gi"),
                ("learner_resources", "cpu=1,memory=1Gi,gpu!=1"),
            )
        ),
    ],
)
def test_flags_that_do_not_fit_are_named(flags: dict[str, object], line: str) -> None:
    (found,) = problems(Given(flags))
    assert found.startswith(line)


def test_the_newest_run_of_a_folder_counts(tmp_path: Path) -> None:
    """`stop` must not say that an ended job is gone while another engine's run trains."""
    for second, name in enumerate(("slurm", "cluster", "ray"), 1):
        path = tmp_path / f"{name}.json"
        path.write_text("{}")
        os.utime(path, (second, second))
        if name == "cluster":
            assert registry.found(tmp_path).name == "ssh"
            continue
        with pytest.raises(ConfigError, match=f"{name}.json"):
            registry.found(tmp_path)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    for name in ("kubernetes", "skypilot", "slurm"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.json").write_text('{"job"')
        with pytest.raises(ConfigError, match=f"{name}.json: not a record"):
            registry.found(folder)
