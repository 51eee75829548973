"""Starts, watches and stops a run on the machines of a workers CSV, through tmux and SSH.

Imports `impala_tf.config` and no other part of impala_tf, so that it works without TensorFlow.
"""
