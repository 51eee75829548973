"""run_experiment.py whose learner hangs when it writes a checkpoint: hanging_run.py FILE FLAGS.

It hangs, as in a file system that does not answer, once FILE exists.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> int:
    """Runs with the flags that follow the first argument."""
    import run_experiment
    from impala_tf.learner import peers
    from impala_tf.learner.run_state import RunState

    trigger = Path(sys.argv.pop(1))
    save = RunState.save

    def save_or_hang(self: RunState) -> Path:
        while trigger.exists():
            time.sleep(1)
        return save(self)

    RunState.save = save_or_hang  # type: ignore[method-assign]
    peers.HUNG_S = 40.0
    return run_experiment.main()


if __name__ == "__main__":
    sys.exit(main())
