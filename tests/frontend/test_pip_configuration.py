"""`frontend setup` on machines whose pip is configured."""

import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest

from impala_tf.frontend import packages
from impala_tf.frontend.connection import LocalRunner
from impala_tf.frontend.errors import ClusterError

pytestmark = pytest.mark.slow

ENVIRONMENT = dict(os.environ)
"""As it is before a test changes it."""


def test_a_broken_pip_conf_is_one_line(setup, tmp_path, monkeypatch):
    (tmp_path / "home" / ".pip").mkdir(parents=True)
    (tmp_path / "home" / ".pip" / "pip.conf").write_text("[global]\nindex-url\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    here = LocalRunner(setup.runner.node._replace(workdir=str(tmp_path)))
    with pytest.raises(ClusterError, match="node1: its pip.conf is malformed .*pip config list"):
        packages.index_settings(here)


@pytest.fixture
def configured(setup, tmp_path, monkeypatch):
    """Yields a function that sets up a machine whose pip.conf has some lines."""
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    path = tmp_path / "home" / ".pip" / "pip.conf"
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    here = LocalRunner(setup.runner.node._replace(workdir=str(tmp_path / "there")))
    (tmp_path / "there").mkdir()

    def run(*lines):
        path.write_text("\n".join(["[global]", *lines]) + "\n")
        return setup.installer().set_up(here, lambda share, text: None)

    return run


def test_a_machine_whose_pip_takes_no_index_gets_its_packages_from_links(configured, tmp_path):
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    # This machine's index may be known only to its environment, or to a file in HOME.
    command = [*download, tmp_path / "links", "iniconfig==2.1.0"]
    subprocess.run(command, check=True, env=ENVIRONMENT)
    assert configured(
        "no-index = true", f"find-links = {tmp_path / 'links'}", "index-url = http://127.0.0.1:9/"
    ).startswith("ready: 3 files copied")


def test_a_machine_whose_pip_has_a_proxy_uses_it_and_what_uv_is_not_told_is_named(configured):
    asked: list[bytes] = []

    def serve():
        with contextlib.suppress(OSError):  # it is closed
            while True:
                with proxy.accept()[0] as connection:
                    asked.append(connection.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(ClusterError) as caught:
            configured(
                f"proxy = http://127.0.0.1:{proxy.getsockname()[1]}", "no-binary = :none:",
                "index-url = https://nobody.invalid/simple",
            )  # fmt: skip
        proxy.shutdown(socket.SHUT_RDWR)
    assert asked[0].startswith(b"CONNECT nobody.invalid:443")
    (line,) = caught.value.problems
    assert line.endswith(
        "; pip there is configured with no-binary, which uv is not told; --wheelhouse takes the "
        "packages from here"
    )
    assert "\n" not in line
