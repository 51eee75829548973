"""TensorFlow computes with oneDNN on processors where it would not by itself."""

import os
import platform
import subprocess
import sys

import pytest

CODE = "import impala_tf, os; print(os.environ.get('TF_ENABLE_ONEDNN_OPTS'))"
DEFAULT = "1" if platform.machine() in ("x86_64", "AMD64") else "None"


@pytest.mark.parametrize(("given", "expected"), [(None, DEFAULT), ("0", "0")])
def test_it_is_asked_for_on_x86_unless_the_user_says_otherwise(
    given: str | None, expected: str
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    if given is not None:
        environment["TF_ENABLE_ONEDNN_OPTS"] = given
    said = subprocess.check_output([sys.executable, "-c", CODE], env=environment, text=True)
    assert said.strip() == expected
