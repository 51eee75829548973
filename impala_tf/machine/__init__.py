"""This machine: its processes, memory, logs and addresses, and the certificates of a run."""
