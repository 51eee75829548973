"""`python -m impala_tf.frontend.install`, which `make train` and `make test` use."""

import configparser
import subprocess
import venv

import pytest

from impala_tf.frontend import pip_settings
from tests.helpers.runs import PROJECT


def test_uv_is_told_what_pip_is_told():
    written = (
        "[global]\nindex-url = http://first\n[install]\nextra-index-url = http://a\n http://b\n"
    )
    environment = {"PIP_INDEX_URL": "http://wins", "PIP_CERT": "/ca.pem", "PIP_CACHE_DIR": "/x"}
    assert sorted(pip_settings.for_uv(written, environment)) == [
        "SSL_CERT_FILE=/ca.pem", "UV_DEFAULT_INDEX=http://wins", "UV_INDEX=http://a http://b",
        "UV_INDEX_STRATEGY=unsafe-best-match",
    ]  # fmt: skip
    with pytest.raises(configparser.Error):
        pip_settings.for_uv("index-url\n", {})


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
    assert ("pip tries it" in done.stderr) == (uv == "fails")
    program = "import iniconfig, importlib.metadata as m; print(m.version('iniconfig'))"
    version = subprocess.check_output([str(python), "-c", program], text=True).strip()
    assert f"iniconfig=={version}\n" in (PROJECT / "impala_tf" / "constraints.txt").read_text()
