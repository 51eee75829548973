"""How much memory a run needs decides how many actors fit on a machine."""

from __future__ import annotations

import subprocess
import sys

from impala_tf.machine.process_memory import peak_mib

MIB = 2**20


def test_the_processes_of_an_actors_environments_count() -> None:
    """Most of an actor's memory may be theirs."""
    before = peak_mib()
    script = f"block = b'x' * {100 * MIB}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = peak_mib()
        child.communicate(b"\n")
    after = peak_mib()
    assert before is not None and during is not None and after is not None
    assert during - before > 95
    assert after < during - 95  # a process that has ended does not
