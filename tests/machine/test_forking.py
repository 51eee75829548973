"""Processes that are copies of a template are what they would be if they were started alone."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from impala_tf.machine import forking
from impala_tf.machine.forking import Template
from impala_tf.machine.supervision import Command, SupervisedProcess
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow

PROBE = """
import json, os, sys
print(json.dumps({
    "arguments": sys.argv, "folder": os.getcwd(), "variable": os.environ.get("PROBE"),
    "parent": os.getppid(), "group": os.getpgid(0) == os.getpid(), "name": __name__,
    "first_path": sys.path[0], "input": sys.stdin.read(),
    "descriptors": os.listdir("/proc/self/fd"),
    "has_tensorflow": "tensorflow" in sys.modules, "threads": len(os.listdir("/proc/self/task")),
    "shown": open("/proc/self/cmdline").read().rstrip(chr(0)),
}))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with Template(with_tensorflow=True) as made:
        yield made


def supervised(template: Template, folder: Path, script: str, *flags: str) -> SupervisedProcess:
    path = folder / "script.py"
    path.write_text(script)
    command = Command(
        "actor-0",
        (sys.executable, str(path), *flags),
        str(folder),
        str(folder / "log"),
        {"PROBE": "yes"},
        max_restarts=0,
    )
    return SupervisedProcess(command, starter=template.start, stop_timeout_s=5)


def outcome(process: SupervisedProcess) -> tuple[str, int | None]:
    process.start()
    process.join(120)
    assert not process.is_alive()
    return process.state.state, process.state.exit_status


def test_a_copy_is_what_the_script_would_be_alone(template: Template, tmp_path: Path) -> None:
    assert outcome(supervised(template, tmp_path, PROBE, "--a=1", "b c")) == ("failed", 7)
    found = json.loads((tmp_path / "log").read_text().splitlines()[0])
    assert found.pop("shown") == f"{sys.executable} {tmp_path / 'script.py'} --a=1 b c"
    assert len(found.pop("descriptors")) == 4  # one is the listed folder's
    assert found == {
        "arguments": [str(tmp_path / "script.py"), "--a=1", "b c"],
        "folder": str(tmp_path),
        "variable": "yes",
        "parent": os.getpid(),
        "group": True,
        "name": "__main__",
        "first_path": str(tmp_path),
        "input": "",
        "has_tensorflow": True,
        "threads": 1,
    }


def test_a_traceback_is_in_the_log(template: Template, tmp_path: Path) -> None:
    assert outcome(supervised(template, tmp_path, "1 / 0")) == ("failed", 1)
    log = (tmp_path / "log").read_text()
    assert "script.py" in log
    assert "ZeroDivisionError" in log


def test_copies_compute_each_on_their_own(template: Template, tmp_path: Path) -> None:
    script = (
        "import random, tensorflow as tf\n"
        "print(float(tf.reduce_sum(tf.function(lambda: tf.ones([1000, 1000]) @ tf.ones([1000, 1]),"
        " jit_compile=True)())), random.random())"
    )
    folders = [tmp_path / str(number) for number in range(2)]
    for folder in folders:
        folder.mkdir()
        assert outcome(supervised(template, folder, script)) == ("finished", 0)
    one, other = (
        next(line for line in (folder / "log").read_text().splitlines() if line[0] == "1")
        for folder in folders
    )
    assert one.split()[0] == other.split()[0] == "1000000.0"
    assert one != other


def test_a_copy_that_does_not_stop_is_killed_with_what_it_started(
    template: Template, tmp_path: Path
) -> None:
    script = (
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(subprocess.Popen(['sleep', '1000']).pid, flush=True)\n"
        "time.sleep(1000)"
    )
    process = supervised(template, tmp_path, script)
    process._stop_timeout_s = 0.5
    process.start()
    wait_until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text() != "")
    process.stop()
    process.join(30)
    assert process.state.exit_status == -signal.SIGKILL
    child = int((tmp_path / "log").read_text().split()[0])
    assert not Path(f"/proc/{child}").exists()


def test_without_its_template_a_process_starts_alone(tmp_path: Path) -> None:
    template = Template(with_tensorflow=False)
    template._process.kill()
    template._process.wait()
    time.sleep(0.1)
    try:
        assert outcome(supervised(template, tmp_path, PROBE)) == ("failed", 7)
    finally:
        template.close()
    log = (tmp_path / "log").read_text()
    assert log.startswith("without a template: ")
    assert '"has_tensorflow": false' in log


def test_a_copy_that_comes_too_late_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk: nobody would look after it, and the next process would be taken for it."""
    monkeypatch.setattr(forking, "_FORK_TIMEOUT_S", 0.05)
    with Template(with_tensorflow=False) as template:
        folders = [tmp_path / str(number) for number in range(2)]
        for folder in folders:
            folder.mkdir()
            assert outcome(supervised(template, folder, PROBE)) == ("failed", 7)
        assert template._process.wait(120) is not None  # it has read the request, and ended
        time.sleep(1)
    for folder in folders:
        first, *found = (folder / "log").read_text().splitlines()
        assert first.startswith("without a template: ")
        assert sum(line.startswith('{"arguments"') for line in found) == 1, found
    assert "timed out" in (folders[0] / "log").read_text()
    assert "did not answer before" in (folders[1] / "log").read_text()
