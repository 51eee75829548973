"""--track=wandb, offline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from impala_tf.config import ConfigError
from impala_tf.monitoring.metrics import METRICS, TENSORBOARD_TAGS
from impala_tf.monitoring.wandb_writer import WandbWriter
from tests.helpers.waiting import wait_until


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """W&B reads the environment once, and leaves its service to child processes, until its end."""
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    wandb.teardown()


def row(frames: int) -> dict[str, float | int | None]:
    return {**dict.fromkeys(METRICS), "environment_frames": frames, "episode_return_mean": 12.5}


def kept(logdir: Path) -> list[bytes]:
    """What waits for its upload, run by run."""
    return [file.read_bytes() for file in sorted(logdir.glob("wandb/offline-run-*/run-*.wandb"))]


def test_metrics_and_config_are_kept_for_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("WANDB_TAGS", "by-night")
    writer = WandbWriter(tmp_path, {"level_name": "CartPole-v1", "learning_rate": 0.25})
    writer.rewind(None)
    assert str(tmp_path / "wandb") in caplog.text and "sync" in caplog.text
    writer.write(row(400))
    writer.close()
    tag = TENSORBOARD_TAGS["episode_return_mean"].encode()
    expected = (tag, b"12.5", b"CartPole-v1", b"learning_rate", b"impala_tf", b"by-night")
    # A process of the package's own writes the file.
    wait_until(
        lambda: [all(text in data for text in expected) for data in kept(tmp_path)] == [True]
    )


def test_a_resumed_run_continues_the_same_run_and_a_fresh_one_does_not(tmp_path: Path) -> None:
    ids = []
    for checkpoint in (None, 400, None):
        writer = WandbWriter(tmp_path, {})
        writer.rewind(checkpoint)
        writer.close()
        ids.append((tmp_path / "wandb" / "run_id").read_text())
    assert ids[0] == ids[1] != ids[2]


def test_a_run_resumes_although_the_server_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A new run says so at once; a learner that is restarted must not end its run for it."""
    import wandb

    begin = wandb.init

    def unreachable(**settings: Any) -> Any:
        if settings.get("mode") != "offline":
            raise wandb.errors.CommError("no route to the server")
        return begin(**settings)

    monkeypatch.setattr(wandb, "init", unreachable)
    with pytest.raises(ConfigError, match="no route to the server; log in with"):
        WandbWriter(tmp_path, {}).rewind(None)
    writer = WandbWriter(tmp_path, {})
    writer.rewind(0)
    writer.write(row(400))
    writer.close()
    assert "no route to the server" in caplog.text
    wait_until(lambda: any(b"12.5" in data for data in kept(tmp_path)))


def test_without_a_login_the_problem_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a prompt that waits for an answer on a machine without a terminal."""
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="^--track=wandb: .*set WANDB_MODE=offline$"):
        WandbWriter(tmp_path, {}).rewind(None)
