"""sandbox/one_process.py is what newcomers read first: it must learn, not only run."""

import re
import subprocess
import sys

import pytest

from tests.helpers.runs import PROJECT

pytestmark = pytest.mark.long


def test_it_learns_cartpole() -> None:
    """A random policy reaches 22, and this one about 300 after so many frames."""
    done = subprocess.run(
        [sys.executable, "sandbox/one_process.py", "--total_environment_frames=120000"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = re.search(r"mean return of the last 100 episodes: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > 100
    assert re.search(r"[\d,]+ of 120,000 frames, return +[\d.]+, entropy", done.stdout)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--algorithm=pqn"], "--algorithm=pqn: this script has impala and appo"),
        (["--seed", "2", "--algorithm", "pqn"], "--algorithm=pqn: this script has impala and appo"),
        (["CartPole-v0,CartPole-v1"], "this script learns one level; name one"),
    ],
)
def test_what_it_would_learn_wrongly_is_refused(words: list[str], expected: str) -> None:
    """Flags may have two words: the 2 of a seed is not the level."""
    done = subprocess.run(
        [sys.executable, "sandbox/one_process.py", *words],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2 and expected in done.stderr.splitlines()[-1], done.stderr
