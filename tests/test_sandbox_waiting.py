"""Scripts in sandbox/ that wait for a process of theirs say why it does not come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import many_runs
import pytest
import soak

from tests.helpers.runs import PROJECT


def _process(folder: Path, code: str) -> tuple[subprocess.Popen[bytes], Path]:
    log = folder / "learner.log"
    with log.open("wb") as output:
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, stdout=output, stderr=output), log


def test_a_process_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """The reason is in its log, which the script is about to delete."""
    process, log = _process(tmp_path, "raise SystemExit('--unroll_length: must be more')")
    with pytest.raises(SystemExit) as caught:
        many_runs.wait_for(lambda: False, process, log)
    shown = "ended with 1; the end of learner.log:\n--unroll_length: must be more"
    assert caught.value.code == shown


def test_a_process_that_hangs_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """A script would never end."""
    process, log = _process(tmp_path, "import time; time.sleep(60)")
    try:
        assert many_runs.wait_for(lambda: True, process, log) < 10
        with pytest.raises(SystemExit) as caught:
            many_runs.wait_for(lambda: False, process, log, limit_s=0.5)
        assert str(caught.value.code).startswith("no progress in 0.5 s; the end of learner.log:")
    finally:
        process.kill()
        process.wait()


def test_a_soak_ends_if_its_learner_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It waited for ever for the key that this learner has not written."""
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('the port is in use')")
    monkeypatch.setattr(many_runs, "SCRIPT", script)
    processes = soak.Processes(tmp_path / "run")
    with pytest.raises(SystemExit, match="the port is in use"):
        processes.start_actors(1)
    processes.end()


@pytest.mark.slow
@pytest.mark.parametrize("script", ["benchmark_actor.py", "benchmark_scale.py"])
def test_a_wrong_flag_ends_a_script_at_once(script: str) -> None:
    """It waited for two minutes, and then showed a traceback without the reason."""
    done = subprocess.run(
        [sys.executable, f"sandbox/{script}", "--unroll_length=many"],
        cwd=PROJECT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--unroll_length=many: must be a whole number" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
