"""run_experiment.py whose learner hangs when it writes a checkpoint: hanging_run.py FILE FLAGS.

It hangs, as in a file system that does not answer, once FILE exists.
"""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path


def main() -> int:
    """Runs with the flags that follow the first argument."""
    import run_experiment
    from impala_tf.learner.peers import Limits, Peers
    from impala_tf.learner.run_state import RunState
    from impala_tf.processes import learner_main

    trigger = Path(sys.argv.pop(1))
    save = RunState.save

    def save_or_hang(self: RunState) -> None:
        while trigger.exists():
            time.sleep(1)
        save(self)

    RunState.save = save_or_hang  # type: ignore[method-assign]
    learner_main.Peers = functools.partial(Peers, limits=Limits(hung_s=40.0))  # type: ignore
    return run_experiment.main()


if __name__ == "__main__":
    sys.exit(main())
