"""Programs that tests need and a bare machine lacks."""

import os
import shutil

import pytest

EVERYTHING_VARIABLE = "IMPALA_TF_TEST_EVERYTHING"
"""If it is set, as in .ci/run, a test that the machine cannot run fails; else it is skipped."""


def skip_or_fail(reason: str) -> None:
    """Ends the test: it fails if no test may be skipped."""
    (pytest.fail if os.environ.get(EVERYTHING_VARIABLE) else pytest.skip)(reason)


def need(program: str, package: str) -> str:
    """Returns the path of a program; skips the test if it is missing, and names its package."""
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        skip_or_fail(f"{program} is missing (apt-get install {package})")
    return str(path)
