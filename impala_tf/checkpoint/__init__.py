"""Checkpoints that are complete or absent, and the state of a run that they hold."""
