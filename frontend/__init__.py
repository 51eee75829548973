"""Starts, watches and stops a run on the machines of a workers CSV, over SSH and in tmux.

Imports nothing of impala_tf but `impala_tf.config`, so it works without TensorFlow.
"""
