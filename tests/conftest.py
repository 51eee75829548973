"""What every test shares, and what a machine must be able to do for some of them."""

import os
import shutil
import signal
import subprocess
from types import SimpleNamespace

import pytest

from tests.recorder_clock import Clock

# Quiet TensorFlow before anything imports it, in this process and in the ones that tests start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# Shells start what runs in the background with Ctrl-C ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where this is set, as in .ci/run, a test that the machine cannot hold fails instead of being
# left out.
EVERYTHING_VARIABLE = "IMPALA_TF_TEST_EVERYTHING"


@pytest.fixture
def clock(monkeypatch):
    """What `impala_tf.monitoring.recorder` takes the time from."""
    clock = Clock()
    monkeypatch.setattr("impala_tf.monitoring.recorder.time", SimpleNamespace(monotonic=clock))
    return clock


def _succeeds(*argv):
    if shutil.which(argv[0]) is None:
        return False
    return subprocess.run(argv, capture_output=True, timeout=60).returncode == 0


def _has_docker():
    compose = (("docker", "compose"), ("docker-compose",))
    return _succeeds("docker", "info") and any(_succeeds(*each, "version") for each in compose)


def _has_namespaces():
    name = f"imp-probe-{os.getpid()}"
    made = _succeeds("ip", "netns", "add", name)
    return made and _succeeds("ip", "netns", "delete", name)


CAPABILITIES = {
    "docker": (_has_docker, "no Docker engine answers, or there is no Compose"),
    "cluster": (_has_namespaces, "network namespaces cannot be made here (root, iproute2)"),
}


def pytest_collection_modifyitems(items):
    """Leaves out, with the reason, what a machine cannot hold: namespaces in a container, say."""
    if os.environ.get(EVERYTHING_VARIABLE):
        return
    for marker, (has, reason) in CAPABILITIES.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not has():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
