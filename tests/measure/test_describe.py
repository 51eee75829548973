"""--mode=describe: what it prints, and that it leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from impala_tf.measure import in_processes
from impala_tf.measure.acting import Measured
from tests.helpers.progress import only_tells

CATCH = "--level_name=tests.helpers.worlds:Catch-v0"


@pytest.fixture
def described(
    run_here: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Returns what --mode=describe prints with the given flags, without measuring."""
    found = {
        "inference": Measured(1234.4, "CPU, 1 thread", 512.0),
        "update": Measured(5.6, "GPU", 64.0),
    }
    monkeypatch.setattr(in_processes, "measure", lambda what, *_: found[what])
    monkeypatch.chdir(tmp_path)

    def text(*flags: str) -> str:
        code, out, err = run_here("--mode=describe", *flags)
        assert (code, err) == (0, "")
        assert list(tmp_path.iterdir()) == []
        return re.sub(" +", " ", out)

    return text


def test_parameters_and_speed_are_those_of_the_flags(described: Callable[..., str]) -> None:
    flags = ("--agent_name=ImpoolaAgent", "--width_scale=2", "--core=lstm", "--precision=float32")
    text = described(CATCH, *flags, "--batch_size=3", "--unroll_length=5", "--envs_per_actor=7")
    assert text.startswith("ImpoolaAgent (lstm, width scale 2, float32) on ")
    # 3x3 convolutions from 1 channel to 32, 64 and 64 and in six blocks; 64 averages to 256; an
    # LSTM of 256; 3 actions and the baseline.
    sections = 9 * 32 + 32 + 4 * 9_248 + 166_208 + 184_640
    parameters = sections + 65 * 256 + 513 * 1_024 + 257 * 4
    assert f"total {parameters:,} " in text
    assert "lstm/lstm/w_h 256x1024 262,144" in text
    assert "inference, 7 environments CPU, 1 thread 1,234 512.0 MiB" in text
    assert "update, batch of 3 x 5 steps GPU 6 64.0 MiB" in text


@pytest.mark.long
def test_speed_is_measured_in_processes_that_end(start: Callable[..., Any], tmp_path: Path) -> None:
    """The real thing: no run, no files, and numbers above zero."""
    run = start("--mode=describe", "--level_name=CartPole-v1", cwd=tmp_path)
    code, out, err = run.wait()
    assert code == 0 and only_tells(err), err
    for what in ("inference, 32 environments", "update, batch of 16 x 20 steps"):
        assert re.search(rf"{what} .* [1-9][\d,]* +[\d.]+ MiB", out), out
    assert run.alive() == []
    assert list(tmp_path.iterdir()) == []
