"""Measures the parts of a run, each in a process of its own: benchmark and describe."""
