"""run_experiment.py --join whose learners do not wait for long for others: hasty_node.py FLAGS."""

from __future__ import annotations

import functools
import sys


def main() -> int:
    """Runs with the flags that follow."""
    import run_experiment
    from impala_tf.cluster.node import group
    from impala_tf.cluster.node.gathering import Times

    times = Times(fresh_s=3.0, settle_s=4.0, grow_s=5.0, ask_s=1.0)
    group.Membership = functools.partial(group.Membership, times=times)  # type: ignore
    return run_experiment.main()


if __name__ == "__main__":
    sys.exit(main())
