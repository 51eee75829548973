"""run_experiment.py --join whose learners do not wait for long for others: hasty_node.py FLAGS."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs with the flags that follow."""
    import run_experiment
    from impala_tf.cluster.node import gathering

    gathering.FRESH_S, gathering.SETTLE_S = 3.0, 4.0
    gathering.GROW_S, gathering.ASK_S = 5.0, 1.0
    return run_experiment.main()


if __name__ == "__main__":
    sys.exit(main())
