"""Starts, watches and stops a run on the machines of a workers CSV, over SSH and in tmux.

Imports only the light parts of impala_tf (see pyproject.toml), so it starts without TensorFlow.
"""
