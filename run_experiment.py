#!/usr/bin/env python3
"""Trains, runs one process of a cluster, evaluates, compares runs, or describes an agent."""

from impala_tf.main import main, program

__all__ = ["main"]

if __name__ == "__main__":
    program()
