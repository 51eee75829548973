"""--mode=describe: what it prints, and that it leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

CATCH = "--level_name=tests.helpers.worlds:Catch-v0"


def test_the_parameters_are_those_of_the_flags(
    run_here: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--agent_name=ImpoolaAgent", "--width_scale=2", "--core=lstm", "--precision=float32")
    code, out, err = run_here("--mode=describe", CATCH, *flags)
    assert (code, err) == (0, "")
    text = re.sub(" +", " ", out)
    assert text.startswith("ImpoolaAgent (lstm, width scale 2, float32) on ")
    # 3x3 convolutions from 1 channel to 32, 64 and 64 and in six blocks; 64 averages to 256; an
    # LSTM of 256; 3 actions and the baseline.
    sections = 9 * 32 + 32 + 4 * 9_248 + 166_208 + 184_640
    parameters = sections + 65 * 256 + 513 * 1_024 + 257 * 4
    assert f"total {parameters:,} " in text
    assert "lstm/lstm/w_h 256x1024 262,144" in text
    assert list(tmp_path.iterdir()) == []
