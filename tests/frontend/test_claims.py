"""What only one process of a user does at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.frontend.claims import claimed, name_of

CLAIM = """
import pathlib, sys
from impala_tf.frontend.claims import claimed, name_of
with claimed(f"run in {name_of(pathlib.Path(sys.argv[1]))}") as is_only:
    print(is_only)
"""


def test_a_claim_of_a_path_is_for_the_folders_that_its_process_sees(tmp_path: Path) -> None:
    """Two containers in one network may each have a folder of their own at /runs."""
    command = [sys.executable, "-c", CLAIM, str(tmp_path)]
    with claimed(f"run in {name_of(tmp_path)}") as is_only:
        assert is_only
        assert subprocess.check_output(command) == b"False\n"
        apart = ["unshare", "--map-current-user", "--mount"]
        try:
            subprocess.run([*apart, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("this user may make no mount namespace")
        assert subprocess.check_output([*apart, *command]) == b"True\n"


STRANGER = """
import os, pathlib, socket, sys
from impala_tf.frontend import claims
os.setuid(65534)
os.getuid = lambda: 0
with claims.claimed(f"run in {claims.name_of(pathlib.Path(sys.argv[1]))}") as is_only:
    print(is_only, flush=True)
    sys.stdin.read()
"""


@pytest.mark.cluster
def test_another_user_cannot_keep_a_run_from_starting(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STRANGER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as stranger:
        assert stranger.stdout is not None and stranger.stdout.readline() == b"True\n"
        with claimed(f"run in {name_of(tmp_path)}") as is_only:
            assert is_only
            ours = [sys.executable, "-c", CLAIM, str(tmp_path)]
            assert subprocess.check_output(ours) == b"False\n"
        stranger.communicate()
