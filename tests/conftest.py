"""What all tests share, and which tests are skipped on machines that cannot run them."""

import os
import shutil
import signal
import subprocess
import tempfile
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest

from tests.helpers.clock import Clock
from tests.helpers.disks import mounted
from tests.helpers.programs import EVERYTHING_VARIABLE, need
from tests.helpers.sshd import running_sshd

pytest_plugins = ["tests.helpers.times", "tests.helpers.run_fixtures"]

# Where a test has a home of its own, ssh reads that one.
os.environ["PATH"] = f"{Path(__file__).parent}/helpers/bin:{os.environ['PATH']}"

# Quiet TensorFlow before anything imports it, in this process and in the ones that tests start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# A busy machine is slow, and that is no failure.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# A shell starts background jobs with Ctrl-C ignored, nohup ignores closed terminals, and children
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def clock(monkeypatch):
    """The clock that `impala_tf.monitoring.recorder` reads."""
    clock = Clock()
    monkeypatch.setattr("impala_tf.monitoring.recorder.time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def small_disk(tmp_path):
    """A small file system for the run's files."""
    with mounted(tmp_path / "logs") as folder:
        yield folder


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """A server that takes root with one key."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


def _succeeds(*argv):
    if shutil.which(argv[0]) is None:
        return False
    return subprocess.run(argv, capture_output=True, timeout=240).returncode == 0


def _has_docker():
    return _succeeds("docker", "info")


def _has_ray():
    return find_spec("ray") is not None


def _has_namespaces():
    name = f"imp-probe-{os.getpid()}"
    made = _succeeds("ip", "netns", "add", name)
    return made and _succeeds("ip", "netns", "delete", name)


def _has_slurm():
    daemons = ("munged", "slurmctld", "slurmd")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    return os.geteuid() == 0 and all(shutil.which(name, path=path) for name in daemons)


def _has_procgen():
    return find_library("Qt5Gui") is not None


# By the marker of the tests that need it, or, of Procgen, a part of their names.
CAPABILITIES = {
    "procgen": (_has_procgen, "a library is missing (apt-get install libqt5gui5)"),
    "docker": (_has_docker, "no Docker engine answers (docker/engine-for-tests starts one)"),
    "cluster": (_has_namespaces, "network namespaces cannot be made here (root, iproute2)"),
    "slurm": (_has_slurm, "Slurm cannot run here (root, slurm-wlm, munge)"),
    "ray": (_has_ray, "Ray is not installed (make setup-dev)"),
    "zoo": (_has_namespaces, "network namespaces cannot be made here (root, iproute2)"),
}


def pytest_collection_modifyitems(items):
    """Skips, with the reason, the tests that need what this machine lacks."""
    if os.environ.get(EVERYTHING_VARIABLE):
        return
    for name, (has, reason) in CAPABILITIES.items():
        needing = [
            item
            for item in items
            if item.get_closest_marker(name) or (name == "procgen" and name in item.nodeid)
        ]
        if needing and not has():
            for item in needing:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="session")
def records_of_launches(tmp_path_factory):
    """Keeps records of launches out of the developer's own."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def same_signal_handlers():
    """Undoes what a command does that a test calls in this process.

    A command ignores SIGTERM when it ends. The processes of later tests would inherit that.
    """
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def private_tmux(monkeypatch):
    """Gives the test a tmux server of its own, ended afterwards with everything in it."""
    need("tmux", "tmux")
    with tempfile.TemporaryDirectory(prefix="tmux-") as folder:
        monkeypatch.setenv("TMUX_TMPDIR", folder)
        monkeypatch.delenv("TMUX", raising=False)
        yield
        monkeypatch.undo()  # A test may have hidden tmux from itself.
        environment = {**os.environ, "TMUX_TMPDIR": folder}
        subprocess.run(["tmux", "kill-server"], capture_output=True, env=environment)
