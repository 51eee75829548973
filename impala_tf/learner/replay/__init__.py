"""Replay: what a learner keeps of the unrolls that it received, and how it draws from that."""
