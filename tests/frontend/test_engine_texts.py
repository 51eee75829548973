"""What --engine=kubernetes writes, and the flags that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from impala_tf.config import ENGINES, ConfigError, Given, problems
from impala_tf.frontend.engines import kubernetes, registry

FOLDER = Path(__file__).parent
FLAGS: dict[str, Any] = {
    "logdir": "runs/pong", "level_name": "CartPole-v1", "seed": 3, "level_kwargs": '{"a": "b c"}',
    "algorithm": "appo", "envs_per_actor": 32,
}  # fmt: skip
KUBERNETES = Given(
    {**FLAGS, "engine": "kubernetes", "kubernetes_learners": 2, "kubernetes_actors": 3,
     "kubernetes_namespace": "team", "kubernetes_actor_resources": "cpu=4,memory=4Gi",
     "kubernetes_learner_resources": "cpu=8,memory=32Gi,nvidia.com/gpu=1",
     "kubernetes_learner_image": "registry.example/learner:1", "kubernetes_storage_class": "nfs"}
)  # fmt: skip


@pytest.mark.parametrize(
    ("render", "flags", "golden"),
    [
        (kubernetes.render, KUBERNETES, "kubernetes.golden.yaml"),
    ],
)
def test_the_text_is_as_agreed(render: Callable[[Given], str], flags: Given, golden: str) -> None:
    """Look at every change of it: no cluster of these is there to try it on."""
    assert render(flags) == (FOLDER / golden).read_text()


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_can_be_chosen_and_prints_without_touching_anything(
    name: str, tmp_path: Path, run_here: Callable[..., tuple[int, str, str]]
) -> None:
    logdir = tmp_path / "run"
    flags = (f"--engine={name}", "--level_name=CartPole-v1", f"--logdir={logdir}", "--dry_run")
    status, out, err = run_here(*flags)
    assert (status, err) == (0, "")
    assert "--level_name=CartPole-v1" in out
    assert not logdir.exists()
    assert registry.found(tmp_path) is None


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"kubernetes_actors": 2}, "--kubernetes_actors: only with --engine=kubernetes"),
        (
            {"engine": "slurm", "kubernetes_claim": "x"},
            "--kubernetes_claim: only with --engine=kubernetes",
        ),
        ({"engine": "kubernetes", "fresh": True}, "--fresh: the run's folder is with kubernetes"),
        ({"engine": "kubernetes", "join": True}, "--join: --engine=kubernetes gives"),
        ({"engine": "kubernetes", "mode": "test"}, "--engine=kubernetes: trains"),
        (
            {"engine": "kubernetes", "join_learners": 2},
            "--join_learners: with --engine=kubernetes, give --kubernetes_learners",
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
                ("learner_resources", "cpu=two,memory=1Gi"),
                ("learner_resources", "cpu=1,memory=1Gi,gpu!=1"),
            )
        ),
    ],
)
def test_flags_that_do_not_fit_are_named(flags: dict[str, object], line: str) -> None:
    (found,) = problems(Given(flags))
    assert found.startswith(line)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    for name in ("kubernetes", "slurm"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.json").write_text('{"job"')
        with pytest.raises(ConfigError, match=f"{name}.json: not a record"):
            registry.found(folder)
