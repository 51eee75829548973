#!/usr/bin/env python3
"""Trains, runs one process of a cluster, evaluates, compares runs, or describes an agent."""

import sys

from impala_tf.main import main

if __name__ == "__main__":
    sys.exit(main())
