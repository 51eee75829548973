"""How much memory a run needs decides how many actors fit on a machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.machine.process_memory import PeakMemory, peak_mib
from tests.helpers.clock import Clock

MIB = 2**20


def test_memory_that_was_freed_still_counts() -> None:
    """A process that needed it once will need it again."""
    script = f"""if True:
        from impala_tf.machine.process_memory import peak_mib
        before = peak_mib()
        block = b"x" * {100 * MIB}
        del block
        print(peak_mib() - before)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert 95 < float(done.stdout) < 130, done.stderr


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


def test_a_system_that_does_not_tell_is_not_an_error(tmp_path: Path) -> None:
    assert peak_mib(tmp_path / "proc" / "self") is None
    assert PeakMemory(lambda: None).mib() == 0.0


def test_an_actor_does_not_read_it_with_every_push() -> None:
    """Reading it takes a millisecond in a process with many threads."""
    clock, values = Clock(100.0), iter([30.0, 50.0, 40.0])
    memory = PeakMemory(lambda: next(values), clock)
    assert [memory.mib(), memory.mib()] == [30.0, 30.0]
    clock.now += 4.9
    assert memory.mib() == 30.0
    clock.now += 0.2
    assert memory.mib() == 50.0
    clock.now += 6.0
    assert memory.mib() == pytest.approx(50.0)  # a child has ended: the peak stays


@pytest.mark.parametrize(("call", "arenas"), [("use_one_arena()", 1), ("peak_mib()", 5)])
def test_threads_share_one_arena(call: str, arenas: int) -> None:
    """Four threads that allocate at once have an arena each otherwise, and keep what they free."""
    script = f"""if True:
        import ctypes, threading
        from impala_tf.machine.process_memory import *
        {call}
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        together = threading.Barrier(4)
        def allocate():
            together.wait()
            libc.malloc(1000)
            together.wait()
        threads = [threading.Thread(target=allocate) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        libc.malloc_stats()
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.count("Arena ") == arenas, done.stderr


def test_memory_is_given_back_a_while_after_the_start() -> None:
    script = f"""if True:
        import time
        from pathlib import Path
        from impala_tf.machine import process_memory
        def resident():
            line = next(l for l in Path("/proc/self/status").open() if l.startswith("VmRSS"))
            return int(line.split()[1]) / 1024
        blocks = [b"x" * 100_000 for _ in range({2 * 100 * MIB // 200_000})]
        last = b"y" * 100_000  # above them, so that they are not given back by themselves
        del blocks
        before = resident()
        process_memory._STARTED_S = 0.1
        process_memory.give_back_after_start()
        for _ in range(600):
            time.sleep(0.1)
            if before - resident() > 50:
                break
        print(before - resident())
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert float(done.stdout) > 50, done.stdout + done.stderr
