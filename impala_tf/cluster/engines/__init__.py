"""Engines other than SSH and tmux that can run a job."""
