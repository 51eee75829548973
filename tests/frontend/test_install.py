"""`python -m impala_tf.frontend.install`, which `make train` and `make test` use."""

import configparser
import os
import subprocess
import sys
import venv

import pytest

from impala_tf.frontend import pip_settings
from tests.helpers.runs import PROJECT


def test_uv_is_told_what_pip_is_told():
    first = "[global]\nindex_url = http://first\nfind-links = /a\n  /b\n"
    second = "[install]\nextra-index-url = http://a\n http://b\n[global]\nindex-url = http://2"
    environment = {"PIP_INDEX_URL": "http://wins", "PIP_CERT": "/ca.pem", "PIP_TIMEOUT": "9"}
    options = pip_settings.written([first, second], environment)
    assert sorted(pip_settings.for_uv(options, {})) == [
        "SSL_CERT_FILE=/ca.pem", "UV_DEFAULT_INDEX=http://wins", "UV_FIND_LINKS=/a,/b",
        "UV_INDEX=http://a http://b", "UV_INDEX_STRATEGY=unsafe-best-match",
    ]  # fmt: skip
    assert not pip_settings.unknown(options)
    assert pip_settings.written([first, second], {})["index-url"] == "http://2"
    assert pip_settings.unknown({"no-binary": ":all:", "quiet": "1"}) == {"no-binary"}
    with pytest.raises(configparser.Error):
        pip_settings.written(["index-url\n"], {})


def test_uv_is_told_of_pips_proxy_unless_another_one_is_set():
    options = {"proxy": "http://proxy:3128"}
    assert pip_settings.for_uv(options, {})[1:] == [
        "HTTPS_PROXY=http://proxy:3128", "HTTP_PROXY=http://proxy:3128"
    ]  # fmt: skip
    assert pip_settings.for_uv(options, {"https_proxy": "http://other"})[1:] == [
        "HTTP_PROXY=http://proxy:3128"
    ]


def test_what_pip_lists_is_understood(tmp_path):
    """Only pip knows in which order its files override each other."""
    path = tmp_path / "pip.conf"
    path.write_text("[global]\nindex_url = http://file\nquiet = 1\nfind-links =\n  /a\n  /b\n")
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    printed = subprocess.check_output(
        [sys.executable, "-m", "pip", "config", "list"], text=True,
        env={**environment, "PIP_CONFIG_FILE": str(path), "PIP_QUIET": "0"},
    )  # fmt: skip
    options = pip_settings.listed(printed)
    assert (options["index-url"], options["find-links"].split()) == ("http://file", ["/a", "/b"])


@pytest.mark.long
@pytest.mark.parametrize("uv", ["works", "fails"])
def test_the_pinned_version_is_installed_with_uv_or_with_pip(tmp_path, uv):
    """Where uv cannot reach an index that pip can, pip installs."""
    venv.create(tmp_path, with_pip=True)
    if uv == "fails":
        program = tmp_path / "bin" / "uv"
        program.write_text("#!/bin/sh\nexit 2\n")
        program.chmod(0o755)
    python = tmp_path / "bin" / "python"
    done = subprocess.run(
        [str(python), "-m", "impala_tf.frontend.install", "iniconfig"], cwd=PROJECT,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("pip takes longer" in done.stderr) == (uv == "fails")
    code = "import iniconfig, importlib.metadata as m; print(m.version('iniconfig'))"
    version = subprocess.check_output([str(python), "-c", code], text=True).strip()
    assert f"iniconfig=={version}\n" in (PROJECT / "impala_tf" / "constraints.txt").read_text()
